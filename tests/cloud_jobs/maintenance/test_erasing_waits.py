"""No position is erased that a job has still to compute from, and what an erasure cannot mean is refused."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.erasures import Erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.job import MaintenanceRun
from tests.cloud_jobs.ingest.centre import coverage, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.test_erasing import ERASURE
from tests.cloud_jobs.maintenance.upkeep import keys_of, parquet_files, positions, run
from waybill.record import IntervalSet


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [positions(1, 2, 3)], [positions(1, device="e")])
    return made


def computed(lake: Lake, table: str = "usage") -> None:
    """A job has read all that is there."""
    commit_written(next_increment(lake, table), [])


def erase(
    lake: Lake, *erasures: Erasure, now: datetime | None = None, dry_run: bool = False, days: int | None = None
) -> MaintenanceRun:
    return run(lake, *erasures, now=now, dry_run=dry_run, erase_after_jobs=True, erase_positions_after_days=days)


def test_positions_that_usage_has_not_read_are_not_erased_nor_declared(lake: Lake) -> None:
    made = erase(lake, ERASURE)
    assert not made.is_whole
    assert "3 of them are not computed from yet; run `cloud-jobs usage`" in made.errors[0]
    assert (seqs_in_table(lake), bool(read_erasures(lake))) == ([1, 2, 3], False)
    computed(lake)
    made = erase(lake, ERASURE)
    assert (made.is_whole, made.positions_erased, seqs_in_table(lake)) == (True, 3, [])


def test_what_a_device_sends_late_is_read_by_usage_before_it_is_erased(lake: Lake) -> None:
    computed(lake)
    erase(lake, ERASURE)
    take_in(lake, new_ingest(lake), [positions(8, 9)])
    # a merge puts it beside what was searched before
    for _ in range(2):
        assert erase(lake, ERASURE).positions_erased == 0
        assert seqs_in_table(lake) == [8, 9]
    computed(lake)
    assert erase(lake).positions_erased == 2
    assert coverage(lake).received == IntervalSet([(1, 3), (8, 9)])


def test_a_file_that_cannot_be_read_stops_neither_other_files_nor_other_tables(lake: Lake) -> None:
    path = next(path for path in parquet_files(lake) if keys_of(path)[0][1] == "d")
    writer = new_ingest(lake)
    take_in(lake, writer, [positions(4, day=-2)])
    path.write_bytes(b"PAR1")
    made = run(lake, ERASURE)
    assert made.positions_erased == 1
    assert "were not erased" in made.errors[0]
    assert made.tables[2].log_files
