"""Two counts of a station that must be equal, and what it means if they are not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.units import MEASURE_OF, Meter

MAX_NAMED: Final = 20
"""So many places of one kind are named where counts differ; of the others there is their number."""


class Station(StrEnum):
    """Where something is counted, in the order in which a record comes through."""

    DEVICE = "device"
    REGION = "region"
    CENTRE = "centre"
    USAGE = "usage"
    RATED = "rated"
    INVOICED = "invoiced"


class ComparisonOutcome(StrEnum):
    """What a comparison says. Counted: there is nothing to compare with."""

    EQUAL = "equal"
    COUNTED = "counted"
    UNKNOWN = "unknown"
    DIFFERENT = "different"


class Comparison(NamedTuple):
    """A count, and what it must be. `expected` None: nothing says what; `found` None: it is not known.

    `place`: of what it is, as a payer, a device or a region. `note`: what else there is to know. `currency`: of
    amounts, which are counted in its minor units.
    """

    station: Station
    name: str
    place: str
    expected: int | None
    found: int | None
    note: str = ""
    currency: str = ""

    @property
    def outcome(self) -> ComparisonOutcome:
        """Whether it is as it must be."""
        if self.found is None:
            return ComparisonOutcome.UNKNOWN
        if self.expected is None:
            return ComparisonOutcome.COUNTED
        return ComparisonOutcome.EQUAL if self.expected == self.found else ComparisonOutcome.DIFFERENT

    @property
    def difference(self) -> int | None:
        """How much more was found than expected; None: that is not known."""
        return None if self.found is None or self.expected is None else self.found - self.expected

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return self._asdict() | {
            "station": self.station.value,
            "difference": self.difference,
            "outcome": self.outcome.value,
        }


_WORST: Final = (ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN, ComparisonOutcome.COUNTED)


def outcome_of(comparisons: Iterable[Comparison]) -> ComparisonOutcome:
    """The worst of some comparisons: equal only if nothing differs and nothing is unknown."""
    found = {one.outcome for one in comparisons}
    if not found:
        return ComparisonOutcome.UNKNOWN
    worst = next((one for one in _WORST if one in found), ComparisonOutcome.EQUAL)
    # what was merely counted is wrong in nothing
    return ComparisonOutcome.EQUAL if worst is ComparisonOutcome.COUNTED else worst


def quantity_name(meter: Meter) -> str:
    """A meter with the base unit in which its quantities are compared: in a greater one a difference could not show."""
    base = MEASURE_OF[meter].base
    return meter.value if base == "each" else f"{meter.value}, {base}"


def named(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """The first ones of one kind, and one for all others: the sum of what they differ by."""
    yield from comparisons[:MAX_NAMED]
    rest = comparisons[MAX_NAMED:]
    if rest:
        note = f"{len(rest)} more places are not named"
        expected = None if any(one.expected is None for one in rest) else sum(one.expected or 0 for one in rest)
        found = None if any(one.found is None for one in rest) else sum(one.found or 0 for one in rest)
        yield rest[0]._replace(place="others", expected=expected, found=found, note=note)


def summed(comparisons: Iterable[Comparison], place: str) -> list[Comparison]:
    """A sum of each name over all places, and the places that are not as they must be, the first ones of each name.

    What is not known is in no sum.
    """
    # what was merely counted is no part of a sum that is compared
    sums: dict[tuple[Station, str, str, bool], tuple[int, int]] = {}
    wrong: dict[tuple[Station, str, str], list[Comparison]] = {}
    for one in comparisons:
        key = one.station, one.name, one.currency
        if one.outcome in {ComparisonOutcome.UNKNOWN, ComparisonOutcome.DIFFERENT}:
            wrong.setdefault(key, []).append(one)
        if one.found is not None:
            is_compared = one.expected is not None
            expected, found = sums.get((*key, is_compared), (0, 0))
            sums[*key, is_compared] = expected + (one.expected or 0), found + one.found
    totals = [
        Comparison(station, name, place, expected if is_compared else None, found, currency=currency)
        for (station, name, currency, is_compared), (expected, found) in sums.items()
    ]
    return [*totals, *(one for found in wrong.values() for one in named(found))]
