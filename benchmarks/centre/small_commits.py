"""A lake after very many small commits of the ingest, which a maintenance has merged a thousand at a time.

Each commit has its file in the logs of `records` and `ingest_batches` and its manifest, written by the ingest's own
code. The files of its few records are not written one by one: the log names them, and the commit that replaces a
thousand of them names the file, written as maintenance writes it, that holds their records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.transaction import RemoveAction

from benchmarks.centre.batches import TENANT
from benchmarks.centre.lakes import DAY_US, at_once, fixes, said_of
from cloud_jobs.lake.appending import commit_text
from cloud_jobs.lake.coverage_log import CoverageWriter, Manifest
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import INGEST_BATCHES, RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import COMMITTED, counter_of, next_number

AT_ONCE = 1_000
_RECORDS = 10
_TABLES = ("records", "ingest_batches")


def add_small_commits(lake: Lake, commits: int) -> None:
    """Commits of ten records of one device each, one a second until now, and what a maintenance left of them."""
    number: int | None = None
    coverage = CoverageWriter(lake.coverage_log, lake.coverage_manifest(None), at_once)
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
                coverage.committed(coverage.prepare(number, said_of(rows)))
            for table, file in zip(_TABLES, _small_files(counter_of(number), day), strict=True):
                text = commit_text([file], {INGEST: number, COMMITTED: begin_us + at * 1_000_000})
                log = Path(lake.path(table)) / "_delta_log"
                (log / f"{_next_version(first, at):020}.json").write_bytes(text)
                small[table].append(file)
        _merge(lake, "records", small["records"], rows)
        _merge(lake, "ingest_batches", small["ingest_batches"], _counts(first, count))


def _next_version(first: int, at: int) -> int:
    # version 0 made the table, and each thousand has one more, which merged it
    return 1 + at + first // AT_ONCE


def _records(first: int, count: int) -> pa.Table:
    size = count * _RECORDS
    seq = first * _RECORDS + 1 + np.arange(size)
    day_us = int(time.time() // 86_400 - 31 + first // AT_ONCE % 30) * DAY_US
    place = (np.arange(size) * 1e-5).astype(np.float64)
    rows = fixes(np.zeros(size, np.int64), seq, day_us + np.arange(size) * 1_000_000, 53 + place, -2.5 + place)
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


def _values(file: DataFile) -> dict[str, str | None]:
    return {**file.add_action().partition_values}


def _stats(low: dict[str, Any], high: dict[str, Any], rows: int) -> str:
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)})


def _merge(lake: Lake, table: str, small: Sequence[DataFile], rows: pa.Table) -> None:
    """Replaces files by one that has their rows, in one commit, and makes a checkpoint."""
    opened, layout = lake.open(table), TABLES[table]
    added = write_data_files(lake.files(table), rows, datetime.now(UTC), table=table)
    removed = [RemoveAction(file.path, False, file.written_ms, file.size, _values(file)) for file in small]
    opened.create_write_transaction(
        [*removed, *(file.add_action() for file in added)],
        "append",
        layout.schema,
        [*layout.partition_by],
        commit_properties=CommitProperties(app_transactions=[Transaction("merge", 1)]),
    )
    opened.update_incremental()
    opened.create_checkpoint()
