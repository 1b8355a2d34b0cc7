"""Records a second from messages in Arrow to a committed row, without Pulsar: `python -m benchmarks.ingest`.

Each micro-batch is one call of what the streaming query calls; the first one, which starts Python's workers, is not
counted. Beside it stands the limit: decoding and writing of the same messages in one process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.job import MicroBatchHandler
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.lake.tables import Lake
from cloud_jobs.spark import SparkSettings, start_spark
from telemetry import Batch, Position, Record, encode

MESSAGES = pa.schema(
    [
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("message_id", pa.string()),
        ("malformed", pa.string()),
    ]
)
NOON_US = 1_767_614_400_000_000


def messages(devices: int, batches: int, size: int, first: int) -> Iterator[bytes]:
    """Batches of `size` fixes, of each device so many one after the other."""
    for number in range(batches):
        start = first + number * size
        records = tuple(
            Record(seq, NOON_US + seq * 1_000_000, Position(latitude=53 + seq * 1e-5, longitude=-2.5, speed_mps=9.5))
            for seq in range(start, start + size)
        )
        for device in range(devices):
            yield encode(Batch(f"eu-{device:05}", 7, start + size - 1, records))


def write_messages(path: Path, values: list[bytes]) -> None:
    shared = {"properties": [("tenant", "acme"), ("region", "eu")], "publish_time": datetime.now(UTC), "topic": "t"}
    rows = [shared | {"value": value, "message_id": str(at)} for at, value in enumerate(values)]
    table = pa.Table.from_pylist(rows, schema=MESSAGES)
    path.mkdir(parents=True)
    half = (table.num_rows + 1) // 2
    # two files, as of two topic partitions: two tasks
    for at in range(2):
        pq.write_table(table.slice(at * half, half), path / f"{at}.parquet")


def limit(folder: Path, path: Path) -> float:
    """Seconds for the same messages in one process: decoded, checked, written; nothing decided or committed."""
    lake = Lake(folder)
    lake.create()
    batches = pq.read_table(path).cast(MESSAGES).to_batches(max_chunksize=10_000)
    began = time.perf_counter()
    for decoded in decode_messages(batches):
        write_part(lake.files("records"), decoded, 1, datetime.now(UTC))
    return time.perf_counter() - began


def run(spark: SparkSession, folder: Path, *, size: int, records: int, rounds: int, repeated: float) -> None:
    devices = 500
    batches = max(records // size // devices, 1)
    lake = Lake(folder / "lake")
    lake.create()
    handler = MicroBatchHandler(spark, lake)
    seconds: list[float] = []
    before: list[bytes] = []
    for number in range(rounds + 1):
        values = list(messages(devices, batches, size, 1 + number * batches * size))
        path = folder / "messages" / str(number)
        write_messages(path, values + before[: int(len(before) * repeated)])
        before = values
        frame = spark.read.parquet(str(path))
        began = time.perf_counter()
        handler(frame, number)
        seconds.append(time.perf_counter() - began)
    count = batches * devices * size
    alone = limit(folder / "alone", path)
    took = median(seconds[1:])
    print(
        f"{size} records a batch, {count:,} records a micro-batch, {repeated:.0%} repeated: {took:.2f} s"
        f" (all: {', '.join(f'{one:.2f}' for one in seconds)}), {count / took:,.0f} records/s;"
        f" limit in one process {count * (1 + repeated) / alone:,.0f} records/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=400_000, help="a micro-batch, at 200 records a batch")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    spark = start_spark("ingest-benchmark", SparkSettings(master=options.master))
    try:
        for size, records, repeated in (
            (200, options.records, 0.0),
            (10, options.records // 8, 0.0),
            (200, options.records, 0.01),
            (10, 5_000, 0.0),
        ):
            with tempfile.TemporaryDirectory() as folder:
                run(spark, Path(folder), size=size, records=records, rounds=options.rounds, repeated=repeated)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
