"""Gates: directed lines that count who crosses them, whatever zone the fixes lie in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from geo.spatial.activity import ALWAYS, Activity, Schedule, superseded
from geo.spatial.cells import comes_near
from geo.spatial.clip import Segments, in_parts, segments_of, world_copies
from geo.spatial.errors import FenceError
from geo.spatial.fence_set import PAIRS_AT_ONCE
from geo.spatial.fences import Outlines
from geo.spatial.fixes import valid_positions
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Signs, crossing_fraction, orientation, side, whole
from geo.spatial.ragged import Bools, Floats, Ints, Points, lexical, run_starts, stacked
from geo.spatial.tracks import Tracks

# Exact crossings of a gate at corners, ends, fixes and edges, in integers.

_TURN: Final = whole(360.0)

Place: TypeAlias = tuple[int, int]
Crossing: TypeAlias = tuple[bool, float]  # forward, fraction of the way


def crossings_of(
    ends: tuple[float, float, float, float], line: Floats, edges: Iterable[int], *, beside: bool = True
) -> list[Crossing]:
    """The crossings of a gate by the way from (px, py) to (qx, qy), by all names of its longitudes, in its order.

    `line`: the gate's corners, of which no two neighbours are the same place; `edges`: the numbers of those that the
    way meets by any of its names. With `beside` those beside them are looked at as well, and no others: an edge that
    is met by a name that rounding moved may be the one beside it.
    """
    px, py, qx, qy = (whole(value) for value in ends)
    gate = _Corners(line)
    near = gate.edges_beside(edges) if beside else sorted(set(edges))
    crossings: list[Crossing] = []
    if (px, py) == (qx, qy) or not near:
        return crossings
    longitudes = [gate[corner][0] for edge in near for corner in (edge, edge + 1)]
    west, east = min(longitudes), max(longitudes)
    for turn in range(-(-(west - max(px, qx)) // _TURN), (east - min(px, qx)) // _TURN + 1):
        crossings += _Way((px + turn * _TURN, py), (qx + turn * _TURN, qy), gate, near).crossings()
    return sorted(crossings, key=lambda crossing: crossing[1])


class _Corners:
    """The corners of a gate in whole numbers, each when it is asked for."""

    def __init__(self, line: Floats) -> None:
        self._line, self._known = line, dict[int, Place]()
        self.last: Final = len(line) - 1
        self.closed: Final = len(line) > 2 and bool((line[0] == line[-1]).all())

    def __getitem__(self, corner: int) -> Place:
        if corner not in self._known:
            x, y = self._line[corner].tolist()
            self._known[corner] = whole(x), whole(y)
        return self._known[corner]

    def edges_beside(self, edges: Iterable[int]) -> list[int]:
        """Some edges and their neighbours, ascending."""
        beside = {number for edge in edges for number in (edge - 1, edge, edge + 1)}
        if self.closed:
            return sorted({number % self.last for number in beside})
        return sorted(number for number in beside if 0 <= number < self.last)


@dataclass(slots=True)
class _Contact:
    """Way and gate are together from fraction `start` to `end`: there the gate's corners, or an edge, are numbered."""

    edge: int
    start: Fraction
    end: Fraction
    start_corner: int | None
    end_corner: int | None

    def join(self, other: _Contact) -> None:
        if other.start < self.start:
            self.start, self.start_corner = other.start, other.start_corner
        if other.end > self.end:
            self.end, self.end_corner = other.end, other.end_corner


