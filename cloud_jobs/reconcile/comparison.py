"""Comparisons of two counts, and their outcome. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.units import MEASURE_OF, Meter

MAX_NAMED: Final = 20
"""The most places of one kind that are named."""


class Station(StrEnum):
    """Where something is counted, in the order of a record's way."""

    DEVICE = "device"
    REGION = "region"
    CENTRE = "centre"
    USAGE = "usage"
    RATED = "rated"
    INVOICED = "invoiced"


class ComparisonOutcome(StrEnum):
    """The outcome of a comparison. Counted: there is nothing to compare with."""

    EQUAL = "equal"
    COUNTED = "counted"
    UNKNOWN = "unknown"
    DIFFERENT = "different"


class Comparison(NamedTuple):
    """An expected and a found count. `expected` None: only counted; `found` None: unknown.

    `place`: a payer, device or region. `currency`: for amounts, which are in minor units.
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
        if self.found is None:
            return ComparisonOutcome.UNKNOWN
        if self.expected is None:
            return ComparisonOutcome.COUNTED
        return ComparisonOutcome.EQUAL if self.expected == self.found else ComparisonOutcome.DIFFERENT

    @property
    def difference(self) -> int | None:
        """Found minus expected; None if unknown."""
        return None if self.found is None or self.expected is None else self.found - self.expected

    def values(self) -> dict[str, Any]:
        return self._asdict() | {
            "station": self.station.value,
            "difference": self.difference,
            "outcome": self.outcome.value,
        }


_WORST: Final = (ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN, ComparisonOutcome.COUNTED)


def outcome_of(comparisons: Iterable[Comparison]) -> ComparisonOutcome:
    """The worst outcome: equal only if nothing differs and nothing is unknown."""
    found = {one.outcome for one in comparisons}
    if not found:
        return ComparisonOutcome.UNKNOWN
    worst = next((one for one in _WORST if one in found), ComparisonOutcome.EQUAL)
    # counted only: nothing is wrong
    return ComparisonOutcome.EQUAL if worst is ComparisonOutcome.COUNTED else worst


def quantity_name(meter: Meter) -> str:
    """The meter with its base unit. Base units are compared, because larger ones could hide a difference."""
    base = MEASURE_OF[meter].base
    return meter.value if base == "each" else f"{meter.value}, {base}"


def named(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """The first MAX_NAMED comparisons, and one that sums up the others."""
    yield from comparisons[:MAX_NAMED]
    rest = comparisons[MAX_NAMED:]
    if rest:
        note = f"{len(rest)} more places are not named"
        expected = None if any(one.expected is None for one in rest) else sum(one.expected or 0 for one in rest)
        found = None if any(one.found is None for one in rest) else sum(one.found or 0 for one in rest)
        yield rest[0]._replace(place="others", expected=expected, found=found, note=note)


def summed(comparisons: Iterable[Comparison], place: str) -> list[Comparison]:
    """The sum of each name over all places, and the first places of each name that differ or are unknown.

    Unknown counts are in no sum.
    """
    # counted values are summed separately
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
