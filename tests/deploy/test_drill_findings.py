"""What a drill counts: laws over any observations, then one drawn timeline.

seconds   0 ........ 10 ........ 20 ........ 30
receipts  1-10   11-20   21-30 |  31-40   41-50          (one device, ten records a batch)
arrivals  1-10   11-20         |  21-30 31-40 41-50      (the standby; 21-30 was under way at the loss)
commits   1-10     11-20       |       21-40     41-50
                           the loss, at 15 s
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.findings import (
    BatchCounts,
    Commit,
    DrillObservations,
    SeenRange,
    compute_findings,
)
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
    snapshot_period_s=1.0,
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
    assert found.not_replicated_s == 0 or found.not_replicated > 0


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
    assert (found.not_replicated, found.not_replicated_s) == (10, 1)
    assert (found.first_through_s, found.last_through_s) == (4, 4)
    assert found.passed


def test_the_bound_is_two_micro_batches_and_a_snapshot_period_of_steady_traffic() -> None:
    found = compute_findings(TIMELINE)
    assert found.largest_batch == 10  # the batch of 30 came after the loss
    assert found.records_per_s == pytest.approx(2.0)
    assert found.duplicates_bound == 2 * 10 + 2
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
    assert (found.first_through_s, found.last_through_s) == (14, 1)
