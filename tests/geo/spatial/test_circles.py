"""A circle is as near to the geodesic one as its documentation says."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from geo.spatial.geodesic import WGS84
from geo.spatial.geojson import circle


def off_m(lat: float, radius_m: float) -> tuple[float, float]:
    """By how much the middles of sides are off: of those that end below 80 degrees of latitude, and of all others."""
    ring = shapely.get_coordinates(circle(0.0, lat, radius_m))
    start, end = ring[:-1], ring[1:]
    cut = (np.abs(start) == [180.0, 90.0]).any(axis=1) & (np.abs(end) == [180.0, 90.0]).any(axis=1)
    start, end = start[~cut], end[~cut]
    middle = (start + end) / 2
    count = len(middle)
    off = np.abs(WGS84.inv(np.zeros(count), np.full(count, lat), *middle.T)[2] - radius_m)
    low = np.maximum(np.abs(start[:, 1]), np.abs(end[:, 1])) <= 80.0
    return float(off[low].max(initial=0.0)), float(off[~low].max(initial=0.0))


@pytest.mark.parametrize("radius_m", [5.0, 1_000.0, 33_000.0, 100_000.0, 1e6, 3e6, 5e6, 6_382_048.0, 9e6])
def test_a_circle_is_off_by_no_more_than_is_said(radius_m: float) -> None:
    for lat in (*np.arange(-87.5, 90.0, 7.5), -22.24, 50.0, 54.0, 24.0, 9.0, 81.0, 89.7):
        low, high = off_m(float(lat), radius_m)
        assert low <= max(0.01001, radius_m * 1.5e-6)
        assert high <= max(1.0, radius_m * 1.6e-3)
