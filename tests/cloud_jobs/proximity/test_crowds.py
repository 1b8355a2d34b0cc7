"""Crowds: among too many a device has one encounter, among few it meets each of them, and both are bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.proximity import encounters as crowds
from cloud_jobs.proximity.encounters import (
    COLUMNS,
    CROWD,
    FINE,
    IN_CROWD,
    MINUTE_MS,
    PIECES,
    PLACES,
    SLICE_MINUTES,
    crowded,
    places_of,
)
from geo.spatial.geodesic import distance_m
from tests.cloud_jobs.proximity.centre import ProximityCentre, ProximityFix, in_crowds
from tests.examples import examples

NIGHT = 20_000 * 86_400_000
YARD = [(50.0 + at / 1e5, 8.0) for at in range(6)]


def parked(device: str, place: tuple[float, float], minutes: range, seq: int = 1) -> list[ProximityFix]:
    return [ProximityFix(device, seq + at, NIGHT + at * MINUTE_MS, *place) for at in minutes]


def encounters(centre: ProximityCentre) -> list[tuple[Any, ...]]:
    """(device, device, first minute, last minute) of what is in force."""
    return [
        (a, b, (start // 1000 - NIGHT) / MINUTE_MS, (end // 1000 - NIGHT) / MINUTE_MS)
        for a, b, start, end, *_ in centre.in_force()
    ]


def test_those_who_stand_in_a_crowd_have_one_encounter_each_and_not_in_pairs() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert encounters(centre) == [(CROWD, f"d{at}", 0.0, 10.0) for at in range(6)]
    assert all(row["min_m"] == 50.0 for row in centre.table)


def test_one_fewer_is_no_crowd_and_all_pairs_are_published() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=6)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert len(encounters(centre)) == 15
    assert all(a != CROWD for a, *_ in encounters(centre))


def test_a_crowd_that_a_late_device_makes_takes_the_place_of_the_pairs_and_gives_it_back() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD[:5]) for fix in parked(f"d{at}", place, range(11)))
    pairs = encounters(centre)
    assert len(pairs) == 10
    centre.take(parked("late", YARD[5], range(3, 7)))
    now = encounters(centre)
    before, crowd = [row for row in now if row[0] != CROWD], [row for row in now if row[0] == CROWD]
    assert crowd == [(CROWD, name, 3.0, 6.0) for name in ("d0", "d1", "d2", "d3", "d4", "late")]
    assert len(before) == 2 * 10
    assert {row[2:] for row in before} == {(0.0, 3.0), (6.0, 10.0)}
    # a second before and after each of its fixes in the yard it was a kilometre away: it jumped, and was never there
    away = [(minute * MINUTE_MS + by) for minute in range(3, 7) for by in (-1_000, 1_000)]
    centre.take(ProximityFix("late", 100 + at, NIGHT + ms, 50.01, 8.0) for at, ms in enumerate(away))
    assert encounters(centre) == pairs


def test_who_drives_through_a_crowd_is_in_it_for_that_minute_and_meets_nobody_else_of_it() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    stands = [fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11))]
    passes = [
        ProximityFix("p", 1, NIGHT + 4 * MINUTE_MS + 1_000, 50.0, 7.99),
        ProximityFix("p", 2, NIGHT + 5 * MINUTE_MS - 1_000, 50.0, 8.01),
    ]
    centre.take([*stands, *passes])
    assert [row for row in encounters(centre) if "p" in row] == [(CROWD, "p", 4.0, 5.0)]


def unwrapped(start: float, end: float) -> float:
    """The longitude of an end, the short way."""
    return end + round((start - end) / 360) * 360


Way = tuple[str, list[tuple[int, float, float]]]


def pieces_along(ways: list[Way]) -> pa.Table:
    """Pieces in slice 0 along places (ms, lat, lon), whatever the speed."""
    rows = []
    for device, places in ways:
        for (start, ay, ax), (end, by, bx) in pairwise(places):
            row = {"device": device, "slice": 0, "cell": 0, "asked": True, "home": True, "minutes": 0}
            rows.append(
                row | dict(zip(COLUMNS, (ax, ay, unwrapped(ax, bx), by, float(start), float(end)), strict=True))
            )
    return pa.Table.from_pylist(rows, schema=PIECES)


CORNERS = st.sampled_from([(50.0, 8.0), (0.0, 179.999), (89.9999, 100.0), (-89.999, -20.0)])
steps = st.tuples(st.sampled_from([1_000, 3_000, 10_000, 47_000]), st.integers(0, 4), st.integers(0, 4))
walks = st.lists(steps, min_size=2, max_size=5)


@settings(max_examples=examples(150))
@given(CORNERS, st.lists(walks, min_size=1, max_size=8), st.integers(1, 3), st.sampled_from([0, 9_500, 55_000]))
def test_whoever_is_in_no_crowd_has_at_no_moment_more_than_the_limit_within_the_distance(
    corner: tuple[float, float], walked: list[list[tuple[int, int, int]]], most: int, begin: int
) -> None:
    ways: list[Way] = []
    for number, walk in enumerate(walked):
        t_ms, places = begin, list[tuple[int, float, float]]()
        for wait, north, east in walk:
            lat, lon = corner[0] + (1 if corner[0] < 50 else -1) * north * 5e-4, corner[1] + east * 5e-4
            places.append((t_ms, lat, lon - 360 if lon >= 180 else lon))
            t_ms += wait
        ways.append((f"t/d{number}", places))
    pieces = pieces_along(ways)
    inside = in_crowds(pieces, 50.0, most)
    for t_ms in range(begin, begin + 60_000, 777):
        at = {name: place for name, places in ways if (place := place_at(places, t_ms)) is not None}
        for name, (x, y) in at.items():
            near = sum(distance_m(*np.array([[x], [y], [u], [v]]))[0] <= 50.0 for u, v in at.values())
            crowd = inside.get((name, 0), 0) >> t_ms // MINUTE_MS & 1
            assert near <= most or crowd, (t_ms, name)


def place_at(places: list[tuple[int, float, float]], t_ms: int) -> tuple[float, float] | None:
    for (start, ay, ax), (end, by, bx) in pairwise(places):
        if start <= t_ms < end:
            part = (t_ms - start) / (end - start)
            return ax + (unwrapped(ax, bx) - ax) * part, ay + (by - ay) * part
    return None


@settings(max_examples=examples(40))
@given(st.lists(walks, min_size=4, max_size=30), st.integers(1, 4), st.randoms(use_true_random=False))
def test_crowds_do_not_depend_on_the_order_of_devices_nor_on_how_spans_and_pieces_are_taken(
    walked: list[list[tuple[int, int, int]]], most: int, random: Any
) -> None:
    ways: list[Way] = []
    for number, walk in enumerate(walked):
        times = np.cumsum([wait for wait, *_ in walk]).tolist()
        track = [(t_ms, 50.0 + y * 5e-4, 8.0 + x * 5e-4) for t_ms, (_, y, x) in zip(times, walk, strict=True)]
        ways.append((f"t/d{number:02}", track))
    whole = in_crowds(pieces_along(ways), 50.0, most)
    random.shuffle(ways)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowds, "_STEPS_AT_ONCE", 3)
        patch.setattr(crowds, "_PAIRS_AT_ONCE", 2)
        assert in_crowds(pieces_along(ways), 50.0, most) == whole
    # nobody is left out by what is counted roughly
    every = pa.Table.from_batches(places_of(pieces_along(ways), 50.0, FINE, everywhere=True), PLACES).sort_by("span")
    rows = pa.Table.from_batches(crowded(every, most), IN_CROWD).to_pylist()
    assert {(row["device"], row["minutes"]) for row in rows} == {
        (name, 1 << bit) for (name, _), bits in whole.items() for bit in range(SLICE_MINUTES) if bits >> bit & 1
    }
