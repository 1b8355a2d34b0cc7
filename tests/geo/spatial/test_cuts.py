"""What cuts segments is counted before it is made: other people's switches, and borders that are met without end."""

import json
import time
import tracemalloc

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray
from shapely import Polygon
from shapely.affinity import translate

from geo.spatial import (
    EventSettings,
    Fence,
    FenceReport,
    FenceSet,
    Fixes,
    TooManyEncounters,
    Tracks,
    build_tracks,
    fences_from_geojson,
    find_encounters,
    find_events,
    grid,
    nearby,
    use_by_fence,
)
from geo.spatial import encounters as meeting
from geo.spatial import fence_set as bounded
from geo.spatial.activity import Activity
from geo.spatial.clip import segments_of
from geo.spatial.weekly import Weekly

BEGIN = 1_700_000_000_000
MINE = shapely.box(10.0, 50.0, 10.001, 50.001)


def dated(name: str, shape: shapely.Polygon, from_ms: int) -> Fence:
    return Fence(name, shape, active=Activity([(from_ms, None)]), effective_from_ms=from_ms)


def tracks_of(lon: NDArray[np.float64], lat: NDArray[np.float64], step_ms: int) -> Tracks:
    """One device for each row, with a fix at each `step_ms`."""
    devices, fixes = lon.shape
    device, t_ms = np.repeat(np.arange(devices), fixes), np.tile(BEGIN + step_ms * np.arange(fixes), devices)
    return build_tracks(Fixes(device=device, t_ms=t_ms, lat=lat.ravel(), lon=lon.ravel()))


def parked(devices: int, step_ms: int = 10_000) -> Tracks:
    places = np.random.default_rng(1).random((2, devices, 3)) * 1e-3
    return tracks_of(10.0 + places[0], 50.0 + places[1], step_ms)


def comb(teeth: int) -> shapely.Polygon:
    """A way along its middle is in and out of it once for each tooth."""
    west = 10.0 + np.arange(teeth) * (0.01 / teeth)
    width = 0.0025 / teeth
    corners = [(10.0, 49.999)]
    for x in west.tolist():
        corners += [(x, 50.001), (x + width, 50.001), (x + width, 49.9995), (x + 2 * width, 49.9995)]
    return shapely.Polygon([*corners, (corners[-1][0], 49.999)])


def test_no_segment_is_cut_by_switches_of_fences_that_it_does_not_meet() -> None:
    windows = [
        {"days": ["tue", "wed"], "from": f"{hour:02d}:{at:02d}", "until": f"{hour:02d}:{at + 1:02d}"}
        for hour in (22, 23)
        for at in range(0, 60, 2)
    ]
    weekly = Weekly.model_validate({"timezone": "UTC", "windows": windows}).activity()
    far = shapely.box(100.0, -30.0, 100.1, -29.9)
    fences = [dated(f"far-{at:04}", far, BEGIN + at) for at in range(2_000)]
    fences += [Fence("far-weekly", far, active=weekly), Fence("mine", MINE)]
    tracks = parked(200)
    placed = list(FenceSet(fences).place(segments_of(tracks)))
    assert sum(len(part.segments) for part in placed) == 0
    use = use_by_fence(tracks, FenceSet(fences))
    assert use.ms.tolist() == [20_000.0] * 200


def test_ways_across_thousands_of_borders_are_cut_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "PAIRS_AT_ONCE", 20_000)
    monkeypatch.setattr(grid, "_NEAR_AT_ONCE", 20_000)
    teeth, ways = 1_000, 120
    active = Activity([(BEGIN - 1, BEGIN + 70_000)])
    fences = FenceSet([Fence("comb", comb(teeth), active=active)])
    lat = 50.0 + np.random.default_rng(1).random((ways, 1)) * [[5e-4, 5e-4]]
    tracks = tracks_of(np.full((ways, 2), [9.999, 10.011]), lat, 60_000)
    tracemalloc.start()
    use = use_by_fence(tracks, fences)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(use.entries.tolist()) == {float(teeth)}
    assert len(use.device) == ways
    # one way takes 10 MB, and 240,000 meetings at once would take 50 MB
    assert peak < 20e6


