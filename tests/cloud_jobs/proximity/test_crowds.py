"""Crowds: who stands among too many is told once, whoever stands among few meets each of them, and both are bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.proximity.crowds import CROWD, IN_CROWD, PLACES, crowded, parts_of_crowds, places_of
from cloud_jobs.proximity.meeting import PIECES
from cloud_jobs.proximity.slices import MINUTE_MS, SLICE_MINUTES
from geo.spatial.geodesic import distance_m
from geo.spatial.nearby import earth_centred
from telemetry.record import DEVICE_PATTERN
from tests.cloud_jobs.proximity.centre import Centre, Fix

NIGHT = 20_000 * 86_400_000
YARD = [(50.0 + at / 1e5, 8.0) for at in range(6)]


def parked(device: str, place: tuple[float, float], minutes: range, seq: int = 1) -> list[Fix]:
    return [Fix(device, seq + at, NIGHT + at * MINUTE_MS, *place) for at in minutes]


def told(centre: Centre) -> list[tuple[Any, ...]]:
    """(device, device, first minute, last minute) of what is in force."""
    return [
        (a, b, (start // 1000 - NIGHT) / MINUTE_MS, (end // 1000 - NIGHT) / MINUTE_MS)
        for a, b, start, end, *_ in centre.in_force()
    ]


def test_those_who_stand_in_a_crowd_are_told_once_each_and_not_in_pairs() -> None:
    centre = Centre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert told(centre) == [(CROWD, f"d{at}", 0.0, 10.0) for at in range(6)]
    assert all(row["min_m"] == 50.0 for row in centre.table)


def test_one_fewer_is_no_crowd_and_all_pairs_are_told() -> None:
    centre = Centre(distance_m=50.0, crowd_devices=6)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert len(told(centre)) == 15
    assert all(a != CROWD for a, *_ in told(centre))


def test_a_crowd_that_a_late_device_makes_takes_the_place_of_the_pairs_and_gives_it_back() -> None:
    centre = Centre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD[:5]) for fix in parked(f"d{at}", place, range(11)))
    pairs = told(centre)
    assert len(pairs) == 10
    centre.take(parked("late", YARD[5], range(3, 7)))
    before, crowd = [row for row in told(centre) if row[0] != CROWD], [row for row in told(centre) if row[0] == CROWD]
    assert crowd == [(CROWD, name, 3.0, 6.0) for name in ("d0", "d1", "d2", "d3", "d4", "late")]
    assert len(before) == 2 * 10
    assert {row[2:] for row in before} == {(0.0, 3.0), (6.0, 10.0)}
    # a second before and after each of its fixes in the yard it was a kilometre away: it jumped, and was never there
    away = [(minute * MINUTE_MS + by) for minute in range(3, 7) for by in (-1_000, 1_000)]
    centre.take(Fix("late", 100 + at, NIGHT + ms, 50.01, 8.0) for at, ms in enumerate(away))
    assert told(centre) == pairs


def test_who_passes_a_crowd_by_meets_each_of_it() -> None:
    centre = Centre(distance_m=50.0, crowd_devices=5)
    stands = [fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11))]
    passes = [
        Fix("p", 1, NIGHT + 4 * MINUTE_MS + 1_000, 50.0, 7.99),
        Fix("p", 2, NIGHT + 5 * MINUTE_MS - 1_000, 50.0, 8.01),
    ]
    centre.take([*stands, *passes])
    assert [(a, b) for a, b, *_ in told(centre) if a != CROWD] == [(f"d{at}", "p") for at in range(6)]


def test_no_device_can_be_called_as_the_crowd_is_and_it_comes_first() -> None:
    assert not DEVICE_PATTERN.fullmatch(CROWD)
    assert "-.0"[2] > CROWD


def places(cells: list[tuple[float, float]], minute: int = 0) -> pa.Table:
    lat, lon = np.array(cells).T
    x, y, z = np.floor(earth_centred(lon, lat) / 50.0).astype(np.int64)
    rows = [np.array([f"d{at:03}" for at in range(len(cells))]), np.full(len(cells), minute), (x << 42) + (y << 21) + z]
    return pa.table(rows, schema=PLACES)


spots = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda at: (50 + at[0] / 1e4, 179.998 + at[1] / 1e4))


@given(st.lists(spots, min_size=1, max_size=40), st.integers(2, 10))
def test_whoever_is_in_no_crowd_has_no_more_than_the_limit_around_it(
    cells: list[tuple[float, float]], most: int
) -> None:
    wrapped = [(lat, lon - 360 if lon >= 180 else lon) for lat, lon in cells]
    inside = {row["device"] for batch in crowded(places(wrapped), most) for row in batch.to_pylist()}
    for at, (lat, lon) in enumerate(cells):
        near = sum(distance_m(*np.array([[lon], [lat], [x], [y]]))[0] <= 50.0 for y, x in cells)
        far = sum(distance_m(*np.array([[lon], [lat], [x], [y]]))[0] <= 3 * 50.0 * 1.2 for y, x in cells)
        assert near <= most or f"d{at:03}" in inside
        assert far > most or f"d{at:03}" not in inside


@given(st.integers(0, (1 << SLICE_MINUTES) - 1))
def test_the_minutes_of_a_slice_become_stretches_that_do_not_touch(minutes: int) -> None:
    table = pa.Table.from_pylist([{"device": "d", "slice": 4, "minutes": minutes}], schema=IN_CROWD)
    parts = [row for batch in parts_of_crowds(table, 50.0) for row in batch.to_pylist()]
    covered = 0
    for row in parts:
        first, last = (int(row[name] // MINUTE_MS) - 4 * SLICE_MINUTES for name in ("start_ms", "end_ms"))
        covered |= (1 << last) - (1 << first)
    assert covered == minutes
    assert all(one["end_ms"] < other["start_ms"] for one, other in pairwise(parts))


def test_nobody_is_nowhere() -> None:
    assert sum(batch.num_rows for batch in places_of(PIECES.empty_table(), 50.0)) == 0
    assert sum(batch.num_rows for batch in crowded(PLACES.empty_table(), 5)) == 0
