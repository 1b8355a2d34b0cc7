"""What is not known of the way of a device: where it was between two fixes with no segment between them. Pure.

A gap counts if its beeline is longer than what noise explains: who stood for a night was at the same place before and
after it. It is of the quarter of the fix that ends it, as a segment is. Its time counts as far as the beeline takes at
SLOW_MPS: for the rest the vehicle may have stood. What tracks refuse ends no gap. Surely in another zone at its end
than at its beginning, it must have entered that one. A gate it may have gone around, so no crossing is sure, however
its beeline lies.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from cloud_jobs.usage.touched_hours import HOUR_MS, MOST_HOURS
from geo.spatial import OUTSIDE, Fixes, Tracks, TrackSettings, Verdict, ZoneSet, is_sure
from geo.spatial.geodesic import distance_m, unwrapped_end
from geo.spatial.ragged import Bools, Floats, Ints

NOISE_M: Final = 200.0
"""Two fixes of the worst accuracy that a track takes, 100 m, may be so far apart at one place."""
SLOW_MPS: Final = 3.0
DRIVEN_MPS: Final = 1.0
"""From this speed on a segment was driven."""
_TIME_BITS: Final = 43
"""Milliseconds of the days that records have a partition for."""


class Gaps(NamedTuple):
    """Gaps by the fixes around them: rows of the fixes of tracks."""

    begin: Ints
    end: Ints
    metres: Floats
    ms: Floats


def gaps_of(tracks: Tracks, reported: Fixes, ends: Bools) -> Gaps:
    """The gaps that count. `ends`: of each fix whether gaps that end there are asked for.

    Places are the `reported` ones: those that a track takes instead depend on fixes that are not read of the beginning.
    """
    row, fixes = tracks.row, reported
    device = fixes.device[row]
    at = np.flatnonzero(~tracks.linked[1:] & (device[1:] == device[:-1]) & ends[row[1:]]) + 1
    begin, end = row[at - 1], row[at]
    # what is longer is silence
    near = fixes.t_ms[end] // HOUR_MS - fixes.t_ms[begin] // HOUR_MS <= MOST_HOURS
    begin, end = begin[near], end[near]
    lon = unwrapped_end(fixes.lon[begin], fixes.lon[end])
    metres = distance_m(fixes.lon[begin], fixes.lat[begin], lon, fixes.lat[end])
    far = metres > NOISE_M
    begin, end, metres = begin[far], end[far], metres[far]
    spent = (fixes.t_ms[end] - fixes.t_ms[begin]).astype(np.float64)
    return Gaps(begin, end, metres, np.minimum(spent, metres * (1000.0 / SLOW_MPS)))


def inferred_entries(reported: Fixes, gaps: Gaps, zones: ZoneSet, settings: TrackSettings) -> tuple[Ints, Ints]:
    """The entries that must have happened in gaps: at which place among those, and the zone, by its name's number.

    Both ends must be sure of their side of the border of the zone that is left and of the one that is entered: who
    parks beside a border enters nothing, and what the track behind the gap enters is not entered twice.
    """
    ends = gaps.begin, gaps.end
    before, after = (zones.zone_at(reported.lon[at], reported.lat[at], reported.t_ms[at]) for at in ends)
    entered = np.flatnonzero((after != OUTSIDE) & (after != before))
    for at in ends:
        for zone in (after, before):
            entered = entered[is_sure(reported, at[entered], zones, zone[entered], settings)]
    return entered, after[entered]


def driven(tracks: Tracks) -> tuple[Ints, Ints]:
    """The rows of the fixes that end segments which were driven, and how long these took."""
    at = tracks.segments()
    end, begin = tracks.row[at], tracks.row[at - 1]
    ms = tracks.fixes.t_ms[end] - tracks.fixes.t_ms[begin]
    moved = ~tracks.still[at] & (tracks.metres[at] * 1000.0 >= ms * DRIVEN_MPS)
    return end[moved], ms[moved]


def refused(tracks: Tracks, reported: Fixes, max_gap_s: float) -> Ints:
    """The rows of the fixes that the tracks do not take, and that may hide a way: none of those that they take is
    within the gap before it. Where one of the same time is taken, that of another place hides one."""
    row = np.flatnonzero(tracks.verdict != Verdict.KEPT)
    if not len(row) or not len(tracks.row):
        return row
    key = (reported.device << _TIME_BITS) + reported.t_ms
    kept = tracks.row[np.maximum(np.searchsorted(key[tracks.row], key[row], side="right") - 1, 0)]
    since_ms = key[row] - key[kept]
    hides = (since_ms < 0) | (since_ms > max_gap_s * 1000.0)
    twice = np.flatnonzero(since_ms == 0)
    first, other = kept[twice], row[twice]
    lon = unwrapped_end(reported.lon[first], reported.lon[other])
    hides[twice] = distance_m(reported.lon[first], reported.lat[first], lon, reported.lat[other]) > NOISE_M
    return row[hides]
