"""What cuts segments is counted before it is made: other people's switches, and borders that are met without end."""

import json
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
    FenceError,
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
from geo.spatial.rings import world_polygon
from geo.spatial.weekly import weekly_of
from tests.geo.spatial.exact_fuzz import world

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
    weekly = weekly_of({"timezone": "UTC", "windows": windows}).activity()
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


def circle(count: int, noise: float = 0.0) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    ring = np.column_stack([10.0 + np.cos(angle), 50.0 + np.sin(angle)])
    return ring + noise * np.random.default_rng(2).normal(size=ring.shape)


@pytest.mark.parametrize("count", [200, 1600, 100_000])
def test_a_ring_of_corners_anywhere_is_refused_with_what_it_would_take(count: int) -> None:
    report = read(anywhere(count))
    assert len(report.refused) == 1
    assert "too often to be repaired" in report.refused[0]


def test_a_ring_that_crosses_itself_here_and_there_is_repaired() -> None:
    assert len(read(anywhere(50)).repaired) == 1
    # as many crossings as it has edges, and more
    report = read(circle(1_900, noise=0.001))
    assert (len(report.fences), len(report.repaired)) == (1, 1)


def test_a_polygon_that_geos_fails_on_by_rounding_is_refused_with_what_it_says_wherever_it_is_made() -> None:
    """The world of a seed of the fuzz: valid rings, of which one cannot be taken from the other."""
    ring = [
        *[(127.99510000000001, 30.9995), (127.99470000000001, 31.0002), (127.9957923190368, 31.0004)],
        *[(127.9954, 30.9998), (127.995, 30.999859882983856), (127.99506900466332, 31.0005), (127.9954, 30.9994)],
        *[(127.9945, 30.9997), (127.99473630418201, 30.9996), (127.99510000000001, 30.9995)],
    ]
    hole = [
        *[(127.99508650852547, 30.99973065886559), (127.99495317519214, 30.999963992198925)],
        *[(127.99531728153774, 31.00003065886559), (127.99518650852548, 30.99983065886559)],
        *[(127.99505317519214, 30.999850619860208), (127.99507617674658, 31.000063992198925)],
        *[(127.99518650852548, 30.999697325532257), (127.99488650852547, 30.999797325532256)],
        *[(127.99496527658614, 30.999763992198925), (127.99508650852547, 30.99973065886559)],
    ]
    with pytest.raises(FenceError, match="its shape cannot be computed with: TopologyException"):
        world_polygon([[np.array(ring), np.array(hole)]])
    whole = {"type": "Feature", "properties": {"id": "f"}, "geometry": {"type": "Polygon", "coordinates": [ring, hole]}}
    assert "its shape cannot be computed with" in fences_from_geojson(json.dumps(whole)).refused[0]
    assert world(61000532).shapes


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
