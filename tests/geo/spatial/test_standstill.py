"""Tracks without the receivers' noise: parked vehicles stand, drives keep their length, any cut gives equal bytes."""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import shapely

from geo.spatial import (
    Fence,
    FenceSet,
    Fixes,
    Gate,
    GateSet,
    Tracks,
    TrackSettings,
    VisitSettings,
    ZoneSet,
    build_tracks,
    charged_crossings,
    charged_entries,
    find_visits,
    pieces_by_fence,
)
from geo.spatial.ragged import Ints
from tests.geo.spatial.noisy_drives import HOME, ROADS, Drive, Receiver, drive, parked
from tests.geo.spatial.worlds import START_MS

CLEAN = TrackSettings(rule="standstill")
REACH = CLEAN.margin_ms, CLEAN.reach_ahead_ms + 1
NAN = float("nan")


def length_m(fixes: Fixes, rules: TrackSettings = CLEAN) -> float:
    return float(build_tracks(fixes, rules).metres.sum())


def changed(fixes: Fixes, **columns: Any) -> Fixes:
    both: dict[str, Any] = {name: columns.get(name, getattr(fixes, name)) for name in Fixes.__slots__}
    return Fixes(**both)


def some_of(fixes: Fixes, some: Ints) -> Fixes:
    columns: dict[str, Any] = {name: getattr(fixes, name) for name in Fixes.__slots__}
    chosen: dict[str, Any] = {name: None if column is None else column[some] for name, column in columns.items()}
    return Fixes(**chosen)


def joined(*several: Fixes) -> Fixes:
    names = ("device", "t_ms", "lat", "lon", "accuracy_m")
    return Fixes(**{name: np.concatenate([getattr(one, name) for one in several]) for name in names})


def rows(tracks: Tracks, from_ms: int, until_ms: int) -> str:
    """All that is known of the segments that end in a time: a digest of their times, places, lengths."""
    end = tracks.segments()
    time = tracks.fixes.t_ms[tracks.row]
    end = end[(time[end] >= from_ms) & (time[end] < until_ms)]
    places = [column[tracks.row[at]] for column in (tracks.fixes.lat, tracks.fixes.lon) for at in (end - 1, end)]
    columns = (time[end], *places, tracks.metres[end], tracks.still[end])
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


