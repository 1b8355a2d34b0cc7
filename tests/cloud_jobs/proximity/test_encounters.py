"""Encounters: each pair once, the same in whatever order and pieces the fixes came, and as the engine finds them."""

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.proximity.encounter_revisions import BEGIN, identified, joined_parts, parts_in
from cloud_jobs.proximity.encounters import COLUMNS, CROWD, MINUTE_MS, PIECES, SLICE_MS, cells, length_m
from geo.spatial import TrackSettings
from geo.spatial.clip import Segments
from geo.spatial.geodesic import distance_m
from geo.spatial.nearby import earth_centred
from tests.cloud_jobs.proximity.centre import DAY_SLICES, ProximityCentre, ProximityFix, in_crowds
from tests.examples import examples

MIDNIGHT = 20_000 * 86_400_000
MINUTE = 60_000


def drive(device: str, start_ms: int, *places: tuple[float, float], step_ms: int = MINUTE) -> list[ProximityFix]:
    return [
        ProximityFix(device, number, start_ms + number * step_ms, lat, lon)
        for number, (lat, lon) in enumerate(places, 1)
    ]


def test_two_that_pass_meet_once_and_the_ids_are_in_order() -> None:
    centre = ProximityCentre()
    centre.take(drive("b", MIDNIGHT, (50.0, 0.0), (50.0, 0.01)) + drive("a", MIDNIGHT, (50.0, 0.01), (50.0, 0.0)))
    ((a, b, start, end, least, when, *_),) = centre.in_force()
    assert (a, b, least) == ("a", "b", 0.0)
    assert start < when < end
    assert when == (MIDNIGHT + MINUTE + MINUTE // 2) * 1000


def test_side_by_side_over_slices_is_one_encounter_and_over_midnight_two_that_touch() -> None:
    places = [(50.0, 0.0)] * 90
    centre = ProximityCentre()
    start = MIDNIGHT - 60 * MINUTE
    centre.take(drive("a", start, *places) + drive("b", start, *places))
    (before, after) = centre.in_force()
    assert before[3] == after[2] == MIDNIGHT * 1000
    assert len(json.loads(before[6])) == 4
    assert (before[2], after[3]) == ((start + MINUTE) * 1000, (start + 90 * MINUTE) * 1000)


def test_an_encounter_that_goes_on_is_the_next_revision_and_a_late_fix_retracts_what_was_none() -> None:
    centre = ProximityCentre()
    together = [(50.0, 0.0)] * 3
    (first,) = centre.take(drive("a", MIDNIGHT, *together) + drive("b", MIDNIGHT, *together[:2]))
    (second,) = centre.take([ProximityFix("b", 9, MIDNIGHT + 3 * MINUTE, 50.0, 0.0)])
    assert (first["id"], first["revision"]) == (second["id"], second["revision"] - 1)
    far = [ProximityFix("b", 20 + at, MIDNIGHT + MINUTE + at * 1_000, 51.0, 0.0) for at in range(121)]
    assert len(centre.in_force()) == 1
    centre.take(far)
    assert all(row[3] - row[2] < MINUTE * 1000 for row in centre.in_force())


def test_devices_of_two_tenants_never_meet_and_two_of_one_name_are_two_devices() -> None:
    places = [(50.0, 0.0)] * 4
    mine = drive("a", MIDNIGHT, *places) + drive("b", MIDNIGHT, *places)
    alone, both = ProximityCentre(), ProximityCentre()
    alone.take(mine)
    others = [fix._replace(tenant="other", t_ms=fix.t_ms + 1_000) for fix in mine]
    both.take(mine + others)
    assert [row[:2] for row in both.in_force()] == [("a", "b")] * 2
    assert [row for row in both.in_force() if row[-1] == "acme"] == alone.in_force()
    lone = ProximityCentre()
    lone.take([*drive("a", MIDNIGHT, *places), *(fix for fix in others if fix.device == "b")])
    assert lone.in_force() == []


places = st.tuples(st.integers(0, 30).map(lambda y: 50 + y / 1e4), st.integers(0, 30).map(lambda x: x / 1e4))
steps = st.tuples(st.sampled_from([0, 1_000, 30_000, 120_000, 300_000, 300_001, 1_000_000]), places)


@st.composite
def worlds(draw: st.DrawFn) -> list[ProximityFix]:
    """Four devices in a small place around midnight, with pauses and equal times; side by side as often as not."""
    fixes: list[ProximityFix] = []
    for device in "abcd":
        t_ms = MIDNIGHT - draw(st.sampled_from([0, 600_000, 700_001]))
        for seq, (wait, (lat, lon)) in enumerate(draw(st.lists(steps, max_size=10)), 1):
            t_ms += wait
            fixes.append(ProximityFix(device, seq, t_ms, lat, lon))
    return fixes


@st.composite
def worlds_of_two(draw: st.DrawFn) -> list[ProximityFix]:
    """The same, with devices of the same names of another tenant in the same place."""
    return draw(worlds()) + [fix._replace(tenant="other") for fix in draw(worlds())]


@given(
    worlds() | worlds_of_two(),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
    st.sampled_from([300.0, 5_000.0]),
    st.tuples(st.sampled_from([2, 3, 100]), st.sampled_from([0.0, 10.0, 120.0])),
)
def test_streaming_equals_batch_whatever_the_cells_and_crowds(
    fixes: list[ProximityFix], random: object, cuts: int, cell_m: float, limits: tuple[int, float]
) -> None:
    crowd_devices, rules = limits[0], TrackSettings(buffer_m=limits[1])
    batch, stream, again = (
        ProximityCentre(crowd_devices=crowd_devices, tracks=rules),
        ProximityCentre(cell_m=cell_m, crowd_devices=crowd_devices, tracks=rules),
        ProximityCentre(crowd_devices=crowd_devices, tracks=rules),
    )
    batch.take(fixes)
    shuffled = list(fixes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for at in range(cuts):
        stream.take(shuffled[at::cuts])
    assert stream.in_force() == batch.in_force()
    names = [(row["id"], row["revision"]) for row in stream.table]
    assert len(names) == len(set(names))
    again.table = list(stream.table)
    assert again.take(fixes) == []


def segments(*ways: tuple[float, float, float, float]) -> Segments:
    px, py, qx, qy = np.array(ways, dtype=np.float64).T
    return Segments(px, py, qx, qy, np.zeros(len(px)), np.full(len(px), 1000.0))


def cells_of(pieces: Segments, distance_m: float, cell_m: float) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(pieces))]
    for piece, cell in cells(pieces, distance_m, cell_m):
        for one, number in zip(piece.tolist(), cell.tolist(), strict=True):
            found[one].append(number)
    return found


