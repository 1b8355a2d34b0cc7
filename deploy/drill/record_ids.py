"""Which records somebody has: a set of sequence numbers for each buffer. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cloud_jobs.lake.coverage import DeviceStream
from waybill.record import IntervalSet

RecordIds = Mapping[DeviceStream, IntervalSet]
_NONE = IntervalSet()


class SeenRange(NamedTuple):
    """The names `first` to `last` of a buffer, seen at one station at a moment (seconds since 1970)."""

    at_s: float
    stream: DeviceStream
    first: int
    last: int


def record_ids_of(seen: Iterable[SeenRange]) -> dict[DeviceStream, IntervalSet]:
    """All names that were seen."""
    bounds: dict[DeviceStream, list[tuple[int, int]]] = defaultdict(list)
    for one in seen:
        bounds[one.stream].append((one.first, one.last))
    return {stream: IntervalSet(ranges) for stream, ranges in bounds.items()}


def union(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What one or the other has."""
    return {stream: left.get(stream, _NONE) | right.get(stream, _NONE) for stream in {*left, *right}}


def minus(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What the left has and the right has not."""
    rest = {stream: seqs - right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in rest.items() if seqs}


def common(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What both have."""
    both = {stream: seqs & right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in both.items() if seqs}


def count(seqs: RecordIds) -> int:
    """How many records these are."""
    return sum(one.count for one in seqs.values())
