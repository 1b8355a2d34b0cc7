"""A region, a link and the centre are lost and come back: every record is counted, and each alert has one verdict.

The drills run on one stack, one after the other; at each change single kills of a query, a cluster and a region are
tested.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.drill.drills import run_drill
from deploy.drill.environment import Drill, DrillEnvironment, DrillSettings, Moment, drill_stack, open_environment

pytestmark = [pytest.mark.system, pytest.mark.whole_stack, pytest.mark.nightly, pytest.mark.timeout(1200)]

SETTINGS = DrillSettings(records_per_s=200)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillEnvironment]:
    folder = tmp_path_factory.mktemp("drills")
    with (
        drill_stack(folder, SETTINGS, print) as stack,
        open_environment(stack, folder / "ingest", SETTINGS, print) as opened,
    ):
        yield opened


@pytest.mark.parametrize("drill", [Drill.REGION_LOSS, Drill.LINK_CUT, Drill.HQ_LOSS, Drill.FAILBACK])
def test_a_loss_is_survived_and_every_record_and_alert_is_accounted_for(
    environment: DrillEnvironment, drill: Drill
) -> None:
    """Every count, exactly; the seconds are the drill's own business, because this machine has other work."""
    outcome = run_drill(drill, environment)
    found, alerts = outcome.found, outcome.alerts
    assert found.acknowledged > 1000
    assert (found.lost_of_replicated, found.duplicates_in_table) == (0, 0)
    if drill is Drill.REGION_LOSS:  # only what it had not replicated burns with it
        assert found.lost <= found.not_replicated
        assert outcome.lost_after_return == 0
    else:
        assert (found.lost, found.in_table) == (0, found.acknowledged)
    if drill in {Drill.HQ_LOSS, Drill.FAILBACK}:
        assert found.duplicates_before <= found.duplicates_bound
        assert found.first_through_s < 120
    assert alerts.holds, alerts
    assert alerts.in_force["confirmed"] > 0


@pytest.mark.parametrize("moment", [Moment.PLANNED, Moment.WRITTEN, Moment.DONE])
def test_the_centre_may_be_lost_at_any_moment_of_a_micro_batch(environment: DrillEnvironment, moment: Moment) -> None:
    environment.settings = SETTINGS.model_copy(update={"moment": moment})
    for drill in (Drill.HQ_LOSS, Drill.FAILBACK):
        found = run_drill(drill, environment).found
        assert (found.lost, found.duplicates_in_table) == (0, 0)
        assert found.duplicates_before <= found.duplicates_bound
