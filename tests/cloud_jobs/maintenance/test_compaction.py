"""Merges of real files: every row once, in order, whatever is read at a time and whatever is committed meanwhile."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import FileLimits, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.job import compact
from cloud_jobs.maintenance.sweeping import table_files
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, take_in
from tests.cloud_jobs.maintenance.upkeep import keys_of, positions, raw, run
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


def test_what_does_not_fit_into_memory_is_parted_into_files_that_do_not_overlap(lake: Lake) -> None:
    size = sum(file.size for file in table_files(lake.open("records"), "records"))
    rewriter = Rewriter(lake, FileLimits(size // 6, 7_000))
    assert compact(rewriter, "records", 2).merges == 1
    keys = [keys_of(Path(lake.path("records")) / path) for path in files_of(lake)]
    assert 1 < len(keys) <= 6
    assert [*chain(*sorted(keys))] == sorted(chain(*keys))
    assert check(lake) == IntervalSet([(1, 30)])
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
            assert other.rewrite("records", files[1:3]).done

    assert not Rewriter(lake, FileLimits(1 << 30, 1 << 20), reached=first).rewrite("records", files[:2]).done
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
