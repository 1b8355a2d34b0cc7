"""Which hours of which devices are to be computed anew. Pure, on arrays.

A device hour is one number here: the place of the device among those of its group, and the hour since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cloud_jobs.fence_changes import FenceChange
from geo.spatial.ragged import Bools, Floats, Ints, distinct, expand, run_starts

HOUR_MS: Final = 3_600_000
MOST_HOURS: Final = 24
"""So many hours a gap spans at most of which anything is known: what is longer is silence, and no way is seen in it."""
_HOUR_BITS: Final = 22
_BASE: Final = 1 << 10
"""Hours before 1970 that a margin may reach into; the days of records with a partition end before 2100."""


def device_hours(device: Ints, hour: Ints) -> Ints:
    """The numbers of device hours."""
    return (device << _HOUR_BITS) + hour + _BASE


def device_of(keys: Ints) -> Ints:
    """The devices of device hours."""
    return keys >> _HOUR_BITS


def hour_of(keys: Ints) -> Ints:
    """The hours of device hours."""
    return (keys & ((1 << _HOUR_BITS) - 1)) - _BASE


def touched_by(device: Ints, t_ms: Ints, reach_ahead_ms: int, margin_ms: int) -> Ints:
    """The hours in which a new fix can change something: those in which a segment ends that it has a say in.

    A segment is decided by the fixes from the margin before its end to the reach ahead after it.
    """
    return _spans(device, (t_ms - reach_ahead_ms) // HOUR_MS, (t_ms + margin_ms) // HOUR_MS)


def with_margin(keys: Ints, margin_ms: int) -> Ints:
    """Device hours, and those around them whose fixes have a say in them."""
    reach, hour = -(-margin_ms // HOUR_MS), hour_of(keys)
    return _spans(device_of(keys), hour - reach, hour + reach)


def hours_before(known: Ints, keys: Ints) -> Ints:
    """Of device hours the last one before each that is among those `known` (in order), at most MOST_HOURS before it."""
    at = np.searchsorted(known, keys) - 1
    found = known[np.maximum(at, 0)] if len(known) else keys
    return distinct(found[(at >= 0) & (keys - found <= MOST_HOURS)])


def hours_after(known: Ints, keys: Ints) -> Ints:
    """Of device hours the first one after each that is among those `known`, at most MOST_HOURS after it."""
    at = np.searchsorted(known, keys, side="right")
    found = np.append(known, keys[:1])[np.minimum(at, len(known))]
    return distinct(found[(at < len(known)) & (found - keys <= MOST_HOURS)])


def computable(keys: Ints, erased_before_ms: Ints, margin_ms: int) -> Bools:
    """Which of the device hours no erased position has a say in. `erased_before_ms`: of each device."""
    return np.asarray(hour_of(keys) * HOUR_MS - margin_ms >= erased_before_ms[device_of(keys)], np.bool_)


def among(keys: Ints, asked: Ints) -> Bools:
    """Which keys are among others, which are in order."""
    at = np.searchsorted(asked, keys)
    return np.asarray(np.r_[asked, -1][at] == keys, np.bool_)


def is_in_order(*columns: Ints) -> bool:
    """Whether rows are in the order of some columns, the first one first, and no two are alike in all."""
    less = np.zeros(max(len(columns[0]) - 1, 0), np.bool_)
    for column in reversed(columns):
        less = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & less)
    return bool(less.all())


def near_changes(
    device: Ints, t_ms: Ints, lon: Floats, lat: Floats, *, changes: Sequence[FenceChange], gap_ms: int
) -> Ints:
    """The hours with a fix in which a change of fences may matter: those in its time whose way came near it.

    A way is represented by the box around the fixes of the hour and of the gap before it: both ends of each segment
    that ends in the hour are in that box, and all between them.
    """
    if not len(device):
        return np.zeros(0, np.int64)
    # a segment that starts at a fix ends within the gap
    first, last = t_ms // HOUR_MS, (t_ms + gap_ms) // HOUR_MS
    fix, hour = expand(first, last - first + 1)
    keys = device_hours(device[fix], hour)
    order = np.argsort(keys, kind="stable")
    fix, keys = fix[order], keys[order]
    starts = np.flatnonzero(run_starts(keys))
    west, east = np.minimum.reduceat(lon[fix], starts), np.maximum.reduceat(lon[fix], starts)
    south, north = np.minimum.reduceat(lat[fix], starts), np.maximum.reduceat(lat[fix], starts)
    driven = np.logical_or.reduceat(first[fix] == hour_of(keys), starts)
    found = keys[starts]
    day = hour_of(found) // 24
    # a way over the antimeridian has a box around all of the world but what it crossed
    around = (east - west > 180.0) | (west <= -180.0) | (east >= 180.0)
    near = np.zeros(len(found), np.bool_)
    for change in changes:
        beside = around | ((west <= change.east) & (east >= change.west))
        level = (south <= change.north) & (north >= change.south)
        near |= beside & level & (day >= change.first_day) & (day <= change.last_day)
    return found[near & driven]


def _spans(device: Ints, first: Ints, last: Ints) -> Ints:
    # fixes of a device mostly follow on each other, and an hour has hundreds
    starts = np.flatnonzero(run_starts(device, first, last)) if len(device) else np.zeros(0, np.int64)
    row, hour = expand(first[starts], last[starts] - first[starts] + 1)
    return distinct(device_hours(device[starts][row], hour))
