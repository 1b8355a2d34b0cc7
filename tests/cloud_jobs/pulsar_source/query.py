"""A query in a process of its own, to be killed: `python -m tests.cloud_jobs.pulsar_source.query SPEC.json`.

SPEC: {"options": {...}, "checkpoint": path, "table": path, "available_now": bool, "master": "local[2,4]"}. It appends
the numbers and the ids of the messages to a Delta table until it is killed, or to the end of what there is.
"""

import json
import sys
from pathlib import Path
from typing import Any

from cloud_jobs.pulsar_source import PulsarDataSource
from cloud_jobs.spark import SparkSettings, start_spark


def run(spec: dict[str, Any]) -> None:
    spark = start_spark("killed", SparkSettings(master=spec["master"]))
    spark.dataSource.register(PulsarDataSource)
    frame = spark.readStream.format("pulsar").options(**spec["options"]).load()
    rows = frame.selectExpr("cast(cast(value AS string) AS bigint) AS number", "message_id")
    writer = rows.writeStream.format("delta")
    writer = writer.option("checkpointLocation", spec["checkpoint"])
    query = (writer.trigger(availableNow=True) if spec["available_now"] else writer).start(spec["table"])
    query.awaitTermination()


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
