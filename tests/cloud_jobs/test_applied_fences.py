"""The fences that a table was computed with: stated by its own commit, and never guessed from a file without answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_jobs.derived.fences import EVERYTHING, FenceChange, changes_since
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.snapshots import fences_number, note_fences
from cloud_jobs.lake.tables import FENCES, Lake
from tests.system.lake_of_fixes import lake_of, square

OLD, NEW = json.dumps(square("old")), json.dumps(square("new"))
FLAT = square("bad") | {"geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]}}
TABLES = pytest.mark.parametrize("table", ["usage", "geofence_events"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def apply(lake: Lake, table: str, *features: str) -> None:
    commit_written(next_increment(lake, table), [], states={FENCES: note_fences(lake, features)})


def changes(lake: Lake, table: str, *features: str) -> list[FenceChange]:
    return changes_since(lake, lake.open(table), features, 0)


def note_of(lake: Lake, *features: str) -> Path:
    return Path(lake.path("applied_fences")) / "features" / f"{fences_number(features):016x}.geojson"


@TABLES
def test_what_was_applied_is_noted_and_without_a_note_everything_is_looked_at(lake: Lake, table: str) -> None:
    assert changes(lake, table, OLD) == [EVERYTHING]
    apply(lake, table)
    assert changes(lake, table) == []
    apply(lake, table, OLD)
    assert changes(lake, table, OLD) == []
    assert len(changes(lake, table, OLD, NEW)) == 1
    note_of(lake, OLD).unlink()
    assert changes(lake, table, NEW) == changes(lake, table, OLD) == [EVERYTHING]


@pytest.mark.parametrize("line", [json.dumps(FLAT), "[]", "7", "half a no", "", "[" * 100_000, "{}"])
def test_with_a_note_of_a_fence_that_cannot_be_used_any_more_everything_is_looked_at(lake: Lake, line: str) -> None:
    apply(lake, "usage", OLD, line)
    assert changes(lake, "usage", OLD) == [EVERYTHING]
