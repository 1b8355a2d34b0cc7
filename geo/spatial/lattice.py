"""A lattice of equal cells over the fences, refined fourfold level by level, and the cells that lines run through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.ragged import Bools, Floats, Ints, Points, among, distinct, expand, run_starts

# Outlines on a lattice: border cells and inner cells.

# marks this close to a border (in cells) are not trusted: points of such cells are tested exactly
_CLOSE: Final = 1e-7

FIRST: Final = 1  # a run that opens a (cell, fence)
INSIDE: Final = 2  # the mark is inside
HARD: Final = 4  # the mark is too close to the border: its side is unknown
LENGTH_SHIFT: Final = 3  # a run's code is a byte: its bits, and above them how many edges it has
MAX_EDGES: Final = 0xFF >> LENGTH_SHIFT


@dataclass(frozen=True, slots=True, eq=False)
class Raster:
    """Cells of some fences; `cell` is a cell's number, row * columns + column on a lattice.

    Border: run i has the edges `edge[i] .. edge[i] + edges[i] - 1` of `fence[i]` in `cell[i]`, with `bits`. The runs of
    a (cell, fence) are neighbours, and none has more edges than a code has room for. Inner: `inner_cell[j]` lies wholly
    inside `inner_fence[j]`.
    """

    cell: Ints
    fence: Ints
    edge: Ints
    edges: Ints
    bits: Ints
    inner_cell: Ints
    inner_fence: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Rows `first .. end - 1` of a lattice."""

    lattice: Lattice
    first: int
    end: int


def rasterise(outlines: Outlines, band: Band, edge: Ints, owner: Ints) -> Raster:
    """Lay edges on a band: all edges of fences `owner` (ascending) that reach into the band."""
    lattice, columns = band.lattice, band.lattice.columns
    ends = outlines.at(edge), outlines.at(edge + 1)
    start, end = ((lattice.u(x), lattice.v(y)) for x, y in ends)
    line, column, row = cells_of_lines(start, end, CellWindow(0, columns - 1, band.first, band.end - 1))
    runs = runs_of_cells(edge[line], owner[line], row * columns + column)
    crossings = _Crossings(band, *ends, owner)
    first = run_starts(runs.cell, runs.fence)
    starts = np.flatnonzero(first)
    inside, hard = crossings.marks(runs.fence[starts], runs.cell[starts])
    bits = (inside * INSIDE + hard * HARD)[np.cumsum(first) - 1] + first * FIRST
    spans = crossings.spans()
    span, inner_column = expand(spans.left, np.maximum(spans.right - spans.left + 1, 0))
    inner_cell, inner_fence = spans.row[span] * columns + inner_column, spans.fence[span]
    cells = columns * lattice.rows
    bare = ~among(inner_fence * cells + inner_cell, runs.fence[starts] * cells + runs.cell[starts])
    return Raster(runs.cell, runs.fence, runs.edge, runs.edges, bits, inner_cell[bare], inner_fence[bare])


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRuns:
    """Edges `edge[i] .. edge[i] + edges[i] - 1` of `fence[i]` in `cell[i]`."""

    cell: Ints
    fence: Ints
    edge: Ints
    edges: Ints


def runs_of_cells(edge: Ints, fence: Ints, cell: Ints) -> EdgeRuns:
    """Join neighbouring edges in the same cell; sorted by (fence, cell, edge)."""
    starts = np.flatnonzero(run_starts(cell, edge - np.arange(len(edge))))
    count = np.diff(np.append(starts, len(edge)))
    order = np.lexsort((cell[starts], fence[starts]))
    starts, count = starts[order], count[order]
    cell, fence, edge = cell[starts], fence[starts], edge[starts]
    joined = np.flatnonzero(run_starts(cell, fence, edge - (np.cumsum(count) - count)))
    edges = np.add.reduceat(count, joined) if len(joined) else count
    return _cut(EdgeRuns(cell[joined], fence[joined], edge[joined], edges))


