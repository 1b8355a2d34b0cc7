"""Gates: directed lines that count who crosses them, whatever zone the fixes lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.activity import ALWAYS, Activity
from geo.spatial.clip import Segments, segments_of, side, world_copies
from geo.spatial.fences import Outlines
from geo.spatial.grid import GridIndex
from geo.spatial.ragged import Bools, Floats, Ints, distinct
from geo.spatial.tracks import Tracks
from geo.spatial.versions import superseded


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A directed line (n, 2) of lon/lat. Forward is from its left to its right, seen along its positions.

    Gates of one `id` are its versions, see `Fence`.
    """

    id: str
    line: Floats
    active: Activity = ALWAYS
    effective_from_ms: int | None = None


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
    """Gates, indexed. A fix exactly on a gate counts as on its left: a track through it crosses once."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates: Final = tuple(superseded(gates))
        self._index = GridIndex(_there_and_back(self.gates))

    def crossings(self, tracks: Tracks) -> Crossings:
        """Every crossing of every gate in force."""
        segments = segments_of(tracks)
        rows, copies = world_copies(segments)
        segment, edge = self._index.edges_near(copies.px, copies.py, copies.qx, copies.qy)
        outlines = self._index.outlines
        gate = outlines.fence[np.searchsorted(outlines.rings, edge, side="right") - 1]
        there = edge < (outlines.rings[gate] + outlines.rings[gate + 1] - 1) // 2
        pair = distinct(segment[there] * np.int64(len(outlines.points)) + edge[there])
        segment, edge = pair // len(outlines.points), pair % len(outlines.points)
        crossed, forward, fraction = _crossed(copies, segment, outlines, edge)
        segment, gate = (
            rows[segment[crossed]],
            outlines.fence[np.searchsorted(outlines.rings, edge[crossed], side="right") - 1],
        )
        t_ms = segments.time_at(segment, fraction)
        keep = self._in_force(gate, t_ms)
        segment, gate, forward, t_ms = segment[keep], gate[keep], forward[keep], t_ms[keep]
        order = np.lexsort((gate, t_ms, segment))
        end_fix = tracks.row[tracks.segments()[segment[order]]]
        return Crossings(end_fix, gate[order], forward[order], t_ms[order])

    def _in_force(self, gate: Ints, t_ms: Floats) -> Bools:
        force = np.ones(len(gate), dtype=np.bool_)
        for number in distinct(gate).tolist():
            rows = np.flatnonzero(gate == number)
            force[rows] = self.gates[number].active.at(t_ms[rows])
        return force


def _crossed(segments: Segments, segment: Ints, outlines: Outlines, edge: Ints) -> tuple[Ints, Bools, Floats]:
    a, b = outlines.at(edge), outlines.at(edge + 1)
    p = segments.px[segment], segments.py[segment]
    q = segments.qx[segment], segments.qy[segment]
    p_side, q_side, a_side, b_side = side(a, b, p)[0], side(a, b, q)[0], side(p, q, a)[0], side(p, q, b)[0]
    # nought counts as left, for fixes and for the gate's own corners alike: nothing is counted twice or lost
    crossed = np.flatnonzero(((p_side >= 0) != (q_side >= 0)) & ((a_side >= 0) != (b_side >= 0)))
    fraction = p_side[crossed] / (p_side[crossed] - q_side[crossed])
    return crossed, p_side[crossed] >= 0, fraction


def _there_and_back(gates: Sequence[Gate]) -> Outlines:
    """Gates as rings that go along the line and back: what the index takes."""
    loops = [np.vstack([gate.line, gate.line[-2::-1]]) for gate in gates]
    points = np.vstack([np.zeros((0, 2)), *loops])
    rings = np.concatenate([[0], np.cumsum([len(loop) for loop in loops])]).astype(np.int64)
    return Outlines(points, rings, np.arange(len(gates)), len(gates))
