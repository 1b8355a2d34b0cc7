"""The cells of the index as columns, and how they are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.fences import Outlines
from geo.spatial.lattice import FOLD, SLACK, Lattice
from geo.spatial.ragged import Bools, Floats, Ints, distinct, expand, run_starts
from geo.spatial.raster import LENGTH_SHIFT, Level, rasterise

CELLS_PER_FENCE: Final = 64
MIN_CELLS: Final = 4096
MAX_CELLS: Final = 1 << 25
EDGES_PER_CELL: Final = 48
MAX_LEVELS: Final = 5
_EDGES_AT_ONCE: Final = 200_000

_COLUMNS: Final = ("inner_first", "inner_fence", "run_first", "run_edge", "run_fence", "parents", "children")

Small = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Nodes (cells with anything in them) of all levels, level by level.

    `root[row * columns + column]`: the node of each cell of level 0, or -1. Node n is wholly inside the fences
    `inner_fence[inner_first[n] : inner_first[n + 1]]`; the runs of edges `run_first[n] .. run_first[n + 1]` go
    through it, from `run_edge` on, of `run_fence`, each with its length and bits in `run_code` (see `raster`).
    `divided[n]`: it has FOLD x FOLD children, and no runs. `parents` are the divided nodes, ascending, and `children`
    the nodes below each of them, row by row, or -1.
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
        """The node at `place` (row by row) below each divided node; -1: nothing is there."""
        below: Small = self.children[np.searchsorted(self.parents, node) * (FOLD * FOLD) + place]
        return below

    def nbytes(self) -> int:
        """Bytes of all columns, without the outlines."""
        return sum(value.nbytes for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray))


def build_cells(outlines: Outlines) -> Cells:
    """Lay outlines on a lattice, and divide the cells that too many edges run through."""
    outlines = outlines.compact()
    boxes = _boxes(outlines)
    maker = _Maker(outlines, boxes, _lattice_for(boxes))
    for number in range(MAX_LEVELS):
        if not maker.add_level(number, last=number == MAX_LEVELS - 1):
            break
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
    # an odd margin, so that marks and cell sides do not fall on round coordinates
    width, height = (east - west) * 1.00037 + 1e-6, (north - south) * 1.00053 + 1e-6
    west, south = west - (width - (east - west)) * 0.4367, south - (height - (north - south)) * 0.4211
    # how many fences lie over a place on average: keeps large fences from filling the memory
    cover = float(((boxes.east - boxes.west) * (boxes.north - boxes.south)).sum()) / (width * height)
    cells = int((52.0 * count + 12e6) / max(cover, 1e-9))
    cells = max(min(max(CELLS_PER_FENCE * count, MIN_CELLS), MAX_CELLS, cells), 64)
    shape = width * np.cos(np.radians(south + height / 2)) / height
    columns = int(np.clip(np.sqrt(cells * shape), 1, cells))
    rows = max(cells // columns, 1)
    return Lattice(float(west), float(south), float(width / columns), float(height / rows), columns, rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Crowded:
    """Cells of a level that are to be divided: their numbers (sorted), their nodes, and their (fence, cell) keys."""

    cells: Ints
    nodes: Ints
    keys: Ints


class _Column:
    """A column that grows in place: many small arrays, joined at the end, would leave the memory full of holes."""

    def __init__(self, kind: type[np.generic]) -> None:
        self._values, self._count = np.empty(1 << 16, dtype=kind), 0

    def add(self, values: NDArray[np.generic]) -> None:
        end = self._count + len(values)
        if end > len(self._values):
            self._values.resize(max(end, len(self._values) * 17 // 16), refcheck=False)
        self._values[self._count : end] = values
        self._count = end

    def taken(self) -> NDArray[Any]:
        self._values.resize(self._count, refcheck=False)
        return self._values


class _Maker:
    """Builds the columns level by level, a band of rows at a time, which bounds the memory."""

    def __init__(self, outlines: Outlines, boxes: _Boxes, lattice: Lattice) -> None:
        self._outlines, self._boxes, self._lattice = outlines, boxes, lattice
        self._first = outlines.first_vertices()
        self._first_ring = np.searchsorted(outlines.fence, np.arange(outlines.count + 1))
        self._root = np.full(lattice.columns * lattice.rows, -1, dtype=np.int32)
        self._columns = {name: _Column(np.int32) for name in _COLUMNS}
        self._columns |= {"run_code": _Column(np.uint8), "divided": _Column(np.bool_)}
        self._nodes = self._inners = self._runs = 0
        self._levels = 0
        self._above: _Crowded | None = None

    def add_level(self, number: int, *, last: bool) -> bool:
        """Add the nodes of a level. Are there cells to divide?"""
        level = Level(self._lattice, number, (0, 0), None if self._above is None else self._above.keys)
        block = np.full(0 if self._above is None else len(self._above.cells) * FOLD * FOLD, -1, dtype=np.int32)
        crowded: list[_Crowded] = []
        for band, fences in self._bands(level):
            place, found = self._add_band(replace(level, band=band), fences, last=last)
            self._link(level, place, block)
            crowded.append(found)
        cells, nodes, keys = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(getattr(part, name) for part in crowded)])
            for name in ("cells", "nodes", "keys")
        )
        self._columns["children"].add(block)
        self._columns["parents"].add(nodes)
        self._above = _Crowded(cells, nodes, np.sort(keys))
        self._levels = number + 1
        return len(cells) > 0

    def _bands(self, level: Level) -> Iterator[tuple[tuple[int, int], Ints]]:
        """Bands of rows with about `_EDGES_AT_ONCE` edges each, and the fences that reach into them."""
        fences = np.arange(self._outlines.count)
        if level.crowded is not None:
            fences = distinct(level.crowded // (level.columns * level.rows // FOLD**2))
        scale = FOLD**level.number
        low = np.floor(self._lattice.v(self._boxes.south[fences]) * scale - SLACK).astype(np.int64)
        high = np.floor(self._lattice.v(self._boxes.north[fences]) * scale + SLACK).astype(np.int64)
        load = np.bincount((low + high) // 2, weights=np.diff(self._first)[fences], minlength=level.rows)
        number = (np.cumsum(load) // (_EDGES_AT_ONCE >> level.number)).astype(np.int64)
        begins = np.flatnonzero(run_starts(number))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), level.rows], strict=True):
            yield (begin, end), fences[(high >= begin) & (low < end)]

    def _add_band(self, level: Level, fences: Ints, *, last: bool) -> tuple[Ints, _Crowded]:
        """Add the nodes of a band; gives their cells, and those to divide."""
        edge, owner = self._edges_of(fences)
        raster = rasterise(self._outlines, level, edge, owner)
        order = np.argsort(raster.cell, kind="stable")
        cell = raster.cell[order]
        inner_order = np.argsort(raster.inner_cell, kind="stable")
        inner_cell = raster.inner_cell[inner_order]
        place = distinct(np.concatenate([cell, inner_cell]))
        at = np.searchsorted(place, cell)
        edges = np.bincount(at, weights=raster.edges[order], minlength=len(place))
        crowded = np.zeros(len(place), dtype=np.bool_) if last else edges > EDGES_PER_CELL
        dropped = order[crowded[at]]
        keys = distinct(raster.fence[dropped] * (level.columns * level.rows) + raster.cell[dropped])
        kept = ~crowded[at]
        order, cell = order[kept], cell[kept]
        self._columns["inner_first"].add(np.searchsorted(inner_cell, place) + self._inners)
        self._columns["run_first"].add(np.searchsorted(cell, place) + self._runs)
        self._columns["inner_fence"].add(raster.inner_fence[inner_order])
        self._columns["run_edge"].add(raster.edge[order])
        self._columns["run_fence"].add(raster.fence[order])
        self._columns["run_code"].add(raster.bits[order] | raster.edges[order] << LENGTH_SHIFT)
        self._columns["divided"].add(crowded)
        nodes = np.flatnonzero(crowded) + self._nodes
        self._nodes += len(place)
        self._inners += len(inner_cell)
        self._runs += len(cell)
        return place, _Crowded(place[crowded], nodes, keys)

    def _edges_of(self, fences: Ints) -> tuple[Ints, Ints]:
        """(edge, its fence) of all edges of some fences."""
        rings, first = self._outlines.rings, self._first_ring[fences]
        fence, ring = expand(first, self._first_ring[fences + 1] - first)
        row, edge = expand(rings[ring], rings[ring + 1] - rings[ring] - 1)
        return edge, fences[fence[row]]

    def _link(self, level: Level, place: Ints, block: Small) -> None:
        """Make the nodes just added known to the level above."""
        node = np.arange(self._nodes - len(place), self._nodes)
        if self._above is None:
            self._root[place] = node
            return
        row, column = place // level.columns, place % level.columns
        parent = np.searchsorted(self._above.cells, (row // FOLD) * (level.columns // FOLD) + column // FOLD)
        block[(parent * FOLD + row % FOLD) * FOLD + column % FOLD] = node

    def result(self) -> Cells:
        """All columns, joined."""
        self._columns["inner_first"].add(np.array([self._inners]))
        self._columns["run_first"].add(np.array([self._runs]))
        return Cells(
            outlines=self._outlines,
            lattice=self._lattice,
            levels=self._levels,
            root=self._root,
            **{name: column.taken() for name, column in self._columns.items()},
        )
