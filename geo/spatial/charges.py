"""Charged entries and crossings: sure changes of sides, decided by a neighbourhood of bounded time.

A stay on one side of a border is sure if it lasts `SURE_MS` or gets away from the border by more than the places are
uncertain. A crossing counts if the stay that it begins is sure and the last sure stay before it was on the other side.
The search before a crossing ends after `LOOK_BACK_MS`; beyond, the side on which the vehicle was counts. So a late fix
changes no entry of long ago.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from geo.spatial.depth import border_distance_m
from geo.spatial.fence_set import FenceSet
from geo.spatial.fixes import CHARGE_AHEAD_MS, CHARGE_BEFORE_MS, Fixes, TrackSettings
from geo.spatial.gates import Crossings
from geo.spatial.geodesic import wrap_lon
from geo.spatial.measure import OUTSIDE, Pieces
from geo.spatial.ragged import Bools, Floats, Ints, distinct, run_starts
from geo.spatial.standstill import stated_accuracy
from geo.spatial.tracks import Tracks
from geo.spatial.visits import Course, Samples, deep_stays, sides_of

SURE_MS: Final = 120_000
LOOK_BACK_MS: Final = 120_000
assert LOOK_BACK_MS + SURE_MS <= CHARGE_BEFORE_MS
assert SURE_MS <= CHARGE_AHEAD_MS
_BREAK_MS: Final = 1 << 32
_MIDDLE_LINE: Final = 0.5  # of the way from a border to the middle, in a narrow fence


def charged_entries(tracks: Tracks, fences: FenceSet, pieces: Pieces, settings: TrackSettings) -> Bools:
    """Which pieces, of zones or fences, begin with an entry that counts. With the rule `every_fix` each entry does."""
    entry = pieces.entry.copy()
    asked = np.flatnonzero(entry)
    if settings.rule == "every_fix" or not len(asked):
        return entry
    position = np.empty(len(tracks.fixes), dtype=np.int64)
    position[tracks.row] = np.arange(len(tracks.row))
    ends, where, zone = position[pieces.end_fix[asked]], pieces.start[asked], pieces.zone[asked]
    charged = np.zeros(len(asked), dtype=np.bool_)
    # the nearest fixes decide most entries
    for only_near in (True, False):
        rest = np.flatnonzero(~charged)
        if len(rest):
            end, moments = ends[rest], _Moments(tracks, ends[rest], where[rest])
            part = _part(tracks, end - 2, end + 2) if only_near else _around(tracks, end)
            charged[rest] = _entered(part, fences, settings, moments, zone[rest], only_near=only_near)
    entry[asked] = charged
    return entry


def is_sure(fixes: Fixes, row: Ints, fences: FenceSet, zone: Ints, settings: TrackSettings) -> Bools:
    """Which fixes (`row`) are surely on one side of a fence (`zone`: its name's number, or OUTSIDE), each by itself.

    With the rule `every_fix`, and for a fence that is not in force, every fix is.
    """
    sure = np.ones(len(row), dtype=np.bool_)
    some = np.flatnonzero(zone != OUTSIDE)
    if settings.rule == "every_fix" or not len(some):
        return sure
    fence = fences.version_at(zone[some], fixes.t_ms[row[some]].astype(np.float64))
    some, shape = some[fence >= 0], fences.shared.of_fence[fence[fence >= 0]]
    at = row[some]
    away_m = np.fmax(_uncertain_m(fixes, at, settings), settings.buffer_m)
    # a narrow fence has no place farther from its border
    away_m = np.minimum(away_m, _MIDDLE_LINE * fences.shared.half_widths_m(distinct(shape))[shape])
    found_m = border_distance_m(fences.index.outlines, shape, wrap_lon(fixes.lon[at]), fixes.lat[at], away_m)
    sure[some] = found_m >= away_m
    return sure


class _Moments:
    """Moments on segments (by their ends, and the fraction): each device and time has a number."""

    def __init__(self, tracks: Tracks, ends: Ints, fraction: Floats) -> None:
        start_ms, end_ms = (tracks.fixes.t_ms[tracks.row[at]].astype(np.float64) for at in (ends - 1, ends))
        t_ms = start_ms + (end_ms - start_ms) * fraction
        self._devices, self.t_ms = distinct(tracks.fixes.device), np.unique(t_ms)
        self.number = self.of(tracks.fixes.device[tracks.row[ends]], t_ms)

    def of(self, device: Ints, t_ms: Floats) -> Ints:
        return np.searchsorted(self._devices, device) * len(self.t_ms) + np.searchsorted(self.t_ms, t_ms)


def _entered(
    tracks: Tracks, fences: FenceSet, settings: TrackSettings, moments: _Moments, zone: Ints, *, only_near: bool
) -> Bools:
    """Whether each of these zones is surely entered at its moment; `only_near`: as far as these tracks show it."""
    course = Course(tracks)
    sides = sides_of(course, fences)
    sure = sides.end_ms - sides.start_ms >= SURE_MS
    changes = np.flatnonzero(sides.crossed & np.isin(sides.start_ms, moments.t_ms))
    with_changes = np.zeros(int(sides.course[-1]) + 1 if len(sure) else 0, dtype=np.bool_)
    with_changes[sides.course[changes]] = True
    ask = np.flatnonzero(with_changes[sides.course] & ~sure)
    wanted = distinct(fences.shared.of_fence[np.isin(fences.name_of_fence, sides.fence[ask])])
    most_m = _MIDDLE_LINE * fences.shared.half_widths_m(wanted)
    uncertain_m = _uncertain_m(tracks.fixes, np.arange(len(tracks.fixes)), settings)
    samples = Samples(course, fences, settings.buffer_m, uncertain_m, most_m)
    sure[ask] = deep_stays(sides, ask, samples)
    counts = _counts(sides.course, sides.inside, (sides.start_ms, sides.end_ms), sure, only_near=only_near)
    counts, way_in = counts[changes], sides.inside[changes]
    moment = moments.of(course.device(sides.track[changes]), sides.start_ms[changes])
    names = len(fences.names)
    into, own = moment * names + sides.fence[changes], moments.number * names + zone
    # a zone is entered at its own border, or at the border of a fence above it that is left
    at_own = np.isin(own, into[way_in])
    return np.where(at_own, np.isin(own, into[way_in & counts]), np.isin(moments.number, moment[~way_in & counts]))


def charged_crossings(tracks: Tracks, crossings: Crossings, settings: TrackSettings) -> Bools:
    """Which crossings of gates count. With the rule `every_fix` each does.

    Two crossings there and back count only if the way between them is twice as long as places are uncertain, or lasts
    `SURE_MS`.
    """
    count = len(crossings)
    if settings.rule == "every_fix" or not count:
        return np.ones(count, dtype=np.bool_)
    position = np.empty(len(tracks.fixes), dtype=np.int64)
    position[tracks.row] = np.arange(len(tracks.row))
    end = position[crossings.end_fix]
    start_ms, end_ms = (tracks.fixes.t_ms[tracks.row[at]].astype(np.float64) for at in (end - 1, end))
    # whole millimetres: their sums do not depend on where they begin
    rest_m = tracks.metres[end] * (end_ms - crossings.t_ms) / (end_ms - start_ms)
    at_mm = np.cumsum(_millimetres(tracks.metres))[end] - _millimetres(rest_m)
    away_mm = 2_000.0 * np.fmax(_uncertain_m(tracks.fixes, crossings.end_fix, settings), settings.buffer_m)
    track = np.cumsum(~tracks.linked)[end]
    order = np.lexsort((crossings.t_ms, crossings.gate, track))
    track, gate, forward = track[order], crossings.gate[order], crossings.forward[order]
    # a vehicle can reach the other side of a gate around its end
    opens = run_starts(track, gate)
    opens[1:] |= forward[1:] == forward[:-1]
    # each crossing begins a stay that lasts until the next one; the stay before the first is on the other side
    until = np.append(np.where(opens[1:], np.inf, crossings.t_ms[order[1:]]), np.inf)
    until_mm = np.append(np.where(opens[1:], np.inf, at_mm[order[1:]]), np.inf)
    sure = (until - crossings.t_ms[order] >= SURE_MS) | (until_mm - at_mm[order] >= away_mm[order])
    rows = np.arange(len(order)) + np.cumsum(opens)
    before = rows[opens] - 1
    total = len(order) + int(opens.sum())
    side, course, begins = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.int64), np.full(total, -np.inf)
    ends, certain = np.full(total, np.inf), np.ones(total, dtype=np.bool_)
    side[rows], side[before], begins[rows] = forward, ~forward[opens], crossings.t_ms[order]
    course[before], ends[rows], ends[before], certain[rows] = 1, until, crossings.t_ms[order[opens]], sure
    counts = _counts(np.cumsum(course), side, (begins, ends), certain, only_near=False)
    found = np.zeros(count, dtype=np.bool_)
    found[order] = counts[rows]
    return found


def _millimetres(metres: Floats) -> Ints:
    return np.rint(metres * 1_000.0).astype(np.int64)


def _counts(course: Ints, side: Bools, limits_ms: tuple[Floats, Floats], sure: Bools, *, only_near: bool) -> Bools:
    """Which stays begin with a crossing that counts; stays in the order of (course, time), whose sides alternate.

    `only_near`: only where a sure stay before it is among these.
    """
    start_ms, end_ms = limits_ms
    place = np.arange(len(course))
    first = np.maximum.accumulate(np.where(run_starts(course), place, 0)) if len(course) else place
    before = np.maximum.accumulate(np.where(sure, place, -1)) if len(course) else place
    before = np.append(-1, before)[:-1]
    asked = np.flatnonzero(sure & (place > first))
    last = before[asked]
    since_ms = start_ms[asked] - LOOK_BACK_MS
    recent = (last >= first[asked]) & (end_ms[last] > since_ms)
    if only_near:
        asked, last = asked[recent], last[recent]
    for row in [] if only_near else np.flatnonzero(~recent).tolist():
        low = int(first[asked[row]])
        last[row] = low + max(int(np.searchsorted(start_ms[low : asked[row]], since_ms[row], side="right")) - 1, 0)
    counts = np.zeros(len(course), dtype=np.bool_)
    counts[asked] = side[last] != side[asked]
    return counts


def _around(tracks: Tracks, ends: Ints) -> Tracks:
    """The part of the tracks, around some fixes, that decides what counts there."""
    time = tracks.fixes.t_ms[tracks.row]
    step = np.append(0, np.diff(time))
    clock = np.cumsum(np.where(tracks.linked, step, _BREAK_MS))
    low = np.searchsorted(clock, clock[ends - 1] - CHARGE_BEFORE_MS) - 1
    return _part(tracks, low, np.searchsorted(clock, clock[ends] + CHARGE_AHEAD_MS, side="right") + 1)


def _part(tracks: Tracks, low: Ints, high: Ints) -> Tracks:
    """The fixes of tracks in these stretches, `high` excluded."""
    count = len(tracks.row)
    covers = np.bincount(np.clip(low, 0, count), minlength=count + 1)
    covers -= np.bincount(np.clip(high, 0, count), minlength=count + 1)
    some = np.flatnonzero(np.cumsum(covers)[:count] > 0)
    linked = tracks.linked[some]
    linked[1:] &= np.diff(some) == 1
    linked[:1] = False
    return replace(
        tracks,
        row=tracks.row[some],
        linked=linked,
        metres=tracks.metres[some],
        still=tracks.still[some],
        reported_m=tracks.reported_m[some],
    )


def _uncertain_m(fixes: Fixes, row: Ints, settings: TrackSettings) -> Floats:
    """How far each fix (`row`) may be from its place: its stated accuracy, or half of the accuracy that is assumed
    elsewhere.
    """
    stated = stated_accuracy(fixes, row)
    return np.where(np.isnan(stated), settings.accuracy_not_said_m / 2.0, stated)
