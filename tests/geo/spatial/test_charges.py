"""Entries and crossings that are charged: none while a vehicle stands, one for each that truly was."""

from __future__ import annotations

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
from tests.geo.spatial.noisy_drives import HOME, ROADS, Drive, Receiver, drive, parked
from tests.geo.spatial.test_standstill import REACH, changed, some_of
from tests.geo.spatial.worlds import START_MS

CLEAN = TrackSettings(rule="standstill")
EXACT = TrackSettings.every_fix()
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
    exact = build_tracks(found.fixes, EXACT)
    assert pieces_by_fence(exact, zones).entry.sum() > 20


def true_entries(found: Drive, fences: list[Fence], depth_m: float) -> int:
    """Entries that got so deep, by the true places."""
    visits = find_visits(build_tracks(found.truth, EXACT), FenceSet(fences), VisitSettings(buffer_m=max(depth_m, 0.0)))
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
    tracks = build_tracks(parked(2, Receiver(10.0), 1).fixes, EXACT)
    pieces = zones.split(tracks)
    assert charged_entries(tracks, zones, pieces, EXACT).tolist() == pieces.entry.tolist()
    gates = GateSet([Gate("gate", np.array([[HOME[0], HOME[1] - 0.1], [HOME[0], HOME[1] + 0.1]]))])
    assert charged_crossings(tracks, gates.crossings(tracks), EXACT).all()


def along(east_m: list[float], every_s: float = 10.0) -> Tracks:
    """A track of exact places east of home."""
    lon = HOME[0] + np.array(east_m) / EAST_M
    t_ms = START_MS + np.arange(len(lon)) * round(every_s * 1000)
    accuracy = np.full(len(lon), 5.0)
    fixes = Fixes(device=np.zeros(len(lon)), t_ms=t_ms, lat=np.full(len(lon), HOME[1]), lon=lon, accuracy_m=accuracy)
    return build_tracks(fixes, CLEAN)


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
