"""Fences that changed since a table was computed, and when and where that can matter. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

from deltalake import DeltaTable

from cloud_jobs.lake.snapshots import KEPT_FENCES, fences_number, read_fences
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.lake.transactions import stated
from geo.reference.in_force import parse_fence
from geo.spatial import Fence, FenceError
from geo.spatial.activity import FOREVER_MS, effective_ms
from geo.spatial.event_ids import DAY_MS
from geo.spatial.gates import Gate
from geo.spatial.geojson import Box, box_of
from geo.spatial.ids import named

# Fences changed since a table was computed, and the times and places that they affect. No Spark.

MAX_CHANGES: Final = 100
"""More changes than this become one change that covers all of their places and times."""


class FenceChange(NamedTuple):
    """Days since 1970 (both included) and a box, in degrees, outside of which a change affects no event."""

    first_day: int
    last_day: int
    west: float
    south: float
    east: float
    north: float


_LAST_DAY: Final = FOREVER_MS // DAY_MS
_LAST_PARTITION: Final = 50_000  # the days of records with a partition are before this one
EVERYTHING: Final = FenceChange(-_LAST_DAY, _LAST_DAY, -180.0, -90.0, 180.0, 90.0)


def changes_between(before: Sequence[str], now: Sequence[str], reach_ms: int) -> list[FenceChange]:
    """The changes from some features to others; `reach_ms`: how far around it an event is decided.

    A version ends the one before it, so from its beginning on every version of its id matters, the old ones too. Raises
    `FenceError` for a feature that cannot be used: nobody knows where it matters.
    """
    if before == now:
        return []
    old, new = _by_id(before), _by_id(now)
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    changes = [_change(old.get(name, set()), new.get(name, set()), reach_ms) for name in changed]
    return changes if len(changes) <= MAX_CHANGES else [_around(changes)]


def _by_id(features: Iterable[str]) -> dict[str, set[str]]:
    """The features of each id, in one form."""
    texts: dict[str, set[str]] = {}
    for feature in features:
        value = json.loads(feature)
        if not isinstance(value, dict):
            raise FenceError("it is not a GeoJSON feature")
        texts.setdefault(str(named(value)), set()).add(json.dumps(value, sort_keys=True))
    return texts


def _change(old: set[str], new: set[str], reach_ms: int) -> FenceChange:
    """The change of one id: from where its versions differ to where the last of them ends, around all of them."""
    every = {feature: parse_fence(feature) for feature in old | new}
    begin = min(effective_ms(every[feature]) for feature in old ^ new)
    end = max(int(one.active.switches[-1]) if len(one.active.switches) else 0 for one in every.values())
    box = _around(FenceChange(0, 0, *_bounds(one)) for one in every.values())
    return box._replace(first_day=(begin - reach_ms) // DAY_MS, last_day=(end + reach_ms) // DAY_MS)


def _bounds(place: Fence | Gate) -> Box:
    west, south, east, north = box_of(place)
    if isinstance(place, Gate) and east - west > 180.0:
        # a line over the antimeridian is near it on both sides
        return -180.0, south, 180.0, north
    return west, south, east, north


def _around(changes: Iterable[FenceChange]) -> FenceChange:
    first_day, last_day, west, south, east, north = zip(*changes, strict=True)
    return FenceChange(min(first_day), max(last_day), min(west), min(south), max(east), max(north))


def changes_since(lake: Lake, opened: DeltaTable, features: Sequence[str], reach_ms: int) -> list[FenceChange]:
    """How fences differ from those that a table was computed with. Where that is unknown, everything may differ.

    Raises StoreUnavailable, LakeError: an unreadable file does not say what it holds.
    """
    number = stated(opened, FENCES)
    # the file must exist even for equal fences: removing it recomputes everything
    if number == fences_number(features) and KEPT_FENCES.is_kept(lake, number):
        return []
    before = None if number is None else read_fences(lake, number)
    if before is None:
        return [EVERYTHING]
    try:
        return changes_between(before, features, reach_ms)
    except (ValueError, RecursionError, FenceError):
        return [EVERYTHING]


def days_of(changes: Sequence[FenceChange]) -> tuple[date, date]:
    """The first and the last day of changes of fences, as far as records have partitions."""
    first, last = min(one.first_day for one in changes), max(one.last_day for one in changes)
    epoch = date(1970, 1, 1)
    low, high = (epoch + timedelta(days=min(max(day, 0), _LAST_PARTITION)) for day in (first, last))
    return low, high
