"""Where segments meet the borders of fences, and the stretches between those meetings.

A segment runs at constant speed on the line that is straight in longitude and latitude. Places on it are fractions: 0
at the first fix, 1 at the second. Cuts closer together than `RESOLUTION_DEG` (a tenth of a micrometre) are one cut, so
that rounding makes no slivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.geodesic import unwrapped_end
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import OnLines, crossing_fraction, orientation, side
from geo.spatial.ragged import Bools, Floats, Ints, Pairs, blocks, joined_pairs, offsets
from geo.spatial.tracks import Tracks

RESOLUTION_DEG: Final = 1e-12
# a meeting that rounding could move farther than this is computed with fractions
_BLURRED_DEG: Final = RESOLUTION_DEG / 10
MAX_TOUCHED: Final = 1 << 21
"""Pairs of a segment and a nearby edge that are held at once, or those of one segment."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Straight pieces from (px, py) to (qx, qy), degrees; px in [-180, 180), qx within 180° of it; times in ms.

    `follows[i]`: segment i starts at the fix that ends segment i - 1 (None: unknown for all). `end_lon`: qx before it
    was moved by a turn (None: it was not).
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
        """Neighbouring segments; the first follows on none."""
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
        """Some segments, none of which is known to follow another."""
        px, py, qx, qy = self.px[rows], self.py[rows], self.qx[rows], self.qy[rows]
        return Segments(px, py, qx, qy, self.start_ms[rows], self.end_ms[rows])

    def at(self, segment: Ints, fraction: Floats) -> tuple[Floats, Floats]:
        """Positions on segments; fraction 1 gives the end point bit for bit."""
        rest = 1.0 - fraction
        x = self.px[segment] * rest + self.qx[segment] * fraction
        y = self.py[segment] * rest + self.qy[segment] * fraction
        # rounding may go beyond a pole
        return x, np.clip(y, -90.0, 90.0)

    def on_lines(self, segment: Ints, fraction: Floats) -> OnLines:
        """The exact places on segments; `at` gives the nearest doubles."""
        p, q = (self.px[segment], self.py[segment]), (self.qx[segment], self.qy[segment])
        return OnLines(*p, *q, fraction, np.zeros(len(segment)))

    def time_at(self, segment: Ints, fraction: Floats) -> Floats:
        """Times on segments, in ms."""
        start = self.start_ms[segment]
        return start + (self.end_ms[segment] - start) * fraction


def segments_of(tracks: Tracks) -> Segments:
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


def in_parts(
    segments: Segments, pairs: Ints, most: int, make: Callable[[int, Segments], Made | None]
) -> Iterator[Made]:
    """What `make` gives for blocks of neighbouring segments, with the number of the first; at least one block.

    A block holds segments that are expected to make at most `most` of their `pairs`. If `make` gives None, several
    segments were too many, and the block is halved.
    """
    for rows in blocks(pairs, most) if len(segments) else [slice(0, 0)]:
        yield from _halved(rows.start, segments.part(rows), make)


def _halved(begin: int, segments: Segments, make: Callable[[int, Segments], Made | None]) -> Iterator[Made]:
    made = make(begin, segments)
    if made is not None:
        yield made
        return
    assert len(segments) > 1, "one segment is made of, whatever it takes"
    half = len(segments) // 2
    yield from _halved(begin, segments.part(slice(0, half)), make)
    yield from _halved(begin + half, segments.part(slice(half, None)), make)


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Segments cut up: stretch i covers `start[i] .. end[i]` of `segment[i]`, sorted; every segment is covered once.

    `by_time[i]`: the stretch starts where a fence switched. `first[s]`: the first stretch of segment s (one more at the
    end).
    """

    segment: Ints
    start: Floats
    end: Floats
    by_time: Bools
    first: Ints


def cut(segments: Segments, at_segment: Ints, fraction: Floats, switches: Pairs) -> Stretches:
    """Cut segments at the given fractions, and at switches (segment, ms) inside their time."""
    time_segment, t_ms = switches
    start_ms, end_ms = segments.start_ms[time_segment], segments.end_ms[time_segment]
    time_fraction = (t_ms - start_ms) / (end_ms - start_ms)
    length = np.hypot(segments.qx - segments.px, segments.qy - segments.py)
    with np.errstate(divide="ignore", over="ignore"):  # for steps of almost no length
        resolution = RESOLUTION_DEG / length
    inner = (fraction > resolution[at_segment]) & (fraction < 1.0 - resolution[at_segment])
    segment = np.concatenate([at_segment[inner], time_segment])
    where = np.concatenate([fraction[inner], time_fraction])
    by_time = np.zeros(len(segment), dtype=np.bool_)
    by_time[len(segment) - len(time_segment) :] = True
    order = np.lexsort((~by_time, where, segment))
    segment, where, by_time = segment[order], where[order], by_time[order]
    kept = _distinguished(segment, where, by_time, resolution)
    return _stretches(len(segments), segment[kept], where[kept], by_time[kept])


def _distinguished(segment: Ints, where: Floats, by_time: Bools, resolution: Floats) -> Bools:
    """Which cuts count, of those in order: every switch, and the first border of a chain without a switch.

    In a chain each cut is within the resolution of the next one.
    """
    apart = np.ones(len(segment), dtype=np.bool_)
    apart[1:] = (np.diff(segment) != 0) | (np.diff(where) > resolution[segment[1:]])
    if apart.all():
        return apart
    first = np.flatnonzero(apart)
    switched = np.logical_or.reduceat(by_time, first)
    kept = by_time.copy()
    kept[first[~switched]] = True
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


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Where segments meet borders between their fixes, and the antimeridian: at `fraction` of `segment`.

    `touched`: pairs (segment, edge) that may have a place in common, fixes included; no others have. `touches[s]`:
    segment s is in one of them, or leaves the map.
    """

    segment: Ints
    fraction: Floats
    touched: Pairs
    touches: Bools


