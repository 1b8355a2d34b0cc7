"""Lakes with a past: records as the ingest would have committed them, in few big commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.centre.batches import EPOCH, TENANT
from cloud_jobs.lake.appending import AppendedTable
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_log import CoverageFile, CoverageWriter
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, next_number
from cloud_jobs.lake.values import NUMBER_BYTES, RECORD_BYTES
from waybill.record import IntervalSet

DAY_US = 86_400_000_000


def new_lake(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.create()
    return lake


@contextmanager
def unsynced() -> Iterator[None]:
    """No file is synced: a lake that is built to be measured need not survive a power cut."""
    with patch("os.fsync"):
        yield


def at_once(work: Callable[[], CoverageFile]) -> Future[CoverageFile]:
    outcome: Future[CoverageFile] = Future()
    outcome.set_result(work())
    return outcome


def add_records(lake: Lake, commits: Iterable[pa.Table]) -> None:
    """One commit of the ingest for each table of rows, which are in order of device and seq, with their coverage."""
    records = AppendedTable(lake, "records", INGEST)
    coverage = CoverageWriter(lake.coverage_log, lake.coverage_manifest(records.number), at_once)
    for made in commits:
        number = next_number(records.number)
        stamp = pa.array(np.full(made.num_rows, counter_of(number)))
        rows = made.set_column(made.schema.get_field_index("ingest_number"), RECORDS.field("ingest_number"), stamp)
        files = write_data_files(lake.files("records"), rows, datetime.now(UTC))
        manifest = coverage.prepare(number, said_of(rows))
        records.commit(files, number)
        coverage.committed(manifest)


def said_of(rows: pa.Table) -> dict[DeviceStream, Coverage]:
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


def fixes(
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
