"""A query in a process of its own, to be killed: `python -m tests.cloud_jobs.pulsar_source.query SPEC.json`.

SPEC: {"options": {...}, "checkpoint": path, "output": path, "available_now": bool, "master": "local[2,4]"}. It writes
the numbers and the ids of the messages, one Parquet file for each micro-batch, until it is killed, or to the end of
what there is.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.spark import start_spark


def run(spec: dict[str, Any]) -> None:
    output = Path(spec["output"])
    output.mkdir(exist_ok=True)
    spark = start_spark("killed", SparkSettings(master=spec["master"]))
    spark.dataSource.register(PulsarDataSource)
    frame = spark.readStream.format("pulsar").options(**spec["options"]).load()
    rows = frame.selectExpr("cast(cast(value AS string) AS bigint) AS number", "message_id")
    writer = rows.writeStream.foreachBatch(partial(write_once, output))
    writer = writer.option("checkpointLocation", spec["checkpoint"])
    query = (writer.trigger(availableNow=True) if spec["available_now"] else writer).start()
    query.awaitTermination()


def write_once(output: Path, rows: DataFrame, batch: int) -> None:
    """Writes a micro-batch whole or not at all. One that is there stays as it is when Spark repeats it.

    So a source that gave a repeated micro-batch other messages would lose some, or have them twice.
    """
    file = output / f"{batch}.parquet"
    if not file.exists():
        unfinished = file.with_suffix(".unfinished")
        pq.write_table(rows.toArrow(), unfinished)
        unfinished.rename(file)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
