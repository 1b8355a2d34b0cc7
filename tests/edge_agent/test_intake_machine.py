"""Any order of what can happen to an agent, against a model: one id for each message, no loss without a word."""

import pytest
from hypothesis import HealthCheck, settings

from tests.edge_agent.intake_machine import IntakeMachine

LONG = settings(max_examples=2_000, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", [SHORT, pytest.param(LONG, marks=pytest.mark.nightly)], ids=["short", "long"])
def test_any_order_of_events_keeps_one_id_for_each_message(form):
    case = IntakeMachine.TestCase
    case.settings = form
    case("runTest").runTest()