def meet(segments: Segments, index: GridIndex, most: int) -> Meetings | None:
    """Every place where a segment crosses or touches a border between its fixes, or crosses the antimeridian.

    Exact about which edges are met; places are the nearest double, or within `RESOLUTION_DEG` / 10. A segment along an
    edge meets the edges on both ends of it. None where several segments meet more than `most` edges between their
    fixes, or touch more than `MAX_TOUCHED`: the caller takes fewer segments.
    """
    copies, moved = world_copies(segments)
    over, turned = _antimeridian(segments)
    met: list[tuple[Ints, Floats]] = [(over, turned)]
    touched: list[Pairs] = []
    meetings = touchings = 0
    for copy, edge in index.edges_near(moved.px, moved.py, moved.qx, moved.qy):
        where, fraction, touching = _meet_edges(moved, copy, edge, index.outlines)
        met.append((copies[copy[where]], fraction))
        touched.append((copies[copy[touching]], edge[touching]))
        meetings, touchings = meetings + len(where), touchings + len(touching)
        if len(segments) > 1 and (meetings > most or touchings > MAX_TOUCHED):
            return None
    segment, fraction = (np.concatenate(part) for part in zip(*met, strict=True))
    near, edge = joined_pairs(touched)
    touches = np.zeros(len(segments), dtype=np.bool_)
    touches[near] = touches[over] = True
    return Meetings(segment, fraction, (near, edge), touches)


def _antimeridian(segments: Segments) -> tuple[Ints, Floats]:
    over = np.flatnonzero((segments.qx >= 180.0) | (segments.qx < -180.0))
    line = np.where(segments.qx[over] > 0, 180.0, -180.0)
    return over, (line - segments.px[over]) / (segments.qx[over] - segments.px[over])


def world_copies(segments: Segments) -> tuple[Ints, Segments]:
    """Segments, and a second copy, moved back by a turn, of those that leave -180..180."""
    # A fix at -180 is one at 180 as well, and fences that end there have their border at 180.
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
    """For pairs (segment, edge): those that meet between the fixes, the fraction of each; and those that may touch."""
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p, q = (segments.px[segment], segments.py[segment]), (segments.qx[segment], segments.qy[segment])
    at_p, at_q = side(a, b, p), side(a, b, q)
    sides = orientation(a, b, p, at_p) * orientation(a, b, q, at_q)
    at_a_fix, meets = np.flatnonzero(sides == 0), np.flatnonzero(sides < 0)
    a, b, p, q = ((one[meets], other[meets]) for one, other in (a, b, p, q))
    (p_side, p_slack), (q_side, q_slack) = ((value[meets], slack[meets]) for value, slack in (at_p, at_q))
    between = orientation(p, q, a) * orientation(p, q, b) <= 0
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = p_side / (p_side - q_side)
        blur = (p_slack + q_slack) / np.abs(p_side - q_side) * np.hypot(q[0] - p[0], q[1] - p[1])
    # Not `>`: where both sides are 0 the blur is NaN, and every comparison with it is false.
    for row in np.flatnonzero(between & ~(blur <= _BLURRED_DEG)).tolist():
        fraction[row] = crossing_fraction(*((float(at[0][row]), float(at[1][row])) for at in (p, q, a, b)))
    met = meets[between]
    # rounding may put a meeting beside a fix beyond it
    return met, np.clip(fraction[between], 0.0, 1.0), np.concatenate([met, at_a_fix])
