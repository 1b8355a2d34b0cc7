"""Merges of real files: every row once, in order, whatever is read at a time and whatever is committed meanwhile."""

from __future__ import annotations

import json
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance import merge_plan
from cloud_jobs.maintenance.job import compact
from cloud_jobs.maintenance.key_ranges import RowSource
from cloud_jobs.maintenance.merge_plan import FileLimits
from cloud_jobs.maintenance.rewriting import MaintenancePoint, Rewriter
from cloud_jobs.maintenance.table_files import table_files
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, take_in
from tests.cloud_jobs.maintenance.upkeep import keys_of, positions, raw, run
from tests.examples import examples
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


def test_a_day_too_large_for_one_merge_is_sorted_by_several_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_plan, "_FILES", 3)
    rewriter = Rewriter(lake, FileLimits(1 << 30, 1 << 20))
    merges = [compact(rewriter, "records", 2) for _ in range(2)]
    # ten files by threes, and then what was made of them; the last one is too little to sort the day again
    assert [made.merges for made in merges] == [4, 0]
    assert [file.rows for file in table_files(lake.open("records"), "records")] == [45, 5]
    assert check(lake) == IntervalSet([(1, 30)])


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


def test_a_file_grows_by_what_fits_into_memory_and_its_bounds_are_those_of_all_its_rows(lake: Lake) -> None:
    rows = lake.rows("records")
    assert compact(Rewriter(lake, FileLimits(1 << 30, 7_000)), "records", 2).merges == 1
    (file,) = table_files(lake.open("records"), "records")
    assert keys_of(Path(lake.path("records")) / file.path) == sorted(keys_of(Path(lake.path("records")) / file.path))
    assert (file.rows, file.nulls["latitude"]) == (50, 40)
    for name in ("device", "seq", "ingest_number"):
        assert (file.low[name], file.high[name]) == tuple(pc.min_max(rows[name]).as_py().values())
    assert file.low["device_time"] <= pc.min(rows["device_time"]).as_py()
    assert file.high["device_time"] >= pc.max(rows["device_time"]).as_py()


def test_the_bounds_of_a_merged_file_are_those_of_its_rows(lake: Lake) -> None:
    run(lake)
    (file,) = table_files(lake.open("records"), "records")
    assert (file.low["device"], file.high["device"], file.low["seq"], file.high["seq"]) == ("d", "f", 1, 30)
    assert (file.low["ingest_number"], file.high["ingest_number"], file.rows) == (1, 10, 50)
    assert file.nulls["latitude"] == 40


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


def test_a_replacement_whose_answer_was_lost_keeps_its_files_whatever_was_replaced_since(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = table_files(lake.open("records"), "records")
    rewriter = Rewriter(lake, FileLimits(1 << 30, 1 << 20))
    commit = DeltaTable.create_write_transaction

    def lost(opened: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
        opened.create_write_transaction(*args, **kwargs)
        assert rewriter.rewrite("records", files[2:4]).done
        raise OSError("no answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert rewriter.rewrite("records", files[:2]).done
    assert check(lake) == IntervalSet([(1, 30)])


def test_commits_of_an_ingest_between_each_two_steps_do_not_keep_a_merge_from_its_end(lake: Lake) -> None:
    writer = new_ingest(lake)
    more = iter(range(31, 60))

    def ingest(_: MaintenancePoint) -> None:
        take_in(lake, writer, [batch(next(more))])

    assert run(lake, reached=ingest).tables[0].left == 0
    assert len(files_of(lake)) < 9
    assert check(lake) == IntervalSet([(1, next(more) - 1)])


def test_a_file_that_another_engine_merged_is_merged_too(lake: Lake) -> None:
    lake.open("records").optimize.compact()
    take_in(lake, new_ingest(lake), [batch(31)])
    run(lake)
    assert len(files_of(lake)) == 1
    assert check(lake) == IntervalSet([(1, 31)])


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


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=40),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 50),
)
def test_ranges_part_the_rows_whatever_they_are(parts: list[list[tuple[str, int, int]]], at_most: int) -> None:
    schema = pa.schema([("device", pa.string()), ("epoch", pa.int64()), ("seq", pa.int64())])
    with TemporaryDirectory() as folder:
        for at, rows in enumerate(parts):
            held = [dict(zip(schema.names, row, strict=True)) for row in sorted(rows)]
            pq.write_table(pa.Table.from_pylist(held, schema=schema), f"{folder}/{at}", row_group_size=5)
        files = SubTreeFileSystem(folder, LocalFileSystem())
        paths = tuple(str(at) for at in range(len(parts)))
        source = RowSource(files, paths, schema, ("device", "epoch", "seq"))
        found = [source.read(keys).to_pylist() for keys in source.ranges(at_most * 1000)]
    flat = [tuple(row.values()) for piece in found for row in piece]
    assert sorted(flat) == sorted(row for rows in parts for row in rows)
    bounds = [sorted(tuple(row.values()) for row in piece) for piece in found if piece]
    assert all(one[-1] < other[0] for one, other in pairwise(bounds))
