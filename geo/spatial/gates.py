"""Gates: directed lines of two positions that count who crosses them, whatever zone the fixes lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from geo.spatial.activity import ALWAYS, Activity, Schedule, superseded
from geo.spatial.clip import Segments, in_parts, segments_of, world_copies
from geo.spatial.errors import FenceError
from geo.spatial.fence_set import PAIRS_AT_ONCE
from geo.spatial.fences import Outlines
from geo.spatial.fixes import valid_positions
from geo.spatial.geodesic import unwrapped_end
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import crossing_fraction, orientation, side
from geo.spatial.ragged import Bools, Floats, Ints, Points, lexical, run_starts, stacked
from geo.spatial.tracks import Tracks

_RING_CORNERS: Final = 3  # a gate is indexed as a ring there and back

Found: TypeAlias = tuple[Ints, Ints, Bools, Floats]  # segment, gate, forward, fraction


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A directed line from one lon/lat position to another, array (2, 2). Forward is from its left to its right.

    Gates of one `id` are its versions, see `Fence`. Raises `FenceError` for a line that is no gate.
    """

    id: str
    line: Floats
    active: Activity = ALWAYS
    effective_from_ms: int | None = None

    def __post_init__(self) -> None:
        if self.line.shape != (2, 2):
            raise FenceError("a gate needs exactly two positions", fence_id=self.id)
        if not valid_positions(self.line[:, 1], self.line[:, 0]).all():
            reason = "a position is not valid: longitude first, within ±180, then latitude within ±90"
            raise FenceError(reason, fence_id=self.id)
        if (_unwrapped(self.line)[0] == _unwrapped(self.line)[1]).all():
            raise FenceError("the two positions of a gate are the same", fence_id=self.id)


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """One row per crossing, in the order of tracks and time.

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
    """Gates, indexed. Crossings are exact.

    A fix on the line of a gate counts as on its left. An end belongs to the gate. A way that stays on one side, or runs
    along the gate, does not cross it.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates: Final[tuple[Gate, ...]] = tuple(superseded(gates))
        images = [(at, image) for at, gate in enumerate(self.gates) for image in _images(_unwrapped(gate.line))]
        self._gate_of_image = np.array([at for at, _ in images], dtype=np.int64)
        self._schedule = Schedule([gate.active for gate in self.gates])
        points = np.vstack([np.zeros((0, 2)), *(np.vstack([line, line[:1]]) for _, line in images)])
        rings = _RING_CORNERS * np.arange(len(images) + 1)
        self._index = GridIndex(Outlines(points, rings, np.arange(len(images)), len(images)))

    def may_cross(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Bools:
        """Whether each segment may meet a gate."""
        return self._index.comes_near(px, py, qx, qy)

    def crossings(self, tracks: Tracks) -> Crossings:
        """Every crossing of every gate in force. A standing vehicle crosses nothing."""
        return Crossings(*stacked(list(self.crossings_in_parts(tracks))))

    def crossings_in_parts(self, tracks: Tracks) -> Iterator[Crossings]:
        """The same for blocks of neighbouring segments; at least one block.

        Holds about `PAIRS_AT_ONCE` pairs of a segment and a gate, or those of one segment.
        """
        segments = segments_of(tracks)
        ends, still = tracks.row[tracks.segments()], tracks.still[tracks.segments()]
        each = np.ones(len(segments), dtype=np.int64)
        for segment, gate, forward, t_ms in in_parts(segments, each, PAIRS_AT_ONCE, self._in_force):
            order = np.lexsort((gate, t_ms, segment))
            order = order[~still[segment[order]]]
            yield Crossings(ends[segment[order]], gate[order], forward[order], t_ms[order])

    def _in_force(self, begin: int, segments: Segments) -> Found | None:
        """The crossings of gates in force, with times in place of fractions; None for too many pairs."""
        crossed = self._crossed(segments)
        if crossed is None:
            return None
        segment, gate, forward, fraction = crossed
        t_ms = segments.time_at(segment, fraction)
        keep = self._schedule.in_force(gate, t_ms)
        return begin + segment[keep], gate[keep], forward[keep], t_ms[keep]

    def _crossed(self, segments: Segments) -> Found | None:
        rows, copies = world_copies(segments)
        none = np.zeros(0, dtype=np.int64)
        found: list[Found] = [(none, none, np.zeros(0, dtype=np.bool_), np.zeros(0))]
        count = 0
        for near, near_edge in self._index.edges_near(copies.px, copies.py, copies.qx, copies.qy):
            there = np.flatnonzero(near_edge % _RING_CORNERS == 0)
            copy, edge = near[there], near_edge[there]
            crossed, forward, fraction = _crossings(copies, copy, self._index.outlines, edge)
            gate = self._gate_of_image[edge[crossed] // _RING_CORNERS]
            found.append((rows[copy[crossed]], gate, forward, fraction))
            count += len(crossed)
            if count > PAIRS_AT_ONCE and len(segments) > 1:
                return None
        segment, gate, forward, fraction = (np.concatenate(column) for column in zip(*found, strict=True))
        # near the antimeridian a crossing is found by both names of its longitude
        order = lexical(segment, gate)
        once = order[run_starts(segment[order], gate[order])]
        return segment[once], gate[once], forward[once], fraction[once]


def _crossings(copies: Segments, copy: Ints, outlines: Outlines, edge: Ints) -> tuple[Ints, Bools, Floats]:
    """Which pairs (segment p-q, gate a-b) cross, whether forward, and at which fraction of p-q."""
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p, q = (copies.px[copy], copies.py[copy]), (copies.qx[copy], copies.qy[copy])
    at_p, at_q = side(a, b, p), side(a, b, q)
    from_left, to_left = orientation(a, b, p, at_p) >= 0, orientation(a, b, q, at_q) >= 0
    meets = orientation(p, q, a) * orientation(p, q, b) <= 0
    crossed = np.flatnonzero((from_left != to_left) & meets)
    return crossed, from_left[crossed], _fractions((at_p, at_q), (p, q, a, b), crossed)


def _fractions(sides: tuple[Points, Points], ends: tuple[Points, Points, Points, Points], rows: Ints) -> Floats:
    """Where on p-q the crossings are. `sides`: of p and of q of the line a-b, with how much may be rounding."""
    (value_p, slack_p), (value_q, slack_q) = ((value[rows], slack[rows]) for value, slack in sides)
    unsure = np.flatnonzero((np.abs(value_p) <= slack_p) | (np.abs(value_q) <= slack_q))
    # any two values that differ: they keep the division defined until the exact fraction is there
    value_p[unsure], value_q[unsure] = 1.0, -1.0
    fraction = np.clip(value_p / (value_p - value_q), 0.0, 1.0)
    for row in unsure.tolist():
        p, q, a, b = ((float(at[0][rows[row]]), float(at[1][rows[row]])) for at in ends)
        fraction[row] = crossing_fraction(p, q, a, b)
    return fraction


def _unwrapped(line: Floats) -> Floats:
    """The line the short way round the world; its end may lie beyond 180 degrees."""
    return np.column_stack([np.append(line[:1, 0], unwrapped_end(line[:1, 0], line[1:, 0])), line[:, 1]])


def _images(line: Floats) -> list[Floats]:
    """A line by each name of its longitudes that reaches into -180 to 180 degrees."""
    low = int(np.ceil((line[:, 0].min() - 180.0) / 360.0))
    high = int(np.floor((line[:, 0].max() + 180.0) / 360.0))
    return [line - [360.0 * turn, 0.0] for turn in range(low, high + 1)]
