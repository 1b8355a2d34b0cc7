"""Borders, holes, corners and priorities: the truth decides them exactly."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth.shapes import DEGREE, ExactPoint, Zones, read_zones

Ring = Sequence[tuple[float, float]]
SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10), (0, 0)]
HOLE = [(3, 3), (6, 3), (6, 6), (3, 6), (3, 3)]
BAY = [(0, 0), (10, 0), (10, 10), (5, 4), (0, 10), (0, 0)]


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


def test_the_highest_priority_wins_then_the_smallest_id(tmp_path: Path) -> None:
    found = zones(tmp_path, ("low", 1, [SQUARE]), ("c", 5, [HOLE]), ("b", 5, [HOLE]))
    assert found.at(at(4, 4)) == "b"
    assert found.at(at(1, 1)) == "low"
    assert found.at(at(11, 1)) == ""


def test_a_way_meets_borders_in_order(tmp_path: Path) -> None:
    found = zones(tmp_path, ("a", 1, [SQUARE, HOLE]))
    assert found.cuts(at(-10, 4), at(10, 4)) == [Fraction(1, 2), Fraction(13, 20), Fraction(4, 5), Fraction(1)]


def test_a_way_that_touches_a_corner_meets_it_once(tmp_path: Path) -> None:
    found = zones(tmp_path, ("a", 1, [SQUARE]))
    assert found.cuts(at(-5, 5), at(5, -5)) == [Fraction(1, 2)]


whole = st.integers(-4, 14)


@given(way=st.tuples(whole, whole, whole, whole), share=st.fractions(0, 1))
def test_between_two_meetings_the_zone_does_not_change(
    tmp_path_factory: pytest.TempPathFactory, way: tuple[int, int, int, int], share: Fraction
) -> None:
    found = zones(tmp_path_factory.mktemp("zones"), ("a", 1, [SQUARE, HOLE]), ("b", 2, [BAY]))
    start, end = at(*way[:2]), at(*way[2:])
    marks = [Fraction(0), *found.cuts(start, end), Fraction(1)]
    before = max(mark for mark in marks if mark <= share)
    after = min(mark for mark in marks if mark >= share)
    if before < share < after:
        middle = (before + after) / 2
        here, there = (
            ExactPoint(start.x + (end.x - start.x) * part, start.y + (end.y - start.y) * part)
            for part in (share, middle)
        )
        assert found.at(here) == found.at(there)
