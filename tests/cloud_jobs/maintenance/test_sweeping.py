"""Only what nobody needs is deleted: by its age, and by what the log says of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.errors import CommitFailed
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshots import fences_number, note_fences
from cloud_jobs.lake.tables import FENCES, Lake
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, take_in
from tests.cloud_jobs.maintenance.upkeep import folder_of, make_older, parquet_files, run
from waybill.record import IntervalSet

DAY_S = 86_400.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq)])
    return made


def dead_attempt(lake: Lake) -> None:
    """A micro-batch whose ingest dies before the commit."""

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.COVERAGE_WRITTEN:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(lake, new_ingest(lake, die), [batch(4, 5)])


def test_files_of_a_dead_attempt_go_when_no_commit_can_name_them_any_more(lake: Lake) -> None:
    run(lake, removed_files_kept_hours=0)
    there = parquet_files(lake)
    dead_attempt(lake)
    assert len(parquet_files(lake)) == len(there) + 1
    assert run(lake).tables[0].orphans == 0
    make_older(parquet_files(lake), DAY_S)
    assert run(lake).tables[0].orphans == 1
    assert parquet_files(lake) == there
    assert check(lake) == IntervalSet([(1, 3)])


def test_replaced_files_stay_for_those_who_still_read_them(lake: Lake) -> None:
    reading = lake.open("records")
    assert run(lake).tables[0].merges == 1
    make_older(parquet_files(lake), 3 * DAY_S)
    made = run(lake)
    assert (made.tables[0].orphans, made.tables[0].replaced_files) == (0, 0)
    assert lake.rows("records", opened=reading).num_rows == 3
    assert run(lake, removed_files_kept_hours=0).tables[0].replaced_files == 3
    assert len(parquet_files(lake)) == 1
    assert check(lake) == IntervalSet([(1, 3)])


def test_the_log_keeps_the_commits_of_the_days_that_can_be_asked_for(lake: Lake) -> None:
    log = Path(lake.path("records")) / "_delta_log"
    writer = new_ingest(lake)
    for seq in range(4, 15):
        take_in(lake, writer, [batch(seq)])
        if seq == 12:
            # the commits of the last days are read upon one that is older
            lake.open("records").create_checkpoint()
    take_in(lake, writer, [batch(15)])
    long_ago = [path for path in log.iterdir() if path.name[:20].isdigit() and int(path.name[:20]) < 13]
    make_older(long_ago, 30 * DAY_S)
    made = run(lake, history_days=7)
    assert (made.tables[0].log_files or 99) < 14
    assert check(lake) == IntervalSet([(1, 15)])
    assert lake.coverage()


def test_of_former_fences_only_those_that_a_table_was_computed_with_stay(lake: Lake) -> None:
    for at in range(5):
        note_fences(lake, [f"fence {at}"])
    for table, fences in (("usage", "fence 3"), ("geofence_events", "fence 1")):
        commit_written(next_increment(lake, table), [], states={FENCES: fences_number([fences])})
    folder = folder_of(lake) / "applied_fences" / "features"
    assert run(lake).fence_files == 0
    make_older(folder.iterdir(), DAY_S)
    note_fences(lake, ["not committed yet"])
    assert run(lake).fence_files == 3
    kept = {f"{fences_number([fences]):016x}.geojson" for fences in ("fence 1", "fence 3", "not committed yet")}
    assert {path.name for path in folder.iterdir()} == kept


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_job_whose_files_were_swept_while_it_ran_commits_none_of_them(lake: Lake, *, is_swept: bool) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=5)
    increment, files = next_increment(lake, "usage"), lake.files("usage")
    values = {field.name: pa.array([None], field.type) for field in USAGE if field.nullable}
    given = {"commit_number": 1, "day": long_ago.date(), "hour": long_ago, "computed_at": long_ago}
    for field in USAGE:
        if not field.nullable:
            usual: Any = [] if pa.types.is_list(field.type) else "x" if pa.types.is_string(field.type) else 0
            values[field.name] = pa.array([given.get(field.name, usual)], field.type)
    row = pa.table({field.name: values[field.name] for field in USAGE}, schema=USAGE)
    written = write_data_files(files, row, long_ago, table="usage")
    if is_swept:
        make_older(parquet_files(lake, "usage"), DAY_S)
        assert run(lake).tables[3].orphans == 1
        with pytest.raises(CommitFailed, match="swept up"):
            commit_written(increment, written)
    else:
        commit_written(increment, written)
    assert lake.rows("usage").num_rows == (0 if is_swept else 1)
