"""Where segments meet the borders of fences, and the stretches between those meetings.

A segment runs at constant speed on the line that is straight in longitude and latitude. Everything here is in its
fraction: 0 at the first fix, 1 at the second. Cuts closer together than `RESOLUTION_DEG` (a tenth of a micrometre)
are one cut, so that rounding makes no slivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.geodesic import unwrapped_end
from geo.spatial.index import FenceIndex
from geo.spatial.ragged import Bools, Floats, Ints, Points, expand, offsets, run_starts
from geo.spatial.tracks import Tracks

RESOLUTION_DEG: Final = 1e-12
# Shewchuk's bound for the rounding of a 2x2 orientation determinant, with room for the products' own rounding
_ROUNDING: Final = 4e-16


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Straight pieces from (px, py) to (qx, qy), degrees; px in [-180, 180), qx within 180° of it; times in ms.

    `follows[i]`: segment i starts at the fix that ends segment i - 1 (None: not known of any).
    """

    px: Floats
    py: Floats
    qx: Floats
    qy: Floats
    start_ms: Floats
    end_ms: Floats
    follows: Bools | None = None

    def __len__(self) -> int:
        return len(self.px)

    def at(self, segment: Ints, fraction: Floats) -> tuple[Floats, Floats]:
        """Positions on segments; fraction 1 gives the end point bit for bit."""
        rest = 1.0 - fraction
        x = self.px[segment] * rest + self.qx[segment] * fraction
        y = self.py[segment] * rest + self.qy[segment] * fraction
        return x, y

    def time_at(self, segment: Ints, fraction: Floats) -> Floats:
        """Times on segments, in ms."""
        start = self.start_ms[segment]
        return start + (self.end_ms[segment] - start) * fraction


