"""What the engine asks of an index of outlines, and the bound on how many fences overlap at a place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from geo.spatial.cells import Cells
from geo.spatial.fences import Outlines
from geo.spatial.predicates import Spots
from geo.spatial.ragged import Bools, Floats, Ints, Pairs

FEW: Final = 64
"""A bound up to this costs nothing to allow everywhere; only higher ones are kept for each cell."""


class OverlapBound:
    """`least`: what is said of most places; more of those in a cell of the lattice where there may be more."""

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


class FenceIndex(Protocol):
    """Answers for many points or segments at once."""

    @property
    def outlines(self) -> Outlines:
        """The rings that are indexed."""
        ...

    def overlap_bound(self, weight: Ints) -> OverlapBound:
        """How many fences, counted by their weights, may hold a place."""
        ...

    def locate(self, spots: Spots) -> tuple[Ints, Ints]:
        """Pairs (spot, fence) of each spot with each fence that contains it or has it on its border: exactly.

        In no particular order; longitudes in [-180, 180].
        """
        ...

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Iterator[Pairs]:
        """Pairs (segment, edge), a bounded number at once: at least every edge that the segment meets; pairs may
        repeat.
        """
        ...


def comes_near(index: FenceIndex, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Bools:
    """Whether an edge may meet each segment: true of all that meet one, and of some more.

    Of a segment that ends beyond the antimeridian it is not looked at: it may.
    """
    # the few that wrap are taken for near rather than moved, as the callers then look closely
    near: Bools = (qx < -180.0) | (qx >= 180.0)
    for segment, _ in index.edges_near(px, py, qx, qy):
        near[segment] = True
    return near
