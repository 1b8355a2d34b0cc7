"""The cells of the index as columns, and how they are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.fences import Outlines
from geo.spatial.lattice import (
    FIRST,
    FOLD,
    HARD,
    INSIDE,
    LENGTH_SHIFT,
    SLACK,
    Band,
    CellWindow,
    Lattice,
    Raster,
    cells_of_lines,
    rasterise,
    runs_of_cells,
)
from geo.spatial.predicates import ROUNDING, Spots, on_or_odd
from geo.spatial.ragged import Bools, Floats, Ints, Points, blocks, distinct, expand, offsets, run_starts

# The interface of the outline index, and the bound on overlapping fences.

FEW: Final = 64
"""Bounds up to this apply everywhere at no cost; only higher ones are kept per cell."""


class OverlapBound:
    """An upper bound of the fences at a place: `least` almost everywhere, more in the few lattice cells that need
    it.
    """

    def __init__(self, cells: Cells, weight: Ints) -> None:
        at_most = cells.at_most(weight)
        self.least: Final = max(min(int(at_most.max(initial=0)), FEW), 1)
        self._root, self._lattice = cells.root, cells.lattice
        self._nodes: Ints = np.flatnonzero(at_most > self.least)
        self._counts: Ints = at_most[self._nodes]

    def at(self, lon: Floats, lat: Floats) -> Ints:
        """At least the sum of the weights of the fences that hold each place."""
        counts = np.full(len(lon), self.least, dtype=np.int64)
        if not len(self._nodes):
            return counts
        u, v = self._lattice.u(lon), self._lattice.v(lat)
        inside = np.flatnonzero((u >= 0) & (u < self._lattice.columns) & (v >= 0) & (v < self._lattice.rows))
        node = self._root[v[inside].astype(np.int64) * self._lattice.columns + u[inside].astype(np.int64)]
        slot = np.minimum(np.searchsorted(self._nodes, node), len(self._nodes) - 1)
        deep = np.flatnonzero(self._nodes[slot] == node)
        counts[inside[deep]] = self._counts[slot[deep]]
        return counts


# Subdivision of cells with too many edges.

CHILDREN = FOLD * FOLD


@dataclass(frozen=True, slots=True, eq=False)
class Crowded:
    """Cells to divide: `node`, `row` and `column` of each, and the `allowance` for all that comes of it.

    Run r of cell `cell[r]` (ascending) has the edges `edge[r] .. edge[r] + edges[r] - 1` of `fence[r]`, with `bits`.
    """

    node: Ints
    row: Ints
    column: Ints
    allowance: Floats
    cell: Ints
    fence: Ints
    edge: Ints
    edges: Ints
    bits: Ints

    def part(self, begin: int, end: int) -> Crowded:
        """Cells `begin .. end - 1`."""
        runs = slice(*np.searchsorted(self.cell, [begin, end]).tolist())
        cells = slice(begin, end)
        return Crowded(
            node=self.node[cells],
            row=self.row[cells],
            column=self.column[cells],
            allowance=self.allowance[cells],
            cell=self.cell[runs] - begin,
            fence=self.fence[runs],
            edge=self.edge[runs],
            edges=self.edges[runs],
            bits=self.bits[runs],
        )


def divided(outlines: Outlines, lattice: Lattice, number: int, crowded: Crowded) -> Raster:
    """The children (on level `number`) of crowded cells; `cell` of the raster is CHILDREN * crowded cell + place."""
    first = np.flatnonzero(crowded.bits & FIRST)
    pair_of_run = np.cumsum((crowded.bits & FIRST) > 0) - 1
    cell, fence, bits = crowded.cell[first], crowded.fence[first], crowded.bits[first]
    run, edge = expand(crowded.edge, crowded.edges)
    pair = pair_of_run[run]
    ends = outlines.at(edge), outlines.at(edge + 1)
    scale = float(FOLD**number)
    start, end = ((lattice.u(x) * scale, lattice.v(y) * scale) for x, y in ends)
    west, south = crowded.column[cell[pair]] * FOLD, crowded.row[cell[pair]] * FOLD
    line, column, row = cells_of_lines(start, end, CellWindow(west, west + FOLD - 1, south, south + FOLD - 1))
    child = cell[pair[line]] * CHILDREN + (row % FOLD) * FOLD + column % FOLD
    runs = runs_of_cells(edge[line], pair[line], child)
    inside, unsure = _marks(lattice, number, crowded, (cell, pair), ends)
    inside ^= ((bits & INSIDE) > 0)[:, None]
    unsure |= ((bits & HARD) > 0)[:, None]
    opens = np.append(True, (np.diff(runs.fence) != 0) | (np.diff(runs.cell) != 0))[: len(runs.cell)]
    place = runs.cell % CHILDREN
    code = inside[runs.fence, place] * INSIDE + unsure[runs.fence, place] * HARD + opens * FIRST
    bare = np.ones(inside.shape, dtype=np.bool_)
    bare[runs.fence, place] = False
    for at, where in zip(*(part.tolist() for part in np.nonzero(bare & unsure)), strict=True):
        x, y = _mark(lattice, number, crowded, cell[at : at + 1], where)
        inside[at, where] = _holds(outlines, int(fence[at]), float(x[0]), float(y[0]))
    inner, inner_place = np.nonzero(bare & inside)
    whole = cell[inner] * CHILDREN + inner_place
    return Raster(runs.cell, fence[runs.fence], runs.edge, runs.edges, code, whole, fence[inner])


def _mark(lattice: Lattice, number: int, crowded: Crowded, cell: Ints, place: int) -> Points:
    column, row = crowded.column[cell] * FOLD + place % FOLD, crowded.row[cell] * FOLD + place // FOLD
    return lattice.left(column, number), lattice.middle(row, number)


def _marks(
    lattice: Lattice, number: int, crowded: Crowded, pairs: tuple[Ints, Ints], ends: tuple[Points, Points]
) -> tuple[Bools, Bools]:
    """For each pair (`cell`) and child: whether the way between the two marks changes sides, and whether rounding may
    decide it.

    `pairs`: the cell of each pair, and the pair of each edge.
    """
    cell, pair = pairs
    first_edge = np.searchsorted(pair, np.arange(len(cell)))
    turns, unsure = (np.zeros((len(cell), CHILDREN), dtype=np.bool_) for _ in range(2))
    if not len(cell):
        return turns, unsure
    (ax, ay), (bx, by) = ends
    mark_x = lattice.left(crowded.column[cell], number - 1)[pair]
    mark_y = lattice.middle(crowded.row[cell], number - 1)[pair]
    dx, dy = bx - ax, by - ay
    beside = (ay <= mark_y) != (by <= mark_y)
    corner, there = dx * (mark_y - ay), dy * (mark_x - ax)
    at_mark, unsure_mark = corner - there, beside & (np.abs(corner - there) <= ROUNDING * (abs(corner) + abs(there)))
    for place in range(CHILDREN):
        x, y = (part[pair] for part in _mark(lattice, number, crowded, cell, place))
        over, upright = (ax <= x) != (bx <= x), (ax == x) | (bx == x)
        across, here = dy * (x - ax), dx * (y - ay)
        at_point, at_corner = here - across, corner - across
        turn = (over & ((at_point > 0) != (at_corner > 0))) ^ (beside & ((at_corner > 0) != (at_mark > 0)))
        unsure_edge = np.abs(at_point) <= ROUNDING * (np.abs(here) + np.abs(across))
        unsure_edge |= np.abs(at_corner) <= ROUNDING * (np.abs(corner) + np.abs(across))
        unsure_edge = (unsure_edge & (over | beside | upright)) | unsure_mark
        turns[:, place] = np.bitwise_xor.reduceat(turn, first_edge)
        unsure[:, place] = np.bitwise_or.reduceat(unsure_edge, first_edge)
    return turns, unsure


def _holds(outlines: Outlines, fence: int, x: float, y: float) -> bool:
    edge = outlines.edges_of(fence)
    place = Spots(np.array([x]), np.array([y])).exact(0)
    return on_or_odd((outlines.at(edge), outlines.at(edge + 1)), place, (x, y, 0.0))


CELLS_PER_FENCE: Final = 64
MIN_CELLS: Final = 4096
MAX_CELLS: Final = 1 << 25
EDGES_PER_CELL: Final = 48
MAX_LEVELS: Final = 7
ENTRIES_PER_EDGE: Final = 16
"""Entries that divisions may make per edge: pairs of an edge and a child that it runs through, and whole children."""
MAX_CELLS_OF_EDGES: Final = 1 << 20
"""Cells that the edges may run through on level 0, besides 8 per edge; with more the lattice becomes coarser."""
# the slack is a fraction of a cell: the smallest cell still has room for rounding
_LEAST_CELL_DEG: Final = 1.001e-8 * FOLD ** (MAX_LEVELS - 1)
# entries that a division makes per fence with a border in the cell (about six whole children), and per long edge
_ENTRIES_EXPECTED: Final = 8
_CHILDREN_EXPECTED: Final = 4
_ENTRIES_AT_ONCE: Final = 300_000
_POINTS_AT_ONCE: Final = 1 << 20
_EDGES_AT_ONCE: Final = 100_000

_COLUMNS: Final[dict[str, type[np.generic]]] = {
    **dict.fromkeys(("inner_first", "inner_fence", "run_first", "run_edge", "run_fence"), np.int32),
    **dict.fromkeys(("parents", "children"), np.int32),
    "run_code": np.uint8,
    "divided": np.bool_,
}

Small = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Nodes (cells with anything in them) of all levels, level by level.

    `root[row * columns + column]`: the node of each cell of level 0, or -1. Node n is wholly inside the fences
    `inner_fence[inner_first[n] : inner_first[n + 1]]`. The runs `run_first[n] .. run_first[n + 1]` of edges go through
    it, from `run_edge` on, of `run_fence`, each with its length and bits in `run_code` (see `lattice`). `divided[n]`:
    it has FOLD x FOLD children, and no runs. `parents` are the divided nodes, ascending, and `children` the nodes below
    each of them, row by row, or -1.
    """

    outlines: Outlines
    lattice: Lattice
    levels: int
    root: Small
    inner_first: Small
    inner_fence: Small
    run_first: Small
    run_edge: Small
    run_fence: Small
    run_code: NDArray[np.uint8]
    divided: Bools
    parents: Small
    children: Small

    def inner_of(self, node: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """(row of `node`, place in `inner_fence`) of every fence that holds a whole node."""
        first = self.inner_first[node]
        return expand(first, self.inner_first[node + 1] - first)

    def runs_of(self, node: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """(row of `node`, run) of every run through a node."""
        first = self.run_first[node]
        return expand(first, self.run_first[node + 1] - first)

    def edges_of(self, run: Ints) -> tuple[Ints, Ints]:
        """(row of `run`, edge) of every edge of some runs."""
        return expand(self.run_edge[run], self.run_code[run] >> LENGTH_SHIFT)

    def child_of(self, node: NDArray[np.integer], place: Ints) -> Small:
        """The node at `place` (row by row) below each divided node; -1 if it is empty."""
        below: Small = self.children[np.searchsorted(self.parents, node) * (FOLD * FOLD) + place]
        return below

    def at_most(self, weight: Ints) -> Ints:
        """For each node of level 0, at least the sum of the weights of the fences that hold any one place in it."""
        most = _sums_between(weight, self.inner_fence, self.inner_first)
        most += _sums_between(weight, self.run_fence, self.run_first)
        own, below = most.copy(), np.flatnonzero(self.children >= 0)
        child, above = self.children[below], self.parents[below // CHILDREN]
        for _ in range(self.levels - 1):
            most[child] = own[child] + most[above]
        for _ in range(self.levels - 1):
            np.maximum.at(most, above, most[child])
        return most[: int(self.root.max(initial=-1)) + 1]

    def nbytes(self) -> int:
        return sum(value.nbytes for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray))


def _sums_between(weight: Ints, fence: Small, first: Small) -> Ints:
    """The sum of the weights of `fence[first[n] : first[n + 1]]` for each n."""
    sums = np.zeros(len(first) - 1, dtype=np.int64)
    for rows in blocks(np.diff(first), _POINTS_AT_ONCE):
        limits = first[rows.start : rows.stop + 1]
        total = offsets(weight[fence[limits[0] : limits[-1]]])[limits - limits[0]]
        sums[rows] = np.diff(total)
    return sums


def build_cells(outlines: Outlines) -> Cells:
    """Lay outlines on a lattice, and divide the cells that too many edges run through.

    A cell is divided, and its children, as long as the result stays within its share, by its edges, of
    `ENTRIES_PER_EDGE` per edge. An edge through many cells gives each a part of its share. So time and memory grow with
    the number of edges, however long they are. Fences that no division separates, such as one fence a thousand times
    over, are not divided to the last level; a lookup there costs as much as its answer is long.
    """
    outlines = outlines.compact()
    boxes = _boxes(outlines)
    maker = _Maker(outlines, boxes, *_coarse_enough(_lattice_for(boxes), outlines))
    maker.add_ground()
    while maker.divide():
        pass
    return maker.result()


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """The box of each fence, degrees."""

    west: Floats
    south: Floats
    east: Floats
    north: Floats


def _boxes(outlines: Outlines) -> _Boxes:
    first = outlines.first_vertices()[:-1]
    if not len(first):
        return _Boxes(*(np.zeros(0) for _ in range(4)))
    low = (outlines.degrees(np.minimum.reduceat(column, first)) for column in outlines.points.T)
    high = (outlines.degrees(np.maximum.reduceat(column, first)) for column in outlines.points.T)
    return _Boxes(*low, *high)


def _lattice_for(boxes: _Boxes) -> Lattice:
    count = len(boxes.west)
    if not count:
        return Lattice(-180.0, -90.0, 360.0, 180.0, 1, 1)
    west, east, south, north = boxes.west.min(), boxes.east.max(), boxes.south.min(), boxes.north.max()
    flattening = np.cos(
        np.radians(min(abs(south + north) / 2, 90.0))
    )  # of the middle: with its margin it may lie beyond
    # an odd margin, so that marks and cell sides do not fall on round coordinates
    width, height = (east - west) * 1.00037 + _LEAST_CELL_DEG, (north - south) * 1.00053 + _LEAST_CELL_DEG
    west, south = west - (width - (east - west)) * 0.4367, south - (height - (north - south)) * 0.4211
    # the average number of fences over a place, so that large fences do not fill the memory
    cover = float(((boxes.east - boxes.west) * (boxes.north - boxes.south)).sum()) / (width * height)
    cells = int((52.0 * count + 12e6) / max(cover, 1e-9))
    cells = max(min(max(CELLS_PER_FENCE * count, MIN_CELLS), MAX_CELLS, cells), 64)
    shape = width * flattening / height
    columns = int(np.clip(np.sqrt(cells * shape), 1, cells))
    rows = max(cells // columns, 1)
    columns, rows = min(columns, int(width / _LEAST_CELL_DEG)), min(rows, int(height / _LEAST_CELL_DEG))
    return Lattice(float(west), float(south), float(width / columns), float(height / rows), columns, rows)


def _coarse_enough(lattice: Lattice, outlines: Outlines) -> tuple[Lattice, Floats | None]:
    """A lattice on which long edges run through a bounded number of cells; and the cumulative allowance of all edges
    before each one, for a cell that it runs through, or None where it is ENTRIES_PER_EDGE for each.

    With many long edges each shares its allowance among its cells, so it takes nothing from edges far away.
    """
    count = len(outlines.points)
    across = sum(float(cells.sum()) for cells in _cells_across(lattice, outlines))
    limit, free = 8.0 * count + MAX_CELLS_OF_EDGES, float(count + MAX_CELLS_OF_EDGES)
    if across > limit:
        columns, rows = (max(int(each * limit / across), 1) for each in (lattice.columns, lattice.rows))
        width, height = lattice.width * lattice.columns / columns, lattice.height * lattice.rows / rows
        lattice = Lattice(lattice.west, lattice.south, width, height, columns, rows)
    if across <= free:
        return lattice, None
    shares = [np.minimum(free / count / np.maximum(cells, 1.0), 1.0) for cells in _cells_across(lattice, outlines)]
    return lattice, ENTRIES_PER_EDGE * np.cumsum(np.concatenate([[0.0], *shares]))


def _cells_across(lattice: Lattice, outlines: Outlines) -> Iterator[Floats]:
    """About how many sides of cells each edge crosses, in blocks; 0 for the step from ring to ring."""
    for begin in range(0, len(outlines.points), _POINTS_AT_ONCE):
        points = outlines.degrees(outlines.points[begin : begin + _POINTS_AT_ONCE + 1])
        lengths = np.abs(np.diff(points, axis=0))
        # the step from ring to ring is no edge; with many small fences such steps would dominate
        ends = outlines.rings[slice(*np.searchsorted(outlines.rings, [begin + 1, begin + len(points)]))] - 1 - begin
        lengths[ends] = 0.0
        yield lengths[:, 0] / lattice.width + lengths[:, 1] / lattice.height


class _Maker:
    """Builds the columns level by level, a band of rows or some cells at a time, which bounds the memory."""

    def __init__(self, outlines: Outlines, boxes: _Boxes, lattice: Lattice, allowed: Floats | None) -> None:
        self._outlines, self._boxes, self._lattice, self._allowed = outlines, boxes, lattice, allowed
        self._first = outlines.first_vertices()
        self._first_ring = np.searchsorted(outlines.fence, np.arange(outlines.count + 1))
        self._root = np.full(lattice.columns * lattice.rows, -1, dtype=np.int32)
        self._columns = {name: [np.zeros(0, dtype=kind)] for name, kind in _COLUMNS.items()}
        self._nodes = self._inners = self._runs = 0
        self._levels = 0
        self._crowded: list[Crowded] = []

    def add_ground(self) -> None:
        columns = self._lattice.columns
        for first, end, fences in self._bands():
            raster = rasterise(self._outlines, Band(self._lattice, first, end), *self._edges_of(fences, first, end))
            added = _Added.of(raster)
            self._root[added.place] = np.arange(self._nodes, self._nodes + len(added.place))
            self._add(added, added.place // columns, added.place % columns, self._allowance(added))
        self._levels = 1

    def _allowance(self, added: _Added) -> Floats:
        if self._allowed is None:
            return np.asarray(ENTRIES_PER_EDGE * added.edges, dtype=np.float64)
        raster = added.raster
        each = self._allowed[raster.edge + raster.edges] - self._allowed[raster.edge]
        return np.bincount(added.at, weights=each, minlength=len(added.place)).astype(np.float64)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._columns[name].append(values.astype(_COLUMNS[name]))

    def divide(self) -> bool:
        """Add the children of the crowded cells of the level before; False if there are none."""
        above, self._crowded = self._crowded, []
        if not above:
            return False
        for crowded in (part for whole in above for part in _parts(whole)):
            added = _Added.of(divided(self._outlines, self._lattice, self._levels, crowded))
            parent, child = added.place // CHILDREN, added.place % CHILDREN
            block = np.full(len(crowded.node) * CHILDREN, -1, dtype=np.int32)
            block[added.place] = np.arange(self._nodes, self._nodes + len(added.place))
            self._append("children", block)
            self._append("parents", crowded.node)
            row, column = crowded.row[parent] * FOLD + child // FOLD, crowded.column[parent] * FOLD + child % FOLD
            self._add(added, row, column, _shares(crowded.allowance, parent, added))
        self._levels += 1
        return True

    def _bands(self) -> Iterator[tuple[int, int, Ints]]:
        """Bands of rows (first, end) with about `_ENTRIES_AT_ONCE` entries each, and the fences that reach there."""
        lattice, boxes = self._lattice, self._boxes
        low = np.floor(lattice.v(boxes.south) - SLACK).astype(np.int64)
        high = np.floor(lattice.v(boxes.north) + SLACK).astype(np.int64)
        each = np.diff(self._first) / (high - low + 1) + (boxes.east - boxes.west) / lattice.width
        change = np.bincount(low, weights=each, minlength=lattice.rows + 1)
        change -= np.bincount(high + 1, weights=each, minlength=lattice.rows + 1)
        number = (np.cumsum(np.cumsum(change)[: lattice.rows]) // _ENTRIES_AT_ONCE).astype(np.int64)
        begins = np.flatnonzero(run_starts(number))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), lattice.rows], strict=True):
            yield begin, end, np.flatnonzero((high >= begin) & (low < end))

    def _add(self, added: _Added, row: Ints, column: Ints, allowance: Floats) -> None:
        """Append nodes; those with too many edges and with the allowance for it are to be divided."""
        raster, place = added.raster, added.place
        expected = np.maximum(_ENTRIES_EXPECTED * added.fences, _CHILDREN_EXPECTED * added.edges)
        crowded = (added.edges > EDGES_PER_CELL) & (expected <= allowance)
        if self._levels + 1 == MAX_LEVELS:
            crowded[:] = False
        dropped, kept = crowded[added.at], ~crowded[added.at]
        self._append("inner_first", np.searchsorted(raster.inner_cell, place) + self._inners)
        self._append("run_first", np.searchsorted(raster.cell[kept], place) + self._runs)
        self._append("inner_fence", raster.inner_fence)
        self._append("run_edge", raster.edge[kept])
        self._append("run_fence", raster.fence[kept])
        self._append("run_code", raster.bits[kept] | raster.edges[kept] << LENGTH_SHIFT)
        self._append("divided", crowded)
        if crowded.any():
            runs = [getattr(raster, name)[dropped] for name in ("fence", "edge", "edges", "bits")]
            cell = (np.cumsum(crowded) - 1)[added.at[dropped]]
            nodes = np.flatnonzero(crowded) + self._nodes
            self._crowded.append(Crowded(nodes, row[crowded], column[crowded], allowance[crowded], cell, *runs))
        self._nodes += len(place)
        self._inners += len(raster.inner_cell)
        self._runs += int(np.count_nonzero(kept))

    def _edges_of(self, fences: Ints, first: int, end: int) -> tuple[Ints, Ints]:
        """(edge, its fence) of all edges of some fences that reach into rows `first .. end - 1`, or beside them."""
        rings, first_ring = self._outlines.rings, self._first_ring[fences]
        fence, ring = expand(first_ring, self._first_ring[fences + 1] - first_ring)
        row, edge = expand(rings[ring], rings[ring + 1] - rings[ring] - 1)
        v, w = (self._lattice.v(self._outlines.at(vertex)[1]) for vertex in (edge, edge + 1))
        near = np.flatnonzero((np.maximum(v, w) >= first - 1) & (np.minimum(v, w) <= end + 1))
        return edge[near], fences[fence[row[near]]]

    def result(self) -> Cells:
        self._append("inner_first", np.array([self._inners]))
        self._append("run_first", np.array([self._runs]))
        return Cells(
            outlines=self._outlines,
            lattice=self._lattice,
            levels=self._levels,
            root=self._root,
            **{name: np.concatenate(parts) for name, parts in self._columns.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Added:
    """Nodes to append: their cells (`place`, ascending), the raster in their order, and what each holds.

    `at`: the node of each run. For each node: `edges`, `fences` (whose border runs through it) and `entries` (edges,
    and fences that hold it).
    """

    place: Ints
    raster: Raster
    at: Ints
    edges: Floats
    fences: Ints
    entries: Floats

    @classmethod
    def of(cls, raster: Raster) -> _Added:
        order, inner = np.argsort(raster.cell, kind="stable"), np.argsort(raster.inner_cell, kind="stable")
        raster = Raster(
            cell=raster.cell[order],
            fence=raster.fence[order],
            edge=raster.edge[order],
            edges=raster.edges[order],
            bits=raster.bits[order],
            inner_cell=raster.inner_cell[inner],
            inner_fence=raster.inner_fence[inner],
        )
        place = distinct(np.concatenate([raster.cell, raster.inner_cell]))
        position, count = np.searchsorted(place, raster.cell), len(place)
        edges = np.bincount(position, weights=raster.edges, minlength=count).astype(np.float64)
        return cls(
            place=place,
            raster=raster,
            at=position,
            edges=edges,
            fences=np.bincount(position[(raster.bits & FIRST) > 0], minlength=count),
            entries=edges + np.bincount(np.searchsorted(place, raster.inner_cell), minlength=count),
        )


def _parts(crowded: Crowded) -> Iterator[Crowded]:
    """Cells with about `_EDGES_AT_ONCE` edges at once."""
    load = np.bincount(crowded.cell, weights=crowded.edges, minlength=len(crowded.node))
    begins = np.flatnonzero(run_starts((np.cumsum(load) // _EDGES_AT_ONCE).astype(np.int64))).tolist()
    for begin, end in zip(begins, [*begins[1:], len(load)], strict=True):
        yield crowded.part(begin, end)


def _shares(allowance: Floats, parent: Ints, added: _Added) -> Floats:
    """The rest of the allowances of divided cells, distributed to their children by their edges."""
    count = len(allowance)
    wanted = np.where(added.edges > EDGES_PER_CELL, added.edges, 0.0)
    left = allowance - np.bincount(parent, weights=added.entries, minlength=count)
    whole = np.bincount(parent, weights=wanted, minlength=count)
    return np.asarray(wanted * (left / np.maximum(whole, 1.0))[parent])
