"""What executors write is what was given, in order, one file a day, and described so that a reader skips it."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from cloud_jobs.lake.data_files import DataFile, StoredFiles, in_pieces, read_data_file, text_lengths, write_data_files
from cloud_jobs.lake.location import sync_files
from cloud_jobs.lake.schemas import RECORDS
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.examples import examples
from tests.new_lakes import new_lake
from waybill.daemon.durable_file import create_durably

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


spans = st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1]))


def apart(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if not kept or low > kept[-1][1]:
            kept.append((low, high))
    return kept


@given(st.lists(spans | st.none(), max_size=8), st.lists(spans, max_size=6).map(apart))
def test_a_file_is_opened_if_its_bounds_meet_a_range_or_are_not_known(
    bounds: list[tuple[int, int] | None], ranges: list[tuple[int, int]]
) -> None:
    paths = [str(at) for at in range(len(bounds))]
    ends = {name: [one and one[at] for one in bounds] for at, name in enumerate(("min.seq", "max.seq"))}
    columns = {"path": pa.array(paths, pa.string())} | {name: pa.array(ends[name], pa.int64()) for name in ends}
    found = StoredFiles("records", pa.table(columns)).within("seq", ranges).paths
    meets = [one is None or any(one[0] <= high and low <= one[1] for low, high in ranges) for one in bounds]
    assert found == [path for path, met in zip(paths, meets, strict=True) if met]


def test_without_bounds_every_file_is_opened() -> None:
    stored = StoredFiles("records", pa.table({"path": ["a", "b"]}))
    assert stored.within("seq", [(1, 2)]).paths == ["a", "b"]


texts = st.lists(st.none() | st.text(max_size=30), max_size=60)


@given(texts, st.booleans())
def test_pieces_are_the_rows_in_order_and_none_has_more_than_allowed(values: list[str | None], encoded: bool) -> None:
    column = pa.chunked_array([pa.array(values, pa.string())])
    rows = pa.table({"text": column.dictionary_encode() if encoded else column, "at": range(len(values))})
    sizes = [len((value or "").encode()) for value in values]
    assert text_lengths(rows).tolist() == sizes
    pieces = [*in_pieces(rows, 20, 64)]
    assert [at for piece in pieces for at in piece["at"].to_pylist()] == [*range(len(values))]
    for piece in pieces:
        assert 0 < piece.num_rows <= 20
        assert piece.num_rows == 1 or sum(sizes[at] for at in piece["at"].to_pylist()) <= 64
    assert len(pieces) <= 1 + len(values) // 20 + 2 * sum(sizes) // 64


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_file_and_each_folder_above_it_in_the_lake_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    sync_files(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), ["a/b/file", "a/gone"])
    assert synced[0] == tmp_path / "a" / "b" / "file"
    assert set(synced[1:]) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}


def test_a_commit_names_only_what_is_on_disk_and_is_on_disk_before_the_ingest_goes_on(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    writer = new_ingest(lake)
    before: list[Path] = []

    def commit(path: Path, content: bytes) -> bool:
        if not before:
            before.extend(synced)
        return create_durably(path, content)

    with monkeypatch.context() as watched:
        watched.setattr("cloud_jobs.lake.appending.create_durably", commit)
        take_in(lake, writer, [batch(1, 2), batch(3, day=1)])
    named = {Path(uri) for uri in lake.open("records").file_uris()}
    coverage = {*(tmp_path / "coverage").rglob("*.json"), *(tmp_path / "coverage").rglob("*.parquet")}
    assert len(named) == len(coverage) == 2
    assert {*named, *coverage} <= {*before}
    log = tmp_path / "records" / "_delta_log"
    after = {*synced} - {*before}
    assert log in after
    assert any(path.parent == log for path in after), "its content, under the name that it had before it was there"
