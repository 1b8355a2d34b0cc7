"""How many fences may lie over each other at a place: pairs of places and fences are counted before they are made."""

from __future__ import annotations

from typing import Final

import numpy as np

from geo.spatial.cells import Cells
from geo.spatial.ragged import Floats, Ints

FEW: Final = 64
"""So many are not told apart from none."""


class Layers:
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
        found = np.minimum(np.searchsorted(self._nodes, node), len(self._nodes) - 1)
        deep = np.flatnonzero(self._nodes[found] == node)
        counts[inside[deep]] = self._counts[found[deep]]
        return counts
