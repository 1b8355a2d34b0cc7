"""Batches as devices send them, and lakes with a past as the ingest would have committed it. Nothing is synced."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.transaction import RemoveAction
from numpy.typing import NDArray

from cloud_jobs.lake.appending import AppendedTable, commit_text
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_log import COVERAGE_ROWS, CoverageFile, CoverageWriter, Manifest
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import INGEST_BATCHES, RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import COMMITTED, commit_files, counter_of, next_number
from cloud_jobs.lake.values import NUMBER_BYTES, RECORD_BYTES
from tests.cloud_jobs.ingest.test_decoding import MESSAGES
from waybill.record import Batch, IntervalSet, Position, Record, encode

TENANT = "acme"
EPOCH = 7
DAY_US = 86_400_000_000


def batch_of_fixes(device: str, first: int, count: int, start_us: int, epoch: int = EPOCH) -> bytes:
    """A batch of `count` fixes, one a second, whose seqs begin with `first`; seq 0 would be made at `start_us`."""
    records = tuple(
        Record(seq, start_us + seq * 1_000_000, Position(latitude=53 + seq * 1e-5, longitude=-2.5, speed_mps=9.5))
        for seq in range(first, first + count)
    )
    return encode(Batch(device, epoch, first + count - 1, records))


def fleet(devices: int, batches: int, size: int, *, first: int = 1, start_us: int) -> Iterator[tuple[str, bytes]]:
    """Devices and their batches: each device in turn, `batches` times round."""
    for number in range(batches):
        for device in range(devices):
            name = f"eu-{device:05}"
            yield name, batch_of_fixes(name, first + number * size, size, start_us)


def as_messages(values: Iterable[bytes]) -> pa.Table:
    shared = {"properties": [("tenant", TENANT), ("region", "eu")], "publish_time": datetime.now(UTC), "topic": "t"}
    rows = [shared | {"value": value, "message_id": str(at)} for at, value in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=MESSAGES)


def new_lake(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.create()
    return lake


@contextmanager
def unsynced() -> Iterator[None]:
    """No file is synced: a lake that is built to be measured need not survive a power cut."""
    with patch("os.fsync"):
        yield


def built(folder: Path, build: Callable[[Path], Lake]) -> Lake:
    """The lake in a folder, built unless an earlier run has left it there."""
    done = folder.with_suffix(".built")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        with unsynced():
            build(folder)
        done.touch()
    return Lake(folder)


def _at_once(work: Callable[[], CoverageFile]) -> Future[CoverageFile]:
    outcome: Future[CoverageFile] = Future()
    outcome.set_result(work())
    return outcome


def add_records(lake: Lake, commits: Iterable[pa.Table]) -> None:
    """One commit of the ingest for each table of rows, which are in order of device and seq, with their coverage."""
    records = AppendedTable(lake, "records", INGEST)
    coverage = CoverageWriter(lake.coverage_log, lake.coverage_manifest(records.number), _at_once)
    for made in commits:
        number = next_number(records.number)
        stamp = pa.array(np.full(made.num_rows, counter_of(number)))
        rows = made.set_column(made.schema.get_field_index("ingest_number"), RECORDS.field("ingest_number"), stamp)
        files = write_data_files(lake.files("records"), rows, datetime.now(UTC))
        manifest = coverage.prepare(number, _coverage_of(rows))
        records.commit(files, number)
        coverage.committed(manifest)


def _coverage_of(rows: pa.Table) -> dict[DeviceStream, Coverage]:
    device = rows["device"].combine_chunks().dictionary_encode().indices.to_numpy()
    seq, epoch = rows["seq"].to_numpy(), rows["epoch"].to_numpy()
    first = np.flatnonzero(np.r_[True, (np.diff(device) != 0) | (np.diff(seq) != 1)])
    last = np.r_[first[1:], len(seq)] - 1
    names = rows["device"].take(pa.array(first)).to_pylist()
    ranges: dict[DeviceStream, list[tuple[int, int]]] = {}
    for name, of, low, high in zip(names, epoch[first].tolist(), seq[first].tolist(), seq[last].tolist(), strict=True):
        ranges.setdefault(DeviceStream(TENANT, name, of), []).append((low, high))
    return {
        stream: Coverage(IntervalSet(known), head=max(high for _, high in known)) for stream, known in ranges.items()
    }


def fix_rows(
    device: NDArray[np.int64],
    seq: NDArray[np.int64],
    time_us: NDArray[np.int64],
    latitude: NDArray[np.float64],
    longitude: NDArray[np.float64],
    *,
    epoch: int = EPOCH,
    prefix: str = "de",
) -> pa.Table:
    """Rows of RECORDS for fixes of devices that are numbered, before a commit gives them its number."""
    count = len(device)
    names = pa.array([f"{prefix}-{number:05}" for number in range(int(device.max()) + 1)])
    moment = pa.array(time_us, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    given: dict[str, Any] = {
        "tenant": pa.repeat(TENANT, count),
        "region": pa.repeat("eu", count),
        "device": names.take(pa.array(device)),
        "epoch": np.full(count, epoch),
        "seq": seq,
        "kind": pa.repeat("position", count),
        "device_time": moment,
        "received_at": moment,
        "latitude": np.round(latitude, 7),
        "longitude": np.round(longitude, 7),
        "content_bytes": np.full(count, RECORD_BYTES + 2 * NUMBER_BYTES, np.int32),
        "device_date": pa.array((time_us // DAY_US).astype(np.int32)).cast(pa.date32()),
        "ingest_number": np.zeros(count, np.int64),
    }
    return pa.table([given.get(field.name, pa.nulls(count, field.type)) for field in RECORDS], schema=RECORDS)


@cache
def random_ways(count: int, south: float, west: float, step: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latitudes and longitudes of so many fixes, each near the one before."""
    random = np.random.default_rng(1)
    return south + np.cumsum(random.normal(0, step, count)), west + np.cumsum(random.normal(0, step, count))


