"""The counts, tables and commands of drills, without a server."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from cloud_jobs.lake.coverage import DeviceStream
from deploy.demo.alert_audit import AlertAudit, VerdictRow, audit_alerts
from deploy.drill.cli import app, as_json, drill_table
from deploy.drill.drills import CentralTable, Outcome
from deploy.drill.environment import Drill
from deploy.drill.findings import (
    BatchCounts,
    Commit,
    DrillObservations,
    SeenRange,
    compute_findings,
)
from geo.alerts import AlertVerdict, VerdictKind
from geo.spatial.event_ids import Revision
from tests.new_lakes import new_lake
from waybill.record import IntervalSet

DEVICE = DeviceStream("fleet", "eu-0001", 7)
OTHER = DeviceStream("fleet", "us-0001", 7)


def seen(at_s: float, first: int, last: int, buffer: DeviceStream = DEVICE) -> SeenRange:
    return SeenRange(at_s, buffer, first, last)


def commit(at_s: float, first: int, last: int, buffer: DeviceStream = DEVICE) -> Commit:
    return Commit(at_s, {buffer: IntervalSet([(first, last)])})


TIMELINE = DrillObservations(
    receipts=[seen(2, 1, 10), seen(7, 11, 20), seen(14, 21, 30), seen(17, 31, 40), seen(22, 41, 50)],
    arrivals=[seen(2.1, 1, 10), seen(7.1, 11, 20), seen(15.2, 21, 30), seen(17.1, 31, 40), seen(22.1, 41, 50)],
    commits=[commit(4, 1, 10), commit(9, 11, 20), commit(19, 21, 40), commit(24, 41, 50)],
    batches=[BatchCounts(4, 10, 0), BatchCounts(9, 10, 0), BatchCounts(19, 30, 10), BatchCounts(24, 10, 0)],
    rows=50,
    steady_from_s=5,
    lost_at_s=15,
    counted_at_s=15,
    replicated_until_s=15,
    affected={DEVICE},
)

ranges = st.tuples(st.integers(1, 60), st.integers(0, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
moments = st.floats(0, 30, allow_nan=False)
buffers = st.sampled_from([DEVICE, OTHER])
sightings = st.lists(
    st.builds(lambda at_s, buffer, bounds: SeenRange(at_s, buffer, *bounds), moments, buffers, ranges), max_size=15
)
commits = st.lists(
    st.builds(lambda at_s, buffer, bounds: Commit(at_s, {buffer: IntervalSet([bounds])}), moments, buffers, ranges),
    max_size=15,
)


@given(sightings, sightings, commits)
def test_every_acknowledged_record_is_in_the_table_or_lost(
    receipts: list[SeenRange], arrivals: list[SeenRange], made: list[Commit]
) -> None:
    found = compute_findings(replace(TIMELINE, receipts=receipts, arrivals=arrivals, commits=made))
    assert found.acknowledged == found.in_table + found.lost
    assert 0 <= found.lost_of_replicated <= found.lost
    assert 0 <= found.not_replicated <= found.acknowledged


@given(sightings, sightings, commits)
def test_seeing_a_thing_twice_or_in_another_order_changes_no_count(
    receipts: list[SeenRange], arrivals: list[SeenRange], made: list[Commit]
) -> None:
    once = replace(TIMELINE, receipts=receipts, arrivals=arrivals, commits=made)
    twice = replace(once, receipts=[*receipts[::-1], *receipts], arrivals=[*arrivals, *arrivals], commits=made[::-1])
    assert compute_findings(once) == compute_findings(twice)


@given(sightings, sightings, commits, sightings)
def test_more_arrivals_never_make_more_unreplicated(
    receipts: list[SeenRange], arrivals: list[SeenRange], made: list[Commit], more: list[SeenRange]
) -> None:
    before = compute_findings(replace(TIMELINE, receipts=receipts, arrivals=arrivals, commits=made))
    after = compute_findings(replace(TIMELINE, receipts=receipts, arrivals=[*arrivals, *more], commits=made))
    assert after.not_replicated <= before.not_replicated


def test_the_drawn_timeline() -> None:
    found = compute_findings(TIMELINE)
    assert (found.acknowledged, found.in_table, found.lost, found.lost_of_replicated) == (50, 50, 0, 0)
    assert (found.not_replicated, found.first_through_s) == (10, 4)
    assert found.passed


def test_the_bound_is_two_micro_batches_and_a_snapshot_period_of_steady_traffic() -> None:
    found = compute_findings(TIMELINE)
    assert found.duplicates_bound == 2 * 10 + 2  # the batch of 30 came after the loss
    assert found.duplicates_before == 10


def test_a_replicated_record_that_is_missing_fails_and_one_that_was_not_replicated_is_counted_apart() -> None:
    without = [commit(4, 1, 10), commit(9, 11, 20), commit(19, 31, 40), commit(24, 41, 50)]
    lost_later = compute_findings(replace(TIMELINE, commits=without, rows=40))
    assert (lost_later.lost, lost_later.lost_of_replicated, lost_later.passed) == (10, 0, True)
    replicated = compute_findings(replace(TIMELINE, commits=without, rows=40, replicated_until_s=30))
    assert (replicated.lost, replicated.lost_of_replicated, replicated.passed) == (10, 10, False)


def test_the_first_record_through_is_one_that_was_acknowledged_after_the_loss() -> None:
    early = [*TIMELINE.commits[:2], commit(16, 21, 30), commit(29, 31, 50)]
    found = compute_findings(replace(TIMELINE, commits=early))
    assert found.first_through_s == 14


NEVER = compute_findings(replace(TIMELINE, commits=TIMELINE.commits[:2]))


def printed(table: object) -> str:
    paper = io.StringIO()
    Console(width=160, file=paper).print(table)
    return paper.getvalue()


def test_settings_that_cannot_be_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["hq-loss", "--records-per-s", "0", "--folder", str(tmp_path / "drill")])
    assert answer.exit_code == 2
    assert not (tmp_path / "drill").exists()


def test_the_table_is_read_from_its_log_with_the_moment_of_each_commit(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    table = CentralTable(lake, epoch=7)
    assert table.commits() == []
    lake.append("records", [row(1), row(2), row(2), row(9, epoch=8)])
    lake.append("records", [row(3)])
    first, second = table.commits()
    assert first.record_ids == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(1, 2)])}
    assert second.record_ids == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(3, 3)])}
    assert first.at_s <= second.at_s
    assert table.record_ids() == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(1, 3)])}
    assert table.rows() == 4


def row(seq: int, epoch: int = 7) -> dict[str, object]:
    fixed = {"tenant": "fleet", "device": "eu-0001", "kind": "position", "device_time": 1_767_603_422_000_000}
    return fixed | {"epoch": epoch, "seq": seq, "ingest_number": 1, "content_bytes": 32}


ROWS = [
    VerdictRow("a", 0, "withdrawn"),
    VerdictRow("a", 1, "confirmed"),
    VerdictRow("b", 0, "withdrawn"),
    VerdictRow("c", 0, "late"),
]
"""Of `a` and `b` an alert was raised, and `b` did not happen after all; of `c` no region raised one."""
EVENTS = [Revision("a", 0, "a"), Revision("b", 0, "b"), Revision("b", 1, "b", retracted=True), Revision("c", 0, "c")]


def message(row: VerdictRow) -> AlertVerdict:
    return AlertVerdict(
        id=wide(row.id), revision=row.revision, verdict=VerdictKind(row.verdict), tenant="t", device="d", decided_ms=1
    )


def wide(name: str) -> str:
    return name.rjust(24, "0")


def audited(
    announced: str = "aba", rows: list[VerdictRow] = ROWS, said: list[VerdictRow] | None = None, events: Any = EVENTS
) -> AlertAudit:
    return audit_alerts(
        [wide(one) for one in announced],
        [replace(one, id=wide(one.id)) for one in events],
        [row._replace(id=wide(row.id)) for row in rows],
        [message(row) for row in (rows if said is None else said)],
    )


def test_each_announced_id_has_one_verdict_in_force_and_they_are_counted_by_kind() -> None:
    found = audited()
    assert (found.holds, found.announced) == (True, 2)
    assert found.in_force == {"confirmed": 1, "corrected": 0, "withdrawn": 1, "late": 1}
    assert audited(said=ROWS + ROWS).holds is True, "a message that comes twice is the same verdict"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"rows": ROWS[:2] + ROWS[3:]}, "1 without a verdict", id="missing"),
        pytest.param({"announced": "abd"}, "1 without a verdict", id="no event"),
        pytest.param({"announced": "abc"}, "1 without a verdict", id="late, although announced"),
        pytest.param({"rows": [*ROWS, ROWS[1]]}, "1 there twice", id="twice"),
        pytest.param({"rows": [*ROWS, VerdictRow("d", 0, "withdrawn")]}, "1 on no alert", id="withdrawn, unknown"),
        pytest.param({"announced": "a"}, "1 on no alert", id="an alert that no topic has"),
        pytest.param({"said": ROWS[:-1]}, "1 not published", id="unpublished"),
        pytest.param({"said": [*ROWS[:-1], ROWS[-1]._replace(verdict="confirmed")]}, "2 not published", id="other"),
        pytest.param({"rows": [*ROWS, VerdictRow("d", 0, "late")]}, "events differ", id="of no event"),
        pytest.param({"events": [*EVENTS, Revision("d", 0, "d")]}, "events differ", id="an event without one"),
        pytest.param({"events": [*EVENTS, Revision("b", 2, "b")]}, "events differ", id="withdrawn, and happened"),
        pytest.param({"announced": "", "rows": [], "events": []}, "0 alerts", id="no alert at all"),
    ],
)
def test_what_is_not_one_verdict_is_counted(changed: dict[str, Any], said: str) -> None:
    found = audited(**changed)
    assert found.holds is False
    assert said in found.summary


@pytest.mark.parametrize("drill", list(Drill))
def test_every_drill_has_a_table_that_shows_each_count_and_what_does_not_hold(drill: Drill) -> None:
    outcome = Outcome(drill, compute_findings(TIMELINE), audited())
    text = printed(drill_table(outcome))
    for words in ("acknowledged to devices", "in the central table", "lost", "not yet replicated", "duplicates in"):
        assert words in text
    for words in ("duplicates before deduplication", "first record through", "each alert has one verdict"):
        assert words in text
    assert (outcome.passed, "NO" in text) == (True, False)
    wrong = replace(outcome, alerts=audited("abd"))
    assert (wrong.passed, "NO" in printed(drill_table(wrong))) == (False, True)


def test_json_has_null_for_a_time_that_never_came() -> None:
    assert math.isinf(NEVER.first_through_s)
    document = json.loads(json.dumps(as_json(Outcome(Drill.HQ_LOSS, NEVER, audited())), allow_nan=False))
    assert (document["first_through_s"], document["passed"], document["alerts"]["holds"]) == (None, False, True)
