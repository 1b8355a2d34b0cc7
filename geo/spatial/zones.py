"""Zone sets: fences of one price map, of which at most one counts at any place and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from geo.spatial.activity import ALWAYS, Activity
from geo.spatial.clip import Meetings, Segments, Stretches, cut, meet, segments_of
from geo.spatial.fences import Fence
from geo.spatial.geodesic import wrap_lon
from geo.spatial.index import FenceIndex, TreeIndex
from geo.spatial.pieces import OUTSIDE, Pieces, Runs, measured
from geo.spatial.ragged import Bools, Floats, Ints, expand, run_starts
from geo.spatial.rings import Shape
from geo.spatial.tracks import Tracks

IndexMaker = Callable[[Sequence[Shape]], FenceIndex]


class ZoneSet:
    """Fences in the order in which they win: highest priority first, then smallest id.

    `names` are the distinct ids, sorted; the versions of a fence share one name. A later version (by the start of
    its activity) ends the one before it. Immutable; building it builds the index.
    """

    def __init__(self, fences: Sequence[Fence], *, index: IndexMaker = TreeIndex) -> None:
        ranked = sorted(superseded(fences), key=lambda fence: (-fence.priority, fence.id))
        self.fences: Final = tuple(ranked)
        self.names: Final = tuple(sorted({fence.id for fence in ranked}))
        number = {name: at for at, name in enumerate(self.names)}
        self.zone_of_fence: Final = np.array([number[fence.id] for fence in ranked], dtype=np.int64)
        self.index: Final = index([fence.shape for fence in ranked])
        self._timed = _Timed([fence.active for fence in ranked])

    def zone_at(self, lon: Floats, lat: Floats, t_ms: Ints | Floats) -> Ints:
        """The zone of each place and time; `OUTSIDE` where there is none."""
        return self._zones(*self._located(wrap_lon(lon), lat, t_ms), len(lon))

    def split(self, tracks: Tracks) -> Pieces:
        """Split every segment over the zones: see `Pieces`."""
        segments = segments_of(tracks)
        met = meet(segments, self.index)
        stretches = cut(segments, met.segment, met.fraction, self._timed.instants)
        inside = self._stretch_fences(segments, stretches, met)
        zone = self._zones(*inside, len(stretches.segment))
        before, after = self._zones_at_ends(segments)
        return measured(tracks, segments, _runs(stretches, zone, before, after))

    def _stretch_fences(self, segments: Segments, stretches: Stretches, met: Meetings) -> tuple[Ints, Ints]:
        """Pairs (stretch, fence in force that holds it), by the stretch's middle, or because it lies on the border."""
        middle = (stretches.start + stretches.end) / 2
        x, y = segments.at(stretches.segment, middle)
        t_ms = segments.time_at(stretches.segment, middle)
        stretch, fence = self.index.locate(wrap_lon(x), y)
        if len(met.run_segment):
            run, border = expand(stretches.first[met.run_segment], np.diff(stretches.first)[met.run_segment])
            on = (middle[border] > met.run_start[run]) & (middle[border] < met.run_end[run])
            stretch = np.concatenate([stretch, border[on]])
            fence = np.concatenate([fence, met.run_fence[run[on]]])
        force = self._timed.in_force(fence, t_ms[stretch])
        return stretch[force], fence[force]

    def _located(self, lon: Floats, lat: Floats, t_ms: Ints | Floats) -> tuple[Ints, Ints]:
        point, fence = self.index.locate(lon, lat)
        force = self._timed.in_force(fence, t_ms[point])
        return point[force], fence[force]

    def _zones_at_ends(self, segments: Segments) -> tuple[Ints, Ints]:
        """The zones of the segments' end points. At a switch, the end is still before it and the start after it."""
        count = len(segments)
        lon = np.concatenate([segments.px, wrap_lon(segments.qx)])
        lat = np.concatenate([segments.py, segments.qy])
        t_ms = np.concatenate([segments.start_ms, segments.end_ms - 0.5])
        zone = self.zone_at(lon, lat, t_ms)
        return zone[:count], zone[count:]

    def _zones(self, row: Ints, fence: Ints, count: int) -> Ints:
        best = np.full(count, len(self.fences), dtype=np.int64)
        np.minimum.at(best, row, fence)
        return np.concatenate([self.zone_of_fence, [OUTSIDE]])[best]


def superseded(fences: Sequence[Fence]) -> list[Fence]:
    """Each version of a fence ends where the next one of the same id begins; equal beginnings: the last given wins."""
    versions: dict[str, list[Fence]] = {}
    for fence in fences:
        versions.setdefault(fence.id, []).append(fence)
    kept: list[Fence] = []
    for same in versions.values():
        same.sort(key=_begin)
        for version, following in pairwise(same):
            limited = version.active & Activity([(None, _begin(following))])
            if len(limited.switches):
                kept.append(replace(version, active=limited))
        kept.append(same[-1])
    return kept


def _begin(fence: Fence) -> int:
    return int(fence.active.switches[0]) if len(fence.active.switches) else 0


class _Timed:
    """Which fence is in force when; fences that share an activity are asked together."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        distinct = {active: at for at, active in enumerate(dict.fromkeys(activities))}
        self._distinct = list(distinct)
        self._of_fence = np.array([distinct[active] for active in activities], dtype=np.int64)
        self._always = all(active == ALWAYS for active in self._distinct)
        found = [active.instants() for active in self._distinct]
        self.instants: Ints = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found]))

    def in_force(self, fence: Ints, t_ms: Ints | Floats) -> Bools:
        if self._always:
            return np.ones(len(fence), dtype=np.bool_)
        force = np.zeros(len(fence), dtype=np.bool_)
        kind = self._of_fence[fence]
        for at, active in enumerate(self._distinct):
            rows = np.flatnonzero(kind == at)
            force[rows] = active.at(t_ms[rows])
        return force


def _runs(stretches: Stretches, zone: Ints, before: Ints, after: Ints) -> Runs:
    """Join neighbouring stretches of one zone.

    The end points take part as stretches of no length, so that an entry depends on its own segment alone.
    """
    count = len(before)
    rows = np.diff(stretches.first) + 2
    first = np.cumsum(rows) - rows
    place = np.arange(len(zone)) + 2 * stretches.segment + 1
    total = len(zone) + 2 * count
    segment = np.repeat(np.arange(count), rows)
    all_zone, start, end = np.empty(total, dtype=np.int64), np.zeros(total), np.zeros(total)
    by_time = np.zeros(total, dtype=np.bool_)
    all_zone[place], start[place], end[place], by_time[place] = zone, stretches.start, stretches.end, stretches.by_time
    all_zone[first], all_zone[first + rows - 1] = before, after
    start[first + rows - 1] = end[first + rows - 1] = 1.0
    opens = run_starts(segment, all_zone)
    at = np.flatnonzero(opens)
    last = np.append(at[1:], total) - 1
    leads = np.isin(at, first, assume_unique=True)
    entry = (all_zone[at] != OUTSIDE) & ~leads & ~by_time[at]
    keep = (end[last] > start[at]) | entry
    at, last, entry = at[keep], last[keep], entry[keep]
    return Runs(segment[at], all_zone[at], start[at], end[last], entry)