def add_streams(
    lake: Lake, devices: Sequence[str], ranges: NDArray[np.int64], *, stated_us: int, complete_us: int, tenant: str
) -> None:
    """One commit of the ingest with the ranges received of each device, a row each; its head is the end of the last."""
    count, width = ranges.shape
    nothing = pa.array(np.zeros(count + 1, np.int32))
    columns: dict[str, Any] = {
        "tenant": pa.repeat(tenant, count),
        "device": pa.array(devices),
        "epoch": np.full(count, EPOCH),
        "head": ranges[:, -1],
        "stated_us": np.full(count, stated_us),
        "stated_head": ranges[:, -1],
        "complete_until_us": np.full(count, complete_us),
        "received": pa.ListArray.from_arrays(
            pa.array(np.arange(0, width * count + 1, width, dtype=np.int32)), pa.array(ranges.ravel())
        ),
        "lost": pa.ListArray.from_arrays(nothing, pa.array([], pa.int64())),
        "reasons": pa.ListArray.from_arrays(nothing, pa.array([], pa.string())),
    }
    known = pa.table([columns[name] for name in COVERAGE_ROWS.names], schema=COVERAGE_ROWS)
    number, log = next_number(None), lake.coverage_log
    # of a level that was merged often enough for so many
    log.write_manifest(Manifest(number, (log.write(known, level=6),)))
    commit_files(lake.open("records"), "records", [], writer=INGEST, previous=None, number=number)


# Very many small commits of the ingest, which a maintenance has merged a thousand at a time. The files of their few
# records are not written: the log names them, and the commit that replaces a thousand names the merged file.

AT_ONCE = 1_000
_RECORDS = 10
_TABLES = ("records", "ingest_batches")


