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
from geo.spatial.predicates import OnLines, crossing_fraction, orientation, side
from geo.spatial.ragged import Bools, Floats, Ints, expand, offsets
from geo.spatial.tracks import Tracks

RESOLUTION_DEG: Final = 1e-12
# a meeting whose rounding could move it farther than this is computed in fractions
_BLURRED_DEG: Final = RESOLUTION_DEG / 10


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Straight pieces from (px, py) to (qx, qy), degrees; px in [-180, 180), qx within 180° of it; times in ms.

    `follows[i]`: segment i starts at the fix that ends segment i - 1 (None: not known of any). `end_lon`: qx as it was
    before it was moved by a turn (None: it was not).
    """

    px: Floats
    py: Floats
    qx: Floats
    qy: Floats
    start_ms: Floats
    end_ms: Floats
    follows: Bools | None = None
    end_lon: Floats | None = None

    def __len__(self) -> int:
        return len(self.px)

    def part(self, rows: slice) -> Segments:
        """Some neighbouring segments, of which the first follows on none."""
        follows = None if self.follows is None else self.follows[rows].copy()
        if follows is not None:
            follows[:1] = False
        return Segments(
            px=self.px[rows],
            py=self.py[rows],
            qx=self.qx[rows],
            qy=self.qy[rows],
            start_ms=self.start_ms[rows],
            end_ms=self.end_ms[rows],
            follows=follows,
            end_lon=None if self.end_lon is None else self.end_lon[rows],
        )

    def some(self, rows: Ints) -> Segments:
        """Some segments, of which none is known to follow on another."""
        px, py, qx, qy = self.px[rows], self.py[rows], self.qx[rows], self.qy[rows]
        return Segments(px, py, qx, qy, self.start_ms[rows], self.end_ms[rows])

    def at(self, segment: Ints, fraction: Floats) -> tuple[Floats, Floats]:
        """Positions on segments; fraction 1 gives the end point bit for bit."""
        rest = 1.0 - fraction
        x = self.px[segment] * rest + self.qx[segment] * fraction
        y = self.py[segment] * rest + self.qy[segment] * fraction
        # along a pole rounding may go beyond it, where there is no distance
        return x, np.clip(y, -90.0, 90.0)

    def on_lines(self, segment: Ints, fraction: Floats) -> OnLines:
        """The exact places on segments, of which `at` gives the nearest doubles."""
        p, q = (self.px[segment], self.py[segment]), (self.qx[segment], self.qy[segment])
        return OnLines(*p, *q, fraction, np.zeros(len(segment)))

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
        end_lon=fixes.lon[b],
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
    with np.errstate(divide="ignore", over="ignore"):  # of steps of next to no length
        resolution = RESOLUTION_DEG / length
    inner = (fraction > resolution[at_segment]) & (fraction < 1.0 - resolution[at_segment])
    segment = np.concatenate([at_segment[inner], time_segment])
    where = np.concatenate([fraction[inner], time_fraction])
    by_time = np.zeros(len(segment), dtype=np.bool_)
    by_time[len(segment) - len(time_segment) :] = True
    order = np.lexsort((~by_time, where, segment))
    segment, where, by_time = segment[order], where[order], by_time[order]
    kept = _told_apart(segment, where, by_time, resolution)
    return _stretches(len(segments), segment[kept], where[kept], by_time[kept])


def _told_apart(segment: Ints, where: Floats, by_time: Bools, resolution: Floats) -> Bools:
    """Which cuts count, of those in order: every switch; a border unless it is within the resolution of a switch, or of
    the last border that counts, and so one with it.
    """
    apart = np.ones(len(segment), dtype=np.bool_)
    apart[1:] = (np.diff(segment) != 0) | (np.diff(where) > resolution[segment[1:]])
    if apart.all():
        return apart
    first = np.flatnonzero(apart)
    end = np.append(first[1:], len(apart))
    switched = np.logical_or.reduceat(by_time, first)
    kept = by_time.copy()
    kept[first[~switched]] = True
    long = where[end - 1] - where[first] > resolution[segment[first]]
    for low, high in zip(first[long].tolist(), end[long].tolist(), strict=True):
        kept[low:high] = _of_a_chain(where[low:high], by_time[low:high], float(resolution[segment[low]]))
    return kept


def _of_a_chain(where: Floats, by_time: Bools, resolution: float) -> Bools:
    """`_told_apart` for cuts of which each is near the next, but not all are near each other."""
    kept, switches, last = by_time.copy(), where[by_time], -np.inf
    for row in np.flatnonzero(~by_time).tolist():
        after = int(np.searchsorted(switches, where[row]))
        beside = switches[max(after - 1, 0) : after + 1]
        if where[row] - last > resolution and (np.abs(beside - where[row]) > resolution).all():
            kept[row], last = True, where[row]
    return kept


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
    segment, instant = expand(*_instants_within(segments, instants_ms))
    start, end = segments.start_ms[segment], segments.end_ms[segment]
    return segment, (instants_ms[instant] - start) / (end - start)


def _instants_within(segments: Segments, instants_ms: Ints) -> tuple[Ints, Ints]:
    """(the first, how many) of the instants that fall inside the time of each segment."""
    low = np.searchsorted(instants_ms, segments.start_ms, side="right")
    return low, np.maximum(np.searchsorted(instants_ms, segments.end_ms, side="left") - low, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Where segments meet borders between their fixes, and the antimeridian: at `fraction` of `segment`.

    `touches[s]`: segment s may have a place in common with a border, its fixes included; surely not where it is False.
    """

    segment: Ints
    fraction: Floats
    touches: Bools

    def uniform(self, segments: Segments, instants_ms: Ints) -> tuple[Bools, Bools]:
        """Which segments surely touch no border and have none of these instants within their time: whatever holds
        their first fix, in place and time, holds all of them. And which of those go on like the segment before, on
        which they follow.
        """
        before, within = _instants_within(segments, instants_ms)
        uniform, goes_on = ~self.touches & (within == 0), np.zeros(len(segments), dtype=np.bool_)
        if segments.follows is not None:
            goes_on[1:] = uniform[1:] & uniform[:-1] & segments.follows[1:] & (before[1:] == before[:-1])
        return uniform, goes_on


