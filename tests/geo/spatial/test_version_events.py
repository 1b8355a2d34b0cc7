"""Events of fences whose versions change: what stood until a switch is judged by the version that ended there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shapely import Polygon, box

from geo.spatial import Activity, EventSettings, Fence, FenceSet, Fixes, GeofenceEvent, find_events, find_visits
from tests.examples import examples
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


def test_a_stay_that_a_far_version_ends_is_no_surer_than_without_it() -> None:
    small = version(square(13.0, 5.0))
    assert parked([small]) == []
    assert parked([small, version(square(14.0, 5.0), 600)]) == []
    assert parked([version(square(13.0, 5.0), until_s=600)]) == []


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


@dataclass(frozen=True)
class Way:
    """Fixes: ms since the start, metres to the east and to the north, reported speed and accuracy."""

    rows: list[tuple[int, float, float, float, float]]

    def cut(self, at_ms: list[int]) -> Way:
        """With fixes at some moments between them, which report what the next one does."""
        rows = list(self.rows)
        for at in at_ms:
            for (begin, px, py, *_), (until, qx, qy, *reported) in pairwise(self.rows):
                if begin < at < until and at not in {row[0] for row in rows}:
                    share = (at - begin) / (until - begin)
                    rows.append((at, px + (qx - px) * share, py + (qy - py) * share, reported[0], reported[1]))
        return Way(sorted(rows))

    def events(self, fences: FenceSet, rules: EventSettings) -> list[GeofenceEvent]:
        t_ms, x, y, speed, accuracy = zip(*self.rows, strict=True)
        fixes = Fixes(
            device=[0] * len(t_ms),
            t_ms=START_MS + np.array(t_ms),
            lat=np.array(y) * METRE,
            lon=13.0 + np.array(x) * METRE,
            speed_mps=speed,
            accuracy_m=accuracy,
        )
        return find_events(every_fix(fixes), fences, settings=rules)


seconds = st.integers(1, 60)
metres = st.integers(-80, 80)


@st.composite
def ways(draw: st.DrawFn) -> Way:
    at, rows = 0, []
    for _ in range(draw(st.integers(2, 6))):
        reported = draw(st.sampled_from([3.0, 10.0, 20.0])), draw(st.sampled_from([np.nan, 7.0, 33.0]))
        rows.append((at, float(draw(metres)), float(draw(metres)), *reported))
        at += 1000 * draw(seconds)
    return Way(rows)


@st.composite
def several_versions(draw: st.DrawFn) -> list[Fence]:
    begins = [None, *sorted(draw(st.lists(st.integers(1, 200), max_size=4, unique=True)))]
    made = []
    for begin in begins:
        # no fix and no distance is next to a border or a limit
        x, y = draw(metres) + 0.3771239, draw(metres) + 0.3771239
        shape = box(
            13.0 + x * METRE, y * METRE, 13.0 + (x + draw(metres) % 70 + 5) * METRE, (y + draw(seconds)) * METRE
        )
        until = draw(st.none() | st.integers((begin or 0) + 1, 260))
        made.append(version(shape, begin, limit=draw(st.sampled_from([None, 5.5, 15.5])), until_s=until))
    return made


DEEP = version(box(12.99, -0.01, 13.01, 0.01))
BESIDE = version(box(13.0 + METRE, -0.01, 13.01, 0.01), 20)


@settings(max_examples=examples(300), deadline=None)
@given(
    way=ways(),
    versions=several_versions(),
    at_ms=st.lists(st.integers(1, 260).map(lambda second: 1000 * second) | st.integers(1, 260_000), max_size=10),
    buffer_m=st.sampled_from([0.0, 6.0, 25.0]),
    min_stay_s=st.sampled_from([0.0, 5.0501, 40.0501]),
)
@example(Way([(0, 0, 0, 3, np.nan), (40_000, 0, 0, 3, np.nan)]), [DEEP, BESIDE], [20_000], 10.0, 0.0)
def test_events_are_the_same_wherever_else_fixes_are(
    way: Way, versions: list[Fence], at_ms: list[int], buffer_m: float, min_stay_s: float
) -> None:
    fences = FenceSet(versions)
    rules = EventSettings(buffer_m=buffer_m, min_stay_s=min_stay_s, dwell_s=30.0501)
    whole = way.events(fences, rules)
    some = way.cut(at_ms).events(fences, rules)
    assert [event.kind for event in some] == [event.kind for event in whole]
    for one, other in zip(some, whole, strict=True):
        assert abs(one.t_ms - other.t_ms) <= 1
        assert abs(one.value - other.value) <= 0.002
