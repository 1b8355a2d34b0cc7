"""Whoever opens the coverage finds every record id that is in the records, whatever crashed before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.errors import Fenced
from cloud_jobs.ingest.coverage_store import CoverageStore
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.tables import Lake
from telemetry import IntervalSet
from tests.system.lake_of_fixes import NOON, LakeFix, ingest, lake_of

STREAM = DeviceStream("d", 7)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "a lake")


def add(lake: Lake, *seqs: int) -> None:
    ingest(lake, [LakeFix("d", seq, NOON, 50.0, 8.0) for seq in seqs])


def received(lake: Lake) -> list[int]:
    return [*CoverageStore.open(lake).streams.get(STREAM, Coverage()).received]


def test_records_that_no_coverage_was_saved_of_are_found_and_saved(lake: Lake) -> None:
    add(lake, 1, 2)
    add(lake, 5)
    assert received(lake) == [1, 2, 5]
    assert lake.coverage()[STREAM].received == IntervalSet([(1, 2), (5, 5)])
    assert lake.covered_version("coverage") == lake.open("records").version()


def test_a_crash_between_the_records_and_their_coverage_is_made_good(lake: Lake) -> None:
    add(lake, 1)
    store = CoverageStore.open(lake)
    add(lake, 2)
    store.after_commit(made=True)
    assert received(lake) == [1, 2]


def test_only_files_that_are_not_covered_are_read(lake: Lake) -> None:
    add(lake, 1)
    CoverageStore.open(lake)
    for file in Path(lake.path("records")).rglob("*.parquet"):
        file.unlink()
    add(lake, 2)
    assert received(lake) == [1, 2]


def test_a_coverage_table_that_does_not_say_what_it_covers_is_made_anew_of_all_records(lake: Lake) -> None:
    add(lake, 1)
    add(lake, 2)
    CoverageStore.open(lake)
    stale = [row for row in lake.rows("coverage").to_pylist() if row["device"] != "d"]
    lake.replace("coverage", stale, covers=-1)
    assert received(lake) == [1, 2]


def test_a_commit_that_was_not_made_is_another_writers_and_takes_nothing_over(lake: Lake) -> None:
    add(lake, 1)
    store = CoverageStore.open(lake)
    add(lake, 2)
    with pytest.raises(Fenced, match="Delta version 2, expected 2"):
        store.after_commit(made=False)
    assert store.next_version == 2
    store.after_commit(made=True)
    assert store.next_version == 3


def test_what_was_updated_and_saved_is_there_for_the_next(lake: Lake) -> None:
    store = CoverageStore.open(lake)
    store.update({STREAM: Coverage(IntervalSet([(1, 4)]), head=6)})
    store.save()
    assert CoverageStore.open(lake).streams == {STREAM: Coverage(IntervalSet([(1, 4)]), head=6)}
