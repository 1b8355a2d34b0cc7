"""Records a second from messages in Arrow to a committed row, without Pulsar.

Each micro-batch is one call of what the streaming query calls; the first one, which starts Python's workers, is not
counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.centre.batches import as_messages, fleet
from benchmarks.harness import Figure
from cloud_jobs.ingest.job import MicroBatchHandler
from cloud_jobs.lake.tables import Lake

DEVICES = 500
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ArrowLoad:
    """Micro-batches of so many records in batches of one size, of which a share comes a second time."""

    size: int
    records: int
    repeated: float = 0.0


LOADS = (ArrowLoad(200, 400_000), ArrowLoad(10, 50_000), ArrowLoad(200, 400_000, 0.01), ArrowLoad(10, 5_000))


def rows(spark: SparkSession, folder: Path) -> Iterator[Figure]:
    for at, load in enumerate(LOADS):
        yield _measured(spark, folder / str(at), load)


def _measured(spark: SparkSession, folder: Path, load: ArrowLoad) -> Figure:
    batches = max(load.records // load.size // DEVICES, 1)
    lake = Lake(folder / "lake")
    lake.create()
    handler = MicroBatchHandler(spark, lake)
    begin_us = int((time.time() - 86_400) * 1e6)
    seconds: list[float] = []
    before: list[bytes] = []
    for number in range(ROUNDS + 1):
        first = 1 + number * batches * load.size
        values = [value for _, value in fleet(DEVICES, batches, load.size, first=first, start_us=begin_us)]
        path = folder / "messages" / str(number)
        _write(path, values + before[: int(len(before) * load.repeated)])
        before = values
        frame = spark.read.parquet(str(path))
        began = time.perf_counter()
        handler(frame, number)
        seconds.append(time.perf_counter() - began)
    count = batches * DEVICES * load.size
    took = median(seconds[1:])
    what = f"{load.size} records a batch, {count:,} a micro-batch, {load.repeated:.0%} repeated"
    return Figure(what, "", f"{count / took:,.0f} records/s, {took:.2f} s")


def _write(path: Path, values: list[bytes]) -> None:
    table = as_messages(values)
    path.mkdir(parents=True)
    half = (table.num_rows + 1) // 2
    # two files, as of two topic partitions: two tasks
    for at in range(2):
        pq.write_table(table.slice(at * half, half), path / f"{at}.parquet")
