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

A large outline that is not valid is refused, and not repaired: what that takes grows with the square of its corners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
import shapely
from shapely import MultiPolygon, Polygon
from shapely.affinity import translate
from shapely.errors import GEOSException

from geo.spatial.errors import FenceError
from geo.spatial.ragged import Floats

MAX_REPAIRED_CORNERS: Final = 2_000
"""A larger outline that is not valid is refused."""
MAX_CROSSINGS: Final = 1_000
"""How often an outline may cross itself to be repaired, and once more for each of its corners: each crossing becomes a
corner of what is repaired."""

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
    if not whole.is_valid:
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
    return whole if whole.is_valid else united(parts)


def united(shapes: Sequence[Shape]) -> Shape:
    """The union of valid shapes."""
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
        if polygon.is_valid and polygon.area > 0:
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
    parts = _parts(shapely.difference(whole, hole))
    if not parts:
        raise _NoArea("its holes leave nothing of it")
    return _joined(parts)


def _valid(shape: Shape, notes: list[str]) -> Shape:
    return shape if shape.is_valid and shape.area > 0 else _repaired(shape, notes)


def _repaired(shape: Shape, notes: list[str]) -> Shape:
    reason = shapely.is_valid_reason(shape)
    corners = int(shapely.get_num_coordinates(shape))
    if corners > MAX_REPAIRED_CORNERS or _crossings(shape) > MAX_CROSSINGS + corners:
        raise FenceError(f"its outline crosses itself ({reason}) too often to be repaired: correct or simplify it")
    repaired = shapely.make_valid(shape, method="structure", keep_collapsed=False)
    parts = _parts(repaired)
    if not parts:
        raise _NoArea(f"it has no area ({reason})")
    notes.append(f"repaired: {reason}")
    return _joined(parts)


def _crossings(shape: Shape) -> int:
    points, ring = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(shape)), return_index=True)
    edges = shapely.linestrings(np.stack([points[:-1], points[1:]], axis=1)[ring[1:] == ring[:-1]])
    return int(shapely.STRtree(edges).query(edges, predicate="crosses").shape[1]) // 2


def _parts(shape: shapely.Geometry) -> list[Polygon]:
    return [part for part in shapely.get_parts(shape) if isinstance(part, Polygon) and part.area > 0]
