"""Lakes with a past: records as the ingest would have committed them, in few big commits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.centre.batches import EPOCH, TENANT
from cloud_jobs.lake.coverage_log import Manifest
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number

DAY_US = 86_400_000_000


def new_lake(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.create()
    return lake


def add_records(lake: Lake, commits: Iterable[pa.Table]) -> None:
    """One commit of the ingest for each table of rows; its coverage says nothing, which no reader of records needs."""
    opened = lake.open("records")
    previous = newest_number(opened, INGEST)
    for made in commits:
        number = next_number(previous)
        stamp = pa.array(np.full(made.num_rows, counter_of(number)))
        rows = made.set_column(made.schema.get_field_index("ingest_number"), RECORDS.field("ingest_number"), stamp)
        files = write_data_files(lake.files("records"), rows, datetime.now(UTC))
        lake.coverage_log.write_manifest(Manifest(number, ()))
        commit_files(opened, "records", files, writer=INGEST, previous=previous, number=number)
        previous = number


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
        "device_date": pa.array((time_us // DAY_US).astype(np.int32)).cast(pa.date32()),
        "ingest_number": np.zeros(count, np.int64),
    }
    return pa.table([given.get(field.name, pa.nulls(count, field.type)) for field in RECORDS], schema=RECORDS)
