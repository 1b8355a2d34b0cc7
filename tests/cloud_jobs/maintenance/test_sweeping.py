"""Only what nobody needs is deleted: by its age, and by what the log says of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector

from cloud_jobs.applied_fences import fences_number, note_fences
from cloud_jobs.errors import CommitFailed
from cloud_jobs.incremental import commit_written, next_increment
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES, USAGE
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from cloud_jobs.status.centre_reader import LakeReader
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, new_lake, take_in
from tests.cloud_jobs.ingest.test_decoding import messages
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


def test_a_micro_batch_that_lasts_too_long_is_not_committed(lake: Lake) -> None:
    writer = new_ingest(lake)
    attempt = writer.begin()
    decoded = next(decode_messages([messages(batch(4))]))
    part = write_part(lake, decoded, attempt.ingest_number, attempt.now)
    with pytest.raises(CommitFailed, match="took longer than"):
        writer.write(attempt._replace(now=attempt.now - timedelta(seconds=MAX_ATTEMPT_S + 1)), [part])
    assert check(lake) == IntervalSet([(1, 3)])


def test_replaced_files_stay_for_those_who_still_read_them(lake: Lake) -> None:
    reading = lake.open("records")
    assert run(lake).tables[0].merges == 1
    make_older(parquet_files(lake), 3 * DAY_S)
    made = run(lake)
    assert (made.tables[0].orphans, made.tables[0].replaced_files) == (0, 0)
    assert lake.dataset("records", reading).count_rows() == 3
    assert run(lake, removed_files_kept_hours=0).tables[0].replaced_files == 3
    assert len(parquet_files(lake)) == 1
    assert check(lake) == IntervalSet([(1, 3)])


def test_coverage_that_no_moment_needs_is_deleted_and_the_rest_is_whole(lake: Lake) -> None:
    dead_attempt(lake)
    folder = folder_of(lake) / "coverage"
    make_older([path for path in folder.rglob("*") if path.is_file()], 30 * DAY_S)
    before = coverage(lake)
    assert run(lake).coverage_files > 0
    assert coverage(lake) == before
    assert check(lake) == IntervalSet([(1, 3)])
    assert len([*(folder / "manifests").iterdir()]) == 2


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


def test_logs_and_coverage_are_listed_now_and_then_and_by_no_look_at_the_status(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    select = FileSelector

    def noted(path: str, **named: bool) -> FileSelector:
        listed.append(path)
        return select(path, **named)

    monkeypatch.setattr("cloud_jobs.maintenance.sweeping.FileSelector", noted)
    monkeypatch.setattr("cloud_jobs.lake.coverage_log.FileSelector", noted)
    monkeypatch.setattr("cloud_jobs.applied_fences.FileSelector", noted)
    at, long = datetime.now(UTC), {"_delta_log", "manifests", "rows"}
    assert run(lake, now=at, log_interval_s=3600).tables[0].log_files
    assert listed.count("manifests") == 1
    assert listed.count("_delta_log") == 2 * len(TABLES)
    listed.clear()
    assert run(lake, now=at + timedelta(seconds=3599), log_interval_s=3600).tables[0].log_files is None
    LakeReader(lake).read()
    assert "" in listed
    assert not long & {*listed}
    # of one more file that lies there old
    make_older([*(folder_of(lake) / "coverage").rglob("*.json")], 30 * DAY_S)
    assert run(lake, now=at + timedelta(seconds=3600), log_interval_s=3600).coverage_files > 0
    assert run(lake, now=at - timedelta(seconds=60), log_interval_s=3600).tables[0].log_files


def test_what_crashes_left_in_logs_and_beside_the_tables_goes_when_it_is_old(lake: Lake) -> None:
    log = Path(lake.path("records")) / "_delta_log"
    names = [".0123456789abcdef.new", ".0123456789abcdef.part", "_commit_0a.json.tmp", f"{7:020}.json#1"]
    left = [*(log / name for name in names), folder_of(lake) / "clock-0a"]
    others = {*log.iterdir(), *folder_of(lake).iterdir()}
    for path in left:
        path.write_text("x")
    run(lake)
    assert all(path.exists() for path in left)
    make_older([*left, *(path for path in others if path.is_file())], DAY_S)
    run(lake)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert check(lake) == IntervalSet([(1, 3)])


def test_how_long_the_log_is_kept_is_written_into_the_table_once(lake: Lake) -> None:
    run(lake, history_days=3)
    version = lake.open("records").version()
    assert lake.open("records").metadata().configuration["delta.logRetentionDuration"] == "interval 3 days"
    run(lake, history_days=3)
    assert lake.open("records").version() == version


def test_a_file_that_is_older_than_its_commit_is_no_orphan(lake: Lake) -> None:
    for path in parquet_files(lake):
        os.utime(path, (0, 0))
    assert run(lake).tables[0].orphans == 0
    assert check(lake) == IntervalSet([(1, 3)])


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