lats = st.one_of(
    st.floats(-90, 90),
    st.sampled_from([90.0, -90.0, 89.9999, -89.99, 89.9]),
    st.floats(89.9, 90.0),
    st.floats(-0.1, 0.1),
)
lons = st.one_of(st.floats(-180, 179.999), st.sampled_from([0.0, -180.0, 179.9999]))
turned = st.one_of(st.floats(-180, 180), st.floats(-0.01, 0.01), st.sampled_from([0.0, 180.0, -180.0, 179.9999]))


polar = st.floats(89.98, 90.0)
around = st.tuples(lons, polar, st.floats(-180, 180), polar)  # as far as they are long they bend
ways = st.one_of(around, st.tuples(lons, lats, turned, lats)).map(
    lambda way: segments((way[0], way[1], way[0] + way[2], way[3]))
)


beside = st.tuples(st.floats(0, 1), st.floats(0, 2 * np.pi), st.floats(0, 0.999))


@given(ways, beside, st.sampled_from([50.0, 900.0]), st.sampled_from([1.0, 2.0, 20.0]))
def test_two_that_come_within_the_distance_share_a_cell(
    way: Segments, place: tuple[float, float, float], distance_m: float, larger: float
) -> None:
    cell_m = larger * distance_m
    part, towards, near = place
    x, y = way.at(np.zeros(1, dtype=np.int64), np.array([part]))
    # another that stands beside the way, about as far from that place as the distance, or nearer
    v = y + near * distance_m * np.cos(towards) / 111_700.0
    u = x + near * distance_m * np.sin(towards) / (111_700.0 * np.maximum(np.cos(np.radians(v)), 1e-9))
    u = (u + 180.0) % 360.0 - 180.0
    if length_m(way)[0] > 2_000 * cell_m or abs(v[0]) > 90.0:
        return
    if np.linalg.norm(earth_centred(x, y) - earth_centred(u, v)) <= distance_m:
        stands = segments((u[0], v[0], u[0], v[0]))
        both = map(np.concatenate, zip(columns(way), columns(stands), strict=True))
        one, other = cells_of(Segments(*both), distance_m, cell_m)
        assert set(one) & set(other)


def columns(pieces: Segments) -> list[np.ndarray]:
    return [pieces.px, pieces.py, pieces.qx, pieces.qy, pieces.start_ms, pieces.end_ms]


DAY = 20_000
FIRST = DAY * DAY_SLICES


Row = dict[str, float]


def part(number: int, start_s: float, end_s: float, *, meets: bool = True) -> Row:
    """Seconds within a slice of the day, within the distance or only not apart."""
    start, end = ((FIRST + number) * SLICE_MS + 1000 * at for at in (start_s, end_s))
    row = {"slice": FIRST + number, "from_ms": start, "to_ms": end, "min_m": 5.0 if meets else 9.0, "t_min_ms": start}
    return row | ({"start_ms": start, "end_ms": end} if meets else {"start_ms": math.inf, "end_ms": -math.inf})


def ids(*parts: Row, pair: tuple[str, str] = ("a", "b")) -> list[str]:
    return [*identified("acme", *pair, joined_parts(parts_in(parts)))]