def _cut(runs: EdgeRuns) -> EdgeRuns:
    """Divide runs with more than `MAX_EDGES` edges."""
    row, part = expand(np.zeros(len(runs.edges), dtype=np.int64), -(-runs.edges // MAX_EDGES))
    before = part * MAX_EDGES
    edges = np.minimum(runs.edges[row] - before, MAX_EDGES)
    return EdgeRuns(runs.cell[row], runs.fence[row], runs.edge[row] + before, edges)


class _Crossings:
    """Where borders cross the middle lines of rows: (fence, row, column), sorted; every second one leaves."""

    def __init__(self, band: Band, start: Points, end: Points, owner: Ints) -> None:
        lattice = band.lattice
        self._columns, self._rows = lattice.columns, lattice.rows
        (ax, ay), (bx, by) = start, end
        low, high = np.minimum(ay, by), np.maximum(ay, by)
        first = np.maximum(np.floor(lattice.v(low) - 0.5).astype(np.int64), band.first)
        last = np.minimum(np.ceil(lattice.v(high) - 0.5).astype(np.int64), band.end - 1)
        some = np.flatnonzero((last >= first) & (low < high))
        line, row = expand(first[some], last[some] - first[some] + 1)
        line = some[line]
        y = lattice.middle(row, 0)
        # Half open: of two edges that go on through a corner on the middle line one crosses, so every second one
        # leaves.
        crosses = np.flatnonzero((low[line] <= y) & (y < high[line]))
        line, row, y = line[crosses], row[crosses], y[crosses]
        slope = (bx[line] - ax[line]) / (by[line] - ay[line])
        x = ax[line] + (y - ay[line]) * slope
        place = lattice.u(x)
        column = np.clip(np.floor(place).astype(np.int64), 0, self._columns - 1)
        near = np.rint(place)
        # the flatter the edge, the farther the rounding of a latitude moves the crossing
        close = np.abs(place - near) < _CLOSE + (1.0 + np.abs(slope)) * (1e-12 / lattice.width)
        self._base = int(owner[0]) if len(owner) else 0
        key = self._key(owner[line], row, column)
        self._keys = np.sort(key)
        self._hard = distinct(
            self._key(owner[line[close]], row[close], np.clip(near[close], 0, self._columns - 1).astype(np.int64))
        )

    def _key(self, fence: Ints, row: Ints, column: Ints) -> Ints:
        return ((fence - self._base) * self._rows + row) * self._columns + column

    def marks(self, fence: Ints, cell: Ints) -> tuple[Bools, Bools]:
        """Whether the mark of each cell is inside its fence, and whether it is too close to the border to know."""
        key = self._key(fence, cell // self._columns, cell % self._columns)
        row_start = self._key(fence, cell // self._columns, np.zeros(len(cell), dtype=np.int64))
        before = np.searchsorted(self._keys, key) - np.searchsorted(self._keys, row_start)
        return before % 2 == 1, among(key, self._hard)

    def spans(self) -> _Spans:
        """Stretches of cells between an entering and a leaving crossing."""
        enter, leave = self._keys[0::2], self._keys[1::2]
        left, right = enter % self._columns + 1, leave % self._columns - 1
        some = np.flatnonzero(left <= right)
        rest = enter[some] // self._columns
        return _Spans(rest // self._rows + self._base, rest % self._rows, left[some], right[some])


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Columns `left .. right` of a row whose middle line is inside a fence."""

    fence: Ints
    row: Ints
    left: Ints
    right: Ints


FOLD: Final = 4
# a cell is held to be this much larger on each side (in cells) than it is, so that rounding loses no line, and a place
# within 1e-12 degrees of the cell has its borders there: cells are 1e-8 degrees wide or more
SLACK: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Lattice:
    """Cells of `width` x `height` degrees from (`west`, `south`); `columns` x `rows` of them at level 0."""

    west: float
    south: float
    width: float
    height: float
    columns: int
    rows: int

    def u(self, x: Floats) -> Floats:
        """Longitudes in cells of level 0, from the west side."""
        return np.asarray((x - self.west) * (1.0 / self.width))

    def v(self, y: Floats) -> Floats:
        """Latitudes in cells of level 0, from the south side."""
        return np.asarray((y - self.south) * (1.0 / self.height))

    def left(self, column: Ints, level: int) -> Floats:
        """The longitude of the west side of cells."""
        return np.asarray(self.west + column * (self.width / FOLD**level))

    def middle(self, row: Ints, level: int) -> Floats:
        """The latitude of the middle line of rows."""
        return np.asarray(self.south + (row + 0.5) * (self.height / FOLD**level))


@dataclass(frozen=True, slots=True, eq=False)
class CellWindow:
    """For each line the cells to look at: columns and rows `first .. last`, both included."""

    first_column: Ints | int
    last_column: Ints | int
    first_row: Ints | int
    last_row: Ints | int


def cells_of_lines(start: Points, end: Points, window: CellWindow) -> tuple[Ints, Ints, Ints]:
    """Every cell that each line runs through: (line, column, row). Ends are (u, v) in cells of the level asked."""
    (u0, v0), (u1, v1) = start, end
    low, high = np.minimum(v0, v1), np.maximum(v0, v1)
    first = np.maximum(np.floor(low - SLACK).astype(np.int64), window.first_row)
    last = np.minimum(np.floor(high + SLACK).astype(np.int64), window.last_row)
    line, row = expand(first, np.maximum(last - first + 1, 0))
    west, east = np.minimum(u0, u1)[line], np.maximum(u0, u1)[line]
    crossing = np.flatnonzero((last > first)[line])
    if len(crossing):
        at = line[crossing]
        west[crossing], east[crossing] = _within_band(start, end, at, row[crossing])
    first_column = np.broadcast_to(np.asarray(window.first_column), len(u0))[line]
    last_column = np.broadcast_to(np.asarray(window.last_column), len(u0))[line]
    left = np.maximum(np.floor(west - SLACK).astype(np.int64), first_column)
    right = np.minimum(np.floor(east + SLACK).astype(np.int64), last_column)
    if len(left) and (left == right).all():
        return line, left, row
    item, column = expand(left, np.maximum(right - left + 1, 0))
    return line[item], column, row[item]


def most_cells(start: Points, end: Points, window: CellWindow) -> Ints:
    """At least the number of cells of a window that each line runs through."""
    (u0, v0), (u1, v1) = start, end
    across = np.abs(np.clip(u1, 0, window.last_column) - np.clip(u0, 0, window.last_column))
    along = np.abs(np.clip(v1, 0, window.last_row) - np.clip(v0, 0, window.last_row))
    # a line shares the cells at which it changes rows with the next row
    return (across + 2.0 * along).astype(np.int64) + 4


def _within_band(start: Points, end: Points, line: Ints, row: Ints) -> tuple[Floats, Floats]:
    """From where to where (in u) a line runs inside a row."""
    u0, v0, u1, v1 = start[0][line], start[1][line], end[0][line], end[1][line]
    low, high = np.minimum(v0, v1), np.maximum(v0, v1)
    rise = v1 - v0
    # For a flat line this would divide rounding by rounding: all of it counts as in the row.
    flat = np.abs(rise) < 1e-6
    slope = (u1 - u0) / np.where(flat, 1.0, rise)
    at_bottom = u0 + (np.clip(row - SLACK, low, high) - v0) * slope
    at_top = u0 + (np.clip(row + (1.0 + SLACK), low, high) - v0) * slope
    west, east = np.minimum(u0, u1), np.maximum(u0, u1)
    from_u = np.where(flat, west, np.minimum(at_bottom, at_top))
    to_u = np.where(flat, east, np.maximum(at_bottom, at_top))
    return from_u, to_u
