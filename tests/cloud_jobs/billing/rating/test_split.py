"""Splitting a rounded whole."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.meters import round_ratio
from cloud_jobs.billing.rating.split import split

weights = st.lists(st.integers(0, 10**12), min_size=1, max_size=12).filter(any)
wholes = st.fractions(0, 10**9, max_denominator=10**6)


@given(wholes, weights)
def test_the_parts_are_the_whole_and_each_is_its_share_rounded_up_or_down(exact: Fraction, parts: list[int]) -> None:
    found = split(round_ratio(*exact.as_integer_ratio()), exact, parts)
    assert sum(found) == round_ratio(*exact.as_integer_ratio())
    for part, weight in zip(found, parts, strict=True):
        assert part >= 0
        assert abs(part - exact * weight / sum(parts)) < 1 or len(parts) == 1


@given(wholes, weights, st.integers(1, 1000))
def test_only_the_ratio_of_the_weights_counts(exact: Fraction, parts: list[int], factor: int) -> None:
    whole = round_ratio(*exact.as_integer_ratio())
    assert split(whole, exact, [part * factor for part in parts]) == split(whole, exact, parts)


def test_the_largest_remainders_get_the_units_and_of_equal_ones_the_earlier() -> None:
    assert split(10, Fraction(10), [1, 1, 1]) == [4, 3, 3]
    assert split(1, Fraction(3, 4), [1, 5, 2]) == [0, 1, 0]
    assert split(0, Fraction(2, 5), [1, 1]) == [0, 0]


def test_a_part_of_no_weight_gets_nothing() -> None:
    assert split(7, Fraction(13, 2), [0, 3, 0, 4]) == [0, 3, 0, 4]


@pytest.mark.parametrize(("whole", "weights"), [(3, [1]), (1, [1, 1]), (2, [0, 0]), (2, [3, -1]), (2, [])])
def test_another_whole_and_no_weight_are_refused(whole: int, weights: list[int]) -> None:
    with pytest.raises(ValueError, match="split"):
        split(whole, Fraction(2) if whole == 2 else Fraction(5), weights)
