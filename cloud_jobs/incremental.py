"""What is new in the records since a table that is derived from them was last written, and how that table is written.

The rows of a run and the version of the records that they cover are one commit. A commit is made only on the version
of the table that the run read: of two runs at the same time one is told so, and nothing is written twice.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.errors import CommitConflict
from cloud_jobs.lake import Lake

_RECORDS_VERSION = "records_version"
"""Under which name a commit says what version of the records it covers."""
_RECENT_COMMITS = 20


def covered_version(lake: Lake, table: str) -> int:
    """The version of the records that a table covers; -1: none yet."""
    for commit in lake.open(table).history(_RECENT_COMMITS):
        if commit.get("userMetadata"):
            return int(json.loads(commit["userMetadata"])[_RECORDS_VERSION])
    return -1


def positions_since(spark: SparkSession, lake: Lake, since: int, until: int) -> DataFrame:
    """Device and device time of the positions that came after version `since`, up to `until`.

    Positions of clocks far off (which have no partition) are left out.
    """
    if since < 0:
        # the first run reads the table itself: the log of a lake that ran before does not reach back to its beginning
        found = positions_at(spark, lake, until)
    else:
        found = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", since + 1)
            .option("endingVersion", until)
            .load(lake.path("records"))
            .where("kind = 'position' AND device_date IS NOT NULL AND _change_type = 'insert'")
        )
    return found.select("device", "device_time")


def touched_spans(positions: DataFrame, name: str, *, span_ms: int, margin_ms: int) -> DataFrame:
    """Devices and, as `name`, the numbers of the spans of time in which a new fix can change something.

    Those are all spans from the margin before it to the margin after it, however many.
    """
    t_ms = f.unix_millis("device_time")
    around = f.sequence(f.floor((t_ms - margin_ms) / span_ms), f.floor((t_ms + margin_ms) / span_ms))
    return positions.select("device", f.explode(around).alias(name)).distinct()


def positions_at(spark: SparkSession, lake: Lake, version: int) -> DataFrame:
    """The positions of a version of the records, without those of clocks far off."""
    table = spark.read.format("delta").option("versionAsOf", version).load(lake.path("records"))
    return table.where("kind = 'position' AND device_date IS NOT NULL")


def commit(
    lake: Lake, table: str, rows: DataFrame, *, read_version: int, covers: int, stamp: str = "emitted_at"
) -> None:
    """Appends rows, with the version of the records that they cover. No rows: only that.

    `stamp`: the column that takes the time of now. `read_version`: the version of the table from which the rows were
    computed. Raises Overtaken if it is not the newest any more; nothing is written then.
    """
    token = uuid4().hex
    (
        rows.withColumn(stamp, f.lit(datetime.now(UTC)))
        .coalesce(1)
        .write.format("delta")
        .mode("append")
        # Delta drops, without an error, a commit under a number that was used: compare and swap on the version
        .option("txnAppId", table)
        .option("txnVersion", read_version + 1)
        .option("userMetadata", json.dumps({_RECORDS_VERSION: covers, "token": token}))
        .save(lake.path(table))
    )
    if all(token not in (done.get("userMetadata") or "") for done in lake.open(table).history(_RECENT_COMMITS)):
        raise CommitConflict(table)
