"""A lattice of equal cells over the fences, refined fourfold level by level, and what cells lines run through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.ragged import Floats, Ints, Points, expand

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
    # in each row it may share the cells at which it changes rows with the next
    return (across + 2.0 * along).astype(np.int64) + 4


def _within_band(start: Points, end: Points, line: Ints, row: Ints) -> tuple[Floats, Floats]:
    """From where to where (in u) a line runs inside a row."""
    u0, v0, u1, v1 = start[0][line], start[1][line], end[0][line], end[1][line]
    low, high = np.minimum(v0, v1), np.maximum(v0, v1)
    rise = v1 - v0
    # So flat a line would divide rounding by rounding; all of it is taken to be in the row.
    flat = np.abs(rise) < 1e-6
    slope = (u1 - u0) / np.where(flat, 1.0, rise)
    at_bottom = u0 + (np.clip(row - SLACK, low, high) - v0) * slope
    at_top = u0 + (np.clip(row + (1.0 + SLACK), low, high) - v0) * slope
    west, east = np.minimum(u0, u1), np.maximum(u0, u1)
    from_u = np.where(flat, west, np.minimum(at_bottom, at_top))
    to_u = np.where(flat, east, np.maximum(at_bottom, at_top))
    return from_u, to_u
