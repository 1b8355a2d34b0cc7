"""What cuts segments is counted before it is made: other people's switches, and borders that are met without end."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from geo.spatial import Fence, FenceSet, Fixes, Tracks, build_tracks, grid, use_by_fence
from geo.spatial import fence_set as bounded
from geo.spatial.activity import Activity
from geo.spatial.clip import segments_of
from geo.spatial.weekly import weekly_of

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
