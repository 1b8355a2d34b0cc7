"""The lake in Spark: its tables as data frames, what is new in them, and commits that are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.lake.tables import Lake

Transform = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function of a partition's rows, as `mapInArrow` takes it."""


def read_table(spark: SparkSession, lake: Lake, table: str, version: int | None = None) -> DataFrame:
    """A table as it is now, or a version of it."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(lake.path(table))


def read_inserted(spark: SparkSession, lake: Lake, table: str, since: int, until: int) -> DataFrame:
    """The rows that came into a table after version `since`, up to `until`."""
    return (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        # both ends are included
        .option("startingVersion", since + 1)
        .option("endingVersion", until)
        .load(lake.path(table))
        .where("_change_type = 'insert'")
    )


def append_once(rows: DataFrame, lake: Lake, table: str, *, writer: str, number: int, metadata: str) -> bool:
    """Appends rows in one commit, which is the writer's commit of that number. False: it was made before, by another.

    `metadata` is of this commit and of no other.
    """
    (
        # a run writes little and often: one file for each commit keeps their number, and the cost of reading them, low
        rows.coalesce(1)
        .write.format("delta")
        .mode("append")
        .option("txnAppId", writer)
        .option("txnVersion", number)
        .option("userMetadata", metadata)
        .save(lake.path(table))
    )
    # Delta drops, without an error, a commit under a number that was used
    return lake.is_committed(table, metadata)


def cast_to(schema: pa.Schema, frame: DataFrame) -> DataFrame:
    """The columns of a schema; those that are not there are null."""
    types = {field.name: field.dataType for field in from_arrow_schema(schema)}
    return frame.select(
        *(
            f.col(name).cast(kind) if name in frame.columns else f.lit(None).cast(kind).alias(name)
            for name, kind in types.items()
        )
    )


def map_sorted(frame: DataFrame, key: str, transform: Transform, schema: pa.Schema, *order: str) -> DataFrame:
    """What a function makes (rows of `schema`) of the rows, which it gets sorted by `key` and `order`.

    Rows of one key are in one partition; `key_groups.group_by_key` puts whole keys together there.
    """
    in_order = frame.repartition(key).sortWithinPartitions(key, *order)
    return in_order.mapInArrow(transform, from_arrow_schema(schema))


def persist_until(held: ExitStack, frame: DataFrame) -> DataFrame:
    """Keeps what a frame holds once it was computed, until `held` is closed."""
    # counting, joining and writing would each compute it anew
    held.callback(frame.persist().unpersist)
    return frame
