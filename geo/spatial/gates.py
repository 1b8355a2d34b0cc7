"""Gates: directed lines that count who crosses them, whatever zone the fixes lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from geo.spatial.activity import ALWAYS, Activity
from geo.spatial.clip import Segments, in_parts, segments_of, world_copies
from geo.spatial.errors import FenceError
from geo.spatial.fence_set import PAIRS_AT_ONCE
from geo.spatial.fences import Outlines
from geo.spatial.fixes import valid_positions
from geo.spatial.grid import GridIndex
from geo.spatial.index import comes_near
from geo.spatial.predicates import Signs, crossing_fraction, orientation, side
from geo.spatial.ragged import Bools, Floats, Ints, Points, lexical, run_starts, stacked
from geo.spatial.schedule import Schedule
from geo.spatial.touches import crossings_of
from geo.spatial.tracks import Tracks
from geo.spatial.versions import superseded

_TURN: Final = 360.0

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
    if np.ptp(_unwrapped(line)[:, 0]) > _TURN:
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
