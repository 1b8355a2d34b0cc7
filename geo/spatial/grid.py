"""The index: a lattice of cells that know which fences hold them and which borders run through them.

A lookup is a few gathers. The cell of a point lists the fences that hold the whole cell. For each fence with a border
in the cell, the index follows the way from the point to the cell's mark (up or down to the middle line, then along it);
each edge that it crosses changes sides. Where rounding could decide, integers do (`predicates`). Cells with many edges
are divided into 4 x 4, repeatedly, so a lookup costs the same anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geo.spatial.cells import OverlapBound, build_cells
from geo.spatial.fences import Outlines
from geo.spatial.lattice import (
    FIRST,
    FOLD,
    HARD,
    INSIDE,
    LENGTH_SHIFT,
    MAX_EDGES,
    CellWindow,
    cells_of_lines,
    most_cells,
)
from geo.spatial.predicates import ROUNDING, Spots, on_or_odd, turn_of
from geo.spatial.ragged import Bools, Floats, Ints, Pairs, Points, blocks, expand, offsets
from geo.spatial.rings import Shape

_POINTS_AT_ONCE: Final = 1 << 16
_EDGES_AT_ONCE: Final = 1 << 22
_NEAR_AT_ONCE: Final = 1 << 20  # edges that are near segments
_CELLS_AT_ONCE: Final = 1 << 18  # pairs of a segment and a cell

_InCells: TypeAlias = tuple[Ints, NDArray[np.integer], Ints, Ints]  # segment, node, column, row


class GridIndex:
    """An index of outlines; it answers for many points or segments at once."""

    def __init__(self, outlines: Outlines) -> None:
        self._cells = build_cells(outlines)
        self.outlines = self._cells.outlines

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> GridIndex:
        return cls(Outlines.of(shapes))

    def nbytes(self) -> int:
        """Bytes that the index holds, outlines included."""
        outlines = self.outlines
        return self._cells.nbytes() + sum(part.nbytes for part in (outlines.points, outlines.rings, outlines.fence))

    def overlap_bound(self, weight: Ints) -> OverlapBound:
        """How many fences, counted by their weights, may hold a place."""
        return OverlapBound(self._cells, weight)

    def comes_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Bools:
        """Whether an edge may meet each segment: true for all that meet one, and for some more.

        Always true for a segment that ends beyond the antimeridian.
        """
        # the few that wrap count as near instead of being moved: callers then look closely
        near: Bools = (qx < -180.0) | (qx >= 180.0)
        for segment, _ in self.edges_near(px, py, qx, qy):
            near[segment] = True
        return near

    def locate(self, spots: Spots) -> tuple[Ints, Ints]:
        """Pairs (spot, fence) of each spot with each fence that contains it or has it on its border: exact.

        In no particular order; longitudes in [-180, 180].
        """
        x, y = spots.x, spots.y
        order = self._near_each_other(x, y)
        if order is not None:
            x, y = x[order], y[order]
        points: list[Ints] = []
        fences: list[Ints] = []
        for begin in range(0, len(x), _POINTS_AT_ONCE):
            chunk = slice(begin, begin + _POINTS_AT_ONCE)
            exact = _Exact(self.outlines, spots, begin, order)
            for point, fence in self._locate(x[chunk], y[chunk], exact):
                points.append(point + begin)
                fences.append(fence)
        none = np.zeros(0, dtype=np.int64)
        point = np.concatenate([none, *points])
        return point if order is None else order[point], np.concatenate([none, *fences])

    def _near_each_other(self, x: Floats, y: Floats) -> Ints | None:
        """An order in which neighbours lie near each other, row by row; None if they already do, as on tracks.

        The part of the index that a point needs is then more often in the processor's cache.
        """
        lattice = self._cells.lattice
        row = np.clip(lattice.v(y), 0, lattice.rows - 1).astype(np.int64)
        cell = row * lattice.columns + np.clip(lattice.u(x), 0, lattice.columns - 1).astype(np.int64)
        far = np.count_nonzero(np.abs(np.diff(cell)) > 2 * lattice.columns)
        return None if 2 * far <= len(x) else np.argsort(cell)

    def _locate(self, x: Floats, y: Floats, exact: _Exact) -> list[tuple[Ints, Ints]]:
        cells, pairs = self._cells, []
        u, v = cells.lattice.u(x), cells.lattice.v(y)
        point = np.flatnonzero((u >= 0) & (u < cells.lattice.columns) & (v >= 0) & (v < cells.lattice.rows))
        u, v = u[point], v[point]
        node = cells.root[v.astype(np.int64) * cells.lattice.columns + u.astype(np.int64)]
        for level in range(cells.levels):
            some = np.flatnonzero(node >= 0)
            point, node, u, v = point[some], node[some], u[some], v[some]
            row, at = cells.inner_of(node)
            pairs.append((point[row], cells.inner_fence[at].astype(np.int64)))
            pairs += self._borders(level, (point, node), (x, y), (u, v), exact)
            if level + 1 < cells.levels:
                deeper = np.flatnonzero(cells.divided[node])
                point, node, u, v = point[deeper], node[deeper], u[deeper] * FOLD, v[deeper] * FOLD
                node = cells.child_of(node, (v.astype(np.int64) % FOLD) * FOLD + u.astype(np.int64) % FOLD)
        return pairs

    def _borders(
        self, level: int, at: tuple[Ints, NDArray[np.integer]], places: Points, cell: Points, exact: _Exact
    ) -> Iterator[tuple[Ints, Ints]]:
        """The fences that hold points in cells with a border; a bounded number of edges at once."""
        point, node = at
        runs = self._cells.run_first[node + 1] - self._cells.run_first[node]
        some = np.flatnonzero(runs)
        for block in blocks(runs[some], _EDGES_AT_ONCE // MAX_EDGES):
            mine = some[block]
            own_cell = cell[0][mine], cell[1][mine]
            yield self._border(level, (point[mine], node[mine]), places, own_cell, exact)

    def _border(
        self, level: int, at: tuple[Ints, NDArray[np.integer]], places: Points, cell: Points, exact: _Exact
    ) -> tuple[Ints, Ints]:
        cells, (point, node), (x, y) = self._cells, at, places
        row, run = cells.runs_of(node)
        code = cells.run_code[run]
        bits, edges = code & (FIRST | INSIDE | HARD), code >> LENGTH_SHIFT
        opens = np.flatnonzero(bits & FIRST)
        pair_point, pair_fence = point[row[opens]], cells.run_fence[run[opens]].astype(np.int64)
        item, edge = expand(cells.run_edge[run], edges)
        mark_x = cells.lattice.left(cell[0].astype(np.int64), level)
        mark_y = cells.lattice.middle(cell[1].astype(np.int64), level)
        owner = row[item]
        ends = self.outlines.at(edge), self.outlines.at(edge + 1)
        turns, unsure = _turns(ends, (x[point], y[point]), (mark_x, mark_y), owner, exact.slop)
        first_edge = (np.cumsum(edges, dtype=np.int64) - edges)[opens]
        inside = np.bitwise_xor.reduceat(turns, first_edge) ^ ((bits[opens] & INSIDE) > 0)
        hard = (bits[opens] & HARD) > 0
        asked = np.flatnonzero(np.bitwise_or.reduceat(unsure, first_edge) | hard)
        count = np.diff(np.append(first_edge, len(edge)))[asked]
        on = exact.plainly_on(pair_point[asked], edge[expand(first_edge[asked], count)[1]], count)
        inside[asked[on]] = True
        for ask in asked[~on].tolist():
            name, mine = int(pair_point[ask]), row[opens[ask]]
            if hard[ask]:
                inside[ask] = exact.anywhere(name, int(pair_fence[ask]))
            else:
                last = first_edge[ask + 1] if ask + 1 < len(first_edge) else len(edge)
                mark = float(mark_x[mine]), float(mark_y[mine])
                inside[ask] = exact.in_cell(name, edge[first_edge[ask] : last], mark, bool(bits[opens[ask]] & INSIDE))
        return pair_point[inside], pair_fence[inside]

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Iterator[Pairs]:
        """Pairs (segment, edge) in bounded blocks: every edge that the segment meets, and some more, perhaps twice."""
        lattice = self._cells.lattice
        for begin in range(0, len(px), _POINTS_AT_ONCE):
            chunk = slice(begin, begin + _POINTS_AT_ONCE)
            p, q = (px[chunk], py[chunk]), (qx[chunk], qy[chunk])
            lines = (lattice.u(p[0]), lattice.v(p[1])), (lattice.u(q[0]), lattice.v(q[1]))
            window = CellWindow(0, lattice.columns - 1, 0, lattice.rows - 1)
            for block in blocks(most_cells(*lines, window), _CELLS_AT_ONCE):
                start, end = ((u[block], v[block]) for u, v in lines)
                line, column, row = cells_of_lines(start, end, window)
                node = self._cells.root[row * lattice.columns + column]
                for segment, edge in self._edges_in(0, (line + block.start, node, column, row), lines):
                    yield self._touching(segment, edge, p, q, begin)

    def _edges_in(self, level: int, at: _InCells, lines: tuple[Points, Points]) -> Iterator[Pairs]:
        """Pairs (line, edge) of the edges in some cells that lines run through, and in all cells below these."""
        cells = self._cells
        some = np.flatnonzero(at[1] >= 0)
        segment, node, column, row = at[0][some], at[1][some], at[2][some], at[3][some]
        for block in blocks(cells.run_first[node + 1] - cells.run_first[node], _NEAR_AT_ONCE // MAX_EDGES):
            item, run = cells.runs_of(node[block])
            owner, edge = cells.edges_of(run)
            yield segment[block][item[owner]], edge
        if level + 1 == cells.levels:
            return
        divided = np.flatnonzero(cells.divided[node])
        for begin in range(0, len(divided), _CELLS_AT_ONCE):
            deep = divided[begin : begin + _CELLS_AT_ONCE]
            below = self._children(level, (segment[deep], node[deep], column[deep], row[deep]), lines)
            yield from self._edges_in(level + 1, below, lines)

    def _children(self, level: int, at: _InCells, lines: tuple[Points, Points]) -> _InCells:
        """The cells below divided ones that lines run through."""
        segment, node, column, row = at
        scale, column, row = float(FOLD ** (level + 1)), column * FOLD, row * FOLD
        start, end = ((u[segment] * scale, v[segment] * scale) for u, v in lines)
        line, column, row = cells_of_lines(start, end, CellWindow(column, column + FOLD - 1, row, row + FOLD - 1))
        place = (row % FOLD) * FOLD + column % FOLD
        return segment[line], self._cells.child_of(node[line], place), column, row

    def _touching(self, segment: Ints, edge: Ints, p: Points, q: Points, begin: int) -> Pairs:
        """The pairs whose boxes touch; segments are counted from `begin` on."""
        (ax, ay), (bx, by) = self.outlines.at(edge), self.outlines.at(edge + 1)
        px, qx = p[0][segment], q[0][segment]
        near = np.flatnonzero((np.minimum(ax, bx) <= np.maximum(px, qx)) & (np.maximum(ax, bx) >= np.minimum(px, qx)))
        py, qy, ay, by = p[1][segment[near]], q[1][segment[near]], ay[near], by[near]
        near = near[(np.minimum(ay, by) <= np.maximum(py, qy)) & (np.maximum(ay, by) >= np.minimum(py, qy))]
        return segment[near] + begin, edge[near]


class _Exact:
    """Decides with integers where doubles cannot, for the spots of one chunk from `begin` on (in `order`)."""

    def __init__(self, outlines: Outlines, spots: Spots, begin: int, order: Ints | None) -> None:
        self.slop: Final = spots.slop
        self._outlines, self._spots, self._begin, self._order = outlines, spots, begin, order
        # a vehicle that stands on a border asks for the same place all day
        self._known: dict[tuple[object, ...], bool] = {}

    def _row(self, point: int) -> int:
        return self._begin + point if self._order is None else int(self._order[self._begin + point])

    def plainly_on(self, point: Ints, edge: Ints, count: Ints) -> Bools:
        """Whether each place is on one of its `count` edges at a glance: at a corner, or on a meridian or parallel with
        it.

        This covers fixes on a corner, and ways along a border that many fences share.
        """
        if not len(point):
            return np.zeros(0, dtype=np.bool_)
        places = self._begin + point
        row = np.repeat(places if self._order is None else self._order[places], count)
        (x, y), (known_x, known_y), slop = self._spots.at(row), self._spots.doubles(row), self.slop
        ax, ay, bx, by = self._ends(edge)
        between_x = (np.minimum(ax, bx) + slop <= x) & (x <= np.maximum(ax, bx) - slop)
        between_y = (np.minimum(ay, by) + slop <= y) & (y <= np.maximum(ay, by) - slop)
        on = ((ay == by) & (ay == known_y) & between_x) | ((ax == bx) & (ax == known_x) & between_y)
        on |= ((ax == known_x) & (ay == known_y)) | ((bx == known_x) & (by == known_y))
        return np.asarray(np.bitwise_or.reduceat(on, offsets(count)[:-1]), dtype=np.bool_)

    def in_cell(self, point: int, edge: Ints, mark: tuple[float, float], mark_inside: bool) -> bool:
        """Whether the place is inside or on the border of the fence of these edges, all that it has in the cell of
        `mark`.
        """
        row = self._row(point)
        key = (*self._spots.key(row), int(edge[0]), *mark)
        if key not in self._known:
            place, odd = self._spots.exact(row), mark_inside
            for ends in zip(*(part.tolist() for part in self._ends(edge)), strict=True):
                turn = turn_of(ends, place, mark)
                if turn is None:
                    odd = True
                    break
                odd ^= turn
            self._known[key] = odd
        return self._known[key]

    def anywhere(self, point: int, fence: int) -> bool:
        """The same, by all edges of a fence."""
        row = self._row(point)
        key = (*self._spots.key(row), fence)
        if key not in self._known:
            ax, ay, bx, by = self._ends(self._outlines.edges_of(fence))
            near = float(self._spots.x[row]), float(self._spots.y[row]), self.slop
            self._known[key] = on_or_odd(((ax, ay), (bx, by)), self._spots.exact(row), near)
        return self._known[key]

    def _ends(self, edge: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        return *self._outlines.at(edge), *self._outlines.at(edge + 1)


def _turns(ends: tuple[Points, Points], point: Points, mark: Points, owner: Ints, slop: float) -> tuple[Bools, Bools]:
    """Whether the way from point to mark crosses each edge an odd number of times, and whether rounding could decide
    it.

    The way goes from (x, y) along the meridian to (x, mark y), then along the parallel to the mark. An edge holds
    its lower end (by x for the first leg, by y for the second), so a shared vertex counts once. Points may truly
    be `slop` degrees away: the way from the doubles is as good as any, unless a border lies between.
    """
    (ax, ay), (bx, by) = ends
    x, y, mark_x, mark_y = point[0][owner], point[1][owner], mark[0][owner], mark[1][owner]
    over = (ax <= x) != (bx <= x)
    beside = (ay <= mark_y) != (by <= mark_y)
    upright = (ax == x) | (bx == x) if slop == 0.0 else (np.abs(ax - x) <= slop) | (np.abs(bx - x) <= slop)
    some = np.flatnonzero(over | beside | upright)
    ax, ay, bx, by, x, y = ax[some], ay[some], bx[some], by[some], x[some], y[some]
    mark_x, mark_y, over, beside = mark_x[some], mark_y[some], over[some], beside[some]
    dx, dy = bx - ax, by - ay
    across = dy * (x - ax)
    here, corner, there = dx * (y - ay), dx * (mark_y - ay), dy * (mark_x - ax)
    at_point, at_corner, at_mark = here - across, corner - across, corner - there
    turn = (over & ((at_point > 0) != (at_corner > 0))) ^ (beside & ((at_corner > 0) != (at_mark > 0)))
    across_size, corner_size = np.abs(across), np.abs(corner)
    unsure = np.abs(at_point) <= ROUNDING * (np.abs(here) + across_size) + slop * (np.abs(dx) + np.abs(dy))
    unsure |= np.abs(at_corner) <= ROUNDING * (corner_size + across_size)
    unsure |= beside & (np.abs(at_mark) <= ROUNDING * (corner_size + np.abs(there)))
    turns, uncertain = np.zeros(len(owner), dtype=np.bool_), np.zeros(len(owner), dtype=np.bool_)
    turns[some], uncertain[some] = turn, unsure
    return turns, uncertain