@pytest.mark.parametrize("every_s", [1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize("memory_s", [0.0, 60.0, 900.0])
@pytest.mark.parametrize("sigma_m", [2.0, 4.0, 8.0, 15.0])
def test_a_parked_vehicle_stands(every_s: float, memory_s: float, sigma_m: float) -> None:
    for seed, (accuracy, speed) in enumerate([(None, None), (None, 0.3), (1.5 * sigma_m, None)]):
        receiver = Receiver(every_s, sigma_m, memory_s, accuracy, speed)
        found = parked(24 if every_s > 1 else 3, receiver, 10 * int(every_s) + seed)
        tracks = build_tracks(found.fixes, CLEAN)
        assert tracks.speed_breaks == 0
        assert tracks.metres.sum() <= 20.0, receiver
        assert tracks.reported_m.sum() > 200.0


@pytest.mark.parametrize("every_s", [1.0, 10.0, 60.0, 290.0])
@pytest.mark.parametrize("memory_s", [0.0, 90.0, 900.0])
@pytest.mark.parametrize(("sigma_m", "accuracy_m"), [(2.0, 2.0), (5.0, 0.9), (8.0, 5.0), (12.0, 12.0), (15.0, 15.0)])
def test_an_accuracy_that_is_too_good_bills_nothing_while_rest_is_reported(
    every_s: float, memory_s: float, sigma_m: float, accuracy_m: float
) -> None:
    # noise of 15 m that lasts for a minute or two moves the mean of four minutes by 60 m, once in some weeks
    bound = 20.0 if sigma_m < 15.0 else 100.0
    for speed in (0.0, 0.3):
        receiver = Receiver(every_s, sigma_m, memory_s, accuracy_m, speed)
        found = parked(24 if every_s > 1 else 3, receiver, 10 * int(every_s) + int(sigma_m))
        tracks = build_tracks(found.fixes, CLEAN)
        assert tracks.speed_breaks == 0
        assert tracks.metres.sum() <= bound, receiver


BOUND = {"walking": 0.1, "stop and go": 0.25, "roundabout": 0.02}
"""A fix each ten seconds shows little of a roundabout."""


@pytest.mark.parametrize("name", ROADS)
def test_a_drive_keeps_its_length(name: str) -> None:
    for every_s in (1.0, 10.0):
        for sigma_m, memory_s in ((0.0, 0.0), (2.0, 0.0), (4.0, 0.0), (4.0, 60.0)):
            receiver = Receiver(every_s, sigma_m, memory_s, 8.0 if sigma_m == 0.0 else None, 0.3)
            found = [drive(ROADS[name](seed), receiver, seed) for seed in (3, 4)]
            metered, true = sum(length_m(one.fixes) for one in found), sum(one.true_m for one in found)
            # the places where both ends are, are not known better
            assert metered == pytest.approx(true, rel=BOUND.get(name, 0.01), abs=6.0), receiver


def a_day(seed: int, receiver: Receiver) -> Fixes:
    night = parked(2, receiver, seed).fixes
    first = drive(ROADS["delivery"](seed), receiver, seed).fixes
    second = drive(ROADS["stop and go"](seed), receiver, seed + 1).fixes
    gap = int(receiver.every_s * 1000)
    night = changed(night, t_ms=night.t_ms - START_MS + first.t_ms.max() + gap)
    second = changed(second, t_ms=second.t_ms - START_MS + night.t_ms.max() + gap)
    return joined(first, night, second)


DAYS = [(1, Receiver(7.0, 4.0, 30.0)), (2, Receiver(60.0, 8.0)), (3, Receiver(3.0, 3.0, accuracy_m=NAN))]


def cut(fixes: Fixes, from_ms: int, until_ms: int, reach_ms: tuple[int, int], random: np.random.Generator) -> str:
    some = np.flatnonzero((fixes.t_ms >= from_ms - reach_ms[0]) & (fixes.t_ms < until_ms + reach_ms[1]))
    random.shuffle(some)
    return rows(build_tracks(some_of(fixes, some), CLEAN), from_ms, until_ms)


@pytest.mark.parametrize(("seed", "receiver"), DAYS)
def test_any_cut_with_the_margin_and_any_order_give_equal_bytes(seed: int, receiver: Receiver) -> None:
    fixes, random = a_day(seed, receiver), np.random.default_rng(seed)
    whole = build_tracks(fixes, CLEAN)
    limits = [*range(int(fixes.t_ms.min()), int(fixes.t_ms.max()), 420_000), int(fixes.t_ms.max()) + 1]
    too_little = 0
    for from_ms, until_ms in pairwise(limits):
        expected = rows(whole, from_ms, until_ms)
        assert cut(fixes, from_ms, until_ms, REACH, random) == expected
        too_little += cut(fixes, from_ms, until_ms, (60_000, 60_000), random) != expected
    assert too_little > 0, "this test can fail"


EXACT_OF_CHARGES = TrackSettings.every_fix()
DEGREE_M = 111_320.0
EAST_M = DEGREE_M * float(np.cos(np.radians(HOME[1])))


def strips(width_m: float, count: int) -> list[Fence]:
    """As wide as the ways between them, from north to south around home."""
    west = HOME[0] + (2 * np.arange(count) - count) * width_m / EAST_M
    sides = zip(west.tolist(), (west + width_m / EAST_M).tolist(), strict=True)
    return [Fence(f"strip-{at:04}", shapely.box(a, HOME[1] - 0.1, b, HOME[1] + 0.1)) for at, (a, b) in enumerate(sides)]


def entries(tracks: Tracks, zones: ZoneSet, rules: TrackSettings = CLEAN) -> int:
    return int(charged_entries(tracks, zones, zones.split(tracks), rules).sum())


@pytest.mark.parametrize("every_s", [1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize(
    ("sigma_m", "memory_s", "accuracy_m"),
    [
        # noise of 15 m without a word of it is more than is assumed
        *((4.0, memory_s, accuracy_m) for memory_s in (0.0, 1800.0) for accuracy_m in (None, float("nan"))),
        *((15.0, memory_s, None) for memory_s in (0.0, 120.0)),
    ],
)
def test_a_vehicle_parked_at_a_border_enters_nothing(
    every_s: float, sigma_m: float, memory_s: float, accuracy_m: float | None
) -> None:
    enters_nothing(Receiver(every_s, sigma_m, memory_s, accuracy_m))


def enters_nothing(receiver: Receiver) -> None:
    x, y = HOME
    beside = [shapely.box(x + off / EAST_M, y - 0.1, x + 0.1, y + 0.1) for off in (-2.0, 0.0, 1.0, 5.0)]
    zones = FenceSet([Fence(f"side-{at}", one) for at, one in enumerate(beside)])
    line = np.array([[x, y - 0.1], [x, y + 0.1]])
    gates = GateSet([Gate("gate", line)])
    found = parked(24 if receiver.every_s > 1 else 2, receiver, int(receiver.every_s))
    tracks = build_tracks(found.fixes, CLEAN)
    pieces = pieces_by_fence(tracks, zones)
    assert charged_entries(tracks, zones, pieces, CLEAN).sum() == 0
    assert charged_crossings(tracks, gates.crossings(tracks), CLEAN).sum() == 0
    exact = build_tracks(found.fixes, EXACT_OF_CHARGES)
    assert pieces_by_fence(exact, zones).entry.sum() > 20


def true_entries(found: Drive, fences: list[Fence], depth_m: float) -> int:
    visits = find_visits(
        build_tracks(found.truth, EXACT_OF_CHARGES), FenceSet(fences), VisitSettings(buffer_m=max(depth_m, 0.0))
    )
    return int(visits.entered.sum())


@pytest.mark.parametrize("width_m", [20.0, 100.0])
@pytest.mark.parametrize("name", ROADS)
def test_a_drive_enters_what_it_truly_enters(name: str, width_m: float) -> None:
    fences = strips(width_m, round(9_000 / width_m))
    zones, sure_m, noise_m = ZoneSet(fences), min(10.0, width_m / 4.0), 6.0
    found = drive(ROADS[name](6), Receiver(2.0, 3.0, speed=0.3), 6)
    tracks = build_tracks(found.fixes, CLEAN)
    surely, perhaps = (true_entries(found, fences, depth) for depth in (sure_m + noise_m, sure_m - noise_m))
    assert surely <= entries(tracks, zones) <= perhaps


def test_by_the_rule_every_fix_each_entry_and_each_crossing_counts() -> None:
    zones = ZoneSet(strips(30.0, 20))
    tracks = build_tracks(parked(2, Receiver(10.0), 1).fixes, EXACT_OF_CHARGES)
    pieces = zones.split(tracks)
    assert charged_entries(tracks, zones, pieces, EXACT_OF_CHARGES).tolist() == pieces.entry.tolist()
    gates = GateSet([Gate("gate", np.array([[HOME[0], HOME[1] - 0.1], [HOME[0], HOME[1] + 0.1]]))])
    assert charged_crossings(tracks, gates.crossings(tracks), EXACT_OF_CHARGES).all()


@pytest.mark.parametrize("name", ["city", "delivery", "stop and go"])
def test_a_cut_with_the_margin_charges_the_same(name: str) -> None:
    zones = ZoneSet(strips(25.0, 400))
    fixes = drive(ROADS[name](2), Receiver(5.0, 4.0, 30.0), 2).fixes
    back = changed(fixes, t_ms=2 * fixes.t_ms.max() - fixes.t_ms + 5_000)
    both = Fixes(
        device=np.zeros(2 * len(fixes)),
        **{n: np.concatenate([getattr(one, n) for one in (fixes, back)]) for n in ("t_ms", "lat", "lon", "accuracy_m")},
    )

    def charged(some: Fixes, from_ms: int, until_ms: int) -> list[tuple[int, int]]:
        tracks = build_tracks(some, CLEAN)
        pieces = zones.split(tracks)
        mine = charged_entries(tracks, zones, pieces, CLEAN)
        ended = some.t_ms[pieces.end_fix]
        mine &= (ended >= from_ms) & (ended < until_ms)
        return sorted(zip(ended[mine].tolist(), pieces.zone[mine].tolist(), strict=True))

    for from_ms in range(int(both.t_ms.min()), int(both.t_ms.max()), 600_000):
        until_ms = from_ms + 600_000
        near = np.flatnonzero((both.t_ms >= from_ms - REACH[0]) & (both.t_ms < until_ms + REACH[1]))
        assert charged(some_of(both, near), from_ms, until_ms) == charged(both, from_ms, until_ms)
