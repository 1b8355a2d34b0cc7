"""Versions: which one stands for an id at each time."""

from __future__ import annotations

from datetime import datetime
from itertools import permutations

import numpy as np
import pytest

from geo.spatial import FenceSet, GateSet, fences_from_geojson
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


def test_the_version_before_ends_although_the_new_one_is_not_open_yet() -> None:
    report = read(
        feature("a", "Polygon", [SQUARE], weekly=windows("fri")),
        # its first window is before that of the next one, which is earlier by its date
        feature("a", "Polygon", [EAST], effective_from="2026-01-06T00:00:00Z", weekly=windows("wed")),
        feature("a", "Polygon", [SQUARE], effective_from="2026-01-05T00:00:00Z", weekly=windows("thu")),
    )
    fences = FenceSet(report.fences)
    assert report.refused == ()
    assert held(fences, "2026-01-02T08:30:00Z") == [True, False]
    assert held(fences, "2026-01-07T08:30:00Z") == [False, True]
    assert held(fences, "2026-01-08T08:30:00Z") == [False, False]
    assert held(fences, "2026-01-09T08:30:00Z") == [False, False]


def test_two_versions_that_open_at_the_same_window_are_not_duplicates() -> None:
    report = read(
        feature("a", "Polygon", [SQUARE], effective_from="2026-01-01T00:00:00Z", weekly=windows("mon")),
        feature("a", "Polygon", [EAST], effective_from="2026-01-02T00:00:00Z", weekly=windows("mon")),
    )
    assert report.refused == ()
    assert held(FenceSet(report.fences), "2026-01-05T08:30:00Z") == [False, True]


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


def test_an_id_is_a_fence_or_a_gate() -> None:
    report = read(
        feature("a", "Polygon", [SQUARE]),
        feature("a", "LineString", [[0, 0], [1, 1]], gate=True, effective_from="2026-01-01T00:00:00Z"),
    )
    assert (len(report.fences), len(report.gates), len(report.refused)) == (1, 0, 1)


def test_dates_at_the_ends_of_the_calendar_are_times_or_are_refused() -> None:
    dates = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
    assert not read(*(feature(date, "Polygon", [SQUARE], effective_from=date) for date in dates)).refused
    assert fences_from_geojson("{}").refused
