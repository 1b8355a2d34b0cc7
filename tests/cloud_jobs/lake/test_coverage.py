"""Coverage is a union, and says of every seq up to the head whether it came, was declared lost, or is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.coverage import Completeness, Coverage, completeness
from telemetry import IntervalSet, Tombstone
from tests.strategies import interval_sets


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    received, lost = draw(interval_sets), draw(interval_sets)
    head = max(received.last or 0, lost.last or 0) + draw(st.integers(0, 3))
    return Coverage(received, tuple(Tombstone(*bounds, "quota") for bounds in lost.ranges), head)


def said(coverage: Coverage) -> tuple[IntervalSet, IntervalSet, IntervalSet, int]:
    return coverage.received, coverage.declared_lost, coverage.missing, coverage.head


@given(coverages(), coverages(), coverages())
def test_joining_is_a_union_in_any_order_and_any_number_of_times(one: Coverage, two: Coverage, three: Coverage) -> None:
    assert said(one | two) == said(two | one)
    assert said((one | two) | three) == said(one | (two | three))
    assert one | Coverage() == one == one | one
    assert said(Coverage() | one) == said(one)


@given(coverages())
def test_every_seq_up_to_the_head_is_received_declared_lost_or_missing(coverage: Coverage) -> None:
    parts = coverage.received, coverage.declared_lost, coverage.missing
    assert (parts[0] | parts[1] | parts[2]).gaps(1, coverage.head) == IntervalSet()
    assert sum(part.count for part in parts) == (parts[0] | parts[1] | parts[2]).count


@given(st.lists(coverages(), max_size=3))
def test_a_device_is_as_complete_as_its_worst_stream_and_open_without_any(streams: list[Coverage]) -> None:
    order = [Completeness.COMPLETE, Completeness.DECLARED_LOSS, Completeness.OPEN]
    worst = max((stream.state for stream in streams), key=order.index, default=Completeness.OPEN)
    assert completeness(streams) is worst
