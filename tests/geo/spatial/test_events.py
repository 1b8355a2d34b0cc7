"""Visits with hysteresis, and events."""

from __future__ import annotations

import numpy as np
import shapely
from hypothesis import given
from hypothesis import strategies as st
from shapely import box

from geo.spatial import (
    EventSettings,
    Fence,
    FenceSet,
    Fixes,
    GeofenceEvent,
    VisitSettings,
    find_events,
    find_visits,
    use_by_fence,
)
from geo.spatial.depth import border_distance_m
from geo.spatial.fences import Outlines
from geo.spatial.rings import world_polygon
from tests.geo.spatial.worlds import START_MS, every_fix, fence_lists, fences, joined, line, walks

DEPOT = FenceSet(fences(("depot", box(10.0, 50.0, 10.02, 50.02))))


def flapping(noise_m: float = 8.0) -> Fixes:
    """Ten minutes parked on the depot's western border, with the noise of a receiver; then in and out at the east."""
    rng = np.random.default_rng(4)
    noise = rng.normal(0, noise_m / 71_500, 600)
    lon = np.concatenate([np.linspace(9.99, 10.0, 50), 10.0 + noise, np.linspace(10.0, 10.03, 150)])
    n = len(lon)
    return Fixes(device=np.zeros(n), t_ms=START_MS + np.arange(n) * 1000, lat=np.full(n, 50.01), lon=lon)


def kinds(events: list[GeofenceEvent]) -> list[str]:
    return [event.kind for event in events]


def test_jitter_at_a_border_makes_no_events_while_metering_stays_exact() -> None:
    tracks = every_fix(flapping())
    raw = find_events(tracks, DEPOT)
    calm = find_events(tracks, DEPOT, settings=EventSettings(buffer_m=50))
    assert len(raw) > 100
    assert kinds(calm) == ["enter", "exit"]
    # the entry is the crossing after which it stayed in; the exit is exact
    entered = START_MS + 650_000
    assert abs(calm[0].t_ms - entered) < 5000
    assert calm[1].t_ms == next(event.t_ms for event in reversed(raw) if event.kind == "exit")
    assert use_by_fence(tracks, DEPOT).entries.sum() == kinds(raw).count("enter")


def test_a_fix_that_reports_its_accuracy_is_no_proof_within_it() -> None:
    fixes = flapping()
    doubtful = Fixes(
        device=fixes.device, t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon, accuracy_m=np.full(len(fixes), 50.0)
    )
    tracks = every_fix(doubtful)
    assert kinds(find_events(tracks, DEPOT)) == ["enter", "exit"]
    assert len(find_events(tracks, DEPOT, settings=EventSettings(use_accuracy=False))) > 100


def test_a_break_ends_a_visit_without_an_exit() -> None:
    one, later = line([(9.99, 50.01), (10.01, 50.01)]), line([(10.012, 50.01), (10.014, 50.01)])
    again = Fixes(device=later.device, t_ms=later.t_ms + 1_000_000, lat=later.lat, lon=later.lon)
    assert kinds(find_events(every_fix(joined([one, again])), DEPOT)) == ["enter"]
    assert len(find_visits(every_fix(joined([one, again])), DEPOT)) == 2


def test_a_long_visit_is_a_dwell_at_its_time() -> None:
    fixes = line([(9.99, 50.01), (10.01, 50.01), (10.01, 50.01), (10.03, 50.01)], 60_000)
    events = find_events(every_fix(fixes), DEPOT, settings=EventSettings(dwell_s=60))
    assert [(event.kind, (event.t_ms - START_MS) / 1000) for event in events] == [
        ("enter", 30),
        ("dwell", 90),
        ("exit", 150),
    ]


