"""The centre burns, the standby takes over, and the centre is taken back: every record is counted on real clusters.

The two short drills run on one stack of their own, one after the other. All of it is nightly, and so are the drills
with alerts (`test_drill_alerts.py`); at each change single kills of a query, a cluster and a region are tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drill.cli import MOMENTS, SNAPSHOTS_S, TRIGGERS_S, points, sweep
from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import (
    Drill,
    DrillEnvironment,
    DrillSettings,
    FleetSettings,
    drill_stack,
    open_environment,
)

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.nightly, pytest.mark.timeout(900)]

SHORT = DrillSettings(fleet=FleetSettings(records_per_s=200), steady_s=4, after_s=2, alerts=False)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillEnvironment]:
    folder = tmp_path_factory.mktemp("drills")
    with drill_stack(folder, SHORT, print) as stack, open_environment(stack, folder / "ingest", SHORT, print) as opened:
        yield opened


def check(outcome: Outcome) -> None:
    """Every count, exactly; the seconds are the drill's own business, because this machine has other work."""
    found = outcome.found
    assert found.acknowledged > 1000
    assert (found.lost, found.lost_of_replicated, found.duplicates_in_table) == (0, 0, 0)
    assert found.in_table == found.acknowledged
    assert found.duplicates_before <= found.duplicates_bound
    assert found.first_through_s < 120


def test_the_centre_is_killed_and_then_taken_back_and_no_record_is_lost_or_counted_twice(
    environment: DrillEnvironment,
) -> None:
    check(run_drill(Drill.HQ_LOSS, environment))
    check(run_drill(Drill.FAILBACK, environment))


@pytest.mark.timeout(10_800)
def test_every_combination_of_the_sweep_holds(tmp_path: Path) -> None:
    results = list(sweep(tmp_path, DrillSettings(), points(SNAPSHOTS_S, TRIGGERS_S, MOMENTS), print))
    assert len(results) >= 30
    assert [result for result in results if not result.passed] == []
