"""Many fences, indexed: which of them hold a point or a stretch of a track at its time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely

from geo.spatial.activity import Schedule, Versions, begin_ms, superseded
from geo.spatial.clip import Meetings, Segments, Stretches, cut, in_parts, meet
from geo.spatial.fences import Fence
from geo.spatial.geodesic import WGS84, wrap_lon
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots
from geo.spatial.ragged import Bools, Floats, Ints, Pairs, distinct, distinct_pairs, expand, offsets, run_starts
from geo.spatial.rings import Shape


class SharedShapes:
    """Fences with the same shape share it, so it is indexed and looked up once.

    `shapes`: the distinct shapes, in order of appearance; `counts`: the fences of each; `of_fence[f]`: the shape of
    fence f.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        number: dict[bytes, int] = {}
        unique: list[Shape] = []
        of_fence = np.empty(len(shapes), dtype=np.int64)
        for fence, shape in enumerate(shapes):
            digest = hashlib.blake2b(shapely.to_wkb(shape), digest_size=16).digest()
            of_fence[fence] = at = number.setdefault(digest, len(unique))
            if at == len(unique):
                unique.append(shape)
        self.shapes: Final = tuple(unique)
        self.of_fence: Ints = of_fence
        self._fences = np.argsort(of_fence, kind="stable")
        self.counts: Ints = np.bincount(of_fence, minlength=len(unique))
        self._first = offsets(self.counts)
        self._half_widths_m = np.full(len(unique), np.nan)

    def half_widths_m(self, wanted: Ints) -> Floats:
        """Metres from the middle of each shape to its border, as if it were a strip. Only those `wanted` are known."""
        unknown = wanted[np.isnan(self._half_widths_m[wanted])]
        if len(unknown):
            shapes = np.array([self.shapes[at] for at in unknown.tolist()], dtype=np.object_)
            places, owner = shapely.get_coordinates(shapes, return_index=True)
            bounds, degree_m = shapely.bounds(shapes), np.radians(WGS84.a)
            east_m = degree_m * np.cos(np.radians((bounds[:, 1] + bounds[:, 3]) / 2.0))
            flat = shapely.set_coordinates(
                shapes, places * np.column_stack([east_m[owner], np.full(len(owner), degree_m)])
            )
            self._half_widths_m[unknown] = shapely.area(flat) / np.maximum(shapely.length(flat), 1e-9)
        return self._half_widths_m

    def fences(self, row: Ints, shape: Ints) -> tuple[Ints, Ints]:
        """Pairs (row, fence) from pairs (row, shape)."""
        if len(self.shapes) == len(self.of_fence):
            return row, shape
        item, at = expand(self._first[shape], np.diff(self._first)[shape])
        return row[item], self._fences[at]


