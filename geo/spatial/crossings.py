"""How often the edges of shapes meet, counted before they are validated, repaired or united: that bounds what it takes.

Validation of a shape takes time by the pairs of edges whose boxes meet, and by the corners of the rings that each may
lie in; to repair or unite shapes by the pairs that cross. What is united in steps is counted before each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geo.spatial.errors import FenceError
from geo.spatial.ragged import Bools, Floats, Ints, blocks

MAX_NEAR_PAIRS: Final = 20_000_000
"""Pairs of edges whose boxes meet, of one fence."""
MAX_CROSSINGS: Final = 1_000
"""Pairs of edges that cross or touch without a common corner, and as many more as there are edges."""
MAX_AROUND: Final = 200_000_000
"""Corners of rings, each counted once for each ring whose box lies in its box."""
_CORNERS_MORE: Final = 50  # that a ring counts for: what a pair takes besides
_PAIRS_AT_ONCE: Final = 1_000_000


class CrossingBudget:
    """Counts pairs of edges, of one union after the other. Raises `FenceError` where they are too many.

    `most`: pairs that cross or touch without a common corner, called `named`; None: these are not counted.
    """

    def __init__(self, most: int | None, named: str = "") -> None:
        self._most, self._named = most, named
        self._near = self._crossings = 0

    def add(self, starts: Floats, ends: Floats) -> None:
        """The pairs among these edges, each (n, 2)."""
        for one, other in _near_pairs(np.minimum(starts, ends), np.maximum(starts, ends)):
            self._near += len(one)
            if self._near > MAX_NEAR_PAIRS:
                raise FenceError(
                    f"more than {MAX_NEAR_PAIRS:,} pairs of its edges lie side by side: simplify or split it"
                )
            if self._most is None:
                continue
            self._crossings += int(_cross(starts, ends, one, other).sum())
            if self._crossings > self._most:
                raise FenceError(f"its edges cross each other more than {self._named}: it is not a valid outline")


def refuse_too_many_crossings(shapes: Sequence[shapely.Geometry], *, overlay: bool) -> None:
    """Raises `FenceError` where it would take too long to validate shapes; `overlay`: or to repair or unite them."""
    _refuse_nested(shapes)
    starts, ends = edges_of(shapes)
    count = len(starts)
    # So few edges cannot make too many pairs: most fences are not counted at all.
    if count * (count - 1) // 2 <= (MAX_CROSSINGS if overlay else MAX_NEAR_PAIRS):
        return
    named = f"{MAX_CROSSINGS:,} times (and once for each edge)"
    CrossingBudget(MAX_CROSSINGS + count if overlay else None, named).add(starts, ends)


def _refuse_nested(shapes: Sequence[shapely.Geometry]) -> None:
    rings = shapely.get_rings(shapely.get_parts(shapes))
    corners = shapely.get_num_coordinates(rings) + _CORNERS_MORE
    if (len(rings) - 1) * int(corners.sum()) <= MAX_AROUND:
        return
    bounds = shapely.bounds(rings)
    low, high = bounds[:, :2], bounds[:, 2:]
    met = around = 0
    for one, other in _near_pairs(low, high):
        met += len(one)
        for outer, inner in ((one, other), (other, one)):
            holds = ((low[outer] <= low[inner]) & (high[outer] >= high[inner])).all(axis=1)
            around += int(corners[outer[holds]].sum())
        if around > MAX_AROUND or met > MAX_NEAR_PAIRS:
            raise FenceError(f"its rings lie in each other's boxes too often ({MAX_AROUND:,}): simplify or split it")


def edges_of(shapes: Sequence[shapely.Geometry] | NDArray[np.object_]) -> tuple[Floats, Floats]:
    """Where the edges of all rings start and end, each (n, 2)."""
    points, ring = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(shapes)), return_index=True)
    goes_on = ring[1:] == ring[:-1]
    return points[:-1][goes_on], points[1:][goes_on]


def _near_pairs(low: Floats, high: Floats) -> Iterator[tuple[Ints, Ints]]:
    """Pairs (one < other) of boxes that meet, about `_PAIRS_AT_ONCE` at once."""
    boxes = shapely.box(low[:, 0], low[:, 1], high[:, 0], high[:, 1])
    tree = shapely.STRtree(boxes)
    # as many as overlap in longitude, or in latitude, are the most that a box may meet
    most = np.minimum(*(_overlapping(low[:, axis], high[:, axis]) for axis in range(2)))
    for block in blocks(most, _PAIRS_AT_ONCE):
        one, other = tree.query(boxes[block])
        one = one + block.start
        yield one[one < other], other[one < other]


def _overlapping(low: Floats, high: Floats) -> Ints:
    return np.searchsorted(np.sort(low), high, side="right") - np.searchsorted(np.sort(high), low, side="left")


def _cross(starts: Floats, ends: Floats, one: Ints, other: Ints) -> Bools:
    """Of pairs of edges, those that cross or touch and have no corner in common; to rounding."""
    a, b, c, d = starts[one], ends[one], starts[other], ends[other]
    common = np.zeros(len(one), dtype=np.bool_)
    for corner in (a, b):
        for another in (c, d):
            common |= (corner == another).all(axis=1)
    return ~common & (_side(a, b, c) * _side(a, b, d) <= 0) & (_side(c, d, a) * _side(c, d, b) <= 0)


def _side(start: Floats, end: Floats, place: Floats) -> Floats:
    (x, y), (px, py) = (end - start).T, (place - start).T
    side: Floats = np.sign(x * py - y * px)
    return side
