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
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from cloud_jobs.maintenance.job import Maintenance
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, take_in
from tests.cloud_jobs.ingest.test_decoding import messages
from tests.cloud_jobs.maintenance.upkeep import positions
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


def test_a_clock_that_is_set_back_does_not_make_a_long_micro_batch_a_short_one(lake: Lake) -> None:
    writer = new_ingest(lake)
    attempt = writer.begin()
    decoded = next(decode_messages([messages(batch(4))]))
    part = write_part(lake, decoded, attempt.ingest_number, attempt.now)
    with pytest.raises(CommitFailed, match="took longer than"):
        writer.write(attempt._replace(began_s=time.monotonic() - MAX_ATTEMPT_S - 1), [part])