def encounters(*parts: Row) -> list[list[int]]:
    return [[one.slice - FIRST for one in found] for found in joined_parts(parts_in(parts))]


def test_an_encounter_ends_where_two_are_apart_or_a_whole_slice_beyond_the_distance() -> None:
    first, last = part(0, 100, 200), part(1, 300, 400)
    between = [part(0, 200, 900, meets=False), part(1, 0, 300, meets=False)]
    assert encounters(first, *between, last) == [[0, 1]]
    for at in range(2):
        assert encounters(first, between[at], last) == [[0], [1]]
    assert encounters(*between) == []
    assert encounters(first, between[0], part(1, 0, 900, meets=False), part(2, 0, 400)) == [[0], [2]]
    # parts that overlap, as several tasks find them, are one
    (found,) = parts_in([part(0, 0, 5), part(0, 4, 9), part(0, 0, 5), part(0, 8, 12, meets=False)])
    assert (found.start_ms, found.end_ms, found.open) == (part(0, 0, 9)["start_ms"], part(0, 0, 9)["end_ms"], BEGIN)


def test_an_encounter_that_lasts_longer_or_begins_earlier_in_its_slice_keeps_its_id() -> None:
    (short,) = ids(part(3, 100, 200))
    assert ids(part(3, 100, 900), part(4, 0, 900), part(5, 0, 10)) == [short]
    assert ids(part(3, 20, 900)) == [short]
    assert ids(part(2, 800, 900), part(3, 0, 200)) != [short]


NIGHT = 20_000 * 86_400_000
YARD = [(50.0 + at / 1e5, 8.0) for at in range(6)]


def parked(device: str, place: tuple[float, float], minutes: range, seq: int = 1) -> list[ProximityFix]:
    return [ProximityFix(device, seq + at, NIGHT + at * MINUTE_MS, *place) for at in minutes]


def crowded_encounters(centre: ProximityCentre) -> list[tuple[Any, ...]]:
    """(device, device, first minute, last minute) of what is in force."""
    return [
        (a, b, (start // 1000 - NIGHT) / MINUTE_MS, (end // 1000 - NIGHT) / MINUTE_MS)
        for a, b, start, end, *_ in centre.in_force()
    ]


def test_those_who_stand_in_a_crowd_have_one_encounter_each_and_not_in_pairs() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert crowded_encounters(centre) == [(CROWD, f"d{at}", 0.0, 10.0) for at in range(6)]
    assert all(row["min_m"] == 50.0 for row in centre.table)


def test_one_fewer_is_no_crowd_and_all_pairs_are_published() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=6)
    centre.take(fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11)))
    assert len(crowded_encounters(centre)) == 15
    assert all(a != CROWD for a, *_ in crowded_encounters(centre))


def test_a_crowd_that_a_late_device_makes_takes_the_place_of_the_pairs_and_gives_it_back() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    centre.take(fix for at, place in enumerate(YARD[:5]) for fix in parked(f"d{at}", place, range(11)))
    pairs = crowded_encounters(centre)
    assert len(pairs) == 10
    centre.take(parked("late", YARD[5], range(3, 7)))
    now = crowded_encounters(centre)
    before, crowd = [row for row in now if row[0] != CROWD], [row for row in now if row[0] == CROWD]
    assert crowd == [(CROWD, name, 3.0, 6.0) for name in ("d0", "d1", "d2", "d3", "d4", "late")]
    assert len(before) == 2 * 10
    assert {row[2:] for row in before} == {(0.0, 3.0), (6.0, 10.0)}
    # a second before and after each of its fixes in the yard it was a kilometre away: it jumped, and was never there
    away = [(minute * MINUTE_MS + by) for minute in range(3, 7) for by in (-1_000, 1_000)]
    centre.take(ProximityFix("late", 100 + at, NIGHT + ms, 50.01, 8.0) for at, ms in enumerate(away))
    assert crowded_encounters(centre) == pairs


def test_who_drives_through_a_crowd_is_in_it_for_that_minute_and_meets_nobody_else_of_it() -> None:
    centre = ProximityCentre(distance_m=50.0, crowd_devices=5)
    stands = [fix for at, place in enumerate(YARD) for fix in parked(f"d{at}", place, range(11))]
    passes = [
        ProximityFix("p", 1, NIGHT + 4 * MINUTE_MS + 1_000, 50.0, 7.99),
        ProximityFix("p", 2, NIGHT + 5 * MINUTE_MS - 1_000, 50.0, 8.01),
    ]
    centre.take([*stands, *passes])
    assert [row for row in crowded_encounters(centre) if "p" in row] == [(CROWD, "p", 4.0, 5.0)]


def unwrapped(start: float, end: float) -> float:
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
crowded_steps = st.tuples(st.sampled_from([1_000, 3_000, 10_000, 47_000]), st.integers(0, 4), st.integers(0, 4))
walks = st.lists(crowded_steps, min_size=2, max_size=5)


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
