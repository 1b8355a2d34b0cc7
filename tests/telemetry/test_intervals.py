"""Interval sets follow the laws of sets, whatever ranges they are made from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import interval_sets
from waybill.record import IntervalSet


@given(interval_sets, interval_sets)
def test_operations_are_those_of_plain_sets(a: IntervalSet, b: IntervalSet) -> None:
    assert set(a | b) == set(a) | set(b)
    assert set(a - b) == set(a) - set(b)
    assert set(a & b) == set(a) & set(b)
    assert a.covers(b) == (set(b) <= set(a))
    assert bool(a) == bool(set(a))


@given(interval_sets, st.integers(1, 430), st.integers(1, 430))
def test_gaps_and_members_tile_the_window(a: IntervalSet, one: int, other: int) -> None:
    first, last = sorted((one, other))
    gaps = a.gaps(first, last)
    assert set(gaps) == set(range(first, last + 1)) - set(a)
    assert all((number in a) != (number in gaps) for number in range(first, last + 1))


@given(interval_sets, interval_sets, interval_sets)
def test_ranges_stay_apart_and_ascend_after_any_operation(a: IntervalSet, b: IntervalSet, c: IntervalSet) -> None:
    for made in (a | b, a - b, a & b, (a - b) | c, (a | b) - c):
        bounds = made.ranges
        assert all(first <= last for first, last in bounds)
        assert all(bounds[i][1] + 1 < bounds[i + 1][0] for i in range(len(bounds) - 1))
        assert made == IntervalSet.of(made)
        assert hash(made) == hash(IntervalSet.of(made))


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="3–2"):
        IntervalSet([(3, 2)])
