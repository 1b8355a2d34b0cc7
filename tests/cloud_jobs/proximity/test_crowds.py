"""Crowds: among too many a device has one encounter, among few it meets each of them, and both are bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.proximity import crowds
from cloud_jobs.proximity.crowds import (
    CROWD,
    FINE,
    IN_CROWD,
    PLACES,
    ROUGH,
    crowded,
    near_crowds,
    parts_of_crowds,
    places_of,
)
from cloud_jobs.proximity.meeting import COLUMNS, PIECES, parts_of
from cloud_jobs.proximity.slices import MINUTE_MS, SLICE_MINUTES
from geo.spatial import TrackSettings
from geo.spatial.geodesic import distance_m
from tests.cloud_jobs.proximity.centre import ProximityCentre, ProximityFix, in_crowds
from tests.examples import examples
from waybill.record.record import DEVICE_PATTERN

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


def test_who_is_in_no_crowd_meets_those_in_one_that_are_near_it() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5, tracks=TrackSettings(buffer_m=0.0))
    # the last of the yard stands 70 m north of the others, and someone beside it whom they are too far from
    yard = [*YARD[:5], (50.00063, 8.0)]
    stands = [fix for at, place in enumerate(yard) for fix in parked(f"d{at}", place, range(11))]
    centre.take([*stands, *parked("p", (50.00105, 8.0), range(11))])
    assert [row for row in encounters(centre) if row[0] == CROWD] == [(CROWD, f"d{at}", 0.0, 10.0) for at in range(6)]
    assert [row for row in encounters(centre) if row[0] != CROWD] == [("d5", "p", 0.0, 10.0)]


def test_no_device_can_be_called_as_the_crowd_is_and_it_comes_first() -> None:
    assert not DEVICE_PATTERN.fullmatch(CROWD)
    assert "-.0"[2] > CROWD


def test_who_comes_together_and_parts_between_two_full_minutes_is_in_a_crowd() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    for at in range(6):
        # on a circle of a kilometre at each full minute, on one spot from :25 to :35
        away = 50.0 + 0.009 * np.sin(at), 8.0 + 0.014 * np.cos(at)
        steps = [(minute * MINUTE_MS + ms, *place) for minute in range(3) for ms, place in ((0, away), *GATHERED)]
        centre.take(ProximityFix(f"d{at}", seq, NIGHT + ms, *place) for seq, (ms, *place) in enumerate(steps))
    assert encounters(centre) == [(CROWD, f"d{at}", 0.0, 3.0) for at in range(6)]


def test_pairs_have_encounters_up_to_the_minute_in_which_both_are_in_a_crowd_however_long_their_pieces() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    # fixes five minutes apart
    centre.take(
        ProximityFix(f"d{at}", seq, NIGHT + seq * 5 * MINUTE_MS, *YARD[at]) for at in range(5) for seq in range(3)
    )
    centre.take(parked("late", YARD[5], range(3, 7)))
    both = [row[2:] for row in encounters(centre) if "late" not in row and row[0] != CROWD]
    assert (len(both), set(both)) == (2 * 10, {(0.0, 3.0), (6.0, 10.0)})
    assert [row[2:] for row in encounters(centre) if row[0] == CROWD] == [(3.0, 6.0)] * 6


def test_who_flows_by_in_the_same_minute_and_not_at_the_same_time_is_in_no_crowd() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    # one after the other, seven seconds and two hundred metres apart
    for at in range(12):
        start = NIGHT + 7_000 * at
        centre.take(
            [ProximityFix(f"d{at:02}", 1, start, 50.0, 8.0), ProximityFix(f"d{at:02}", 2, start + 120_000, 50.0, 8.05)]
        )
    assert encounters(centre) == []


def unwrapped(start: float, end: float) -> float:
    """The longitude of an end, the short way."""
    return end + round((start - end) / 360) * 360


GATHERED = ((25_000, YARD[0]), (35_000, YARD[0]))
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


spots = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda at: (50 + at[0] / 1e4, 179.998 + at[1] / 1e4))


@given(st.lists(spots, min_size=1, max_size=40), st.integers(2, 10))
def test_who_stands_in_a_crowd_has_more_than_the_limit_within_three_and_a_half_times_the_distance(
    cells: list[tuple[float, float]], most: int
) -> None:
    ways = [(f"t/d{at:02}", [(0, lat, lon - 360 if lon >= 180 else lon)] * 2) for at, (lat, lon) in enumerate(cells)]
    pieces = pieces_along([(name, [first, (60_000, *last[1:])]) for name, (first, last) in ways])
    inside = in_crowds(pieces, 50.0, most)
    for at, (lat, lon) in enumerate(cells):
        far = [distance_m(*np.array([[lon], [lat], [x], [y]]))[0] <= 3.5 * 50.0 for y, x in cells]
        assert sum(far) > most or (f"t/d{at:02}", 0) not in inside


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


def test_no_number_of_devices_that_meet_between_two_fixes_makes_more_than_a_row_each() -> None:
    ways = [
        (
            f"t/d{at:04}",
            [(0, 50.0 + 0.009 * np.sin(at), 8.0 + 0.014 * np.cos(at)), *((ms, *place) for ms, place in GATHERED)],
        )
        for at in range(2_000)
    ]
    pieces = pieces_along(ways)
    inside = in_crowds(pieces, 50.0, 100)
    assert {key for key, _ in inside} == {name for name, _ in ways}
    marked = pieces.set_column(
        pieces.schema.get_field_index("minutes"),
        PIECES.field("minutes"),
        pa.array([inside[name, 0] for name in pieces["device"].to_pylist()], pa.int32()),
    )
    # two million pairs that are not even listed
    assert sum(batch.num_rows for batch in parts_of(marked, 50.0, 60.0)) == 0


def test_a_way_that_no_vehicle_goes_takes_no_memory() -> None:
    # twenty thousand kilometres in a millisecond
    ways = [(f"t/d{at}", [(0, 0.0, 0.0), (1, 0.0, 179.0), (1_000, 0.0, 179.0)]) for at in range(3)]
    found = list(places_of(pieces_along(ways), 1.0, FINE, everywhere=True))
    assert 3 <= sum(batch.num_rows for batch in found) <= 3 * 8


@given(st.integers(0, (1 << SLICE_MINUTES) - 1))
def test_the_minutes_of_a_slice_become_stretches_that_do_not_touch(minutes: int) -> None:
    table = pa.Table.from_pylist([{"device": "t/d", "slice": 4, "minutes": minutes}], schema=IN_CROWD)
    parts = [row for batch in parts_of_crowds(table, 50.0) for row in batch.to_pylist()]
    covered = 0
    for row in parts:
        first, last = (int(row[name] // MINUTE_MS) - 4 * SLICE_MINUTES for name in ("start_ms", "end_ms"))
        covered |= (1 << last) - (1 << first)
    assert covered == minutes
    assert all(one["end_ms"] < other["start_ms"] for one, other in pairwise(parts))


def test_nobody_is_nowhere() -> None:
    for scale in (ROUGH, FINE):
        assert sum(batch.num_rows for batch in places_of(PIECES.empty_table(), 50.0, scale, everywhere=True)) == 0
    for counted in (near_crowds, crowded):
        assert sum(batch.num_rows for batch in counted(PLACES.empty_table(), 5)) == 0


def test_an_encounter_with_the_crowd_is_of_whole_minutes_around_the_tracks() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    for at, place in enumerate(YARD):
        # three tracks: no gap is longer than 300 s; five minutes in no crowd do not end it
        seconds = [70, 75, 190, 2_010, 2_030, 2_390, 2_410]
        centre.take(ProximityFix(f"d{at}", seq, NIGHT + second * 1000, *place) for seq, second in enumerate(seconds))
    assert [row[2:] for row in encounters(centre) if row[1] == "d0"] == [(1.0, 4.0), (33.0, 41.0)]
