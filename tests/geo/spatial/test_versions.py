"""Versions: which one stands for an id at each time."""

from __future__ import annotations

import tracemalloc
from datetime import datetime
from itertools import permutations

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import Fence, FenceSet, GateSet, fences_from_geojson
from geo.spatial.activity import Activity
from tests.examples import examples
from tests.geo.spatial.test_fence_files import SQUARE, feature, read
from tests.geo.spatial.worlds import every_fix, line

EAST = [[10, 0], [11, 0], [11, 1], [10, 1], [10, 0]]


def windows(day: str) -> dict[str, object]:
    return {"timezone": "UTC", "windows": [{"days": [day], "from": "08:00", "until": "09:00"}]}


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def held(fences: FenceSet, when: str) -> list[bool]:
    """Is the old place (in the west) in force, is the new one?"""
    point, _ = fences.holding(np.array([0.5, 10.5]), np.array([0.5, 0.5]), np.full(2, ms(when)))
    return [0 in point.tolist(), 1 in point.tolist()]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_version_with_windows_takes_over_at_its_date_not_at_its_first_window(order: tuple[int, int]) -> None:
    versions = [
        feature("a", "Polygon", [SQUARE], effective_from="2026-01-01T00:00:00Z", weekly=windows("fri")),
        feature("a", "Polygon", [EAST], effective_from="2026-01-05T00:00:00Z", weekly=windows("mon")),
    ]
    report = read(*(versions[at] for at in order))
    assert report.refused == ()
    fences = FenceSet(report.fences)
    assert held(fences, "2026-01-02T08:30:00Z") == [True, False]
    assert held(fences, "2026-01-09T08:30:00Z") == [False, False]
    assert held(fences, "2026-01-12T08:30:00Z") == [False, True]


def test_versions_of_a_gate_supersede_each_other_in_any_order() -> None:
    gate = [[1, -1], [1, 1]]
    versions = [
        feature("g", "LineString", gate, gate=True),
        feature("g", "LineString", gate, gate=True, effective_from="2020-01-01T00:00:00Z"),
        feature("g", "LineString", gate[::-1], gate=True, effective_from="2025-01-01T00:00:00Z"),
    ]
    way = every_fix(line([(0, 0.5), (2, 0.5)]))
    for order in permutations(versions):
        crossings = GateSet(read(*order).gates).crossings(way)
        assert crossings.forward.tolist() == [False]


def test_dates_at_the_ends_of_the_calendar_are_times_or_are_refused() -> None:
    dates = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
    assert not read(*(feature(date, "Polygon", [SQUARE], effective_from=date) for date in dates)).refused
    assert fences_from_geojson("{}").refused


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 9),
            st.none() | st.integers(0, 12),
            st.none() | st.integers(0, 12),
            st.none() | st.integers(0, 12),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_at_most_one_version_is_in_force_and_it_is_found_by_one_search(
    versions: list[tuple[str, int, int | None, int | None, int | None]],
) -> None:
    fences = FenceSet(
        [
            Fence(name, shapely.box(0, 0, 1, 1), rank, Activity([(begin, end)]), effective_from_ms=effective)
            for name, rank, begin, end, effective in versions
        ]
    )
    times = np.arange(-1, 14)
    for number, name in enumerate(fences.names):
        own = [at for at, fence in enumerate(fences.fences) if fence.id == name]
        found = fences.version_at(np.full(len(times), number), times.astype(float))
        for t_ms, at in zip(times, found.tolist(), strict=True):
            stands = [one for one in own if fences.fences[one].active.at(np.array([t_ms])).all()]
            assert len(stands) <= 1
            assert at == (stands or [-1])[0]


def test_a_thousand_versions_of_a_fence_cost_a_vehicle_parked_there_no_more_than_one() -> None:
    count, fixes, begin = 1_000, 2_000, 1_700_000_000_000
    shape = shapely.box(10.0, 50.0, 10.0005, 50.0004)
    from_ms = [begin + at * 10 for at in range(count)]
    fences = FenceSet([Fence("d", shape, active=Activity([(at, None)]), effective_from_ms=at) for at in from_ms])
    t_ms = (begin + np.arange(fixes) * 10).astype(np.float64)
    name = np.zeros(fixes, dtype=np.int64)
    tracemalloc.start()
    found = fences.version_at(name, t_ms)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [fences.fences[at].effective_from_ms for at in found[:count].tolist()] == from_ms
    # two million pairs would be sixteen bytes each, and more
    assert peak < 4e6
