"""Entries and crossings that are charged: changes of sides that are sure, from a neighbourhood of bounded time.

A stay on one side of a border is sure if it lasts `SURE_MS` or gets away from the border by more than the places are
uncertain. A crossing counts if the stay that it begins is sure and the last sure one before it was on the other side.
Before a crossing no stay is looked for longer than `LOOK_BACK_MS`: beyond, the side on which the vehicle was counts. So
a late fix changes no entry of long ago.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import shapely

from geo.spatial.fence_set import FenceSet
from geo.spatial.gates import Crossings
from geo.spatial.geodesic import WGS84
from geo.spatial.pieces import Pieces
from geo.spatial.ragged import Bools, Floats, Ints, distinct, run_starts
from geo.spatial.standstill import stated_accuracy
from geo.spatial.track_settings import CHARGE_AHEAD_MS, CHARGE_BEFORE_MS, TrackSettings
from geo.spatial.tracks import Tracks
from geo.spatial.visits import Course, Samples, deep_stays, sides_of

SURE_MS: Final = 120_000
LOOK_BACK_MS: Final = 120_000
assert LOOK_BACK_MS + SURE_MS <= CHARGE_BEFORE_MS
assert SURE_MS <= CHARGE_AHEAD_MS
_BREAK_MS: Final = 1 << 32
_MIDDLE_LINE: Final = 0.5  # of area by perimeter: half of the way to the middle of a strip


def charged_entries(tracks: Tracks, fences: FenceSet, pieces: Pieces, settings: TrackSettings) -> Bools:
    """Which pieces, of zones or fences, begin with an entry that counts. By the rule `every_fix` each entry does."""
    entry = pieces.entry.copy()
    asked = np.flatnonzero(entry)
    if settings.rule == "every_fix" or not len(asked):
        return entry
    position = np.empty(len(tracks.fixes), dtype=np.int64)
    position[tracks.row] = np.arange(len(tracks.row))
    ends = position[pieces.end_fix[asked]]
    course = Course(_around(tracks, ends))
    sides = sides_of(course, fences)
    sure = sides.end_ms - sides.start_ms >= SURE_MS
    ask = np.flatnonzero(~sure)
    uncertain_m = _uncertain_m(tracks, settings)
    samples = Samples(course, fences, settings.buffer_m, uncertain_m, _narrowness_m(fences, distinct(sides.fence[ask])))
    sure[ask] = deep_stays(sides, ask, samples)
    counts = sides.crossed & _counts(sides.course, sides.inside, sides.start_ms, sides.end_ms, sure)
    start_ms, end_ms = (tracks.fixes.t_ms[tracks.row[at]].astype(np.float64) for at in (ends - 1, ends))
    time = start_ms + (end_ms - start_ms) * pieces.start[asked]
    devices, moments = distinct(tracks.fixes.device), np.unique(time)

    def key(device: Ints, t_ms: Floats) -> Ints:
        return np.searchsorted(devices, device) * len(moments) + np.searchsorted(moments, t_ms)

    changes = np.flatnonzero(sides.crossed & np.isin(sides.start_ms, moments))
    way_in, counts = sides.inside[changes], counts[changes]
    moment, own = key(course.device(sides.track[changes]), sides.start_ms[changes]), key(_device(tracks, ends), time)
    into, own_zone = (
        of * len(fences.names) + zone for of, zone in ((moment, sides.fence[changes]), (own, pieces.zone[asked]))
    )
    # a zone is entered at the border of its fence, or where a fence is left that wins over it
    at_own = np.isin(own_zone, into[way_in])
    entry[asked] = np.where(at_own, np.isin(own_zone, into[way_in & counts]), np.isin(own, moment[~way_in & counts]))
    return entry


def charged_crossings(tracks: Tracks, crossings: Crossings, settings: TrackSettings) -> Bools:
    """Which crossings of gates count. By the rule `every_fix` each does.

    Two crossings there and back count only if the way between them is twice as long as places are uncertain, or lasts.
    """
    count = len(crossings)
    if settings.rule == "every_fix" or not count:
        return np.ones(count, dtype=np.bool_)
    position = np.empty(len(tracks.fixes), dtype=np.int64)
    position[tracks.row] = np.arange(len(tracks.row))
    end = position[crossings.end_fix]
    start_ms, end_ms = (tracks.fixes.t_ms[tracks.row[at]].astype(np.float64) for at in (end - 1, end))
    # whole millimetres: their sums are the same wherever they begin
    rest_m = tracks.metres[end] * (end_ms - crossings.t_ms) / (end_ms - start_ms)
    at_mm = np.cumsum(_millimetres(tracks.metres))[end] - _millimetres(rest_m)
    away_mm = 2_000.0 * np.fmax(_uncertain_m(tracks, settings)[crossings.end_fix], settings.buffer_m)
    moving = np.flatnonzero(~tracks.still[end])
    track = np.cumsum(~tracks.linked)[end]
    order = moving[np.lexsort((crossings.t_ms[moving], crossings.gate[moving], track[moving]))]
    track, gate, forward = track[order], crossings.gate[order], crossings.forward[order]
    # round its end a vehicle comes to the other side of a gate without crossing it
    opens = run_starts(track, gate)
    opens[1:] |= forward[1:] == forward[:-1]
    # each crossing begins a stay that lasts up to the next one; before the first one is that on the other side
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
    counts = _counts(np.cumsum(course), side, begins, ends, certain)
    found = np.zeros(count, dtype=np.bool_)
    found[order] = counts[rows]
    return found


def _device(tracks: Tracks, at: Ints) -> Ints:
    return tracks.fixes.device[tracks.row[at]]


def _millimetres(metres: Floats) -> Ints:
    return np.rint(metres * 1_000.0).astype(np.int64)


def _counts(course: Ints, side: Bools, start_ms: Floats, end_ms: Floats, sure: Bools) -> Bools:
    """Which stays begin with a crossing that counts; of stays in the order of (course, time), whose sides alternate."""
    place = np.arange(len(course))
    first = np.maximum.accumulate(np.where(run_starts(course), place, 0)) if len(course) else place
    before = np.maximum.accumulate(np.where(sure, place, -1)) if len(course) else place
    before = np.append(-1, before)[:-1]
    asked = np.flatnonzero(sure & (place > first))
    last = before[asked]
    since_ms = start_ms[asked] - LOOK_BACK_MS
    recent = (last >= first[asked]) & (end_ms[last] > since_ms)
    for row in np.flatnonzero(~recent).tolist():
        low = int(first[asked[row]])
        last[row] = low + max(int(np.searchsorted(start_ms[low : asked[row]], since_ms[row], side="right")) - 1, 0)
    counts = np.zeros(len(course), dtype=np.bool_)
    counts[asked] = side[last] != side[asked]
    return counts


def _around(tracks: Tracks, ends: Ints) -> Tracks:
    """The tracks in the time around some fixes that decides what counts there."""
    time = tracks.fixes.t_ms[tracks.row]
    step = np.append(0, np.diff(time))
    clock = np.cumsum(np.where(tracks.linked, step, _BREAK_MS))
    low = np.searchsorted(clock, clock[ends - 1] - CHARGE_BEFORE_MS) - 1
    high = np.searchsorted(clock, clock[ends] + CHARGE_AHEAD_MS, side="right") + 1
    covers = np.bincount(np.maximum(low, 0), minlength=len(time) + 2)
    covers -= np.bincount(np.minimum(high, len(time)), minlength=len(time) + 2)
    some = np.flatnonzero(np.cumsum(covers)[: len(time)] > 0)
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


def _uncertain_m(tracks: Tracks, settings: TrackSettings) -> Floats:
    """How far each fix may be from its place: as far as it states, or half of what is assumed elsewhere."""
    stated = stated_accuracy(tracks.fixes, np.arange(len(tracks.fixes)))
    return np.where(np.isnan(stated), settings.accuracy_not_said_m / 2.0, stated)


def _narrowness_m(fences: FenceSet, names: Ints) -> Floats:
    """Of each shape how far from its border a place in it can be asked to be; infinite for those of other names."""
    most = np.full(len(fences.shared.shapes), np.inf)
    wanted = distinct(fences.shared.of_fence[np.isin(fences.name_of_fence, names)])
    for number in wanted.tolist():
        shape = fences.shared.shapes[number]
        degree = np.radians(WGS84.a)
        scale = np.array([degree * np.cos(np.radians((shape.bounds[1] + shape.bounds[3]) / 2.0)), degree])
        flat = shapely.transform(shape, lambda places, scale=scale: places * scale)
        most[number] = _MIDDLE_LINE * flat.area / max(flat.length, 1e-9)
    return most
