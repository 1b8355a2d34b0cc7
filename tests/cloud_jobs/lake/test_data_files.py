"""What executors write is what was given, in order, one file a day, and described so that a reader skips it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from cloud_jobs.lake.data_files import DataFile, read_data_file, write_data_files
from cloud_jobs.lake.schemas import RECORDS
from tests.examples import examples

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def row(seq: int, device: str = "d", time: datetime = NOON, **more: Any) -> dict[str, Any]:
    fixed = {"tenant": "acme", "device": device, "epoch": 7, "seq": seq, "kind": "canary", "ingest_number": 3}
    fixed |= {"content_bytes": 16}
    return fixed | {"device_time": time, "device_date": time.date()} | more


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([*rows], schema=RECORDS)


@pytest.fixture
def files(tmp_path: Path) -> FileSystem:
    return SubTreeFileSystem(str(tmp_path), LocalFileSystem())


def written(files: FileSystem, *rows: dict[str, Any]) -> list[DataFile]:
    return write_data_files(files, table(*rows), NOON)


ids = st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["a", "b", "a.b"]), st.integers(1, 9), st.integers(0, 2))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(st.lists(ids, min_size=1, max_size=12))
def test_the_files_hold_the_rows_in_order_each_in_the_one_of_its_day(
    files: FileSystem, made: list[tuple[str, str, int, int]]
) -> None:
    rows = [
        row(seq, device, NOON + timedelta(days), name=str(at), tenant=tenant)
        for at, (tenant, device, seq, days) in enumerate(made)
    ]
    found = written(files, *rows)
    assert len({file.day for file in found}) == len(found)
    for file in found:
        mine = [one for one in rows if one["device_date"] == file.day]
        expected = table(*sorted(mine, key=lambda one: (one["tenant"], one["device"], one["epoch"], one["seq"])))
        assert read_data_file(files, file).equals(expected)


def test_a_file_says_what_it_holds(files: FileSystem) -> None:
    first, last = NOON + timedelta(microseconds=1), NOON + timedelta(microseconds=1_000_001)
    (file,) = written(files, row(9, "b", last), row(2, "a", first, tenant="abel"))
    assert json.loads(file.stats) == {
        "numRecords": 2,
        "minValues": {
            "tenant": "abel",
            "device": "a",
            "epoch": 7,
            "seq": 2,
            "device_time": "2026-01-05T12:00:00.000Z",
            "ingest_number": 3,
        },
        "maxValues": {
            "tenant": "acme",
            "device": "b",
            "epoch": 7,
            "seq": 9,
            "device_time": "2026-01-05T12:00:01.001Z",
            "ingest_number": 3,
        },
        "nullCount": {"tenant": 0, "device": 0, "epoch": 0, "seq": 0, "device_time": 0, "ingest_number": 0},
    }
    action = file.add_action()
    assert (action.path, action.partition_values) == (file.path, {"device_date": "2026-01-05"})
    assert action.size == files.get_file_info(file.path).size


def test_a_clock_far_off_goes_to_a_file_without_a_day_and_without_bounds_of_time(files: FileSystem) -> None:
    far = datetime(9892, 1, 1, tzinfo=UTC)
    (file,) = written(files, row(1, time=far, device_date=None))
    assert (file.day, file.add_action().partition_values) == (None, {"device_date": None})
    assert "device_time" not in json.loads(file.stats)["minValues"]
    assert read_data_file(files, file)["device_time"].to_pylist() == [far]


def test_delta_reads_what_a_commit_names_and_skips_by_its_bounds(tmp_path: Path, files: FileSystem) -> None:
    DeltaTable.create(tmp_path, schema=RECORDS, partition_by=["device_date"])
    opened = DeltaTable(tmp_path)
    made = written(files, row(1, "a"), row(5, "b", NOON + timedelta(1)))
    opened.create_write_transaction([file.add_action() for file in made], "append", RECORDS, ["device_date"])
    opened.update_incremental()
    found = opened.to_pyarrow_dataset(schema=RECORDS).to_table().sort_by("seq")
    assert found.to_pylist() == table(row(1, "a"), row(5, "b", NOON + timedelta(1))).to_pylist()
    assert len(opened.file_uris(file_pruning_predicate="device = 'b' AND seq >= 2")) == 1
    assert opened.file_uris(file_pruning_predicate="seq > 5") == []
