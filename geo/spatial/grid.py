"""The index: a lattice of cells that know which fences hold them and which borders run through them.

A lookup is a few gathers: the cell of a point lists the fences that hold the whole cell; for each fence whose border
runs through the cell, the way from the point to the cell's mark (up or down to the middle line, then along it) is
followed, and each edge of the cell that it crosses changes sides. Where rounding could decide, GEOS's exact predicate
does. Cells with many edges are divided into 4 x 4, again and again, so that a lookup costs the same anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geo.spatial.cells import build_cells
from geo.spatial.fences import Outlines
from geo.spatial.lattice import FOLD, Window, cells_of_lines
from geo.spatial.ragged import Bools, Floats, Ints, Points, expand
from geo.spatial.raster import FIRST, HARD, INSIDE, LENGTH_SHIFT
from geo.spatial.rings import Shape

_POINTS_AT_ONCE: Final = 1 << 16
# Shewchuk's bound for the rounding of a 2x2 orientation determinant
_ROUNDING: Final = 4e-16


class GridIndex:
    """An index of outlines, see `FenceIndex`."""

    def __init__(self, outlines: Outlines) -> None:
        self._cells = build_cells(outlines)
        self.outlines = self._cells.outlines

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> GridIndex:
        """An index of shapes."""
        return cls(Outlines.of(shapes))

    def nbytes(self) -> int:
        """Bytes that the index holds, outlines included."""
        outlines = self.outlines
        return self._cells.nbytes() + sum(part.nbytes for part in (outlines.points, outlines.rings, outlines.fence))

    def locate(self, x: Floats, y: Floats) -> tuple[Ints, Ints]:
        """Pairs (point, fence) of each point with each fence that contains it or has it on its border."""
        order = self._near_each_other(x, y)
        if order is not None:
            x, y = x[order], y[order]
        points: list[Ints] = []
        fences: list[Ints] = []
        for begin in range(0, len(x), _POINTS_AT_ONCE):
            chunk = slice(begin, begin + _POINTS_AT_ONCE)
            for point, fence in self._locate(x[chunk], y[chunk]):
                points.append(point + begin)
                fences.append(fence)
        none = np.zeros(0, dtype=np.int64)
        point = np.concatenate([none, *points])
        return point if order is None else order[point], np.concatenate([none, *fences])

    def _near_each_other(self, x: Floats, y: Floats) -> Ints | None:
        """An order in which neighbours lie near each other, row by row; None if they do as they are, as on tracks.

        What a point needs of the index is then in the processor's cache, more often than not.
        """
        lattice = self._cells.lattice
        row = np.clip(lattice.v(y), 0, lattice.rows - 1).astype(np.int64)
        cell = row * lattice.columns + np.clip(lattice.u(x), 0, lattice.columns - 1).astype(np.int64)
        far = np.count_nonzero(np.abs(np.diff(cell)) > 2 * lattice.columns)
        return None if 2 * far <= len(x) else np.argsort(cell)

    def _locate(self, x: Floats, y: Floats) -> list[tuple[Ints, Ints]]:
        cells, found = self._cells, []
        u, v = cells.lattice.u(x), cells.lattice.v(y)
        point = np.flatnonzero((u >= 0) & (u < cells.lattice.columns) & (v >= 0) & (v < cells.lattice.rows))
        u, v = u[point], v[point]
        node = cells.root[v.astype(np.int64) * cells.lattice.columns + u.astype(np.int64)]
        for level in range(cells.levels):
            some = np.flatnonzero(node >= 0)
            point, node, u, v = point[some], node[some], u[some], v[some]
            row, at = cells.inner_of(node)
            found.append((point[row], cells.inner_fence[at].astype(np.int64)))
            found.append(self._border(level, point, node, (x, y), (u, v)))
            if level + 1 < cells.levels:
                deeper = np.flatnonzero(cells.divided[node])
                point, node, u, v = point[deeper], node[deeper], u[deeper] * FOLD, v[deeper] * FOLD
                node = cells.child_of(node, (v.astype(np.int64) % FOLD) * FOLD + u.astype(np.int64) % FOLD)
        return found

    def _border(
        self, level: int, point: Ints, node: NDArray[np.integer], places: Points, at: Points
    ) -> tuple[Ints, Ints]:
        """Of points in cells with a border: the fences that hold them."""
        cells = self._cells
        some = np.flatnonzero(cells.run_first[node + 1] > cells.run_first[node])
        point, node, (x, y) = point[some], node[some], places
        row, run = cells.runs_of(node)
        if not len(run):
            return run, run
        code = cells.run_code[run]
        bits, edges = code & (FIRST | INSIDE | HARD), code >> LENGTH_SHIFT
        opens = np.flatnonzero(bits & FIRST)
        pair_point, pair_fence = point[row[opens]], cells.run_fence[run[opens]].astype(np.int64)
        item, edge = expand(cells.run_edge[run], edges)
        mark_x = cells.lattice.left(at[0][some].astype(np.int64), level)
        mark_y = cells.lattice.middle(at[1][some].astype(np.int64), level)
        owner = row[item]
        turns, unsure = _turns(self.outlines, edge, (x[point], y[point]), (mark_x, mark_y), owner)
        first_edge = (np.cumsum(edges, dtype=np.int64) - edges)[opens]
        inside = np.bitwise_xor.reduceat(turns, first_edge) ^ ((bits[opens] & INSIDE) > 0)
        doubt = np.bitwise_or.reduceat(unsure, first_edge) | ((bits[opens] & HARD) > 0)
        ask = np.flatnonzero(doubt)
        if len(ask):
            inside[ask] = self.exactly(pair_fence[ask], x[pair_point[ask]], y[pair_point[ask]])
        return pair_point[inside], pair_fence[inside]

    def exactly(self, fence: Ints, x: Floats, y: Floats) -> Bools:
        """Does each fence hold its point, or have it on its border? By GEOS's robust predicates."""
        holds = np.zeros(len(fence), dtype=np.bool_)
        for number in np.unique(fence).tolist():
            rows = np.flatnonzero(fence == number)
            border, odd = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
            for ring in self.outlines.polygons_of(number):
                shapely.prepare(ring)
                within = shapely.contains_xy(ring, x[rows], y[rows])
                border |= shapely.intersects_xy(ring, x[rows], y[rows]) & ~within
                odd ^= within
            holds[rows] = border | odd
        return holds

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> tuple[Ints, Ints]:
        """Pairs (segment, edge): every edge that a segment meets, and some that it does not."""
        segments: list[Ints] = []
        edges: list[Ints] = []
        for begin in range(0, len(px), _POINTS_AT_ONCE):
            chunk = slice(begin, begin + _POINTS_AT_ONCE)
            segment, edge = self._edges_near((px[chunk], py[chunk]), (qx[chunk], qy[chunk]))
            segments.append(segment + begin)
            edges.append(edge)
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *segments]), np.concatenate([none, *edges])

    def _edges_near(self, p: Points, q: Points) -> tuple[Ints, Ints]:
        cells, lattice = self._cells, self._cells.lattice
        start, end = (lattice.u(p[0]), lattice.v(p[1])), (lattice.u(q[0]), lattice.v(q[1]))
        segment, column, row = cells_of_lines(start, end, Window(0, lattice.columns - 1, 0, lattice.rows - 1))
        node = cells.root[row * lattice.columns + column]
        found: list[tuple[Ints, Ints]] = []
        for level in range(cells.levels):
            some = np.flatnonzero(node >= 0)
            segment, node, column, row = segment[some], node[some], column[some], row[some]
            item, run = cells.runs_of(node)
            at, edge = cells.edges_of(run)
            found.append(self._touching(segment[item[at]], edge, p, q))
            if level + 1 < cells.levels:
                deep = np.flatnonzero(cells.divided[node])
                segment, node, column, row = segment[deep], node[deep], column[deep] * FOLD, row[deep] * FOLD
                scale = float(FOLD ** (level + 1))
                line, fine_column, fine_row = cells_of_lines(
                    (start[0][segment] * scale, start[1][segment] * scale),
                    (end[0][segment] * scale, end[1][segment] * scale),
                    Window(column, column + FOLD - 1, row, row + FOLD - 1),
                )
                place = (fine_row % FOLD) * FOLD + fine_column % FOLD
                node = cells.child_of(node[line], place)
                segment, column, row = segment[line], fine_column, fine_row
        return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])

    def _touching(self, segment: Ints, edge: Ints, p: Points, q: Points) -> tuple[Ints, Ints]:
        """Those pairs whose boxes touch."""
        (ax, ay), (bx, by) = self.outlines.at(edge), self.outlines.at(edge + 1)
        px, qx = p[0][segment], q[0][segment]
        near = np.flatnonzero((np.minimum(ax, bx) <= np.maximum(px, qx)) & (np.maximum(ax, bx) >= np.minimum(px, qx)))
        py, qy, ay, by = p[1][segment[near]], q[1][segment[near]], ay[near], by[near]
        near = near[(np.minimum(ay, by) <= np.maximum(py, qy)) & (np.maximum(ay, by) >= np.minimum(py, qy))]
        return segment[near], edge[near]


