"""What the engine asks of an index of outlines; a plain one over a tree of bounding boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import shapely

from geo.spatial.fences import Outlines
from geo.spatial.ragged import Floats, Ints, expand
from geo.spatial.rings import Shape


class FenceIndex(Protocol):
    """Answers for many points or segments at once."""

    @property
    def outlines(self) -> Outlines:
        """The rings that are indexed."""
        ...

    def locate(self, x: Floats, y: Floats) -> tuple[Ints, Ints]:
        """Pairs (point, fence) of each point with each fence that contains it or has it on its border.

        In no particular order; x in [-180, 180).
        """
        ...

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> tuple[Ints, Ints]:
        """Pairs (segment, edge): at least every edge that the segment meets; pairs may repeat."""
        ...


class TreeIndex:
    """Shapely's STRtree: the plain reference, and the yardstick of the benchmarks."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.outlines = Outlines.of(shapes)
        self._tree = shapely.STRtree(shapes)
        edges = self.outlines.edges()
        owner = self.outlines.fence_of_vertex()[edges]
        self._edges = edges
        self._first = np.searchsorted(owner, np.arange(self.outlines.count))
        self._count = np.bincount(owner, minlength=self.outlines.count)

    def locate(self, x: Floats, y: Floats) -> tuple[Ints, Ints]:
        """Pairs (point, fence)."""
        point, fence = self._tree.query(shapely.points(x, y), predicate="intersects")
        return point, fence

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> tuple[Ints, Ints]:
        """Pairs (segment, edge) with overlapping boxes."""
        west, east = np.minimum(px, qx), np.maximum(px, qx)
        south, north = np.minimum(py, qy), np.maximum(py, qy)
        segment, fence = self._tree.query(shapely.box(west, south, east, north))
        row, slot = expand(self._first[fence], self._count[fence])
        segment, edge = segment[row], self._edges[slot]
        (ax, ay), (bx, by) = self.outlines.at(edge), self.outlines.at(edge + 1)
        near = (np.minimum(ax, bx) <= east[segment]) & (np.maximum(ax, bx) >= west[segment])
        near &= (np.minimum(ay, by) <= north[segment]) & (np.maximum(ay, by) >= south[segment])
        return segment[near], edge[near]
