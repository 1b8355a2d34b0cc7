"""Cells that too many edges run through, divided: what of their edges lies in each child, and whose whole it is.

All that a division needs is in the cell: its edges, and whether its mark is inside each fence. A child's mark is inside
if the way from it to the cell's mark crosses an even number of edges, or an odd one and the cell's is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geo.spatial.fences import Outlines
from geo.spatial.lattice import FOLD, CellWindow, Lattice, cells_of_lines
from geo.spatial.predicates import ROUNDING, Spots, on_or_odd
from geo.spatial.ragged import Bools, Floats, Ints, Points, expand
from geo.spatial.raster import FIRST, HARD, INSIDE, Raster, runs_of_cells

CHILDREN = FOLD * FOLD


@dataclass(frozen=True, slots=True, eq=False)
class Crowded:
    """Cells to divide: `node`, `row` and `column` of each, and the `allowance` for all that comes of it.

    Run r of cell `cell[r]` (ascending) are the edges `edge[r] .. edge[r] + edges[r] - 1` of `fence[r]`, with `bits`.
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
    """For each pair (`cell`) and child: does the way between the two marks change sides; may rounding decide it?

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
