"""No position is erased that a job has still to compute from, and what an erasure cannot mean is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_jobs.incremental import commit_written, next_increment
from cloud_jobs.lake.erasures import Erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.job import MaintenanceRun
from tests.cloud_jobs.ingest.centre import DAY_US, NOON_US, coverage, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.test_erasing import ERASURE, NEXT_DAY
from tests.cloud_jobs.maintenance.upkeep import keys_of, parquet_files, positions, run
from waybill.record import Batch, IntervalSet, Position, Record, encode


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


def test_positions_of_all_devices_wait_too(lake: Lake) -> None:
    now = NEXT_DAY + timedelta(days=10, hours=3)
    assert erase(lake, now=now, days=10).positions_erased == 0
    computed(lake)
    assert erase(lake, now=now, days=10).positions_erased == 4


@pytest.mark.parametrize("table", ["geofence_events", "encounters"])
def test_an_event_job_that_ever_ran_is_waited_for(lake: Lake, table: str) -> None:
    computed(lake, table)
    take_in(lake, new_ingest(lake), [positions(4)])
    computed(lake)
    assert "1 of them" in erase(lake, ERASURE).errors[0]
    computed(lake, table)
    assert erase(lake, ERASURE).positions_erased == 4


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


def test_without_jobs_nothing_is_waited_for_if_so_set(lake: Lake) -> None:
    assert run(lake, ERASURE, erase_after_jobs=False).positions_erased == 3


def test_a_device_that_never_sent_anything_is_no_success(lake: Lake) -> None:
    made = erase(lake, ERASURE._replace(device="D"))
    assert "no record of a device D of acme" in made.errors[0]
    assert not read_erasures(lake)


def test_without_a_tenant_it_is_that_of_the_device(lake: Lake) -> None:
    computed(lake)
    assert erase(lake, ERASURE._replace(tenant=None)).positions_erased == 3
    assert [*read_erasures(lake)] == [ERASURE]


def test_a_dry_run_counts_what_the_erasure_would_take(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [positions(1, 2, latitude=50.0)])
    computed(lake)
    made = erase(lake, ERASURE, dry_run=True)
    assert (made.positions_erased, made.conflicts_erased) == (3, 2)
    assert not read_erasures(lake)
    made = erase(lake, ERASURE)
    assert (made.positions_erased, made.conflicts_erased) == (3, 2)


def test_a_quarantine_without_anything_to_erase_is_not_written_again(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [positions(1, device="e", latitude=50.0)])
    run(lake, ERASURE)
    version, files = lake.open("quarantine").version(), parquet_files(lake, "quarantine")
    run(lake)
    assert (lake.open("quarantine").version(), parquet_files(lake, "quarantine")) == (version, files)


def test_a_conflict_of_a_clock_far_ahead_goes_with_the_positions_of_its_device(lake: Lake) -> None:
    ahead = NOON_US + 30_000 * DAY_US
    sent = [encode(Batch("d", 7, 9, (Record(9, ahead, Position(latitude=n, longitude=9.0)),), ())) for n in (48.0, 9.0)]
    for message in sent:
        take_in(lake, new_ingest(lake), [message])
    assert lake.rows("quarantine").num_rows == 1
    made = run(lake, ERASURE._replace(before=datetime.now(UTC)))
    assert (made.positions_erased, made.conflicts_erased) == (4, 1)


def test_a_file_that_cannot_be_read_stops_neither_other_files_nor_other_tables(lake: Lake) -> None:
    path = next(path for path in parquet_files(lake) if keys_of(path)[0][1] == "d")
    writer = new_ingest(lake)
    take_in(lake, writer, [positions(4, day=-2)])
    path.write_bytes(b"PAR1")
    made = run(lake, ERASURE)
    assert made.positions_erased == 1
    assert "were not erased" in made.errors[0]
    assert made.tables[2].log_files
