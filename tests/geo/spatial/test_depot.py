"""Hundreds of tenants with a fence around the same depot: what is held at once does not grow with their number."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from shapely import Polygon
from shapely.affinity import translate

from geo.spatial import (
    EventSettings,
    Fence,
    FenceSet,
    Fixes,
    TooManyEncounters,
    Tracks,
    build_tracks,
    find_encounters,
    find_events,
    nearby,
    use_by_fence,
)
from geo.spatial import encounters as meeting
from geo.spatial import fence_set as bounded

DEPOT = Polygon([(10.0, 50.0), (10.01, 50.0), (10.01, 50.01), (10.0, 50.01)])


def tenants(count: int, apart_deg: float, **facts: float) -> list[Fence]:
    shapes = (translate(DEPOT, at * apart_deg, 0) for at in range(count))
    return [Fence(f"tenant-{at:04}", shape, **facts) for at, shape in enumerate(shapes)]  # type: ignore[arg-type]


def parked(fixes: int, devices: int = 20) -> Tracks:
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
    tracks, fences = parked(2_000, devices=10), FenceSet(tenants(300, apart_deg, speed_limit_mps=0.1))
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