def _turns(
    outlines: Outlines,
    edge: Ints,
    point: Points,
    mark: Points,
    owner: Ints,
) -> tuple[Bools, Bools]:
    """Does the way from point to mark cross each edge an odd number of times; and could rounding have decided it?

    The way goes from (x, y) along the meridian to (x, mark y), then along the parallel to the mark. An edge holds
    its lower end (by x for the first leg, by y for the second), so that a shared vertex counts once.
    """
    (ax, ay), (bx, by) = outlines.at(edge), outlines.at(edge + 1)
    x, y, mark_x, mark_y = point[0][owner], point[1][owner], mark[0][owner], mark[1][owner]
    over = (ax <= x) != (bx <= x)
    beside = (ay <= mark_y) != (by <= mark_y)
    upright = (ax == x) | (bx == x)
    some = np.flatnonzero(over | beside | upright)
    ax, ay, bx, by, x, y = ax[some], ay[some], bx[some], by[some], x[some], y[some]
    mark_x, mark_y, over, beside = mark_x[some], mark_y[some], over[some], beside[some]
    dx, dy = bx - ax, by - ay
    across = dy * (x - ax)
    here, corner, there = dx * (y - ay), dx * (mark_y - ay), dy * (mark_x - ax)
    at_point, at_corner, at_mark = here - across, corner - across, corner - there
    turn = (over & ((at_point > 0) != (at_corner > 0))) ^ (beside & ((at_corner > 0) != (at_mark > 0)))
    across_size, corner_size = np.abs(across), np.abs(corner)
    unsure = np.abs(at_point) <= _ROUNDING * (np.abs(here) + across_size)
    unsure |= np.abs(at_corner) <= _ROUNDING * (corner_size + across_size)
    unsure |= beside & (np.abs(at_mark) <= _ROUNDING * (corner_size + np.abs(there)))
    turns, doubts = np.zeros(len(edge), dtype=np.bool_), np.zeros(len(edge), dtype=np.bool_)
    turns[some], doubts[some] = turn, unsure
    return turns, doubts
