"""Which records somebody has: a set of sequence numbers for each buffer. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cloud_jobs.ingest.coverage import Buffer
from telemetry import IntervalSet

Names = Mapping[Buffer, IntervalSet]
_NONE = IntervalSet()


class Seen(NamedTuple):
    """The names `first` to `last` of a buffer, seen at one station at a moment (seconds since 1970)."""

    at_s: float
    buffer: Buffer
    first: int
    last: int


def names_of(seen: Iterable[Seen]) -> dict[Buffer, IntervalSet]:
    """All names that were seen."""
    bounds: dict[Buffer, list[tuple[int, int]]] = defaultdict(list)
    for one in seen:
        bounds[one.buffer].append((one.first, one.last))
    return {buffer: IntervalSet(ranges) for buffer, ranges in bounds.items()}


def union(left: Names, right: Names) -> dict[Buffer, IntervalSet]:
    """What one or the other has."""
    return {buffer: left.get(buffer, _NONE) | right.get(buffer, _NONE) for buffer in {*left, *right}}


def minus(left: Names, right: Names) -> dict[Buffer, IntervalSet]:
    """What the left has and the right has not."""
    rest = {buffer: names - right.get(buffer, _NONE) for buffer, names in left.items()}
    return {buffer: names for buffer, names in rest.items() if names}


def common(left: Names, right: Names) -> dict[Buffer, IntervalSet]:
    """What both have."""
    both = {buffer: names & right.get(buffer, _NONE) for buffer, names in left.items()}
    return {buffer: names for buffer, names in both.items() if names}


def count(names: Names) -> int:
    """How many records these are."""
    return sum(one.count for one in names.values())
