"""What a run is to cover: from what its table covers to what the records are now."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment, records_behind
from cloud_jobs.errors import CommitConflict, OtherRecords
from cloud_jobs.lake.data_files import StoredFiles, read_stored
from cloud_jobs.lake.tables import Lake
from tests.system.lake_of_fixes import NOON, LakeFix, derive, ingest, lake_of


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def fix(seq: int, days: int = 0) -> LakeFix:
    return LakeFix("d", seq, NOON + timedelta(days=days), 50.0, 8.0)


def behind(lake: Lake, table: str = "usage") -> tuple[int, int, int]:
    """What a table covers, and by how many commits of the ingest and records it is behind."""
    increment = next_increment(lake, table)
    return increment.since, increment.commits, records_behind(lake, increment)


def new_seqs(lake: Lake, table: str = "usage") -> list[int]:
    increment = next_increment(lake, table)
    wanted = {"ingest_number": (increment.since + 1, increment.until)}
    files = lake.files("records")
    found = [read_stored(files, "records", path, ["seq"], wanted) for path in increment.new_files.paths]
    return sorted(seq for rows in found for seq in rows["seq"].to_pylist())


def compact_and_vacuum(lake: Lake, table: str = "records") -> None:
    """What is left is one file a day and a log that begins with a checkpoint."""
    opened = lake.open(table)
    opened.optimize.compact()
    opened.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    opened.create_checkpoint()
    for commit in sorted((Path(lake.path(table)) / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def test_the_first_run_covers_everything_and_one_without_new_records_nothing(lake: Lake) -> None:
    ingest(lake, [fix(1), fix(2)])
    assert (behind(lake), bool(next_increment(lake, "usage"))) == ((0, 1, 2), True)
    derive(lake, "usage")
    assert (behind(lake), bool(next_increment(lake, "usage"))) == ((1, 0, 0), False)


def test_a_run_that_lags_behind_compaction_and_vacuum_goes_on(lake: Lake) -> None:
    ingest(lake, [fix(1), fix(2, 1)])
    derive(lake, "usage")
    for seq in range(3, 7):
        ingest(lake, [fix(seq, seq % 2)])
    derive(lake, "encounters")
    compact_and_vacuum(lake)
    compact_and_vacuum(lake, "usage")
    assert (behind(lake), new_seqs(lake)) == ((1, 4, 4), [3, 4, 5, 6])
    assert behind(lake, "encounters") == (5, 0, 0)


@pytest.mark.parametrize("commits", [0, 1])
def test_a_table_that_covers_more_than_the_records_or_others_is_refused(lake: Lake, commits: int) -> None:
    ingest(lake, [fix(1)])
    folder = Path(str(lake.location))
    kept = {name: shutil.copytree(folder / name, folder.parent / name) for name in ("records", "coverage")}
    ingest(lake, [fix(2)])
    derive(lake, "usage")
    for name, copy in kept.items():
        shutil.rmtree(folder / name)
        shutil.copytree(copy, folder / name)
    # what was ingested since then comes again, under numbers that the table has covered
    for at in range(commits):
        ingest(lake, [fix(5 + at)])
    with pytest.raises(OtherRecords, match="it covers ingest number 2, and the records are at"):
        next_increment(lake, "usage")
    shutil.rmtree(folder / "usage")
    lake.create()
    assert new_seqs(lake) == [1, *range(5, 5 + commits)]


def test_a_commit_of_another_run_while_the_increment_is_made_is_a_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [fix(1)])
    real = StoredFiles.of

    def another_first(*opened: object) -> object:
        monkeypatch.undo()
        derive(lake, "usage")
        return real(*opened)  # type: ignore[arg-type]

    monkeypatch.setattr(StoredFiles, "of", another_first)
    with pytest.raises(CommitConflict):
        commit_written(next_increment(lake, "usage"), [])
