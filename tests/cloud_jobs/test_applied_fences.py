"""The fences that a table was computed with: stated by its own commit, and never guessed from a file without answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_jobs.applied_fences import changes_since, fences_number, note_fences
from cloud_jobs.errors import LakeError
from cloud_jobs.fence_changes import EVERYTHING, FenceChange
from cloud_jobs.incremental import commit_written, next_increment
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


def test_a_lake_brought_back_from_a_copy_knows_what_its_own_tables_were_computed_with(tmp_path: Path) -> None:
    first, other = lake_of(tmp_path / "first"), lake_of(tmp_path / "other")
    apply(first, "geofence_events", OLD, NEW)
    apply(other, "geofence_events", OLD)
    assert len(changes(other, "geofence_events", OLD, NEW)) == 1


@pytest.mark.parametrize("line", [json.dumps(FLAT), "[]", "7", "half a no", "", "[" * 100_000, "{}"])
def test_with_a_note_of_a_fence_that_cannot_be_used_any_more_everything_is_looked_at(lake: Lake, line: str) -> None:
    apply(lake, "usage", OLD, line)
    assert changes(lake, "usage", OLD) == [EVERYTHING]


@pytest.mark.parametrize("damaged", [b"half a no", b"\xff\n", b""])
def test_with_a_note_that_holds_something_else_everything_is_looked_at(lake: Lake, damaged: bytes) -> None:
    apply(lake, "usage", OLD)
    note_of(lake, OLD).write_bytes(damaged)
    assert changes(lake, "usage", NEW) == [EVERYTHING]


def test_a_note_that_gives_no_answer_is_no_reason_to_compute_everything_again(lake: Lake) -> None:
    apply(lake, "usage", OLD)
    note_of(lake, OLD).unlink()
    # there, and not to be read
    note_of(lake, OLD).mkdir()
    with pytest.raises(LakeError, match="the fences that were applied last cannot be read"):
        changes(lake, "usage", NEW)