def test_speeding_is_one_event_for_each_stretch_with_its_highest_speed() -> None:
    zone = FenceSet([Fence("school", box(10.0, 50.0, 10.02, 50.02), speed_limit_mps=8.3)])
    fixes = line([(9.998 + step, 50.01) for step in (0, 0.002, 0.004, 0.006, 0.0065, 0.009)])
    speeding = [event for event in find_events(every_fix(fixes), zone) if event.kind == "speeding"]
    assert [(event.t_ms - START_MS) // 1000 for event in speeding] == [10, 40]
    reported = Fixes(
        device=fixes.device, t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon, speed_mps=[0, 0, 9.0, 12.5, np.nan, 8.3]
    )
    (one,) = [event for event in find_events(every_fix(reported), zone) if event.kind == "speeding"]
    assert one.value == 12.5


@given(walks(), fence_lists(), st.floats(0, 3000), st.floats(0, 400))
def test_visits_of_a_device_to_a_fence_alternate_and_do_not_overlap(
    fixes: Fixes, made: list[Fence], buffer_m: float, stay_s: float
) -> None:
    visits = find_visits(every_fix(fixes), FenceSet(made), VisitSettings(buffer_m=buffer_m, min_stay_s=stay_s))
    same = (visits.device[1:] == visits.device[:-1]) & (visits.fence[1:] == visits.fence[:-1])
    assert (visits.end_ms >= visits.start_ms).all()
    assert (visits.start_ms[1:] >= visits.end_ms[:-1])[same].all()


def test_the_cut_at_180_degrees_is_no_border_and_the_border_beyond_it_is_as_near_as_it_is() -> None:
    across = world_polygon([[np.array([(179.9, -1), (-179.9, -1), (-179.9, 1), (179.9, 1), (179.9, -1)])]])[0]
    ends = box(179.9, -1, 180, 1)
    partly = world_polygon([[np.array([(179.9, -1), (-179.9, -1), (-179.9, 0), (180, 0), (180, 1), (179.9, 1)])]])[0]
    degree_m = 111_319.49
    for lon, lat, expected in (
        (179.999, 0.0, (0.099, 0.001, 0.001)),
        (-179.999, -0.5, (0.099, 0.001, 0.099)),
        (-179.92, 0.0, (0.02, 0.08, 0.0)),
        (179.96, 0.5, (0.06, 0.04, 0.04)),
    ):
        outlines = Outlines.of([across, ends, partly])
        away = border_distance_m(outlines, np.arange(3), np.full(3, lon), np.full(3, lat))
        np.testing.assert_allclose(away / degree_m, expected, atol=1e-3 * 0.1)
    cap = world_polygon([[np.array([(-120.0, 80.0), (0.0, 80.0), (120.0, 80.0), (-120.0, 80.0)])]])[0]
    places = np.array([180.0, 50.0]), np.array([80.5, 89.99])
    away = border_distance_m(Outlines.of([cap]), np.zeros(2, dtype=int), *places)
    np.testing.assert_allclose(away / 111_690, [0.5, 9.99], rtol=2e-3)


@given(st.lists(fence_lists(), min_size=1, max_size=3), st.sampled_from([0.0, 182.9, -177.1]), st.integers(0, 2000))
def test_a_limit_to_the_distance_from_a_border_leaves_what_is_nearer_as_it_is(
    several: list[list[Fence]], east: float, limit_m: int
) -> None:
    around = np.linspace(0, 2 * np.pi, 200)
    ring = np.column_stack([-2.95 + 0.04 * np.cos(around), 53.45 + 0.03 * np.sin(around)])
    rings = [[ring], *([shapely.get_coordinates(fence.shape)] for part in several for fence in part)]
    moved = [np.column_stack([np.mod(points[:, 0] + east + 180, 360) - 180, points[:, 1]]) for (points,) in rings]
    outlines = Outlines.of([world_polygon([[points]])[0] for points in moved])
    lon, lat = (at.ravel() for at in np.meshgrid(np.linspace(-3.05, -2.85, 9), np.linspace(53.35, 53.55, 9)))
    lon = np.mod(np.tile(lon, outlines.count) + east + 180, 360) - 180
    fence, lat = np.repeat(np.arange(outlines.count), 81), np.tile(lat, outlines.count)
    whole = border_distance_m(outlines, fence, lon, lat)
    near = border_distance_m(outlines, fence, lon, lat, np.full(len(fence), float(limit_m)))
    assert np.array_equal(near[whole <= limit_m], whole[whole <= limit_m])
    assert (near[whole > limit_m] > limit_m).all()