PAIRS_AT_ONCE: Final = 1 << 21
"""Pairs that are held at once, of a fence and a fix or a stretch between two borders."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentFences:
    """Which fences hold which part of segments, as pairs of row and fence, in no particular order.

    `first`, `last`: runs of segments, each following on the one before, that lie in the same fences all the time:
    `held`/`held_fence`, by row. The other segments are `segments`, with the numbers `rest`, cut at borders.
    `stretch`/`stretch_fence`: stretches that lie in a fence. `start`/`start_fence` and `end`/`end_fence`: segments
    whose first or second fix lies in a fence. A fix at the moment of a switch belongs to the time after it as a start,
    and to the time before it as an end. `comes`, `goes`: for each pair of stretch and fence, whether the fence comes
    into force where the stretch starts, or goes out of force where it ends.
    """

    first: Ints
    last: Ints
    held: Ints
    held_fence: Ints
    rest: Ints
    segments: Segments
    stretches: Stretches
    stretch: Ints
    stretch_fence: Ints
    comes: Bools
    goes: Bools
    start: Ints
    start_fence: Ints
    end: Ints
    end_fence: Ints


class FenceSet:
    """Fences in the order in which they win: highest priority first, then smallest id. Immutable.

    `names` are the distinct ids, sorted. The versions of a fence share one name, and a later version (by its effective
    date) ends the one before it. `speed_limit_mps` is infinite where there is none. `index` holds the distinct shapes
    (`shared`).
    """

    def __init__(self, fences: Sequence[Fence]) -> None:
        ranked = sorted(superseded(fences), key=lambda fence: (-fence.priority, fence.id))
        self.fences: Final[tuple[Fence, ...]] = tuple(ranked)
        self.names: Final = tuple(sorted({fence.id for fence in ranked}))
        number = {name: at for at, name in enumerate(self.names)}
        self.name_of_fence: Final = np.array([number[fence.id] for fence in ranked], dtype=np.int64)
        self.speed_limit_mps: Final[Floats] = np.array(
            [fence.speed_limit_mps or np.inf for fence in ranked], dtype=float
        )
        self.has_speed_limits: Final = bool(np.isfinite(self.speed_limit_mps).any())
        self.shared: Final = SharedShapes([fence.shape for fence in ranked])
        self.index: Final = GridIndex.of(self.shared.shapes)
        self._schedule = Schedule([fence.active for fence in ranked])
        self._versions = Versions(self.name_of_fence, [begin_ms(fence.active) for fence in ranked])
        self._first_vertex = self.index.outlines.first_vertices()
        self._overlap_bound = self.index.overlap_bound(self.shared.counts)

    def holding(self, lon: Floats, lat: Floats, t_ms: Ints | Floats) -> tuple[Ints, Ints]:
        """Pairs (point, fence): the fences in force that hold each point or have it on their border; fence indexes
        `fences`.
        """
        return self._in_force(self._locate(Spots(wrap_lon(lon), lat)), t_ms)

    def version_at(self, name: Ints, t_ms: Floats) -> Ints:
        """The fence (index into `fences`) that a name stands for at each time; -1 where none is in force."""
        fence = self._versions.at(name, t_ms)
        return np.where(self._schedule.in_force(fence, t_ms), fence, -1)

    def switches_of(self, name: Ints, start_ms: Floats, end_ms: Floats) -> tuple[Ints, Ints]:
        """(row, ms): when the version of a name may change or go out of force, within each stretch of time."""
        if self._schedule.always:
            none = np.zeros(0, dtype=np.int64)
            return none, none
        row, fence = self._versions.within(name, start_ms, end_ms)
        item, t_ms = self._schedule.switches(self._schedule.kind[fence], start_ms[row], end_ms[row]).made()
        return row[item], t_ms

    def may_cross(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Bools:
        """Whether each segment may meet a border. Where it does not, the same fences hold both of its ends."""
        return self.index.comes_near(px, py, qx, qy)

    def next_switch_ms(self, lon: Floats, lat: Floats, t_ms: Ints, horizon_ms: int) -> Floats:
        """When one of the fences around each place, in force or not, next comes into force or goes out of force.

        The end of the horizon if none switches within it; infinity where no fence is around.
        """
        until = np.full(len(lon), np.inf)
        place, fence = self._locate(Spots(wrap_lon(lon), lat))
        until[place] = t_ms[place] + float(horizon_ms)
        if not self._schedule.always and len(place):
            start, end = t_ms[place], t_ms[place] + horizon_ms
            row, switch_ms = self._schedule.switches(self._schedule.kind[fence], start, end).made()
            np.minimum.at(until, place[row], switch_ms)
        return until

    def _locate(self, spots: Spots) -> Pairs:
        return self.shared.fences(*self._shapes_at(spots))

    def _shapes_at(self, spots: Spots) -> Pairs:
        located = [self.index.locate(spots)]
        # the antimeridian has two names, and rounding may put a place on it or on either side of it
        for line, turns in ((-180.0, 1.0), (180.0, -1.0)):
            edge = np.flatnonzero(np.abs(spots.x - line) <= spots.slop)
            if len(edge):
                point, fence = self.index.locate(spots.turned(edge, np.full(len(edge), turns)))
                located.append((edge[point], fence))
        if len(located) == 1:
            return located[0]
        point, fence = (np.concatenate(part) for part in zip(*located, strict=True))
        pairs = distinct(point * np.int64(len(self.fences)) + fence)
        return pairs // len(self.fences), pairs % len(self.fences)

    def place(self, segments: Segments) -> Iterator[SegmentFences]:
        """Cut segments at borders and switches, and find the fences of each part: blocks of neighbours, at least one
        block.

        Holds about `PAIRS_AT_ONCE` pairs, or those of one segment.
        """
        yield from in_parts(segments, self._expected(segments), PAIRS_AT_ONCE, self._place)

    def _expected(self, segments: Segments) -> Ints:
        """An upper bound of the fences that hold each first fix, and the second fix where no segment follows."""
        pairs = self._overlap_bound.at(segments.px, segments.py)
        last = np.ones(len(segments), dtype=np.bool_)
        if segments.follows is not None:
            last[:-1] = ~segments.follows[1:]
        ends = np.flatnonzero(last)
        pairs[ends] += self._overlap_bound.at(wrap_lon(segments.qx[ends]), segments.qy[ends])
        return pairs

    def _place(self, begin: int, segments: Segments) -> SegmentFences | None:
        """None where several segments would make more than `PAIRS_AT_ONCE` pairs: they are counted before they are
        made.
        """
        most = PAIRS_AT_ONCE // self._overlap_bound.least
        met = meet(segments, self.index, most)
        if met is None:
            return None
        fixes = _Fixes(segments, met.touches, self._locate)
        switches = self._switches(segments, met, fixes)
        if switches is None or (len(segments) > 1 and len(met.segment) + len(switches[0]) > most):
            return None
        uniform, goes_on = _uniform(segments, met.touches, switches[0])
        rest, number = np.flatnonzero(~uniform), np.cumsum(~uniform) - 1
        others = segments.some(rest)
        inner = np.flatnonzero(switches[1] > segments.start_ms[switches[0]])
        stretches = cut(others, number[met.segment], met.fraction, (number[switches[0][inner]], switches[1][inner]))
        first = np.flatnonzero(uniform & ~goes_on)
        last = np.flatnonzero(uniform & ~np.append(goes_on[1:], False)[: len(segments)])
        held = self._in_force(fixes.at_start(first), segments.start_ms[first])
        start = self._in_force(fixes.at_start(rest), segments.start_ms[rest])
        # half a millisecond before: fixes and switches are at whole milliseconds
        end = self._in_force(fixes.at_end(rest), segments.end_ms[rest] - 0.5)
        middle = (stretches.start + stretches.end) / 2
        expected = self._overlap_bound.at(*others.at(stretches.segment, middle))
        if len(segments) > 1 and expected.sum() > PAIRS_AT_ONCE:
            return None
        stretch = self._stretch_fences(others, stretches, middle)
        changes = self._changes(others, stretches, *stretch)
        uniform_rows = (first + begin, last + begin, *held)
        return SegmentFences(*uniform_rows, rest + begin, others, stretches, *stretch, *changes, *start, *end)

    def _switches(self, segments: Segments, met: Meetings, fixes: _Fixes) -> Pairs | None:
        """(segment, ms), each once: when the fences that hold a part of a segment switch, from its start on and
        before its end.

        None where they are too many for several segments.
        """
        none = np.zeros(0, dtype=np.int64)
        if self._schedule.always:
            return none, none
        # a fence that holds a part of a segment holds its first fix, or has a border that the segment touches
        near, edge = met.touched
        near, shape = distinct_pairs(near, np.searchsorted(self._first_vertex, edge, side="right") - 1)
        if len(segments) > 1 and self.shared.counts[shape].sum() > PAIRS_AT_ONCE:
            return None
        near, fence = self.shared.fences(near, shape)
        held, kind = self._switching(segments, fixes)
        segment, kind = distinct_pairs(np.append(held, near), np.append(kind, self._schedule.kind[fence]))
        switches = self._schedule.switches(kind, segments.start_ms[segment], segments.end_ms[segment])
        if len(segments) > 1 and switches.count.sum() > PAIRS_AT_ONCE:
            return None
        row, t_ms = switches.made()
        return distinct_pairs(segment[row], t_ms)

    def _switching(self, segments: Segments, fixes: _Fixes) -> Pairs:
        """Pairs (segment, kind of schedule) of the fences that hold its first fix and switch within it."""
        first, last = fixes.together()
        row, fence = fixes.at_start(first)
        row, kind = distinct_pairs(row, self._schedule.kind[fence])
        start_ms, end_ms = segments.start_ms[first], segments.end_ms[last]
        some = np.flatnonzero(self._schedule.switches(kind, start_ms[row], end_ms[row]).count)
        row, kind = row[some], kind[some]
        item, segment = expand(first[row], last[row] - first[row] + 1)
        return segment, kind[item]

    def _in_force(self, pairs: Pairs, t_ms: Ints | Floats) -> Pairs:
        """The pairs (row, fence) whose fence is in force at the time of the row."""
        row, fence = pairs
        force = self._schedule.in_force(fence, t_ms[row])
        return row[force], fence[force]

    def _changes(self, segments: Segments, stretches: Stretches, stretch: Ints, fence: Ints) -> tuple[Bools, Bools]:
        """For pairs (stretch, fence in force): whether the fence comes into force at its start, and goes out of
        force at its end.

        A stretch may also start or end where another fence switches.
        """
        comes = stretches.by_time[stretch]
        goes = np.append(stretches.by_time, False)[stretch + 1]
        for changes, ends, beside in ((comes, stretches.start, -0.5), (goes, stretches.end, 0.0)):
            rows = np.flatnonzero(changes)
            changed = stretch[rows]
            # switches are at whole milliseconds
            t_ms = np.rint(segments.time_at(stretches.segment[changed], ends[changed]))
            changes[rows] = ~self._schedule.in_force(fence[rows], t_ms + beside)
        return comes, goes

    def _stretch_fences(self, segments: Segments, stretches: Stretches, middle: Floats) -> Pairs:
        """Pairs (stretch, fence in force), decided at the exact middle of the stretch."""
        stretch, fence = self._locate(Spots.on_lines(segments.on_lines(stretches.segment, middle)))
        return self._in_force((stretch, fence), _switched_ms(segments, stretches))


class _Fixes:
    """The fences at the fixes of segments, in force or not.

    A fix that two segments share is looked up once, and so are all fixes joined by segments that touch no border.
    """

    def __init__(self, segments: Segments, touches: Bools, locate: Callable[[Spots], Pairs]) -> None:
        count = len(segments)
        follows = np.zeros(count, dtype=np.bool_) if segments.follows is None else segments.follows
        followed = np.append(follows[1:], False)[:count]
        fresh = ~follows
        fresh[1:] |= touches[:-1]
        # for the start and end of each segment: the number of its looked-up place
        self._start = np.cumsum(fresh) - 1
        self._end = np.where(followed, np.append(self._start[1:], 0)[:count], self._start)
        alone = np.flatnonzero(touches & ~followed)
        looked_up = np.flatnonzero(fresh)
        self._end[alone] = len(looked_up) + np.arange(len(alone))
        end_lon = wrap_lon(segments.qx) if segments.end_lon is None else segments.end_lon
        x = np.concatenate([segments.px[looked_up], end_lon[alone]])
        y = np.concatenate([segments.py[looked_up], segments.qy[alone]])
        place, fence = locate(Spots(x, y))
        self._fence = fence[np.argsort(place, kind="stable")]
        self._first = offsets(np.bincount(place, minlength=len(x)))

    def together(self) -> tuple[Ints, Ints]:
        """Runs of segments that start in the same fences: (first, last). All but the last of a run touch no border."""
        first = np.flatnonzero(run_starts(self._start)) if len(self._start) else self._start
        return first, np.append(first[1:], len(self._start))[: len(first)] - 1

    def at_start(self, segment: Ints) -> Pairs:
        return self._at(self._start[segment])

    def at_end(self, segment: Ints) -> Pairs:
        return self._at(self._end[segment])

    def _at(self, place: Ints) -> Pairs:
        first = self._first[place]
        row, at = expand(first, self._first[place + 1] - first)
        return row, self._fence[at]


def _uniform(segments: Segments, touches: Bools, switched: Ints) -> tuple[Bools, Bools]:
    """Segments that touch no border and whose fences do not switch, so the fences of their first fix hold all of
    them; and which of those continue the segment before.
    """
    uniform, goes_on = ~touches, np.zeros(len(segments), dtype=np.bool_)
    uniform[switched] = False
    if segments.follows is not None:
        goes_on[1:] = uniform[1:] & uniform[:-1] & segments.follows[1:]
    return uniform, goes_on


def _switched_ms(segments: Segments, stretches: Stretches) -> Floats:
    """The last switch before or at the start of each stretch, or its first fix: what was in force then is in force all
    along.

    Whole milliseconds, like all switches: a time within a stretch could be rounded over a switch.
    """
    opens = stretches.by_time.copy()
    opens[stretches.first[:-1]] = True
    since = np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))
    return np.rint(segments.time_at(stretches.segment[since], stretches.start[since]))
