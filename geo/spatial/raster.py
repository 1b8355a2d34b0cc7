"""Outlines laid on one level of a lattice: cells that a border runs through, and cells wholly inside.

For a cell on a fence's border the answer kept is whether its *mark* lies inside: the point on the cell's west side at
half its height. Any other point of the cell then needs only the edges that run through this cell: see `grid`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.lattice import FOLD, Lattice, Window, cells_of_lines
from geo.spatial.ragged import Bools, Ints, Points, distinct, expand, run_starts

# marks this close to a border (in cells) are not trusted: points of such cells are tested exactly
_CLOSE: Final = 1e-7

FIRST: Final = 1  # a run that opens a (cell, fence)
INSIDE: Final = 2  # the mark is inside
HARD: Final = 4  # the mark is too close to the border to tell
LENGTH_SHIFT: Final = 3  # a run's code is a byte: its bits, and above them how many edges it has
_MOST_EDGES: Final = 0xFF >> LENGTH_SHIFT


@dataclass(frozen=True, slots=True, eq=False)
class Raster:
    """Of some fences on one level; `cell` is row * columns + column of that level.

    Border: run i are the edges `edge[i] .. edge[i] + edges[i] - 1` of `fence[i]` in `cell[i]`, with `bits`; the
    runs of a (cell, fence) are neighbours, and none has more edges than a code has room for. Inner: `inner_cell[j]`
    lies wholly inside `inner_fence[j]`.
    """

    cell: Ints
    fence: Ints
    edge: Ints
    edges: Ints
    bits: Ints
    inner_cell: Ints
    inner_fence: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A band of rows of a level; above level 0 only the children of `crowded` cells, for the fences crowded there.

    `band`: the first row and the one after the last. `crowded`: sorted keys fence * cells + cell, by the numbers of
    the level before.
    """

    lattice: Lattice
    number: int
    band: tuple[int, int]
    crowded: Ints | None = None

    @property
    def columns(self) -> int:
        """Cells from west to east."""
        return self.lattice.columns * int(FOLD**self.number)

    @property
    def rows(self) -> int:
        """Cells from south to north."""
        return self.lattice.rows * int(FOLD**self.number)

    def parent_key(self, fence: Ints, row: Ints, column: Ints) -> Ints:
        """The key in `crowded` of the parents of cells."""
        columns, rows = self.columns // FOLD, self.rows // FOLD
        return (fence * rows + row // FOLD) * columns + column // FOLD


def rasterise(outlines: Outlines, level: Level, edge: Ints, owner: Ints) -> Raster:
    """Lay edges (all those of some fences) of fences `owner` (ascending) on a level."""
    lattice, scale, columns = level.lattice, FOLD**level.number, level.columns
    ends = outlines.at(edge), outlines.at(edge + 1)
    start, end = ((lattice.u(x) * scale, lattice.v(y) * scale) for x, y in ends)
    line, column, row = cells_of_lines(start, end, Window(0, columns - 1, level.band[0], level.band[1] - 1))
    if level.crowded is not None:
        wanted = _member(level.parent_key(owner[line], row, column), level.crowded)
        line, column, row = line[wanted], column[wanted], row[wanted]
    runs = _runs(edge[line], owner[line], row * columns + column)
    crossings = _Crossings(level, *ends, owner)
    first = run_starts(runs.cell, runs.fence)
    at = np.flatnonzero(first)
    inside, hard = crossings.marks(runs.fence[at], runs.cell[at])
    bits = (inside * INSIDE + hard * HARD)[np.cumsum(first) - 1] + first * FIRST
    spans = crossings.spans()
    if level.crowded is not None:
        spans = _spans_in(spans, level, level.crowded)
    span, inner_column = expand(spans.left, np.maximum(spans.right - spans.left + 1, 0))
    inner_cell, inner_fence = spans.row[span] * columns + inner_column, spans.fence[span]
    bare = ~_pair_in((inner_fence, inner_cell), (runs.fence[at], runs.cell[at]), columns * level.rows)
    return Raster(runs.cell, runs.fence, runs.edge, runs.edges, bits, inner_cell[bare], inner_fence[bare])


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    cell: Ints
    fence: Ints
    edge: Ints
    edges: Ints


def _runs(edge: Ints, fence: Ints, cell: Ints) -> _Runs:
    """Join neighbouring edges in the same cell; sorted by (fence, cell, edge)."""
    at = np.flatnonzero(run_starts(cell, edge - np.arange(len(edge))))
    count = np.diff(np.append(at, len(edge)))
    order = np.lexsort((cell[at], fence[at]))
    at, count = at[order], count[order]
    cell, fence, edge = cell[at], fence[at], edge[at]
    joined = np.flatnonzero(run_starts(cell, fence, edge - (np.cumsum(count) - count)))
    return _cut(_Runs(cell[joined], fence[joined], edge[joined], _sums(count, joined)))


def _cut(runs: _Runs) -> _Runs:
    """Runs with more than `_MOST_EDGES` edges as several."""
    row, part = expand(np.zeros(len(runs.edges), dtype=np.int64), -(-runs.edges // _MOST_EDGES))
    before = part * _MOST_EDGES
    edges = np.minimum(runs.edges[row] - before, _MOST_EDGES)
    return _Runs(runs.cell[row], runs.fence[row], runs.edge[row] + before, edges)


def _sums(values: Ints, starts: Ints) -> Ints:
    return np.asarray(np.add.reduceat(values, starts), dtype=np.int64) if len(starts) else values[:0]


class _Crossings:
    """Where borders cross the middle lines of rows: (fence, row, column), sorted; every second one leaves."""

    def __init__(self, level: Level, start: Points, end: Points, owner: Ints) -> None:
        lattice, scale = level.lattice, FOLD**level.number
        self._columns, self._rows = level.columns, level.rows
        (ax, ay), (bx, by) = start, end
        low, high = np.minimum(ay, by), np.maximum(ay, by)
        first = np.maximum(np.floor(lattice.v(low) * scale - 0.5).astype(np.int64), level.band[0])
        last = np.minimum(np.ceil(lattice.v(high) * scale - 0.5).astype(np.int64), level.band[1] - 1)
        some = np.flatnonzero((last >= first) & (low < high))
        line, row = expand(first[some], last[some] - first[some] + 1)
        line = some[line]
        y = lattice.middle(row, level.number)
        crosses = np.flatnonzero((low[line] <= y) & (y < high[line]))
        line, row, y = line[crosses], row[crosses], y[crosses]
        slope = (bx[line] - ax[line]) / (by[line] - ay[line])
        x = ax[line] + (y - ay[line]) * slope
        place = lattice.u(x) * scale
        column = np.clip(np.floor(place).astype(np.int64), 0, self._columns - 1)
        near = np.rint(place)
        # the flatter the edge, the more the rounding of a latitude moves the crossing
        close = np.abs(place - near) < _CLOSE + (1.0 + np.abs(slope)) * (1e-12 * scale / lattice.width)
        self._base = int(owner[0]) if len(owner) else 0
        key = self._key(owner[line], row, column)
        self._keys = np.sort(key)
        self._hard = distinct(
            self._key(owner[line[close]], row[close], np.clip(near[close], 0, self._columns - 1).astype(np.int64))
        )

    def _key(self, fence: Ints, row: Ints, column: Ints) -> Ints:
        return ((fence - self._base) * self._rows + row) * self._columns + column

    def marks(self, fence: Ints, cell: Ints) -> tuple[Bools, Bools]:
        """Is the mark of each cell inside its fence; and is it too close to the border to tell?"""
        key = self._key(fence, cell // self._columns, cell % self._columns)
        row_start = self._key(fence, cell // self._columns, np.zeros(len(cell), dtype=np.int64))
        before = np.searchsorted(self._keys, key) - np.searchsorted(self._keys, row_start)
        at = np.searchsorted(self._hard, key)
        hard = np.zeros(len(key), dtype=np.bool_)
        if len(self._hard):
            hard = self._hard[np.minimum(at, len(self._hard) - 1)] == key
        return before % 2 == 1, hard

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


def _spans_in(spans: _Spans, level: Level, crowded: Ints) -> _Spans:
    """Spans cut down to the children of crowded cells of their fence."""
    low = np.searchsorted(crowded, level.parent_key(spans.fence, spans.row, spans.left))
    high = np.searchsorted(crowded, level.parent_key(spans.fence, spans.row, spans.right), side="right")
    span, at = expand(low, high - low)
    column = crowded[at] % (level.columns // FOLD) * FOLD
    first = np.maximum(spans.left[span], column)
    last = np.minimum(spans.right[span], column + FOLD - 1)
    return _Spans(spans.fence[span], spans.row[span], first, last)


def _pair_in(pairs: tuple[Ints, Ints], others: tuple[Ints, Ints], cells: int) -> Bools:
    """Which (fence, cell) are among the others, which are sorted?"""
    (fence, cell), (other_fence, other_cell) = pairs, others
    return _member(fence * cells + cell, other_fence * cells + other_cell)


def _member(value: Ints, ascending: Ints) -> Bools:
    if not len(ascending):
        return np.zeros(len(value), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ascending, value), len(ascending) - 1)
    return np.asarray(ascending[at] == value, dtype=np.bool_)
