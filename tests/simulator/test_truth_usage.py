"""Usage computed by hand, and the laws that usage keeps whatever the track.

On the equator a degree of longitude is exactly pi/180 times the equatorial radius, 111,319.490793 m, so lengths there
can be computed with a pencil.
"""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth.journal import TruePosition
from simulator.truth.metering import pieces_of, usage_of, whole
from simulator.truth.shapes import DEGREE, ExactPoint, Zones, read_zones
from simulator.truth.track import places, tracks

Ring = Sequence[tuple[float, float]]
SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]
HOLE = [(3, 3), (6, 3), (6, 6), (3, 6), (3, 3)]


def zones(folder: Path, *fences: tuple[str, int, Sequence[Ring]]) -> Zones:
    features = [
        {
            "type": "Feature",
            "properties": {"id": name, "priority": priority},
            "geometry": {"type": "Polygon", "coordinates": rings},
        }
        for name, priority, rings in fences
    ]
    path = folder / "fences.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return read_zones(path)


def at(x: float, y: float) -> ExactPoint:
    return ExactPoint(round(x * DEGREE), round(y * DEGREE))


@pytest.mark.parametrize(
    ("x", "y", "inside"),
    [
        (5, 1, True),
        (0, 5, True),
        (10, 10, True),
        (10.000000000001, 5, False),
        (4, 4, False),
        (3, 4, True),
        (6, 6, True),
        (-1, 0, False),
    ],
)
def test_a_border_belongs_to_the_inside_and_so_does_a_holes(tmp_path: Path, x: float, y: float, inside: bool) -> None:
    assert (zones(tmp_path, ("a", 1, [SQUARE, HOLE])).at(at(x, y)) == "a") is inside


T0 = 1_767_603_600  # 2026-01-05T09:00:00Z
HOUR = datetime(2026, 1, 5, 9, tzinfo=UTC)
DEGREE_MM = 111_319_490.793


def fix(second: float, longitude: float, latitude: float = 0.0, accuracy_m: float | None = None) -> TruePosition:
    accuracy_mm = None if accuracy_m is None else round(accuracy_m * 1000)
    time_us = round((T0 + second) * 1_000_000)
    return TruePosition(time_us, round(longitude * 1e7), round(latitude * 1e7), accuracy_mm)


@pytest.fixture
def block(tmp_path: Path) -> Zones:
    """A zone from 0.01 to 0.03 degrees east, across the equator."""
    return zones(tmp_path, ("block", 1, [[(0.01, -0.01), (0.03, -0.01), (0.03, 0.01), (0.01, 0.01), (0.01, -0.01)]]))


def test_a_way_through_a_zone_by_hand(block: Zones) -> None:
    """      0.005 ──┃── 0.02 ────┃──── 0.04      fixes at 0, 100 and 250 s; the zone from 0.01 to 0.03

    outside: 1/3 of the first segment (0.005 degrees, 33,333.3 ms) and half of the second (0.01 degrees, 75 s);
    inside:  2/3 of the first (0.01 degrees, 66,666.7 ms) and half of the second (0.01 degrees, 75 s); one entry.
    """  # fmt: skip
    outside, inside = usage_of("eu-0001", [fix(0, 0.005), fix(100, 0.02), fix(250, 0.04)], block)
    assert outside[:6] == ("eu-0001", HOUR, "", round(0.015 * DEGREE_MM), 108_333, 0)
    assert inside[:6] == ("eu-0001", HOUR, "block", round(0.02 * DEGREE_MM), 141_667, 1)


def test_a_fix_on_the_border_has_entered(block: Zones) -> None:
    [outside, inside] = usage_of("d", [fix(0, 0.002), fix(60, 0.01)], block)
    assert (outside.distance_mm, outside.duration_ms) == (round(0.008 * DEGREE_MM), 60_000)
    assert inside[:6] == ("d", HOUR, "block", 0, 0, 1)


def test_a_segment_belongs_to_the_quarter_of_its_end(block: Zones) -> None:
    rows = usage_of("d", [fix(-60, 0.002), fix(0, 0.005), fix(60, 0.008)], block)
    assert [(row.quarter, row.duration_ms) for row in rows] == [(HOUR, 120_000)]
    [before, after] = usage_of("d", [fix(-61, 0.002), fix(-1, 0.005), fix(59, 0.008)], block)
    assert before.quarter == HOUR.replace(hour=8, minute=45)
    assert after.quarter == HOUR


def test_a_gap_of_300_seconds_holds_and_a_longer_one_breaks(block: Zones) -> None:
    assert [len(track) for track in tracks([fix(0, 0.002), fix(300, 0.01)])] == [2]
    assert [len(track) for track in tracks([fix(0, 0.002), fix(300.001, 0.01)])] == [1, 1]
    assert usage_of("d", [fix(0, 0.002), fix(301, 0.02)], block) == []


grid = st.integers(-4, 14)
steps = st.lists(st.tuples(grid, grid, st.sampled_from([20, 60, 100, 300, 301])), min_size=1, max_size=12)


def walk(given_steps: list[tuple[int, int, int]]) -> list[TruePosition]:
    second = 0
    fixes = []
    for x, y, wait in given_steps:
        second += wait
        fixes.append(fix(second, 10 + x / 1000, 50 + y / 1000))
    return fixes


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Zones:
    def ring(*corners: tuple[int, int]) -> list[tuple[float, float]]:
        return [(10 + x / 1000, 50 + y / 1000) for x, y in (*corners, corners[0])]

    return zones(
        tmp_path_factory.mktemp("town"),
        ("a", 10, [ring((0, 0), (10, 0), (10, 10), (0, 10)), ring((3, 3), (6, 3), (6, 6), (3, 6))]),
        ("b", 20, [ring((8, 8), (14, 8), (14, 12), (8, 12))]),
        ("c", 5, [ring((-4, 0), (0, 0), (0, 4), (-2, 2), (-4, 4))]),
    )


@given(given_steps=steps)
def test_zones_and_outside_together_are_the_whole_track(town: Zones, given_steps: list[tuple[int, int, int]]) -> None:
    for track in places(walk(given_steps)):
        pieces = [piece for _, piece in pieces_of(track, town)]
        length_m, duration_ms = whole(pieces)
        straight_m = math.fsum(place.metres for place in track)
        assert duration_ms == Fraction(track[-1].time_us - track[0].time_us, 1000)
        assert length_m == pytest.approx(straight_m, abs=1e-3)
