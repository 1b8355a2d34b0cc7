"""Circles and corridors as polygons on the ellipsoid."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely import MultiPolygon, Polygon

from geo.spatial.crossings import MAX_CROSSINGS, CrossingBudget, edges_of
from geo.spatial.errors import FenceError
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Floats, Ints
from geo.spatial.rings import Shape, into_world, refused_by_geos, world_polygon

TOLERANCE_M: Final = 0.01
MAX_CORNERS: Final = 4096
_MIN_CORNERS: Final = 32
_CORRIDOR_LATITUDE: Final = 89.0
_MAX_CORRIDOR_CORNERS: Final = 8192
_CORNERS_PER_POSITION: Final = 128
"""A corridor has at most `_MAX_CORRIDOR_CORNERS` corners, and so many more for each of its positions."""
_CROSSINGS_PER_POSITION: Final = 32
"""Its parts cross each other at most `crossings.MAX_CROSSINGS` times, and so often for each of its positions."""
_UNITED_AT_ONCE: Final = 8
_RELATIVE_TOLERANCE: Final = 1e-5  # of half a corridor's width, beyond 1 km
_OVERLAP_DEG: Final = 1.0  # parts that would only touch, by rounding may not
_STRAIGHT_DEG: Final = 1e-3
_METRES_A_DEGREE: Final = 110_500.0  # of latitude: not more anywhere


def circle(lon: float, lat: float, radius_m: float) -> Shape:
    """All places within `radius_m` of a place, as a polygon.

    Its corners lie on the geodesic circle; between them it is off by at most 1 cm up to a radius of 33 km, where
    `MAX_CORNERS` is reached, and radius * 1.5e-6 beyond (sides are straight in degrees, not on the ground). Sides that
    end above 80 degrees of latitude: up to 33 km 3 cm for a centre at 89.5 and 1 m at 89.7, and beyond less than two
    corners are apart, radius * 1.6e-3. Raises `FenceError`.
    """
    if not TOLERANCE_M <= radius_m <= 9_000_000.0:
        raise FenceError(f"radius_m {radius_m} is not between 1 cm and 9,000 km")
    ring = _arc(lon, lat, radius_m, 0.0, 360.0)
    return world_polygon([[np.vstack([ring[:-1], ring[:1]])]])[0]


@refused_by_geos()
def corridor(line: Floats, width_m: float) -> Shape:
    """All places within half of `width_m` of a line (n, 2), straight in degrees between its positions.

    To 1 cm up to a width of 2 km, and to 1e-5 of half the width beyond. Raises `FenceError`, also for a corridor of
    which anything lies beyond 89 degrees of latitude, for one of more corners than its positions account for, and for
    one that crosses itself everywhere.
    """
    if not TOLERANCE_M <= width_m <= 100_000.0:
        raise FenceError(f"width_m {width_m} is not between 1 cm and 100 km")
    line, radius_m = _distinct(line), width_m / 2
    if len(line) == 1:
        return circle(float(line[0, 0]), float(line[0, 1]), radius_m)
    farthest = int(np.argmax(np.abs(line[:, 1])))
    if np.abs(line[farthest, 1]) + radius_m / _METRES_A_DEGREE > _CORRIDOR_LATITUDE:
        place = line[farthest].tolist()
        raise FenceError(f"at {place} the corridor reaches beyond {_CORRIDOR_LATITUDE:.0f}° of latitude")
    steps, bends = _steps(line, radius_m), _bends(line, radius_m)
    most = _MAX_CORRIDOR_CORNERS + _CORNERS_PER_POSITION * len(line)
    if 2 * steps.sum() + sum(bend.corners for bend in bends) > most:
        raise FenceError(f"the corridor needs more than {most:,} corners: it is too long, or turns too much, so wide")
    parts = np.array(_parts(line, steps, bends, radius_m))
    crossed = ~shapely.is_valid(parts)
    parts[crossed] = shapely.make_valid(parts[crossed])
    return into_world(_areas(_united(parts, len(line))))


def _parts(line: Floats, steps: Ints, bends: list[_Bend], radius_m: float) -> list[Polygon]:
    """What a corridor is put together from, along its line."""
    numbered = [(2 * bend.at, _fan(bend, radius_m)) for bend in bends]
    for at, count in enumerate(steps.tolist()):
        numbered.append((2 * at + 1, _side_to_side(line[at], line[at + 1], radius_m, count)))
    return [part for _, part in sorted(numbered, key=itemgetter(0))]


def _united(parts: NDArray[np.object_], positions: int) -> shapely.Geometry:
    """The union, a few neighbours at once, and then of such unions: what lies over each other along the line is gone
    before it is held against the rest. All crossings are counted before their union.
    """
    named = f"{MAX_CROSSINGS:,} times (and {_CROSSINGS_PER_POSITION} for each position)"
    budget = CrossingBudget(MAX_CROSSINGS + _CROSSINGS_PER_POSITION * positions, named)
    while len(parts) > 1:
        groups = [parts[at : at + _UNITED_AT_ONCE] for at in range(0, len(parts), _UNITED_AT_ONCE)]
        for group in groups:
            budget.add(*edges_of(group))
        parts = np.array([shapely.union_all(group) for group in groups])
    return parts[0]


@dataclass(frozen=True, slots=True)
class _Bend:
    """The arc around the position `at` of a line from one azimuth to another, anticlockwise, in so many sides."""

    at: int
    place: Floats
    start_deg: float
    end_deg: float
    corners: int


def _areas(shape: shapely.Geometry) -> Shape:
    parts = [part for part in shapely.get_parts(shape) if isinstance(part, Polygon) and part.area > 0]
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def _arc(lon: float, lat: float, radius_m: float, start_deg: float, end_deg: float) -> Floats:
    """Points at a distance from a place, over azimuths falling from end to start: counterclockwise."""
    whole = np.pi / np.arccos(1.0 - min(TOLERANCE_M / radius_m, 0.01))
    count = int(np.clip(np.ceil(whole * (end_deg - start_deg) / 360.0), _MIN_CORNERS, MAX_CORNERS)) + 1
    return _from(np.array([[lon, lat]]), np.linspace(end_deg, start_deg, count), radius_m)


def _from(places: Floats, azimuth: Floats, metres: float) -> Floats:
    """Where geodesics from places (n or 1) lead, longitudes within 180° of theirs."""
    lon, lat = np.broadcast_to(places[:, 0], len(azimuth)), np.broadcast_to(places[:, 1], len(azimuth))
    lons, lats, _ = WGS84.fwd(lon, lat, azimuth, np.full(len(azimuth), metres))
    return np.column_stack([lon + np.mod(lons - lon + 180.0, 360.0) - 180.0, lats])


def _distinct(line: Floats) -> Floats:
    """The positions of a line, each edge over more than 180 degrees by the short way; none twice in a row."""
    if line.ndim != 2 or len(line) < 2:
        raise FenceError("a line needs two positions")
    if not np.isfinite(line).all() or (np.abs(line[:, 1]) > 90).any() or (np.abs(line[:, 0]) > 180).any():
        raise FenceError("a position is not valid: longitude first, then latitude within ±90")
    step = np.diff(line[:, 0])
    turns = np.cumsum(-360.0 * np.sign(step) * (np.abs(step) > 180.0))
    line = np.column_stack([line[:, 0] + np.append(0.0, turns), line[:, 1]])
    return np.asarray(line[np.append(True, (np.diff(line, axis=0) != 0.0).any(axis=1))])


def _degree_m(lat: Floats) -> tuple[Floats, Floats]:
    """Metres of a degree to the east and to the north."""
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.cos(np.radians(lat)))
    return east, np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)


def _azimuth(step: Floats, lat: Floats) -> Floats:
    """Where a line that is straight in degrees leads, at some of its latitudes."""
    east, north = _degree_m(lat)
    return np.degrees(np.arctan2(step[..., 0] * east, step[..., 1] * north))


def _tolerance_m(radius_m: float) -> float:
    return max(TOLERANCE_M, radius_m * _RELATIVE_TOLERANCE)


def _steps(line: Floats, radius_m: float) -> Ints:
    """Into how many parts each edge goes: beside it, a side that is straight in degrees stays as far from it.

    What is `radius_m` beside such a line bends by less than radius / R² (3 + 10 tan² latitude) a metre.
    """
    step, lat = np.abs(np.diff(line, axis=0)), np.abs(line[:, 1])
    high, low = (
        np.maximum(lat[:-1], lat[1:]),
        np.where(line[:-1, 1] * line[1:, 1] < 0, 0.0, np.minimum(lat[:-1], lat[1:])),
    )
    steep = np.tan(np.radians(np.minimum(high + radius_m / _METRES_A_DEGREE, _CORRIDOR_LATITUDE)))
    bent = radius_m / WGS84.a**2 * (3.0 + 10.0 * steep**2)
    length = np.hypot(step[:, 0] * _degree_m(low)[0], step[:, 1] * _degree_m(high)[1])
    return np.ceil(length / np.sqrt(8.0 * _tolerance_m(radius_m) / bent)).astype(np.int64)


def _bends(line: Floats, radius_m: float) -> list[_Bend]:
    """Half a circle at both ends, and at each position between what its outer side needs."""
    step = np.diff(line, axis=0)
    starts, ends = _azimuth(step, line[:-1, 1]), _azimuth(step, line[1:, 1])
    last = len(line) - 1
    bends = [_bend(line, 0, starts[0] + 90.0, 180.0, radius_m), _bend(line, last, ends[-1] - 90.0, 180.0, radius_m)]
    turn = np.mod(starts[1:] - ends[:-1] + 180.0, 360.0) - 180.0
    for corner, angle in enumerate(turn.tolist(), start=1):
        # on a turn to the right (above 0) the outer side is the left one; straight on, both may be by rounding
        if angle > -_STRAIGHT_DEG:
            bends.append(_bend(line, corner, ends[corner - 1] - 90.0, max(angle, 0.0), radius_m))
        if angle < _STRAIGHT_DEG:
            bends.append(_bend(line, corner, starts[corner] + 90.0, max(-angle, 0.0), radius_m))
    return bends


def _bend(line: Floats, corner: int, start_deg: float, angle_deg: float, radius_m: float) -> _Bend:
    whole = np.pi / np.arccos(1.0 - min(0.9 * _tolerance_m(radius_m) / radius_m, 0.01))
    start_deg, angle_deg = start_deg - _OVERLAP_DEG, min(angle_deg + 2 * _OVERLAP_DEG, 360.0)
    return _Bend(corner, line[corner], start_deg, start_deg + angle_deg, int(np.ceil(whole * angle_deg / 360.0)))


def _fan(bend: _Bend, radius_m: float) -> Polygon:
    azimuth = np.linspace(bend.start_deg, bend.end_deg, bend.corners + 1)
    return Polygon(np.vstack([bend.place[None, :], _from(bend.place[None, :], azimuth, radius_m)]))


def _side_to_side(start: Floats, end: Floats, radius_m: float, steps: int) -> Polygon:
    """All places beside an edge."""
    share = np.linspace(0.0, 1.0, steps + 1)[:, None]
    places = start * (1.0 - share) + end * share
    azimuth = _azimuth(end - start, places[:, 1])
    left, right = (_from(places, azimuth + turn, radius_m) for turn in (-90.0, 90.0))
    return Polygon(np.vstack([start[None, :], left, end[None, :], right[::-1]]))
