"""What the usage of a quarter of an hour must be, by the probes that it covers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from deploy.canary.hops import ProbeItem

__all__ = ["ProbeCover", "QuarterUsage", "covered", "usage_fault"]

TOLERANCE_MM: Final = 2
"""Of what a probe drives inside; a quarter is rounded once."""


class QuarterUsage(NamedTuple):
    """What the usage table says of the canary in its fence, in one quarter of an hour."""

    entries: int = 0
    distance_mm: int = 0


class ProbeCover(Enum):
    """How much of a probe usage was computed from."""

    WHOLE = auto()
    PART = auto()
    """Some of its records: it may have come in already, and may have driven some of the way."""
    NOTHING = auto()


def covered(items: Sequence[ProbeItem], ingest_numbers: Mapping[ProbeItem, int], covers: int) -> ProbeCover:
    """How much of a probe with these items a derived table has that covers the records up to an ingest number."""
    there = sum(ingest_numbers.get(item, covers + 1) <= covers for item in items)
    if there == len(items):
        return ProbeCover.WHOLE
    return ProbeCover.PART if there else ProbeCover.NOTHING


def usage_fault(usage: QuarterUsage, probes: Iterable[ProbeCover], inside_mm: int, *, before: ProbeCover) -> str:
    """What is wrong with the usage of a quarter; "": nothing that can be known.

    `probes`: those that were sent in it, in order; `before`: the last one of those before it. A probe that is covered
    in part counts for any part of itself. So does one that is missing and followed by one that is there: between its
    neighbours the vehicle went through the fence all the same.
    """
    states = [*probes]
    # what follows the last one that is there may not have come yet
    while states and states[-1] is ProbeCover.NOTHING:
        states.pop()
    whole = states.count(ProbeCover.WHOLE)
    perhaps = len(states) - whole + (bool(states) and before is not ProbeCover.WHOLE)
    most = whole + perhaps
    if not whole <= usage.entries <= most:
        return f"{usage.entries} entries, and {_span(whole, most)} probes came in"
    low, high = whole * (inside_mm - TOLERANCE_MM), most * (inside_mm + TOLERANCE_MM)
    if not low <= usage.distance_mm <= high:
        wanted = _span(whole * inside_mm, most * inside_mm)
        return f"{usage.distance_mm} mm inside, and {wanted} mm were driven"
    return ""


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