def segments_of(tracks: Tracks) -> Segments:
    """The segments of tracks, in track order (see `Tracks.segments`)."""
    end = tracks.segments()
    a, b, fixes = tracks.row[end - 1], tracks.row[end], tracks.fixes
    follows = np.zeros(len(end), dtype=np.bool_)
    follows[1:] = end[1:] - 1 == end[:-1]
    return Segments(
        px=fixes.lon[a],
        py=fixes.lat[a],
        qx=unwrapped_end(fixes.lon[a], fixes.lon[b]),
        qy=fixes.lat[b],
        start_ms=fixes.t_ms[a].astype(np.float64),
        end_ms=fixes.t_ms[b].astype(np.float64),
        follows=follows,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Segments cut up: stretch i covers `start[i] .. end[i]` of `segment[i]`, sorted; every segment is covered once.

    `by_time[i]`: the stretch starts where a fence came into force or went out of it. `first[s]`: the first stretch
    of segment s (one more at the end).
    """

    segment: Ints
    start: Floats
    end: Floats
    by_time: Bools
    first: Ints


def cut(segments: Segments, at_segment: Ints, fraction: Floats, instants_ms: Ints) -> Stretches:
    """Cut segments at the given fractions and at the instants that fall inside their time."""
    time_segment, time_fraction = _time_cuts(segments, instants_ms)
    length = np.hypot(segments.qx - segments.px, segments.qy - segments.py)
    with np.errstate(divide="ignore"):
        resolution = RESOLUTION_DEG / length
    inner = (fraction > resolution[at_segment]) & (fraction < 1.0 - resolution[at_segment])
    segment = np.concatenate([at_segment[inner], time_segment])
    where = np.concatenate([fraction[inner], time_fraction])
    by_time = np.zeros(len(segment), dtype=np.bool_)
    by_time[len(segment) - len(time_segment) :] = True
    order = np.lexsort((~by_time, where, segment))
    segment, where, by_time = segment[order], where[order], by_time[order]
    apart = run_starts(segment)
    if len(where):
        apart[1:] |= np.diff(where) > np.where(by_time[1:], 0.0, resolution[segment[1:]])
    return _stretches(len(segments), segment[apart], where[apart], by_time[apart])


def _stretches(count: int, segment: Ints, where: Floats, by_time: Bools) -> Stretches:
    cuts = np.bincount(segment, minlength=count)
    first = offsets(cuts + 1)
    owner = np.repeat(np.arange(count), cuts + 1)
    start, flag = np.zeros(len(owner)), np.zeros(len(owner), dtype=np.bool_)
    opened = np.ones(len(owner), dtype=np.bool_)
    opened[first[:-1]] = False
    start[opened], flag[opened] = where, by_time
    end = np.ones(len(owner))
    end[:-1] = np.where(opened[1:], start[1:], 1.0)
    return Stretches(owner, start, end, flag, first)


def _time_cuts(segments: Segments, instants_ms: Ints) -> tuple[Ints, Floats]:
    low = np.searchsorted(instants_ms, segments.start_ms, side="right")
    high = np.searchsorted(instants_ms, segments.end_ms, side="left")
    segment, instant = expand(low, np.maximum(high - low, 0))
    start, end = segments.start_ms[segment], segments.end_ms[segment]
    return segment, (instants_ms[instant] - start) / (end - start)


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Where segments meet edges: `fraction` of `segment`; and where they run along one.

    Run k: `run_segment[k]` lies on the border of `run_fence[k]` from `run_start[k]` to `run_end[k]`.
    """

    segment: Ints
    fraction: Floats
    run_segment: Ints
    run_fence: Ints
    run_start: Floats
    run_end: Floats


def meet(segments: Segments, index: FenceIndex) -> Meetings:
    """Every meeting of segments and borders, also across the antimeridian (which is itself a cut)."""
    copies, moved = world_copies(segments)
    copy, edge = index.edges_near(moved.px, moved.py, moved.qx, moved.qy)
    found = _meet_edges(moved, copy, edge, index.outlines)
    turned = _antimeridian(segments)
    return Meetings(
        segment=np.concatenate([copies[found.segment], turned[0]]),
        fraction=np.concatenate([found.fraction, turned[1]]),
        run_segment=copies[found.run_segment],
        run_fence=found.run_fence,
        run_start=found.run_start,
        run_end=found.run_end,
    )


def _antimeridian(segments: Segments) -> tuple[Ints, Floats]:
    over = np.flatnonzero((segments.qx >= 180.0) | (segments.qx < -180.0))
    line = np.where(segments.qx[over] > 0, 180.0, -180.0)
    return over, (line - segments.px[over]) / (segments.qx[over] - segments.px[over])


def world_copies(segments: Segments) -> tuple[Ints, Segments]:
    """Segments, and once more, a turn back, those that leave -180..180."""
    over = np.flatnonzero((segments.qx >= 180.0) | (segments.qx <= -180.0) | (segments.px == -180.0))
    rows = np.arange(len(segments))
    if not len(over):
        return rows, segments
    turn = np.where(segments.qx[over] >= 180.0, -360.0, 360.0)
    rows = np.concatenate([rows, over])
    shift = np.concatenate([np.zeros(len(segments)), turn])
    px, py, qx, qy = segments.px[rows] + shift, segments.py[rows], segments.qx[rows] + shift, segments.qy[rows]
    return rows, Segments(px, py, qx, qy, segments.start_ms[rows], segments.end_ms[rows])


def _meet_edges(segments: Segments, segment: Ints, edge: Ints, outlines: Outlines) -> Meetings:
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p, q = (segments.px[segment], segments.py[segment]), (segments.qx[segment], segments.qy[segment])
    (p_side, p_slack), (q_side, q_slack) = side(a, b, p), side(a, b, q)
    straddles = _opposite(p_side, p_slack, q_side, q_slack) & _opposite(*side(p, q, a), *side(p, q, b))
    along = straddles & (np.abs(p_side) <= p_slack) & (np.abs(q_side) <= q_slack)
    across = np.flatnonzero(straddles & ~along & (p_side != q_side))
    fraction = np.clip(p_side[across] / (p_side[across] - q_side[across]), 0.0, 1.0)
    run = np.flatnonzero(along & ((p[0] != q[0]) | (p[1] != q[1])))
    one, other = _projected(p, q, a, run), _projected(p, q, b, run)
    start, end = np.minimum(one, other), np.maximum(one, other)
    return Meetings(
        segment=np.concatenate([segment[across], segment[run], segment[run]]),
        fraction=np.concatenate([fraction, start, end]),
        run_segment=segment[run],
        run_fence=outlines.fence[np.searchsorted(outlines.rings, edge[run], side="right") - 1],
        run_start=start,
        run_end=end,
    )


def _projected(p: Points, q: Points, point: Points, row: Ints) -> Floats:
    """The fraction of p-q at which `point` lies, within 0..1."""
    dx, dy = q[0][row] - p[0][row], q[1][row] - p[1][row]
    along = (point[0][row] - p[0][row]) * dx + (point[1][row] - p[1][row]) * dy
    return np.clip(along / (dx * dx + dy * dy), 0.0, 1.0)


def side(a: Points, b: Points, point: Points) -> Points:
    """Twice the signed area of (a, b, point), positive on the left of a-b, and how much of it may be rounding."""
    left, right = (b[0] - a[0]) * (point[1] - a[1]), (b[1] - a[1]) * (point[0] - a[0])
    return left - right, _ROUNDING * (np.abs(left) + np.abs(right))


def _opposite(one: Floats, one_slack: Floats, other: Floats, other_slack: Floats) -> Bools:
    """Are two sides not surely the same?"""
    return ~(((one > one_slack) & (other > other_slack)) | ((one < -one_slack) & (other < -other_slack)))
