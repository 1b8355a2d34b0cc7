"""Splitting a rounded whole."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.rating.pools import split
from cloud_jobs.billing.units import round_ratio

weights = st.lists(st.integers(0, 10**12), min_size=1, max_size=12).filter(any)
wholes = st.fractions(0, 10**9, max_denominator=10**6)


@given(wholes, weights)
def test_the_parts_are_the_whole_and_each_is_its_share_rounded_up_or_down(exact: Fraction, parts: list[int]) -> None:
    found = split(round_ratio(*exact.as_integer_ratio()), exact, parts)
    assert sum(found) == round_ratio(*exact.as_integer_ratio())
    for part, weight in zip(found, parts, strict=True):
        assert part >= 0
        assert abs(part - exact * weight / sum(parts)) < 1 or len(parts) == 1


def test_the_largest_remainders_get_the_units_and_of_equal_ones_the_earlier() -> None:
    assert split(10, Fraction(10), [1, 1, 1]) == [4, 3, 3]
    assert split(1, Fraction(3, 4), [1, 5, 2]) == [0, 1, 0]
    assert split(0, Fraction(2, 5), [1, 1]) == [0, 0]
