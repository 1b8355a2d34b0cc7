"""Divides a rounded sum so that nothing is lost: each gets its whole part, and the largest remainders one more."""

from fractions import Fraction


def shared(rounded: int, exact: Fraction, parts: list[int]) -> list[int]:
    """`rounded`, divided in the ratio of `parts`; of equal remainders the earlier part gets the unit.

    `exact` is what was rounded: the remainders are those of the exact shares. Raises AssertionError if it is too far.
    """
    whole = sum(parts)
    if not whole:
        return [0 for _ in parts]
    shares = [exact * part / whole for part in parts]
    given = [int(share) for share in shares]
    order = sorted(range(len(parts)), key=lambda index: (given[index] - shares[index], index))
    left = rounded - sum(given)
    assert 0 <= left <= len(parts), f"{rounded} is not the rounded {exact}"
    for index in order[:left]:
        given[index] += 1
    return given
