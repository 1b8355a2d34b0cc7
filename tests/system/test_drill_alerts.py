"""A region, a link and the centre are lost, and still each alert that a region raised has exactly one verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import (
    Drill,
    DrillEnvironment,
    DrillSettings,
    FleetSettings,
    drill_stack,
    open_environment,
)

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.alone, pytest.mark.timeout(1200)]

SETTINGS = DrillSettings(fleet=FleetSettings(records_per_s=200), steady_s=4, after_s=2)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillEnvironment]:
    folder = tmp_path_factory.mktemp("drills")
    with (
        drill_stack(folder, SETTINGS, print) as stack,
        open_environment(stack, folder / "ingest", SETTINGS, print) as opened,
    ):
        yield opened


def check_alerts(outcome: Outcome) -> None:
    """Each has its verdict, whichever it is; of all of them some are confirmed."""
    assert outcome.alerts is not None
    assert outcome.alerts.holds, outcome.alerts
    assert outcome.alerts.in_force["confirmed"] > 0


def test_a_region_is_killed_and_only_what_it_had_not_replicated_burns_with_it(environment: DrillEnvironment) -> None:
    outcome = run_drill(Drill.REGION_LOSS, environment)
    assert outcome.found.lost_of_replicated == outcome.found.duplicates_in_table == 0
    assert outcome.found.lost <= outcome.found.not_replicated
    assert outcome.lost_after_return == 0
    check_alerts(outcome)


@pytest.mark.parametrize("drill", [Drill.LINK_CUT, Drill.HQ_LOSS, Drill.FAILBACK])
def test_a_link_is_cut_and_healed_and_the_centre_is_lost_and_taken_back(
    environment: DrillEnvironment, drill: Drill
) -> None:
    outcome = run_drill(drill, environment)
    found = outcome.found
    assert (found.lost, found.lost_of_replicated, found.duplicates_in_table) == (0, 0, 0)
    assert found.in_table == found.acknowledged
    check_alerts(outcome)
