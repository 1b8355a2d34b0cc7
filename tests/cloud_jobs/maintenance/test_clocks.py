"""A machine whose clock is wrong deletes nothing, erases nothing and declares nothing."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_jobs.errors import ClockError, CommitFailed
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.lake.store_clock import store_time
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.job import Maintenance
from cloud_jobs.maintenance.rewriting import MaintenancePoint
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.ingest.test_decoding import messages
from tests.cloud_jobs.maintenance.upkeep import folder_of, parquet_files, positions, run
from waybill.record import IntervalSet


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [positions(1, 2, 3)])
    return made


@pytest.mark.parametrize("hours", [-5, 5, 24 * 365])
def test_a_clock_that_is_not_that_of_the_store_stops_the_run(lake: Lake, hours: int) -> None:
    def maintain(point: CrashPoint) -> None:
        if point is CrashPoint.COVERAGE_WRITTEN:
            wrong = datetime.now(UTC) + timedelta(hours=hours)
            settings = MaintenanceSettings(erase_positions_after_days=30)
            with pytest.raises(ClockError, match="clock"):
                Maintenance(lake, settings, now=lambda: wrong).run()

    # the files of a micro-batch in flight are named by no commit yet
    take_in(lake, new_ingest(lake, maintain), [batch(4)])
    assert check(lake) == IntervalSet([(1, 4)])
    assert lake.rows("erasures").num_rows == 0


def test_a_store_whose_time_is_the_machines_is_asked_without_a_trace(lake: Lake) -> None:
    before = {path.name for path in folder_of(lake).iterdir()}
    assert abs(store_time(lake) - datetime.now(UTC)) < timedelta(minutes=5)
    assert {path.name for path in folder_of(lake).iterdir()} == before


def test_with_a_wrong_clock_a_dry_run_still_says_what_would_be_done(lake: Lake) -> None:
    now = datetime.now(UTC)
    run(lake, now=now, store_now=now + timedelta(days=1), dry_run=True)
    assert seqs_in_table(lake) == [1, 2, 3]


def test_a_clock_that_is_set_back_does_not_make_a_long_micro_batch_a_short_one(lake: Lake) -> None:
    writer = new_ingest(lake)
    attempt = writer.begin()
    decoded = next(decode_messages([messages(batch(4))]))
    part = write_part(lake, decoded, attempt.ingest_number, attempt.now)
    with pytest.raises(CommitFailed, match="took longer than"):
        writer.write(attempt._replace(began_s=time.monotonic() - MAX_ATTEMPT_S - 1), [part])


def test_a_merge_that_lasts_too_long_is_an_error_and_the_table_is_swept_all_the_same(lake: Lake) -> None:
    for seq in range(4, 12):
        take_in(lake, new_ingest(lake), [batch(seq)])
    files, now = len(parquet_files(lake)), [datetime.now(UTC)]

    def slow(point: MaintenancePoint) -> None:
        if point is MaintenancePoint.FILES_WRITTEN:
            now[0] += timedelta(seconds=MAX_ATTEMPT_S + 60)

    made = Maintenance(lake, MaintenanceSettings(), now=lambda: now[0], store_now=lambda: now[0], reached=slow).run()
    assert "took longer than 3600 s" in made.tables[0].error
    assert made.tables[0].log_files
    assert len(parquet_files(lake)) == files
    assert check(lake) == IntervalSet([(4, 11)]) | IntervalSet([(1, 3)])
