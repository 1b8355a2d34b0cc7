"""Merges of real files: every row once, in order, whatever is read at a time and whatever is committed meanwhile."""

import json
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.errors import CommitFailed
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES, USAGE
from cloud_jobs.lake.snapshots import fences_number, note_fences
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.maintenance.compaction import (
    MERGED_FILES,
    FileLimits,
    MaintenancePoint,
    Rewriter,
    growing_merges,
    overlap,
    settled_merges,
)
from cloud_jobs.maintenance.job import compact
from cloud_jobs.maintenance.sweeping import TableFile, table_files
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, take_in
from tests.cloud_jobs.maintenance.upkeep import folder_of, keys_of, make_older, parquet_files, positions, raw, run
from tests.examples import examples
from tests.new_lakes import new_lake
from waybill.record import IntervalSet


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    for first in range(1, 30, 3):
        take_in(
            made,
            writer,
            [batch(*range(first, first + 3)), batch(first, device="e"), positions(first, device="f", day=0)],
        )
    return made


def files_of(lake: Lake, table: str = "records") -> list[str]:
    return [file.path for file in table_files(lake.open(table), table)]


def test_a_day_that_is_past_becomes_one_file_in_order_and_is_not_touched_again(lake: Lake) -> None:
    before = lake.rows("records").sort_by([(name, "ascending") for name in TABLES["records"].order])
    assert run(lake).tables[0].merges == 1
    (path,) = files_of(lake)
    keys = keys_of(Path(lake.path("records")) / path)
    assert keys == sorted(keys)
    assert lake.rows("records").equals(before)
    assert check(lake) == IntervalSet([(1, 30)])
    assert run(lake).tables[0].merges == 0


