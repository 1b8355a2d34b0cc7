"""A fence: a named area, its priority, and when it is in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geo.spatial.activity import ALWAYS, Activity
from geo.spatial.ragged import Floats, Ints
from geo.spatial.rings import Shape

_PER_DEGREE: Final = 1e7
_MAX_UNITS: Final = (1 << 31) - 1
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Fence:
    """One version of a fence. `shape` is valid and in the world's bounds, see `rings.world_polygon`.

    Fences with one `id` are its versions. Each ends where the next one begins, by `effective_from_ms` (None: when
    `active` begins).
    """

    id: str
    shape: Shape
    priority: int = 0
    active: Activity = ALWAYS
    speed_limit_mps: float | None = None
    effective_from_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outlines:
    """The rings of many fences as columns, from which an index is built.

    `points` (n, 2) are lon and lat in degrees or, after `compact`, whole 1e-7 degrees, side by side: a vertex is one
    memory access. Rings are closed (the first vertex is repeated at the end) and laid end to end. Ring r has the
    vertices `rings[r] .. rings[r + 1]` and belongs to fence `fence[r]` (ascending). Edge v leads from vertex v to v +
    1; the last vertex of a ring starts none. A place is inside if a ray crosses an odd number of the fence's edges, or
    if it is on the border.
    """

    points: Floats | NDArray[np.int32]
    rings: Ints
    fence: Ints
    count: int

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Outlines:
        if not len(shapes):
            return cls(np.zeros((0, 2)), np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
        multi = shapely.multipolygons(
            shapely.get_parts(shapes),
            indices=np.repeat(np.arange(len(shapes)), shapely.get_num_geometries(np.asarray(shapes, dtype=object))),
        )
        _, points, (rings, polygons, fences) = shapely.to_ragged_array(list(multi), include_z=False)
        rings_in_fence = np.diff(polygons[fences])
        return cls(
            points=np.ascontiguousarray(points, dtype=np.float64),
            rings=np.asarray(rings, dtype=np.int64),
            fence=np.repeat(np.arange(len(shapes)), rings_in_fence),
            count=len(shapes),
        )

    def at(self, vertex: Ints) -> tuple[Floats, Floats]:
        """Longitudes and latitudes of vertices, in degrees."""
        if self.points.dtype == np.int32:
            whole = self.points.view(np.int64)[:, 0][vertex].view(np.int32)
            return self.degrees(whole[0::2]), self.degrees(whole[1::2])
        # as one complex number, so that a corner is one memory access
        both = self.points.view(np.complex128)[:, 0][vertex]
        return both.real, both.imag

    def degrees(self, values: Floats | NDArray[np.int32]) -> Floats:
        """Values of `points` in degrees. The division gives the double nearest to the decimal that was read."""
        return values / _PER_DEGREE if values.dtype == np.int32 else values.astype(np.float64, copy=False)

    def compact(self) -> Outlines:
        """The same outlines in half the memory, if no bit of a coordinate is lost; else these."""
        if self.points.dtype == np.int32 or not _fits_int32(self.points):
            return self
        whole = np.empty(self.points.shape, dtype=np.int32)
        # The unsafe cast loses nothing: `_fits_int32` found whole numbers that fit 32 bits.
        np.rint(self.points * _PER_DEGREE, out=whole, casting="unsafe")
        return Outlines(whole, self.rings, self.fence, self.count)

    def first_vertices(self) -> Ints:
        """Limits of fences: fence f has the vertices `first[f] .. first[f + 1]`."""
        return self.rings[np.searchsorted(self.fence, np.arange(self.count + 1))]

    def edges_of(self, fence: int) -> Ints:
        """The vertices that start an edge of a fence."""
        first, last = np.searchsorted(self.fence, [fence, fence + 1])
        rings = self.rings[first : last + 1]
        return np.delete(np.arange(rings[0], rings[-1]), rings[1:] - 1 - rings[0])

    def edges(self) -> Ints:
        """The vertices that start an edge."""
        starts = np.ones(len(self.points), dtype=np.bool_)
        starts[self.rings[1:] - 1] = False
        return np.flatnonzero(starts)


def _fits_int32(degrees: Floats | NDArray[np.int32]) -> bool:
    """Whether every value is a whole number of 1e-7 degrees that fits 32 bits (up to 214.748 degrees)."""
    blocks = (degrees[at : at + _BLOCK] for at in range(0, len(degrees), _BLOCK))
    return all(_block_fits(block) for block in blocks)


def _block_fits(degrees: Floats | NDArray[np.int32]) -> bool:
    units = np.rint(degrees * _PER_DEGREE)
    return bool(((np.abs(units) <= _MAX_UNITS) & (units / _PER_DEGREE == degrees)).all())