class _Way:
    def __init__(self, p: Place, q: Place, gate: _Corners, edges: list[int]) -> None:
        self._p, self._q, self._d = p, q, (q[0] - p[0], q[1] - p[1])
        self._gate, self._edges = gate, edges
        self._square = self._d[0] ** 2 + self._d[1] ** 2

    def crossings(self) -> Iterator[Crossing]:
        back = (-self._d[0], -self._d[1])
        for met in self._contacts():
            from_left = met.start == 0 or self._left(met.edge, met.start_corner, back)
            to_left = met.end == 1 or self._left(met.edge, met.end_corner, self._d)
            if from_left != to_left:
                # a fix on the gate is on its left: to the right it leaves last, from the right it comes first
                yield from_left, float(met.end if from_left else met.start)

    def _contacts(self) -> list[_Contact]:
        """Contacts with edges, those that share a corner on the way made one."""
        contacts: list[_Contact] = []
        shared: int | None = None  # the corner on the way at which the last edge that was met ends
        for edge in self._edges:
            met = self._contact(edge)
            if met is None:
                continue
            if shared == edge:
                contacts[-1].join(met)
            else:
                contacts.append(met)
            shared = edge + 1 if self._on_way(edge + 1) else None
        # The last edge of a closed gate ends where the first begins: a way through that corner meets them as one.
        if self._gate.closed and shared == self._gate.last and len(contacts) > 1 and self._edges[0] == 0:
            contacts[0].join(contacts.pop())
        return contacts

    def _contact(self, edge: int) -> _Contact | None:
        a, b = self._gate[edge], self._gate[edge + 1]
        at_a, at_b = _cross(self._p, self._q, a), _cross(self._p, self._q, b)
        at_p, at_q = _cross(a, b, self._p), _cross(a, b, self._q)
        if at_a == at_b == 0:
            return self._along(edge)
        if at_a * at_b > 0 or at_p * at_q > 0:
            return None
        corner = edge if at_a == 0 else edge + 1 if at_b == 0 else None
        fraction = Fraction(at_p, at_p - at_q)
        return _Contact(edge, fraction, fraction, corner, corner)

    def _along(self, edge: int) -> _Contact | None:
        (start, start_corner), (end, end_corner) = sorted((self._fraction(at), at) for at in (edge, edge + 1))
        if end < 0 or start > 1:
            return None
        return _Contact(edge, max(start, Fraction(0)), min(end, Fraction(1)), start_corner, end_corner)

    def _on_way(self, corner: int) -> bool:
        place = self._gate[corner]
        return _cross(self._p, self._q, place) == 0 and 0 <= self._fraction(corner) <= 1

    def _fraction(self, corner: int) -> Fraction:
        x, y = self._gate[corner]
        return Fraction((x - self._p[0]) * self._d[0] + (y - self._p[1]) * self._d[1], self._square)

    def _left(self, edge: int, corner: int | None, towards: Place) -> bool:
        """Is what lies in a direction from a place on the gate (a corner, or within an edge) on its left?"""
        before, after = self._rays(edge, corner)
        if before is None or after is None:
            ray = before or after
            return ray is None or _turn(ray, towards) >= 0
        bend = _turn(before, after)
        if bend > 0:
            return _turn(before, towards) > 0 and _turn(after, towards) > 0
        return _turn(before, towards) >= 0 or (bend < 0 and _turn(after, towards) >= 0)

    def _rays(self, edge: int, corner: int | None) -> tuple[Place | None, Place | None]:
        """How the gate reaches a place, and how it goes on; None at its ends."""
        gate, last = self._gate, self._gate.last
        if corner is None:
            along = _ray(gate[edge], gate[edge + 1])
            return along, along
        if gate.closed and corner in {0, last}:
            return _ray(gate[last - 1], gate[last]), _ray(gate[0], gate[1])
        before = _ray(gate[corner - 1], gate[corner]) if corner else None
        return before, _ray(gate[corner], gate[corner + 1]) if corner < last else None


def _ray(start: Place, end: Place) -> Place:
    return end[0] - start[0], end[1] - start[1]


def _turn(one: Place, other: Place) -> int:
    """Above 0 if the second direction is to the left of the first."""
    return one[0] * other[1] - one[1] * other[0]


def _cross(a: Place, b: Place, place: Place) -> int:
    return _turn(_ray(a, b), _ray(a, place))


_FULL_TURN_DEG: Final = 360.0

