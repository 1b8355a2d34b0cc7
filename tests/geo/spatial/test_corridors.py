"""A corridor is all places within half its width of its line, and has no more corners than that needs."""

from itertools import pairwise

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import FenceError
from geo.spatial.geodesic import WGS84
from geo.spatial.geojson import circle, corridor
from tests.examples import examples


@st.composite
def lines(draw: st.DrawFn) -> np.ndarray:
    lon, lat, span = draw(st.floats(-170, 170)), draw(st.floats(-85, 85)), 10 ** draw(st.floats(-4, 1))
    offset = st.tuples(st.floats(-1, 1), st.floats(-1, 1))
    line = np.array([lon, lat]) + span * np.array(draw(st.lists(offset, min_size=2, max_size=4, unique=True)))
    return np.clip(line, [-180, -87], [180, 87])


def nearest_m(line: np.ndarray, x: float, y: float) -> float:
    """Metres from a place to a line that is straight in degrees: thousands of looks, ever closer."""
    least = np.inf
    for start, end in pairwise(line):
        low, high = 0.0, 1.0
        for _ in range(5):
            share = np.linspace(low, high, 200)
            lon, lat = (start[at] * (1 - share) + end[at] * share for at in (0, 1))
            away = WGS84.inv(np.full(200, x), np.full(200, y), lon, lat)[2]
            best = int(np.argmin(away))
            least = min(least, float(away[best]))
            low, high = share[max(best - 1, 0)], share[min(best + 1, 199)]
    return least


@settings(max_examples=examples(40), deadline=None)
@given(lines(), st.floats(0.5, 5), st.data())
def test_its_border_is_half_its_width_from_its_line(line: np.ndarray, width: float, data: st.DataObject) -> None:
    radius_m = 10**width / 2
    if not (np.diff(line, axis=0) != 0).any():
        return
    shape = corridor(line, 2 * radius_m)
    assert shape.is_valid
    corners = np.array(data.draw(st.sampled_from(shapely.get_parts(shape).tolist())).exterior.coords)
    for at in data.draw(st.lists(st.integers(0, len(corners) - 2), min_size=5, max_size=5)):
        x, y = (corners[at] + corners[at + 1]) / 2
        if abs(x) < 180:  # the cut there is no border
            assert nearest_m(line, x, y) == pytest.approx(radius_m, abs=max(0.01, 1e-5 * radius_m))


def test_one_that_turns_back_and_one_of_one_place_have_no_slit() -> None:
    back = corridor(np.array([(10.0, 50.0), (10.1, 50.0), (10.05, 50.0), (10.05, 50.0)]), 100.0)
    straight = corridor(np.array([(10.0, 50.0), (10.03, 50.0), (10.07, 50.0), (10.1, 50.0)]), 100.0)
    assert shapely.hausdorff_distance(back, straight) < 1e-6
    place = corridor(np.array([(10.0, 50.0), (10.0, 50.0)]), 100.0)
    assert shapely.get_num_interior_rings(place) == 0
    assert shapely.dwithin(place.boundary, shapely.Point(10.0, 50.0), 40 / 111_000) == np.False_


def test_one_of_more_corners_than_its_positions_account_for_is_refused() -> None:
    zigzag = np.array([(10 + at * 1e-5, 50 + at % 2) for at in range(1000)])
    with pytest.raises(FenceError, match="corners"):
        corridor(zigzag, 50_000.0)


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
