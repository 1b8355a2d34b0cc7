"""A rounded whole, divided so that nothing is lost: each part its whole units, the largest remainders one more."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class Exact(NamedTuple):
    """A number of at least 0 as a ratio of integers, not reduced: as exact as a fraction, and several times as fast."""

    numerator: int
    denominator: int = 1


def split(whole: int, exact: Exact | Fraction, weights: Sequence[int]) -> list[int]:
    """`whole`, which is `exact` after rounding it up or down, in the ratio of the weights.

    The remainders are those of the exact shares; of equal ones the earlier part gets the unit. A part of the weight 0
    gets nothing, none is below 0. Raises ValueError for a whole that is another one, and where all weights are 0.
    """
    total, numerator, denominator = sum(weights), exact.numerator, exact.denominator
    if numerator < 0 or abs(whole * denominator - numerator) >= denominator or total <= 0 or min(weights) < 0:
        raise ValueError(f"{whole} of {exact} cannot be split by {list(weights)}")
    if len(weights) == 1:
        return [whole]
    denominator *= total
    return _whole_units(whole, [divmod(weight * numerator, denominator) for weight in weights])


def split_exact(whole: int, shares: Sequence[Fraction]) -> list[int]:
    """`whole`, which is the sum of exact shares after rounding it up or down, in units near to each share.

    As `split`, for shares in no ratio of integers. Raises ValueError for a whole that is another one.
    """
    if abs(whole - sum(shares, Fraction(0))) >= 1 or min(shares) < 0:
        raise ValueError(f"{whole} cannot be split into {[str(share) for share in shares]}")
    return _whole_units(whole, [divmod(share, 1) for share in shares])


def _whole_units(whole: int, shares: Sequence[tuple[int, int | Fraction]]) -> list[int]:
    """The whole units of each share, and one more for the largest remainders."""
    parts = [part for part, _ in shares]
    left = whole - sum(parts)
    if left:
        # never more units than remainders above 0; the sort keeps the order of equal ones
        rests = [rest for _, rest in shares]
        for index in sorted(range(len(parts)), key=rests.__getitem__, reverse=True)[:left]:
            parts[index] += 1
    assert sum(parts) == whole, (whole, shares)
    return parts