def test_what_does_not_fit_into_a_file_is_parted_into_files_that_do_not_overlap(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    writer = new_ingest(lake)
    for first in range(1, 7):
        take_in(lake, writer, [raw(*range(first, 43, 6), payload=Random(first).randbytes(1 << 20))])
    rewriter = Rewriter(lake, FileLimits(2 << 20, 64 << 20))
    assert compact(rewriter, "records", 2).merges == 1
    keys = [keys_of(Path(lake.path("records")) / path) for path in files_of(lake)]
    assert 1 < len(keys) <= 6
    assert [*chain(*sorted(keys))] == sorted(chain(*keys))
    assert check(lake) == IntervalSet([(1, 42)])
    assert compact(rewriter, "records", 2).merges == 0


def test_what_a_merge_holds_is_bounded_by_bytes_whatever_its_rows_are_packed_into(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    seqs = range(1, 1 + 32 * 7)
    for first in seqs[::28]:
        sent = [raw(*range(at, at + 7), payload=bytes(1 << 20)) for at in range(first, first + 28, 7)]
        take_in(lake, new_ingest(lake), sent)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    default = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert run(lake, memory_mb=64).tables[0].merges == 1
    finally:
        pa.set_memory_pool(default)
    assert pool.max_memory() < 110 << 20
    (path,) = files_of(lake)
    metadata = pq.read_metadata(Path(lake.path("records")) / path)
    assert {metadata.row_group(at).num_rows for at in range(metadata.num_row_groups - 1)} <= set(range(8, 33))
    assert check(lake) == IntervalSet([(1, 224)])


def test_a_merge_changes_no_data_in_the_log_and_stops_no_ingest(lake: Lake) -> None:
    writer = new_ingest(lake)
    run(lake)
    log = sorted((Path(lake.path("records")) / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    assert {action["remove"]["dataChange"] for action in actions if "remove" in action} == {False}
    take_in(lake, writer, [batch(31)])
    take_in(lake, writer, [batch(32)])
    assert check(lake) == IntervalSet([(1, 32)])


def test_of_two_merges_of_one_file_the_second_is_given_up_and_leaves_nothing(lake: Lake) -> None:
    files = table_files(lake.open("records"), "records")
    other = Rewriter(lake, FileLimits(1 << 30, 1 << 20))

    def first(point: MaintenancePoint) -> None:
        if point is MaintenancePoint.FILES_WRITTEN:
            assert other.rewrite("records", files[1:3])

    assert not Rewriter(lake, FileLimits(1 << 30, 1 << 20), reached=first).rewrite("records", files[:2])
    assert check(lake) == IntervalSet([(1, 30)])
    assert run(lake).tables[0].orphans == 0


@pytest.mark.parametrize("table", [name for name in TABLES if name != "records"])
def test_the_files_of_every_table_are_merged(tmp_path: Path, table: str) -> None:
    lake = new_lake(tmp_path)
    schema = TABLES[table].schema
    rows = [pa.table({field.name: _values(field.type, at) for field in schema}, schema=schema) for at in range(9)]
    for one in rows:
        write_deltalake(lake.path(table), one, mode="append")
    compact(Rewriter(lake, FileLimits(1 << 30, 1 << 20)), table, 2)
    assert len(files_of(lake, table)) == 1
    order = [(name, "ascending") for name in TABLES[table].order]
    assert lake.rows(table).sort_by(order).equals(pa.concat_tables(rows).combine_chunks().sort_by(order))
    low = table_files(lake.open(table), table)[0].low
    assert low[TABLES[table].order[0]] == lake.rows(table).sort_by(order)[TABLES[table].order[0]][0].as_py()


def _values(kind: pa.DataType, at: int) -> pa.Array:
    """Two values: the same day, so that all rows are in one file's partition."""
    if pa.types.is_date(kind):
        return pa.array([100, 100], pa.int32()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array([True, False])
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return pa.array([[f"{at}"], []], kind)
    if pa.types.is_list(kind):
        return pa.array([[at, 0, 1, 2], [100 - at, 3, 4, 5]], kind)
    numbers = pa.array([at, 100 - at], pa.int64())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return numbers.cast(pa.string()).cast(kind)
    return numbers.cast(kind)


MILLION = 1_000_000
ORDER = ("tenant", "device")
LIMITS = FileLimits(40_000_000, 1 << 28)
"""A million rows of `file`."""


def file(name: Any, rows: int, low: str = "a", high: str = "z") -> TableFile:
    return TableFile(
        f"{name}", rows * 40, rows, None, {"tenant": "t", "device": low}, {"tenant": "t", "device": high}, {}
    )


def merged(files: list[TableFile], taken: tuple[TableFile, ...]) -> list[TableFile]:
    """What is there after a merge of a day that is past: as few files as need be, which part the keys."""
    rest, rows = [one for one in files if one not in taken], sum(one.rows for one in taken)
    parts = max(1, round(rows / MILLION))
    made = [file(f"new {at}", rows // parts, f"{at:03}", f"{at + 1:03}") for at in range(parts)]
    return rest + made


def _settled(files: list[TableFile], limits: FileLimits, order: tuple[str, ...]) -> tuple[TableFile, ...]:
    return next(iter(settled_merges(files, limits, order)), ())


def test_files_of_about_one_size_are_merged_and_full_ones_never() -> None:
    small = [file(at, 10) for at in range(MERGED_FILES)]
    full = [file(at, 900_000) for at in range(100, 120)]
    assert growing_merges(small + full, LIMITS) == [tuple(small)]


@settings(max_examples=examples(20))
@given(st.integers(1, 3000))
def test_however_many_files_come_few_stay(count: int) -> None:
    files = [file(at, 10) for at in range(count)]
    for _ in range(10):
        due = growing_merges(files, LIMITS)
        taken = {one.path for merge in due for one in merge}
        assert sum(len(merge) for merge in due) == len(taken), "no file is in two merges"
        files = [one for one in files if one.path not in taken]
        files += [file(f"by {merge[0].path}", sum(one.rows for one in merge)) for merge in due]
        if not due:
            break
    assert len(files) < 4 * MERGED_FILES


@given(st.lists(st.integers(1, 2_500_000), min_size=1, max_size=12))
def test_a_day_that_is_past_is_sorted_once(sizes: list[int]) -> None:
    files = [file(at, rows) for at, rows in enumerate(sizes)]
    for _ in range(3):
        due = _settled(files, LIMITS, ORDER)
        files = merged(files, due) if due else files
    assert due == ()
    assert len(files) <= 2 + 2 * sum(sizes) / MILLION


def test_what_came_late_is_merged_alone_until_it_is_much() -> None:
    day = [file(at, 800_000, f"{at}", f"{at + 1}") for at in range(5)]
    late = [file("x", 10, "0"), file("y", 10, "0")]
    assert _settled([*day, late[0]], LIMITS, ORDER) == ()
    assert _settled([*day, *late], LIMITS, ORDER) == tuple(late)
    much = file("z", 600_000, "0")
    assert _settled([*day, much], LIMITS, ORDER) == (*day, much)


def spread(name: str, keys: tuple[int, int], size: int) -> TableFile:
    low, high = ({"tenant": "t", "device": f"{key:09}"} for key in keys)
    return TableFile(name, size, size, None, low, high, {})


def sorted_anew(taken: tuple[TableFile, ...], size: int, name: str) -> list[TableFile]:
    """What a merge makes of files whose rows are evenly spread over their keys."""
    points = sorted(
        int(one.low["device"]) + (int(one.high["device"]) - int(one.low["device"])) * at // 99
        for one in taken
        for at in range(100)
    )
    total = sum(one.size for one in taken)
    parts = max(1, round(total / size))
    cuts = [points[(len(points) - 1) * at // parts] for at in range(parts + 1)]
    return [spread(f"{name}/{at}", ends, total // parts) for at, ends in enumerate(pairwise(cuts))]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(1, 60)), min_size=1, max_size=400),
    st.integers(0, 900),
)
def test_a_day_of_any_size_is_sorted_by_merges_that_are_each_bounded(
    some: list[tuple[int, int, int]], whole: int
) -> None:
    limits = FileLimits(50, 1 << 28)
    files = [spread(f"{at}", (min(low, high), max(low, high)), size) for at, (low, high, size) in enumerate(some)]
    files += [spread(f"whole {at}", (0, 10**8), 40) for at in range(whole)]
    for number in range(40):
        due = settled_merges(files, limits, ORDER)
        taken = [one.path for merge in due for one in merge]
        assert len(taken) == len(set(taken)), "no file is in two merges"
        for at, merge in enumerate(due):
            assert sum(one.size for one in merge) <= 32 * 50 + 60
            files = [one for one in files if one not in merge] + sorted_anew(merge, 50, f"{number}/{at}")
        if not due:
            break
    assert not due
    assert not overlap([one for one in files if limits.is_full(one)], ORDER)


DAY_S = 86_400.0


@pytest.fixture
def lake_of_sweeping(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq)])
    return made


def dead_attempt(lake: Lake) -> None:

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.COVERAGE_WRITTEN:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(lake, new_ingest(lake, die), [batch(4, 5)])


def test_files_of_a_dead_attempt_go_when_no_commit_can_name_them_any_more(lake_of_sweeping: Lake) -> None:
    run(lake_of_sweeping, removed_files_kept_hours=0)
    there = parquet_files(lake_of_sweeping)
    dead_attempt(lake_of_sweeping)
    assert len(parquet_files(lake_of_sweeping)) == len(there) + 1
    assert run(lake_of_sweeping).tables[0].orphans == 0
    make_older(parquet_files(lake_of_sweeping), DAY_S)
    assert run(lake_of_sweeping).tables[0].orphans == 1
    assert parquet_files(lake_of_sweeping) == there
    assert check(lake_of_sweeping) == IntervalSet([(1, 3)])


def test_replaced_files_stay_for_those_who_still_read_them(lake_of_sweeping: Lake) -> None:
    reading = lake_of_sweeping.open("records")
    assert run(lake_of_sweeping).tables[0].merges == 1
    make_older(parquet_files(lake_of_sweeping), 3 * DAY_S)
    made = run(lake_of_sweeping)
    assert (made.tables[0].orphans, made.tables[0].replaced_files) == (0, 0)
    assert lake_of_sweeping.rows("records", opened=reading).num_rows == 3
    assert run(lake_of_sweeping, removed_files_kept_hours=0).tables[0].replaced_files == 3
    assert len(parquet_files(lake_of_sweeping)) == 1
    assert check(lake_of_sweeping) == IntervalSet([(1, 3)])


def test_the_log_keeps_the_commits_of_the_days_that_can_be_asked_for(lake_of_sweeping: Lake) -> None:
    log = Path(lake_of_sweeping.path("records")) / "_delta_log"
    writer = new_ingest(lake_of_sweeping)
    for seq in range(4, 15):
        take_in(lake_of_sweeping, writer, [batch(seq)])
        if seq == 12:
            # the commits of the last days are read upon one that is older
            lake_of_sweeping.open("records").create_checkpoint()
    take_in(lake_of_sweeping, writer, [batch(15)])
    long_ago = [path for path in log.iterdir() if path.name[:20].isdigit() and int(path.name[:20]) < 13]
    make_older(long_ago, 30 * DAY_S)
    made = run(lake_of_sweeping, history_days=7)
    assert (made.tables[0].log_files or 99) < 14
    assert check(lake_of_sweeping) == IntervalSet([(1, 15)])
    assert lake_of_sweeping.coverage()


def test_of_former_fences_only_those_that_a_table_was_computed_with_stay(lake_of_sweeping: Lake) -> None:
    for at in range(5):
        note_fences(lake_of_sweeping, [f"fence {at}"])
    for table, fences in (("usage", "fence 3"), ("geofence_events", "fence 1")):
        commit_written(next_increment(lake_of_sweeping, table), [], states={FENCES: fences_number([fences])})
    folder = folder_of(lake_of_sweeping) / "applied_fences" / "features"
    assert run(lake_of_sweeping).fence_files == 0
    make_older(folder.iterdir(), DAY_S)
    note_fences(lake_of_sweeping, ["not committed yet"])
    assert run(lake_of_sweeping).fence_files == 3
    kept = {f"{fences_number([fences]):016x}.geojson" for fences in ("fence 1", "fence 3", "not committed yet")}
    assert {path.name for path in folder.iterdir()} == kept


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_job_whose_files_were_swept_while_it_ran_commits_none_of_them(
    lake_of_sweeping: Lake, *, is_swept: bool
) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=5)
    increment, files = next_increment(lake_of_sweeping, "usage"), lake_of_sweeping.files("usage")
    values = {field.name: pa.array([None], field.type) for field in USAGE if field.nullable}
    given = {"commit_number": 1, "day": long_ago.date(), "hour": long_ago, "computed_at": long_ago}
    for field in USAGE:
        if not field.nullable:
            usual: Any = [] if pa.types.is_list(field.type) else "x" if pa.types.is_string(field.type) else 0
            values[field.name] = pa.array([given.get(field.name, usual)], field.type)
    row = pa.table({field.name: values[field.name] for field in USAGE}, schema=USAGE)
    written = write_data_files(files, row, long_ago, table="usage")
    if is_swept:
        make_older(parquet_files(lake_of_sweeping, "usage"), DAY_S)
        assert run(lake_of_sweeping).tables[3].orphans == 1
        with pytest.raises(CommitFailed, match="swept up"):
            commit_written(increment, written)
    else:
        commit_written(increment, written)
    assert lake_of_sweeping.rows("usage").num_rows == (0 if is_swept else 1)
