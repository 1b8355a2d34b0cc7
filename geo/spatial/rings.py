"""Published polygons brought into one form: valid, and inside the world -180..180, -90..90.

The rules, in order:

1. An edge whose longitudes are more than 180° apart (and not exactly 360°) goes the short way, across the
   antimeridian.
2. A ring that does not close after that goes round a pole: it is closed over the pole nearer to its mean latitude. So
   a ring with a hole round the same pole is a band around it.
3. A ring that crosses or touches itself is repaired: rings first (the "structure" method of `make_valid`), then holes
   subtracted and exteriors united. A hole that lies outside takes nothing away. A polygon without area, or whose holes
   leave nothing of it, is left out with a note; a fence of such alone is refused.
4. What reaches beyond ±180° is cut there and moved back, each ring on its own; then holes are subtracted and parts that
   overlap are united. The cut is no border: a crossing of it is no entry. Its latitude is rounded to a double.

What that takes is bounded by the edges that meet (`crossings`): a ring that crosses itself everywhere is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely import MultiPolygon, Polygon
from shapely.affinity import translate
from shapely.errors import GEOSException

from geo.spatial.errors import FenceError
from geo.spatial.ragged import Bools, Floats, Ints, blocks

# How often the edges of shapes meet, counted before they are validated, repaired or united: that bounds what it
# takes.

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


Shape: TypeAlias = Polygon | MultiPolygon


class _NoArea(FenceError):
    """A ring, or a polygon, has no area."""


@contextmanager
def refused_by_geos() -> Iterator[None]:
    """What GEOS fails to compute, by its rounding, is a fence that is refused."""
    try:
        yield
    except GEOSException as fault:
        raise FenceError(f"its shape cannot be computed with: {fault}") from None


@refused_by_geos()
def world_polygon(polygons: Iterable[Sequence[Floats]]) -> tuple[Shape, tuple[str, ...]]:
    """The union of polygons, each `[exterior, *holes]` of (n, 2) lon/lat rings, in the world's bounds, and repairs.

    Raises `FenceError` when nothing with an area is left, a coordinate is not valid, or GEOS cannot compute it.
    """
    notes: list[str] = []
    parts: list[Polygon] = []
    nothing: FenceError = FenceError("it has no polygon")
    for rings in polygons:
        try:
            parts += _parts(_polygon([_closed(ring, notes) for ring in rings], notes))
        except _NoArea as error:
            nothing = error
            notes.append(f"a polygon was left out: {error}")
    if not parts:
        raise nothing
    whole = _joined(parts)
    if not _is_valid(whole):
        notes.append(f"repaired: {shapely.is_valid_reason(whole)}")
        whole = united(parts)
    return whole, tuple(notes)


def into_world(shape: Shape) -> Shape:
    """Cut at ±180°, ±540°, ..., and move each part back by whole turns; what then lies over another part is united."""
    west, _, east, _ = shape.bounds
    if west >= -180.0 and east <= 180.0:
        return shape
    parts: list[Polygon] = []
    for turn in range(int(np.floor((west + 180.0) / 360.0)), int(np.ceil((east - 180.0) / 360.0)) + 1):
        cell = shapely.box(360.0 * turn - 180.0, -90.0, 360.0 * turn + 180.0, 90.0)
        parts += _parts(translate(shapely.intersection(shape, cell), xoff=-360.0 * turn))
    whole = _joined(parts)
    return whole if _is_valid(whole) else united(parts)


def united(shapes: Sequence[Shape]) -> Shape:
    """The union of valid shapes. Raises `FenceError` where they cross each other too often."""
    refuse_too_many_crossings(shapes, overlay=True)
    return _joined(_parts(shapely.union_all(shapes)))


def _joined(parts: list[Polygon]) -> Shape:
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def _closed(ring: Floats, notes: list[str]) -> Floats:
    if ring.ndim != 2 or ring.shape[1] < 2:
        raise FenceError("a ring is not a list of positions")
    ring = np.asarray(ring[:, :2], dtype=np.float64)
    if not np.isfinite(ring).all() or (np.abs(ring[:, 1]) > 90).any() or (np.abs(ring[:, 0]) > 540).any():
        raise FenceError("a position is not valid: longitude first, then latitude within ±90")
    if len(ring) > 2 and (ring[0] != ring[-1]).any():
        ring = np.vstack([ring, ring[:1]])
        notes.append("an unclosed ring was closed")
    if len(ring) < 4:
        raise FenceError("a ring has fewer than four positions")
    return _around_pole(_unwrapped(ring))


def _unwrapped(ring: Floats) -> Floats:
    step = np.diff(ring[:, 0])
    jump = (np.abs(step) > 180.0) & (np.abs(step) < 360.0)
    # Most rings do not cross the antimeridian, and their coordinates stay as they were read, to the last bit.
    if not jump.any():
        return ring
    turns = np.concatenate([[0.0], np.cumsum(np.where(jump, -360.0 * np.sign(step), 0.0))])
    return np.column_stack([ring[:, 0] + turns, ring[:, 1]])


def _around_pole(ring: Floats) -> Floats:
    """A ring that does not close, from the antimeridian to the antimeridian and over the pole."""
    turns = round((ring[-1, 0] - ring[0, 0]) / 360.0)
    if turns == 0:
        return ring
    if abs(turns) > 1:
        raise FenceError(f"a ring goes {abs(turns)} times round a pole")
    pole = 90.0 if ring[:, 1].mean() >= 0 else -90.0
    east = ring if turns > 0 else ring[::-1] - [ring[-1, 0] - ring[0, 0], 0.0]
    # the first edge that reaches the antimeridian from the west: from there once round the world
    line = 360.0 * np.floor((east[0, 0] + 180.0) / 360.0) + 180.0
    edge = int(np.flatnonzero((east[:-1, 0] < line) & (east[1:, 0] >= line))[0])
    (ax, ay), (bx, by) = east[edge], east[edge + 1]
    y = ay + (by - ay) * ((line - ax) / (bx - ax))
    around = np.vstack([east[edge + 1 :] - [line + 180.0, 0.0], east[1 : edge + 1] - [line - 180.0, 0.0]])
    return np.vstack([[[-180.0, pole], [-180.0, y]], around, [[180.0, y], [180.0, pole], [-180.0, pole]]])


def _polygon(rings: Sequence[Floats], notes: list[str]) -> Shape:
    if not rings:
        raise FenceError("a polygon has no ring")
    if all(np.abs(ring[:, 0]).max() <= 180.0 for ring in rings):
        polygon = Polygon(rings[0], rings[1:])
        if _is_valid(polygon) and polygon.area > 0:
            return polygon
        if len(rings) == 1:
            return _repaired(polygon, notes)
        notes.append(f"repaired: {shapely.is_valid_reason(polygon)}")
    # each ring on its own: the parts of rings that go by other names of their longitudes meet only in the world
    whole = into_world(_valid(Polygon(rings[0]), notes))
    holes = [hole for ring in rings[1:] if (hole := _hole(ring, notes)) is not None]
    return _without(whole, united(holes)) if holes else whole


def _hole(ring: Floats, notes: list[str]) -> Shape | None:
    try:
        return into_world(_valid(Polygon(ring), notes))
    except _NoArea:
        notes.append("a hole has no area")
        return None


def _without(whole: Shape, hole: Shape) -> Shape:
    refuse_too_many_crossings([whole, hole], overlay=True)
    parts = _parts(shapely.difference(whole, hole))
    if not parts:
        raise _NoArea("its holes leave nothing of it")
    return _joined(parts)


def _valid(shape: Shape, notes: list[str]) -> Shape:
    return shape if _is_valid(shape) and shape.area > 0 else _repaired(shape, notes)


def _is_valid(shape: Shape) -> bool:
    refuse_too_many_crossings([shape], overlay=False)
    return bool(shape.is_valid)


def _repaired(shape: Shape, notes: list[str]) -> Shape:
    refuse_too_many_crossings([shape], overlay=True)
    reason = shapely.is_valid_reason(shape)
    repaired = shapely.make_valid(shape, method="structure", keep_collapsed=False)
    parts = _parts(repaired)
    if not parts:
        raise _NoArea(f"it has no area ({reason})")
    notes.append(f"repaired: {reason}")
    return _joined(parts)


def _parts(shape: shapely.Geometry) -> list[Polygon]:
    return [part for part in shapely.get_parts(shape) if isinstance(part, Polygon) and part.area > 0]