def meet(segments: Segments, index: FenceIndex) -> Meetings:
    """Every place where a segment crosses or touches a border between its fixes, and where the antimeridian.

    Exact: an edge that a segment does not meet is not there, one that it does is, to the nearest double or within
    `RESOLUTION_DEG` / 10. A segment along an edge meets the edges on both ends of it.
    """
    copies, moved = world_copies(segments)
    copy, edge = index.edges_near(moved.px, moved.py, moved.qx, moved.qy)
    segment, fraction, at_a_fix = _meet_edges(moved, copy, edge, index.outlines)
    over, turned = _antimeridian(segments)
    met = np.concatenate([copies[segment], over])
    touches = np.zeros(len(segments), dtype=np.bool_)
    touches[met] = touches[copies[at_a_fix]] = True
    return Meetings(met, np.concatenate([fraction, turned]), touches)


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


def _meet_edges(segments: Segments, segment: Ints, edge: Ints, outlines: Outlines) -> tuple[Ints, Floats, Ints]:
    """(segment, fraction) where segments meet edges between their fixes; segments with a fix on the line of an edge."""
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p, q = (segments.px[segment], segments.py[segment]), (segments.qx[segment], segments.qy[segment])
    at_p, at_q = side(a, b, p), side(a, b, q)
    sides = orientation(a, b, p, at_p) * orientation(a, b, q, at_q)
    at_a_fix, meets = segment[sides == 0], np.flatnonzero(sides < 0)
    segment, a, b, p, q = segment[meets], *((one[meets], other[meets]) for one, other in (a, b, p, q))
    (p_side, p_slack), (q_side, q_slack) = ((value[meets], slack[meets]) for value, slack in (at_p, at_q))
    between = orientation(p, q, a) * orientation(p, q, b) <= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = p_side / (p_side - q_side)
        blur = (p_slack + q_slack) / np.abs(p_side - q_side) * np.hypot(q[0] - p[0], q[1] - p[1])
    for row in np.flatnonzero(between & ~(blur <= _BLURRED_DEG)).tolist():
        fraction[row] = crossing_fraction(*((float(at[0][row]), float(at[1][row])) for at in (p, q, a, b)))
    return segment[between], np.clip(fraction[between], 0.0, 1.0), at_a_fix
