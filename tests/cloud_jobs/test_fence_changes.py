"""Fences that are new or changed: when and where that can matter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud_jobs.derived.fences import FenceChange, changes_between
from geo.spatial.activity import FOREVER_MS
from geo.spatial.event_ids import DAY_MS

FIFTH = 20_458  # 2026-01-05
REACH_MS = 12 * 3_600_000
EVER = (FOREVER_MS + REACH_MS) // DAY_MS


def fences(*features: dict[str, Any]) -> tuple[str, ...]:
    return tuple(map(json.dumps, features))


def square(name: str, lon: float = 0.0, **more: Any) -> dict[str, Any]:
    ring = [[lon, 0], [lon + 1, 0], [lon + 1, 1], [lon, 1], [lon, 0]]
    return {
        "type": "Feature",
        "properties": {"id": name, **more},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }


OLD = square("old", 5.0)
FIRST: dict[str, Any] = {"effective_from": "2026-01-05T00:00:00Z"}


def test_a_new_fence_matters_from_its_beginning_on_and_where_it_is() -> None:
    (change,) = changes_between(fences(OLD), fences(OLD, square("new", **FIRST)), REACH_MS)
    # what happens in the first hours may be decided by the hours before
    assert change == FenceChange(FIFTH - 1, EVER, 0.0, 0.0, 1.0, 1.0)
    until = square("new", **FIRST, effective_until="2026-01-07T18:00:00Z")
    (bounded,) = changes_between(fences(OLD), fences(OLD, until), REACH_MS)
    assert (bounded.first_day, bounded.last_day) == (FIFTH - 1, FIFTH + 3)


def test_a_new_version_matters_where_the_one_before_it_was_too() -> None:
    before = square("a", 3.0)
    (change,) = changes_between(fences(before), fences(before, square("a", **FIRST)), REACH_MS)
    assert change == FenceChange(FIFTH - 1, EVER, 0.0, 0.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("line", "box"), [([[1, 2], [3, 1]], (1, 1, 3, 2)), ([[179, 2], [-179, 1]], (-180, 1, 180, 2))]
)
def test_a_gate_matters_along_its_line_and_over_the_antimeridian_everywhere(
    line: list[list[int]], box: tuple[int, ...]
) -> None:
    gate = {
        "type": "Feature",
        "properties": {"id": "gate", "gate": True},
        "geometry": {"type": "LineString", "coordinates": line},
    }
    (change,) = changes_between(fences(), fences(gate), REACH_MS)
    assert change[2:] == box