def add_small_commits(lake: Lake, commits: int) -> None:
    """Commits of ten records of one device each, one a second until now, and what a maintenance left of them."""
    number: int | None = None
    coverage = CoverageWriter(lake.coverage_log, lake.coverage_manifest(None), _at_once)
    begin_us = int((time.time() - commits) * 1e6)
    for first in range(0, commits, AT_ONCE):
        count = min(AT_ONCE, commits - first)
        rows = _records(first, count)
        day = rows["device_date"][0].as_py()
        small: dict[str, list[DataFile]] = {table: [] for table in _TABLES}
        for at in range(first, first + count):
            number = next_number(number)
            if at < first + count - 1:
                lake.coverage_log.write_manifest(Manifest(number, coverage.manifest.files))
            else:
                coverage.committed(coverage.prepare(number, _coverage_of(rows)))
            for table, file in zip(_TABLES, _small_files(counter_of(number), day), strict=True):
                text = commit_text([file], {INGEST: number, COMMITTED: begin_us + at * 1_000_000})
                log = Path(lake.path(table)) / "_delta_log"
                # version 0 made the table, and each thousand has one more, which merged it
                (log / f"{1 + at + first // AT_ONCE:020}.json").write_bytes(text)
                small[table].append(file)
        _merge(lake, "records", small["records"], rows)
        _merge(lake, "ingest_batches", small["ingest_batches"], _counts(first, count))


def _records(first: int, count: int) -> pa.Table:
    size = count * _RECORDS
    seq = first * _RECORDS + 1 + np.arange(size)
    day_us = int(time.time() // 86_400 - 31 + first // AT_ONCE % 30) * DAY_US
    place = (np.arange(size) * 1e-5).astype(np.float64)
    rows = fix_rows(np.zeros(size, np.int64), seq, day_us + np.arange(size) * 1_000_000, 53 + place, -2.5 + place)
    stamp = pa.array(first + 1 + np.arange(size) // _RECORDS)
    return rows.set_column(rows.schema.get_field_index("ingest_number"), RECORDS.field("ingest_number"), stamp)


def _counts(first: int, count: int) -> pa.Table:
    given = {
        "messages": 1,
        "records": _RECORDS,
        "accepted": _RECORDS,
        "seconds": 0.1,
        "clocks_ahead": "",
        "unreadable": 0,
        "unreadable_of": "",
        "committed_at": datetime.now(UTC),
    }
    rows = [
        {field.name: given.get(field.name, 0) for field in INGEST_BATCHES} | {"ingest_number": at + 1}
        for at in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema=INGEST_BATCHES)


def _small_files(ingest_number: int, day: date) -> Iterator[DataFile]:
    now_ms = int(time.time() * 1000)
    last = ingest_number * _RECORDS
    low: dict[str, Any] = {"tenant": TENANT, "device": "de-00000", "epoch": 7, "seq": last - _RECORDS + 1}
    low |= {"device_time": f"{day}T00:00:00.000Z", "ingest_number": ingest_number}
    high = low | {"seq": last, "device_time": f"{day}T23:59:59.999Z"}
    path = f"device_date={day}/part-{uuid4().hex}.parquet"
    yield DataFile(path, 4_700, day, _stats(low, high, _RECORDS), now_ms)
    one: dict[str, Any] = {"ingest_number": ingest_number}
    yield DataFile(f"part-{uuid4().hex}.parquet", 3_200, None, _stats(one, one, 1), now_ms)


def _stats(low: dict[str, Any], high: dict[str, Any], rows: int) -> str:
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)})


def _merge(lake: Lake, table: str, small: Sequence[DataFile], rows: pa.Table) -> None:
    """Replaces files by one that has their rows, in one commit, and makes a checkpoint."""
    opened, layout = lake.open(table), TABLES[table]
    added = write_data_files(lake.files(table), rows, datetime.now(UTC), table=table)
    removed = [
        RemoveAction(file.path, False, file.written_ms, file.size, {**file.add_action().partition_values})
        for file in small
    ]
    opened.create_write_transaction(
        [*removed, *(file.add_action() for file in added)],
        "append",
        layout.schema,
        [*layout.partition_by],
        commit_properties=CommitProperties(app_transactions=[Transaction("merge", 1)]),
    )
    opened.update_incremental()
    opened.create_checkpoint()
