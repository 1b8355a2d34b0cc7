"""Circles and corridors as polygons on the ellipsoid."""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely
from shapely import MultiPolygon, Polygon

from geo.spatial.errors import FenceError
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Floats
from geo.spatial.rings import Shape, into_world, world_polygon

TOLERANCE_M: Final = 0.01
MAX_CORNERS: Final = 4096
_MIN_CORNERS: Final = 32
# a side of a corridor is straight in degrees, not a geodesic: on 250 m the two are 2 mm apart at 60° of latitude, and
# the closer to a pole, the shorter are the sides that keep them 1 cm apart
_CORRIDOR_STEP_M: Final = 250.0
_CORRIDOR_LATITUDE: Final = 89.0
_MAX_CORRIDOR_STEPS: Final = 20_000
_METRES_A_DEGREE: Final = 110_500.0  # of latitude: not more anywhere


def circle(lon: float, lat: float, radius_m: float) -> Shape:
    """All places within `radius_m` of a place, as a polygon.

    Its corners lie on the geodesic circle; between them it is at most 1 cm inside of it up to a radius of 33 km,
    where `MAX_CORNERS` is reached, and radius * 3e-7 beyond. Raises `FenceError`.
    """
    if not (0.0 < radius_m <= 9_000_000.0):
        raise FenceError(f"radius_m {radius_m} is not between 0 and 9,000 km")
    ring = _arc(lon, lat, radius_m, 0.0, 360.0)
    return world_polygon([[np.vstack([ring[:-1], ring[:1]])]])[0]


def corridor(line: Floats, width_m: float) -> Shape:
    """All places within half of `width_m` of a line (n, 2), straight in degrees between its positions.

    Raises `FenceError`, also for a corridor of which anything lies beyond 89 degrees of latitude.
    """
    if not 0.0 < width_m <= 100_000.0:
        raise FenceError(f"width_m {width_m} is not between 0 and 100 km")
    points = _densified(line)
    farthest = int(np.argmax(np.abs(points[:, 1])))
    if np.abs(points[farthest, 1]) + width_m / 2 / _METRES_A_DEGREE > _CORRIDOR_LATITUDE:
        place = points[farthest].tolist()
        raise FenceError(f"at {place} the corridor reaches beyond {_CORRIDOR_LATITUDE:.0f}° of latitude")
    parts = [_capsule(points[at], points[at + 1], width_m / 2) for at in range(len(points) - 1)]
    whole = shapely.union_all(parts)
    return into_world(whole if isinstance(whole, Polygon) else MultiPolygon(shapely.get_parts(whole).tolist()))


def _arc(lon: float, lat: float, radius_m: float, start_deg: float, end_deg: float) -> Floats:
    """Points at a distance from a place, over azimuths falling from end to start: counterclockwise."""
    whole = np.pi / np.arccos(1.0 - min(TOLERANCE_M / radius_m, 0.01))
    count = int(np.clip(np.ceil(whole * (end_deg - start_deg) / 360.0), _MIN_CORNERS, MAX_CORNERS)) + 1
    azimuth = np.linspace(end_deg, start_deg, count)
    same = np.ones(count)
    lons, lats, _ = WGS84.fwd(lon * same, lat * same, azimuth, radius_m * same)
    return np.column_stack([lons, lats])


def _densified(line: Floats) -> Floats:
    if line.ndim != 2 or len(line) < 2:
        raise FenceError("a line needs two positions")
    if not np.isfinite(line).all() or (np.abs(line[:, 1]) > 90).any() or (np.abs(line[:, 0]) > 180).any():
        raise FenceError("a position is no place: longitude first, then latitude within ±90")
    step = np.diff(line[:, 0])
    lon = line[:, 0] + np.concatenate([[0.0], np.cumsum(-360.0 * np.sign(step) * (np.abs(step) > 180.0))])
    lat = line[:, 1]
    length = np.asarray(WGS84.inv(lon[:-1], lat[:-1], lon[1:], lat[1:])[2])
    steepest = np.tan(np.radians(np.minimum(np.maximum(np.abs(lat[:-1]), np.abs(lat[1:])), _CORRIDOR_LATITUDE)))
    step_m = np.minimum(_CORRIDOR_STEP_M, np.sqrt(8 * WGS84.a * TOLERANCE_M / np.maximum(steepest, 1e-9)))
    # near a pole a way that is straight in degrees is much longer than the geodesic
    flat = np.abs(np.diff(lon)) * _METRES_A_DEGREE * np.cos(np.radians(np.minimum(np.abs(lat[:-1]), np.abs(lat[1:]))))
    steps = np.maximum(np.ceil(np.maximum(length, flat) / step_m), 1).astype(np.int64)
    if steps.sum() > _MAX_CORRIDOR_STEPS:
        raise FenceError(f"the corridor needs more than {_MAX_CORRIDOR_STEPS:,} steps of {step_m.min():.0f} m or more")
    parts = [
        np.column_stack([np.linspace(lon[at], lon[at + 1], n + 1)[:-1], np.linspace(lat[at], lat[at + 1], n + 1)[:-1]])
        for at, n in enumerate(steps.tolist())
    ]
    return np.vstack([*parts, [[lon[-1], lat[-1]]]])


def _capsule(start: Floats, end: Floats, radius_m: float) -> Polygon:
    azimuth, back, _ = WGS84.inv(start[0], start[1], end[0], end[1])
    ring = np.vstack(
        [
            _arc(end[0], end[1], radius_m, back + 90.0, back + 270.0),
            _arc(start[0], start[1], radius_m, azimuth + 90.0, azimuth + 270.0),
        ]
    )
    middle = (start[0] + end[0]) / 2
    ring[:, 0] = middle + np.mod(ring[:, 0] - middle + 180.0, 360.0) - 180.0
    return Polygon(ring)
