"""The lake in Spark: its tables as data frames, and files that executors read and write without the JVM's rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake

Transform = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function of a partition's rows, as `mapInArrow` takes it."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_FILES = pa.schema([pa.field("file", pa.binary(), nullable=False)])
_ROWS_AT_ONCE = 65_536
_ROWS_IN_FILE = 1_000_000
_TASKS_PER_CORE = 4


def read_files(
    spark: SparkSession, lake: Lake, stored: StoredFiles, columns: Sequence[str], ranges: Mapping[str, Range]
) -> DataFrame:
    """Some columns of the rows of files whose columns are all within `ranges`; executors read them, each some files."""
    files, table, paths = lake.files(stored.table), stored.table, stored.paths
    schema = pa.schema([TABLES[table].schema.field(name) for name in columns])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                for rows in stored_rows(files, table, path, columns, ranges):
                    yield from rows.to_batches(max_chunksize=_ROWS_AT_ONCE)

    tasks = max(min(len(paths), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE), 1)
    listed = spark.sparkContext.parallelize([(path,) for path in paths], tasks)
    return spark.createDataFrame(listed, "path string").mapInArrow(read, from_arrow_schema(schema))


def write_files(rows: DataFrame, lake: Lake, table: str, now: datetime) -> list[DataFile]:
    """Writes rows, with the columns of a table, into files of it, which belong to it when they are committed."""
    files, layout = lake.files(table), TABLES[table]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.Table] = []
        written: list[DataFile] = []
        for batch in batches:
            held.append(pa.Table.from_batches([batch]).cast(layout.schema))
            if sum(part.num_rows for part in held) >= _ROWS_IN_FILE:
                written += write_data_files(files, pa.concat_tables(held), now, table=table)
                held = []
        if held:
            written += write_data_files(files, pa.concat_tables(held), now, table=table)
        # what executors of this job write is read by its driver alone
        yield pa.RecordBatch.from_pylist([{"file": pickle.dumps(one)} for one in written], schema=_FILES)

    # a run writes little and often: few files for each commit keep the cost of reading them low
    found = rows.coalesce(1).mapInArrow(write, from_arrow_schema(_FILES)).toArrow()
    return [pickle.loads(one) for one in found["file"].to_pylist()]  # noqa: S301 - written above


def run_on_executors(spark: SparkSession, work: Callable[[_Item], _Made], items: Sequence[_Item]) -> Sequence[_Made]:
    """What a function makes of each item, each a task of its own."""
    made: list[_Made] = spark.sparkContext.parallelize(items, len(items)).map(work).collect()
    return made


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
