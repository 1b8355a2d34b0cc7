"""Coverage is a union, and says of every seq up to the head whether it came, was declared lost, or is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.coverage import Coverage, Statement
from tests.strategies import interval_sets
from waybill.record import IntervalSet, Tombstone


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    received, lost = draw(interval_sets), draw(interval_sets)
    head = max(received.last or 0, lost.last or 0) + draw(st.integers(0, 3))
    stated = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
    return Coverage(received, tuple(Tombstone(*bounds, "quota") for bounds in lost.ranges), head, *stated)


def said(coverage: Coverage) -> tuple[object, ...]:
    stated = coverage.stated_us, coverage.stated_head, coverage.complete_until_us
    return coverage.received, coverage.declared_lost, coverage.missing, coverage.head, *stated


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


def test_a_stream_is_complete_until_the_latest_statement_whose_head_is_covered() -> None:
    coverage = Coverage(IntervalSet([(1, 3), (6, 9)]), (Tombstone(4, 4, "quota"),), 9, 90, 9)
    assert coverage.covered_through == 4
    assert coverage.completed() is coverage
    assert coverage.completed([Statement(50, 5), Statement(40, 4), Statement(30, 3)]).complete_until_us == 40
    filled = coverage | Coverage(IntervalSet([(5, 5)]))
    assert filled.completed().complete_until_us == 90
