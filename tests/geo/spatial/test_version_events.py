"""Events of fences whose versions change: what stood until a switch is judged by the version that ended there."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from shapely import Polygon, box

from geo.spatial import Activity, EventSettings, Fence, FenceSet, Fixes, GeofenceEvent, find_events, find_visits
from tests.geo.spatial.worlds import START_MS, every_fix

METRE = 1 / 111_320  # in degrees, at the equator
AROUND = box(12.0, -1.0, 14.0, 1.0)


def square(lon: float, half_m: float) -> Polygon:
    return box(lon - half_m * METRE, -half_m * METRE, lon + half_m * METRE, half_m * METRE)


def version(
    shape: Polygon, from_s: float | None = None, *, limit: float | None = None, until_s: float | None = None
) -> Fence:
    begin, end = (None if s is None else START_MS + round(s * 1000) for s in (from_s, until_s))
    return Fence("a", shape, active=Activity([(begin, end)]), effective_from_ms=begin, speed_limit_mps=limit)


def events_of(
    versions: list[Fence], at_s: list[int], lon: list[float], **settings: float
) -> list[tuple[str, float, float]]:
    fixes = Fixes(device=[0] * len(at_s), t_ms=[START_MS + 1000 * s for s in at_s], lat=[0.0] * len(at_s), lon=lon)
    events: list[GeofenceEvent] = find_events(every_fix(fixes), FenceSet(versions), settings=EventSettings(**settings))
    return [(event.kind, (event.t_ms - START_MS) / 1000, event.value) for event in events]


def parked(versions: list[Fence]) -> list[tuple[str, float, float]]:
    """A minute's drive to a place, where it stands for twenty minutes; 10 m are doubted."""
    return events_of(versions, list(range(0, 1201, 60)), [12.998, *[13.0] * 20], buffer_m=10.0)


def fast(versions: list[Fence], at_s: list[int], **settings: float) -> list[tuple[str, float, float]]:
    """20 m/s to the east, within all versions."""
    return events_of(versions, at_s, [13.0 + 20 * s * METRE for s in at_s], **settings)


def test_where_no_version_is_in_force_a_vehicle_is_outside_for_sure() -> None:
    # it stands 5 m from the border when the fence goes out of force
    fixes = Fixes(
        device=[0] * 3, t_ms=[START_MS, START_MS + 60_000, START_MS + 300_000], lat=[0.0] * 3, lon=[12.99, 13.0, 13.0]
    )
    fence = version(box(12.995, -0.01, 13.0 + 5 * METRE, 0.01), until_s=200)
    visits = find_visits(every_fix(fixes), FenceSet([fence]), EventSettings(buffer_m=10.0))
    np.testing.assert_allclose(visits.end_ms - START_MS, [200_000])


def test_speeding_is_judged_by_the_limit_in_force_wherever_the_fixes_are() -> None:
    lower = [version(AROUND, limit=100.0), version(AROUND, 100, limit=5.0)]
    for at_s in ([0, 200], [0, 200, 300], [0, 99, 100, 101, 200], [0, 100, 200]):
        assert [(kind, at) for kind, at, _ in fast(lower, at_s)] == [("speeding", 100.0)]


def test_speeding_lasts_as_long_as_it_is_over_the_limits_in_force() -> None:
    raised = [version(AROUND, limit=5.0), version(AROUND, 100, limit=100.0)]
    kept = [version(AROUND, limit=5.0), version(AROUND, 100, limit=10.0)]
    for at_s in ([0, 200], [0, 100, 200], [0, 50, 150, 200]):
        assert fast(raised, at_s, min_stay_s=150) == []
        assert [(kind, at) for kind, at, _ in fast(raised, at_s, min_stay_s=99)] == [("speeding", 0.0)]
        assert [(kind, at) for kind, at, _ in fast(kept, at_s, min_stay_s=150)] == [("speeding", 0.0)]


seconds = st.integers(1, 60)
metres = st.integers(-80, 80)


BESIDE = version(box(13.0 + METRE, -0.01, 13.01, 0.01), 20)
