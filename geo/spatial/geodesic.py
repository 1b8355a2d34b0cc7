"""Distances on the WGS84 ellipsoid, by Karney's method (the `geodesic.c` that PROJ carries)."""

from __future__ import annotations

from typing import Final

import numpy as np
from pyproj import Geod

from geo.spatial.ragged import Floats

WGS84: Final = Geod(ellps="WGS84")


def distance_m(lon1: Floats, lat1: Floats, lon2: Floats, lat2: Floats) -> Floats:
    """Length of the shortest line on WGS84 between each two points, in metres; degrees in, any longitude."""
    if len(lon1) == 0:
        return np.zeros(0)
    return np.asarray(WGS84.inv(lon1, lat1, lon2, lat2, return_back_azimuth=False)[2], dtype=np.float64)


def wrap_lon(lon: Floats) -> Floats:
    """Longitudes in [-180, 180), from [-540, 540). Values that are there already, and those of 180 to 360, keep
    every bit.
    """
    return np.where(lon >= 180.0, lon - 360.0, np.where(lon < -180.0, lon + 360.0, lon))


def unwrapped_end(lon_from: Floats, lon_to: Floats) -> Floats:
    """`lon_to` moved by a whole turn where the step from `lon_from` is over 180°: the short way round."""
    step = lon_to - lon_from
    return np.where(step > 180.0, lon_to - 360.0, np.where(step < -180.0, lon_to + 360.0, lon_to))


def degree_m(lat: Floats) -> tuple[Floats, Floats]:
    """Metres of a degree to the east and to the north, by the radii of curvature at each latitude."""
    sine = np.sin(np.radians(lat))
    flatness = 1.0 - WGS84.es * sine * sine
    east = np.radians(WGS84.a / np.sqrt(flatness) * np.sqrt(1.0 - sine * sine))
    return east, np.radians(WGS84.a * (1.0 - WGS84.es) / flatness**1.5)


def offset_m(start: tuple[Floats, Floats], end: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """East and north metres from `start` to `end` (lon, lat each), for places close together.

    By the radii of curvature at the mean latitude: within 1e-6 of the geodesic up to some ten kilometres.
    """
    (lon1, lat1), (lon2, lat2) = start, end
    turn = np.radians(np.mod(lon2 - lon1 + 180.0, 360.0) - 180.0)
    sine = np.sin(np.radians((lat1 + lat2) / 2))
    flatness = 1.0 - WGS84.es * sine * sine
    prime = WGS84.a / np.sqrt(flatness)
    return prime * np.sqrt(1.0 - sine * sine) * turn, prime * (1.0 - WGS84.es) / flatness * np.radians(lat2 - lat1)