_Sides: TypeAlias = tuple[tuple[Points, Points, Points, Points], tuple[Points, Points], tuple[Signs, ...]]
Found: TypeAlias = tuple[Ints, Ints, Bools, Floats]  # segment, gate, forward, fraction


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A directed line (n, 2) of lon/lat. Forward is from its left to its right, seen along its positions.

    Gates of one `id` are its versions, see `Fence`. Raises `FenceError` for a line that is no gate: a position that is
    no place, fewer than two places, or more than once round the world.
    """

    id: str
    line: Floats
    active: Activity = ALWAYS
    effective_from_ms: int | None = None

    def __post_init__(self) -> None:
        fault = _fault_of(self.line)
        if fault is not None:
            raise FenceError(fault, fence_id=self.id)


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """Pairs of a segment (`copy`) and an edge (`number` of `image`) that meet: where, unless they only touch."""

    copy: Ints
    image: Ints
    number: Ints
    touches: Bools
    forward: Bools
    fraction: Floats

    @classmethod
    def none(cls) -> _Met:
        whole, flag = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
        return cls(whole, whole, whole, flag, flag, np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """One row a crossing, in the order of tracks and time.

    `end_fix`: row of the fix that ends the segment; `gate`: index into the set's `gates`; `forward`: from left to
    right; `t_ms`: interpolated.
    """

    end_fix: Ints
    gate: Ints
    forward: Bools
    t_ms: Floats

    def __len__(self) -> int:
        return len(self.gate)


class GateSet:
    """Gates, indexed. A fix exactly on a gate counts as on its left, an end belongs to the gate, and a way that touches
    a gate between two fixes and stays on its side does not cross it. All of it is decided exactly.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates: Final = tuple(superseded(gates))
        self._lines = [_unwrapped(gate.line) for gate in self.gates]
        images = [(at, image) for at, line in enumerate(self._lines) for image in _images(line)]
        self._gate_of_image = np.array([at for at, _ in images], dtype=np.int64)
        self._is_renamed = np.bincount(self._gate_of_image, minlength=len(self.gates)) > 1
        self._schedule = Schedule([gate.active for gate in self.gates])
        self._index = GridIndex(_there_and_back([image for _, image in images]))

    def may_cross(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Bools:
        """Whether each segment may meet a gate."""
        return comes_near(self._index, px, py, qx, qy)

    def crossings(self, tracks: Tracks) -> Crossings:
        """Every crossing of every gate in force."""
        return Crossings(*stacked(list(self.crossings_in_parts(tracks))))

    def crossings_in_parts(self, tracks: Tracks) -> Iterator[Crossings]:
        """The same, some neighbouring segments after the other, at least once. Who stands crosses nothing.

        Holds at most about `PAIRS_AT_ONCE` pairs of a segment and an edge that it meets, or those of one segment.
        """
        segments = segments_of(tracks)
        ends, still = tracks.row[tracks.segments()], tracks.still[tracks.segments()]
        each = np.ones(len(segments), dtype=np.int64)
        for segment, gate, forward, t_ms in in_parts(segments, each, PAIRS_AT_ONCE, self._in_force):
            order = np.lexsort((gate, t_ms, segment))
            order = order[~still[segment[order]]]
            yield Crossings(ends[segment[order]], gate[order], forward[order], t_ms[order])

    def _in_force(self, begin: int, segments: Segments) -> Found | None:
        """The crossings of gates in force, with their times in place of fractions."""
        crossed = self._crossed(segments)
        if crossed is None:
            return None
        segment, gate, forward, fraction = crossed
        t_ms = segments.time_at(segment, fraction)
        keep = self._schedule.in_force(gate, t_ms)
        return begin + segment[keep], gate[keep], forward[keep], t_ms[keep]

    def _crossed(self, segments: Segments) -> Found | None:
        """None where several segments would meet more than `PAIRS_AT_ONCE` edges."""
        rows, copies = world_copies(segments)
        met, count = [_Met.none()], 0
        for copy, edge in self._index.edges_near(copies.px, copies.py, copies.qx, copies.qy):
            # of what is near, some at once, only what is met is held
            met.append(self._met(copies, copy, edge))
            count += len(met[-1].copy)
            if count > PAIRS_AT_ONCE and len(segments) > 1:
                return None
        all_met = _Met(*stacked(met))
        segment, gate, number = rows[all_met.copy], self._gate_of_image[all_met.image], all_met.number
        pair = segment * np.int64(len(self.gates) or 1) + gate
        # what touches is looked at by itself; of what goes by two names, moved by a turn, all that is met
        renamed = (np.bincount(rows, minlength=1)[segment] > 1) | self._is_renamed[gate]
        touch = all_met.touches | (renamed & np.isin(pair, pair[all_met.touches]))
        touches = pair[touch], number[touch], renamed[touch]
        # by both of its names a crossing near the antimeridian is found twice
        order = lexical(pair, number)
        once = order[run_starts(pair[order], number[order])]
        clear = once[~touch[once]]
        plain = segment[clear], gate[clear], all_met.forward[clear], all_met.fraction[clear]
        return self._with_touches(plain, segments, touches)

    def _met(self, copies: Segments, copy: Ints, edge: Ints) -> _Met:
        """Of pairs (segment, edge) those that meet, of the edges on the way there."""
        outlines = self._index.outlines
        image = np.searchsorted(outlines.rings, edge, side="right") - 1
        number = edge - outlines.rings[image]
        there = np.flatnonzero(number < (outlines.rings[image + 1] - outlines.rings[image] - 1) // 2)
        ends, sides, signs = _sides(outlines, copies, copy[there], edge[there])
        met = np.flatnonzero((signs[0] * signs[1] <= 0) & (signs[2] * signs[3] <= 0))
        touches = (np.stack([sign[met] for sign in signs]) == 0).any(axis=0)
        fraction, clear = np.zeros(len(met)), np.flatnonzero(~touches)
        fraction[clear] = _fractions(sides, ends, met[clear])
        own = there[met]
        return _Met(copy[own], image[own], number[own], touches, signs[0][met] > 0, fraction)

    def _with_touches(self, plain: Found, segments: Segments, touches: tuple[Ints, Ints, Bools]) -> Found:
        """Add the crossings of pairs (segment * gates + gate) in which something touches, each looked at by itself.

        `touches`: the pair of each edge that is met, the edge's number in its gate, and whether either goes by two
        names; then its neighbours are looked at as well, and all of the pair's edges are here.
        """
        crossings: list[tuple[int, int, bool, float]] = []
        order = np.argsort(touches[0], kind="stable")
        pairs, numbers, renamed = (column[order] for column in touches)
        first = np.flatnonzero(run_starts(pairs))
        for start, pair, edges in zip(
            first.tolist(), pairs[first].tolist(), np.split(numbers, first[1:]), strict=False
        ):
            row, gate = divmod(pair, len(self.gates))
            ends = segments.px[row], segments.py[row], segments.qx[row], segments.qy[row]
            px, py, qx, qy = (float(end) for end in ends)
            crossed = crossings_of((px, py, qx, qy), self._lines[gate], edges.tolist(), beside=bool(renamed[start]))
            crossings += [(row, gate, forward, fraction) for forward, fraction in crossed]
        columns = zip(*crossings, strict=True) if crossings else ((), (), (), ())
        kinds = (np.int64, np.int64, np.bool_, np.float64)
        segment, gate, forward, fraction = (
            np.concatenate([one, np.array(other, dtype=kind)])
            for one, other, kind in zip(plain, columns, kinds, strict=True)
        )
        return segment, gate, forward, fraction


def _sides(outlines: Outlines, copies: Segments, copy: Ints, edge: Ints) -> _Sides:
    """Of pairs (segment p-q, edge a-b) the places, the sides of p and q of the edge with how much may be rounding, and
    on which side exactly p and q are of the edge, a and b of the segment.
    """
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p, q = (copies.px[copy], copies.py[copy]), (copies.qx[copy], copies.qy[copy])
    at_p, at_q = side(a, b, p), side(a, b, q)
    signs = orientation(a, b, p, at_p), orientation(a, b, q, at_q), orientation(p, q, a), orientation(p, q, b)
    return (p, q, a, b), (at_p, at_q), signs


def _fractions(sides: tuple[Points, Points], ends: tuple[Points, Points, Points, Points], rows: Ints) -> Floats:
    """Where on p-q the crossings are. `sides`: of p and of q of the line a-b, with how much may be rounding."""
    (value_p, slack_p), (value_q, slack_q) = ((value[rows], slack[rows]) for value, slack in sides)
    unsure = np.flatnonzero((np.abs(value_p) <= slack_p) | (np.abs(value_q) <= slack_q))
    # Any two that differ: they only keep the division defined until the exact fraction is there.
    value_p[unsure], value_q[unsure] = 1.0, -1.0
    fraction = np.clip(value_p / (value_p - value_q), 0.0, 1.0)
    for row in unsure.tolist():
        p, q, a, b = ((float(at[0][rows[row]]), float(at[1][rows[row]])) for at in ends)
        fraction[row] = crossing_fraction(p, q, a, b)
    return fraction


def _fault_of(line: Floats) -> str | None:
    if not valid_positions(line[:, 1], line[:, 0]).all():
        return "a position is not valid: longitude first, within ±180, then latitude within ±90"
    if not (line != line[:1]).any():
        return "a gate needs two positions or more that differ"
    if np.ptp(_unwrapped(line)[:, 0]) > _FULL_TURN_DEG:
        return "a gate goes more than once round the world"
    if _runs_back(_unwrapped(line)):
        return "a gate runs back on itself, or twice along an edge: a way would cross it there and back"
    return None


def _runs_back(line: Floats) -> bool:
    """Does a line turn round on the spot, or go along one edge twice?"""
    a, b = line[:-1], line[1:]
    back = ((b[:-1] - a[:-1]) * (b[1:] - a[1:])).sum(axis=1) < 0
    x, y = line[:, 0], line[:, 1]
    if (back & (orientation((x[:-2], y[:-2]), (x[1:-1], y[1:-1]), (x[2:], y[2:])) == 0)).any():
        return True
    turned = (a[:, 0] > b[:, 0]) | ((a[:, 0] == b[:, 0]) & (a[:, 1] > b[:, 1]))
    edges = np.where(turned[:, None], np.hstack([b, a]), np.hstack([a, b]))
    return len(np.unique(edges, axis=0)) < len(edges)


def _unwrapped(line: Floats) -> Floats:
    """A line of which each edge over more than 180 degrees goes the short way, from [-180, 180) on; none is a point."""
    step = np.diff(line[:, 0])
    turns = np.cumsum(np.where(np.abs(step) > 180.0, -np.sign(step), 0.0))
    line = np.column_stack([line[:, 0] + 360.0 * np.append(0.0, turns), line[:, 1]])
    return np.asarray(line[np.append(True, (np.diff(line, axis=0) != 0.0).any(axis=1))])


def _images(line: Floats) -> list[Floats]:
    """A line by all the names by which it reaches into the world: three at most, as it goes round it once."""
    low = int(np.ceil((line[:, 0].min() - 180.0) / 360.0))
    high = int(np.floor((line[:, 0].max() + 180.0) / 360.0))
    return [line - [360.0 * turn, 0.0] for turn in range(low, high + 1)]


def _there_and_back(lines: Sequence[Floats]) -> Outlines:
    """Lines as rings that go along the line and back: what the index takes."""
    loops = [np.vstack([line, line[-2::-1]]) for line in lines]
    points = np.vstack([np.zeros((0, 2)), *loops])
    rings = np.concatenate([[0], np.cumsum([len(loop) for loop in loops])]).astype(np.int64)
    return Outlines(points, rings, np.arange(len(lines)), len(lines))