def read(*rings: np.ndarray, kind: str = "Polygon") -> FenceReport:
    closed = [np.vstack([ring, ring[:1]]).round(7).tolist() for ring in rings]
    coordinates = closed if kind == "Polygon" else [[ring] for ring in closed]
    whole = {"type": "Feature", "properties": {"id": "f"}, "geometry": {"type": kind, "coordinates": coordinates}}
    return fences_from_geojson(json.dumps(whole))


def anywhere(count: int, seed: int = 1) -> np.ndarray:
    return np.array([10.0, 50.0]) + np.random.default_rng(seed).uniform(0.0, 1.0, (count, 2))


@pytest.mark.parametrize("count", [200, 1600, 100_000])
def test_a_ring_of_corners_anywhere_is_refused_at_once(count: int) -> None:
    begin = time.process_time()
    report = read(anywhere(count))
    assert time.process_time() - begin < 5.0
    assert len(report.refused) == 1
    assert "its outline is not valid (Self-intersection" in report.refused[0]


DEPOT = Polygon([(10.0, 50.0), (10.01, 50.0), (10.01, 50.01), (10.0, 50.01)])


def tenants(count: int, apart_deg: float, **facts: float) -> list[Fence]:
    shapes = (translate(DEPOT, at * apart_deg, 0) for at in range(count))
    return [Fence(f"tenant-{at:04}", shape, **facts) for at, shape in enumerate(shapes)]  # type: ignore[arg-type]


def parked_at_depot(fixes: int, devices: int = 20) -> Tracks:
    """Vehicles at the depot with a jitter of some metres; each drives in and out once."""
    rng = np.random.default_rng(9)
    device = np.repeat(np.arange(devices), fixes // devices)
    second = np.tile(np.arange(fixes // devices), devices)
    lon, lat = 10.005 + rng.normal(0, 2e-5, len(second)), 50.005 + rng.normal(0, 2e-5, len(second))
    ends = np.minimum(second, fixes // devices - 1 - second)
    lon -= np.where(ends < 40, (40 - ends) * 0.0002, 0.0)
    accuracy_m = np.full(len(lon), 5.0)
    return build_tracks(Fixes(device=device, t_ms=second * 1000, lat=lat, lon=lon, accuracy_m=accuracy_m))


@pytest.mark.parametrize("apart_deg", [0.0, 1e-7])
def test_the_memory_of_a_run_does_not_grow_with_the_tenants_at_a_depot(
    monkeypatch: pytest.MonkeyPatch, apart_deg: float
) -> None:
    monkeypatch.setattr(bounded, "PAIRS_AT_ONCE", 50_000)
    tracks, fences = parked_at_depot(2_000, devices=10), FenceSet(tenants(300, apart_deg, speed_limit_mps=0.1))
    tracemalloc.start()
    events = find_events(tracks, fences, settings=EventSettings(buffer_m=10.0, dwell_s=300.0))
    use = use_by_fence(tracks, fences)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 600,000 pairs of a fix and a fence: some fifty bytes for each, in place of several hundred
    assert peak < 30e6
    assert sum(event.kind == "enter" for event in events) == sum(event.kind == "exit" for event in events) == 300 * 10
    assert len(use.device) == 300 * 10
    assert set(use.entries.tolist()) == {1}


def test_devices_that_all_stand_on_one_spot_are_refused_with_a_message_and_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "MAX_ENCOUNTERS", 50_000)
    monkeypatch.setattr(meeting, "MAX_PARTS_HELD", 50_000)
    monkeypatch.setattr(nearby, "MAX_PAIRS_AT_ONCE", 50_000)
    count = 2_000
    device, second = np.repeat(np.arange(count), 10), np.tile(np.arange(10), count)
    spot = np.zeros(len(device))
    tracks = build_tracks(Fixes(device=device, t_ms=second * 1000, lat=spot + 50.0, lon=spot + 10.0))
    tracemalloc.start()
    with pytest.raises(TooManyEncounters, match="more than 50,000 encounters: take a smaller distance or fewer"):
        find_encounters(tracks, 50.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # ten times two million pairs, each of which would be some fifty bytes of the result alone
    assert peak < 80e6
