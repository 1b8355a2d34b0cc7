"""Usage computed by hand, and the laws that usage keeps whatever the track.

On the equator a degree of longitude is exactly pi/180 times the equatorial radius, 111,319.490793 m, so lengths there
can be computed with a pencil.
"""

import math
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth.journal import TruePosition
from simulator.truth.metering import pieces_of, usage_of, whole
from simulator.truth.shapes import Zones
from simulator.truth.track import places, tracks
from tests.simulator.test_truth_shapes import zones

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


def test_a_track_that_begins_inside_makes_no_entry(block: Zones) -> None:
    inside, outside = sorted(usage_of("d", [fix(0, 0.02), fix(60, 0.04)], block), reverse=True)
    assert (inside.zone, inside.entries) == ("block", 0)
    assert (outside.zone, outside.entries) == ("", 0)


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


def test_null_island_and_poor_fixes_are_excluded() -> None:
    good = [fix(0, 0.01), fix(60, 0.012)]
    assert list(tracks([*good, fix(30, 0.0000009, 0.0000009)])) == [good]
    assert list(tracks([*good, fix(30, 0.011, accuracy_m=100.001)])) == [good]
    kept = fix(30, 0.011, accuracy_m=100.0)
    assert list(tracks([*good, kept])) == [[good[0], kept, good[1]]]
    edge = fix(30, 0.0000010, 0.0)
    assert edge in next(iter(tracks([fix(0, 0.001), edge, fix(60, 0.001)])))


def test_a_fix_that_jumps_out_and_back_is_excluded() -> None:
    before, after = fix(0, 0.01), fix(20, 0.011)
    assert list(tracks([before, fix(10, 0.5), after])) == [[before, after]]


def test_seventy_metres_a_second_hold_and_more_breaks() -> None:
    degrees = 70 * 10 / (DEGREE_MM / 1000)
    assert len(list(tracks([fix(0, 0.01), fix(10, 0.01 + degrees - 2e-7)]))) == 1
    assert len(list(tracks([fix(0, 0.01), fix(10, 0.01 + degrees + 2e-7)]))) == 2


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


@given(given_steps=steps)
def test_the_order_of_arrival_does_not_matter(town: Zones, given_steps: list[tuple[int, int, int]]) -> None:
    fixes = walk(given_steps)
    assert usage_of("d", fixes[::-1], town) == usage_of("d", fixes, town)


@given(given_steps=steps)
def test_the_way_back_is_as_long_and_takes_as_long(town: Zones, given_steps: list[tuple[int, int, int]]) -> None:
    there = walk(given_steps)
    back = [one._replace(time_us=2 * there[-1].time_us - one.time_us) for one in there]
    for zone in ("", "a", "b", "c"):
        ways = [[row for row in usage_of("d", fixes, town) if row.zone == zone] for fixes in (there, back)]
        lengths = [sum(row.distance_mm for row in rows) for rows in ways]
        times = [sum(row.duration_ms for row in rows) for rows in ways]
        assert abs(lengths[0] - lengths[1]) <= 4
        assert abs(times[0] - times[1]) <= 4
