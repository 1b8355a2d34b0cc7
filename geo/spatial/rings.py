"""Published polygons in one form: valid, and inside the world -180..180, -90..90.

1. An edge whose longitudes are more than 180° apart (and not exactly 360°) goes the short way, across the
   antimeridian.
2. A ring that does not close after that goes round a pole: it is closed over the pole nearer to its mean latitude. So
   a ring with a hole round the same pole is a band around it.
3. A polygon that is not valid is refused with the reason. Polygons that overlap are united.
4. What reaches beyond ±180° is cut there and moved back, each ring on its own. Then holes are subtracted, and parts
   that overlap are united. The cut is no border: a crossing of it is no entry. Its latitude is rounded to a double.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import shapely
from shapely import MultiPolygon, Polygon
from shapely.affinity import translate
from shapely.errors import GEOSException

from geo.spatial.errors import FenceError
from geo.spatial.ragged import Floats

Shape: TypeAlias = Polygon | MultiPolygon


@contextmanager
def refused_by_geos() -> Iterator[None]:
    """A shape that GEOS cannot compute, because of its rounding, is a refused fence."""
    try:
        yield
    except GEOSException as fault:
        raise FenceError(f"its shape cannot be computed with: {fault}") from None


@refused_by_geos()
def world_polygon(polygons: Iterable[Sequence[Floats]]) -> Shape:
    """Polygons, each `[exterior, *holes]` of (n, 2) lon/lat rings, as one shape in the world's bounds.

    Raises `FenceError` for a polygon that is not valid, a coordinate out of range, or what GEOS cannot compute.
    """
    parts = [part for rings in polygons for part in areas(_polygon([_closed(ring) for ring in rings]))]
    if not parts:
        raise FenceError("it has no polygon")
    return _united(parts)


def into_world(shape: Shape) -> Shape:
    """Cut at ±180°, ±540°, ..., and move each part back by whole turns. Parts that then overlap are united."""
    west, _, east, _ = shape.bounds
    if west >= -180.0 and east <= 180.0:
        return shape
    parts: list[Polygon] = []
    for turn in range(int(np.floor((west + 180.0) / 360.0)), int(np.ceil((east - 180.0) / 360.0)) + 1):
        cell = shapely.box(360.0 * turn - 180.0, -90.0, 360.0 * turn + 180.0, 90.0)
        parts += areas(translate(shapely.intersection(shape, cell), xoff=-360.0 * turn))
    return _united(parts)


def _united(parts: list[Polygon]) -> Shape:
    whole = joined(parts)
    return whole if whole.is_valid else joined(areas(shapely.union_all(parts)))


def areas(shape: shapely.Geometry) -> list[Polygon]:
    """The polygons of a geometry that have an area."""
    return [part for part in shapely.get_parts(shape) if isinstance(part, Polygon) and part.area > 0]


def joined(parts: list[Polygon]) -> Shape:
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def _checked(shape: Shape) -> Shape:
    if not shape.is_valid:
        reason = shapely.is_valid_reason(shape)
        raise FenceError(f"its outline is not valid ({reason}): correct it, for instance with `ogr2ogr -makevalid`")
    if not shape.area > 0:
        raise FenceError("it has no area")
    return shape


def _closed(ring: Floats) -> Floats:
    if not np.isfinite(ring).all() or (np.abs(ring[:, 1]) > 90).any() or (np.abs(ring[:, 0]) > 540).any():
        raise FenceError("a position is not valid: longitude first, then latitude within ±90")
    if len(ring) > 2 and (ring[0] != ring[-1]).any():
        ring = np.vstack([ring, ring[:1]])
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


def _polygon(rings: Sequence[Floats]) -> Shape:
    if not rings:
        raise FenceError("a polygon has no ring")
    reaches = np.max([np.abs(ring).max(axis=0) for ring in rings], axis=0)
    if reaches[0] <= 180.0 and reaches[1] < 90.0:
        return _checked(Polygon(rings[0], rings[1:]))
    # each ring alone: rings with other names for their longitudes meet only in the world, and those round one pole
    # share an edge there
    whole, *holes = (into_world(_checked(Polygon(ring))) for ring in rings)
    if not holes:
        return whole
    parts = areas(shapely.difference(whole, shapely.union_all(holes)))
    if not parts:
        raise FenceError("its holes leave nothing of it")
    return joined(parts)
