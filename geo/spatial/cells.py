"""The cells of the index as columns, and how they are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.fences import Outlines
from geo.spatial.lattice import FOLD, Lattice
from geo.spatial.ragged import Ints, distinct, expand, run_starts
from geo.spatial.raster import Level, Raster, rasterise

CELLS_PER_FENCE: Final = 8
MIN_CELLS: Final = 4096
MAX_CELLS: Final = 1 << 24
EDGES_PER_CELL: Final = 12
MAX_LEVELS: Final = 5
_EDGES_AT_ONCE: Final = 1_000_000

Small = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Nodes (cells with anything in them) of all levels, level by level.

    `root[row * columns + column]`: the node of each cell of level 0, or -1. Node n is wholly inside the fences
    `inner_fence[inner_first[n] : inner_first[n + 1]]`; the runs of edges `run_first[n] .. run_first[n + 1]` go
    through it, each `run_edges` edges from `run_edge` on, of `run_fence`, with `run_bits` (see `raster`). `child[n]`:
    where its FOLD x FOLD children begin in `children` (nodes, row by row), or -1; a node with children has no runs.
    """

    outlines: Outlines
    lattice: Lattice
    levels: int
    root: Small
    inner_first: Small
    inner_fence: Small
    run_first: Small
    run_edge: Small
    run_edges: Small
    run_fence: Small
    run_bits: NDArray[np.uint8]
    child: Small
    children: Small

    def inner_of(self, node: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """(row of `node`, place in `inner_fence`) of every fence that holds a whole node."""
        first = self.inner_first[node]
        return expand(first, self.inner_first[node + 1] - first)

    def runs_of(self, node: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """(row of `node`, run) of every run through a node."""
        first = self.run_first[node]
        return expand(first, self.run_first[node + 1] - first)

    def nbytes(self) -> int:
        """Bytes of all columns, without the outlines."""
        return sum(value.nbytes for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray))


def build_cells(outlines: Outlines) -> Cells:
    """Lay outlines on a lattice, and divide the cells that too many edges run through."""
    lattice = _lattice_for(outlines)
    maker = _Maker(outlines, lattice)
    for level in range(MAX_LEVELS):
        if not maker.add_level(level, last=level == MAX_LEVELS - 1):
            break
    return maker.result()


def _lattice_for(outlines: Outlines) -> Lattice:
    if not outlines.count:
        return Lattice(-180.0, -90.0, 360.0, 180.0, 1, 1)
    fence_first = outlines.rings[np.flatnonzero(run_starts(outlines.fence))]
    boxes = [np.minimum.reduceat(outlines.x, fence_first), np.maximum.reduceat(outlines.x, fence_first)]
    boxes += [np.minimum.reduceat(outlines.y, fence_first), np.maximum.reduceat(outlines.y, fence_first)]
    west, east, south, north = boxes[0].min(), boxes[1].max(), boxes[2].min(), boxes[3].max()
    # an odd margin, so that marks and cell sides do not fall on round coordinates
    width, height = (east - west) * 1.00037 + 1e-6, (north - south) * 1.00053 + 1e-6
    west, south = west - (width - (east - west)) * 0.4367, south - (height - (north - south)) * 0.4211
    # cells in sum over the boxes of all fences, for each cell of the lattice: keeps large fences from filling memory
    cover = float(((boxes[1] - boxes[0]) * (boxes[3] - boxes[2])).sum()) / (width * height)
    budget = 40.0 * outlines.count + 4e6
    cells = min(max(CELLS_PER_FENCE * outlines.count, MIN_CELLS), MAX_CELLS, max(int(budget / max(cover, 1e-9)), 64))
    shape = width * np.cos(np.radians(south + height / 2)) / height
    columns = int(np.clip(np.sqrt(cells * shape), 1, cells))
    rows = max(cells // columns, 1)
    return Lattice(float(west), float(south), float(width / columns), float(height / rows), columns, rows)


class _Maker:
    """Builds the columns level by level."""

    def __init__(self, outlines: Outlines, lattice: Lattice) -> None:
        self._outlines, self._lattice = outlines, lattice
        self._edges = outlines.edges()
        self._owner = outlines.fence_of_vertex()[self._edges].astype(np.int32)
        self._root = np.full(lattice.columns * lattice.rows, -1, dtype=np.int32)
        self._columns: dict[str, list[NDArray[np.generic]]] = {}
        self._nodes = self._inners = self._runs = self._blocks = 0
        self._levels = 0
        self._crowded: Ints | None = None  # keys (fence, cell) of the level above, see `raster.Level`
        self._parents = np.zeros(0, dtype=np.int64)  # cells of the level above that are divided, and their nodes
        self._parent_nodes = np.zeros(0, dtype=np.int64)

    def add_level(self, number: int, *, last: bool) -> bool:
        """Add the nodes of a level. Are there cells to divide?"""
        level = Level(self._lattice, number, self._crowded)
        raster = self._raster(level)
        order = np.argsort(raster.cell, kind="stable")
        cell = raster.cell[order]
        inner_order = np.argsort(raster.inner_cell, kind="stable")
        inner_cell = raster.inner_cell[inner_order]
        place = distinct(np.concatenate([cell, inner_cell]))
        edges = np.bincount(np.searchsorted(place, cell), weights=raster.edges[order], minlength=len(place))
        crowded = np.zeros(len(place), dtype=np.bool_) if last else edges > EDGES_PER_CELL
        kept = ~crowded[np.searchsorted(place, cell)]
        dropped = order[~kept]
        self._crowded = distinct(raster.fence[dropped] * (level.columns * level.rows) + raster.cell[dropped])
        order, cell = order[kept], cell[kept]
        self._add_nodes(place, inner_cell, cell)
        self._add("inner_fence", raster.inner_fence[inner_order], np.int32)
        for name, column in (("run_edge", raster.edge), ("run_edges", raster.edges), ("run_fence", raster.fence)):
            self._add(name, column[order], np.int32)
        self._add("run_bits", raster.bits[order], np.uint8)
        self._link(level, place)
        self._parents = place[crowded]
        self._parent_nodes = np.flatnonzero(crowded) + self._nodes - len(place)
        self._levels = number + 1
        return bool(crowded.any())

    def _raster(self, level: Level) -> Raster:
        """The raster of a level, made a block of fences at a time, to bound the memory."""
        edges, owner = self._edges, self._owner
        if level.crowded is not None:
            wanted = np.zeros(self._outlines.count, dtype=np.bool_)
            wanted[level.crowded // (level.columns * level.rows // FOLD**2)] = True
            keep = wanted[owner]
            edges, owner = edges[keep], owner[keep]
        parts = [
            rasterise(self._outlines, level, edges[rows], owner[rows].astype(np.int64))
            for rows in _blocks(owner, _EDGES_AT_ONCE >> level.number)
        ]
        none = np.zeros(0, dtype=np.int64)
        return Raster(*(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in Raster.__slots__))

    def _add(self, name: str, values: NDArray[np.generic], kind: type[np.generic]) -> None:
        self._columns.setdefault(name, []).append(values.astype(kind))

    def _add_nodes(self, place: Ints, inner_cell: Ints, run_cell: Ints) -> None:
        for name, cells, done in (("inner", inner_cell, self._inners), ("run", run_cell, self._runs)):
            self._add(f"{name}_first", np.searchsorted(cells, place) + done, np.int32)
        self._add("child", np.full(len(place), -1), np.int32)
        self._nodes += len(place)
        self._inners += len(inner_cell)
        self._runs += len(run_cell)

    def _link(self, level: Level, place: Ints) -> None:
        """Make the nodes just added known to the level above."""
        node = np.arange(self._nodes - len(place), self._nodes)
        if level.number == 0:
            self._root[place] = node
            return
        row, column = place // level.columns, place % level.columns
        parent = np.searchsorted(self._parents, (row // FOLD) * (level.columns // FOLD) + column // FOLD)
        block = np.full(len(self._parents) * FOLD * FOLD, -1, dtype=np.int32)
        block[(parent * FOLD + row % FOLD) * FOLD + column % FOLD] = node
        above = self._columns["child"][level.number - 1]
        begin = self._nodes - len(place) - len(above)
        above[self._parent_nodes - begin] = self._blocks + np.arange(len(self._parents)) * FOLD * FOLD
        self._blocks += len(block)
        self._add("children", block, np.int32)

    def result(self) -> Cells:
        """All columns, joined."""
        self._add("inner_first", np.array([self._inners]), np.int32)
        self._add("run_first", np.array([self._runs]), np.int32)
        self._add("children", np.zeros(0), np.int32)
        joined = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        return Cells(
            outlines=self._outlines,
            lattice=self._lattice,
            levels=self._levels,
            root=self._root,
            **joined,
        )


def _blocks(owner: NDArray[np.int32], size: int) -> Iterator[slice]:
    """Slices of about `size` rows that part no owner's rows."""
    begin = 0
    while begin < len(owner):
        end = min(begin + size, len(owner))
        end = int(np.searchsorted(owner, owner[end - 1], side="right"))
        yield slice(begin, end)
        begin = end
