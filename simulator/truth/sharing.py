"""Divides a rounded sum so that nothing is lost: each gets its whole part, and the largest remainders one more."""

from fractions import Fraction


def shared(rounded: int, shares: list[Fraction]) -> list[int]:
    """`rounded`, divided near to the exact shares, whose sum it is after rounding; of equal remainders the earlier part
    gets the unit. Raises AssertionError if it is too far."""
    given = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda index: (given[index] - shares[index], index))
    left = rounded - sum(given)
    assert 0 <= left <= len(shares), f"{rounded} is not the rounded sum of {shares}"
    for index in order[:left]:
        given[index] += 1
    return given
