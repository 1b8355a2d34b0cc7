"""Which records are new since a derived table was last written, and how that table is written.

The rows of a run and the ingest number up to which they cover the records are one commit. A commit succeeds only on the
version that the run read: of two runs at the same time one gets CommitConflict, and nothing is written twice. New
records are found by the ingest number that each record keeps, whatever was compacted or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.data_files import DataFile, StoredFiles
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import COVERED_COMMIT, covering
from cloud_jobs.lake.tables import COVERS, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number
from cloud_jobs.spark import Transform, cast_to, read_files, write_files

# Rows of a sorted stream as tables of whole keys: a key is never split.


def group_by_key(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: str, rows_at_once: int
) -> Iterator[pa.Table]:
    """Tables of whole keys with about `rows_at_once` rows. Rows of one key must follow each other."""
    held: list[pa.Table] = []
    count = 0
    for batch in batches:
        # batches of one stream may differ in nullability, and then form no table
        part = pa.Table.from_batches([batch]).cast(schema)
        if not part.num_rows:
            continue
        held.append(part)
        count += part.num_rows
        if count < rows_at_once:
            continue
        table = pa.concat_tables(held)
        # rows of the last key may still come
        split = int(pc.index(table[key], table[key][-1]).as_py())
        if split:
            yield table.slice(0, split)
        held, count = [table.slice(split)], table.num_rows - split
    if held:
        yield pa.concat_tables(held)


def by_key(
    schema: pa.Schema, key: str, rows_at_once: int, work: Callable[[pa.Table], Iterable[pa.RecordBatch]]
) -> Transform:
    """A function of sorted rows that does `work` on tables of whole keys."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in group_by_key(batches, schema, key, rows_at_once):
            yield from work(table)

    return run


# Days that cannot be computed again, because their positions are erased.


@dataclass(frozen=True, slots=True)
class ErasedSpans:
    """Which spans of `span_ms` keep what was computed: positions in them, or `margin_ms` before, may be erased."""

    erasures: Erasures
    span_ms: int
    margin_ms: int

    def __bool__(self) -> bool:
        return bool(self.erasures)

    def first_computable(self, tenant: str, device: str) -> int:
        """The number of the first span of a device that can be computed, as can all after it."""
        before = self.erasures.before(tenant, device)
        if before is None:
            return -(1 << 62)
        before_us: int = pa.scalar(before, pa.timestamp("us", tz="UTC")).value
        return -(-(before_us // 1000 + self.margin_ms) // self.span_ms)

    def keep_computable(self, batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
        """The rows (columns `tenant`, `device` and `name`: a day, or the number of a span) that can be computed."""
        for batch in batches:
            columns = zip(*(batch[column].to_pylist() for column in ("tenant", "device", name)), strict=True)
            keep = [_number(span) >= self.first_computable(tenant, device) for tenant, device, span in columns]
            yield batch.filter(pa.array(keep, pa.bool_()))


def _number(span: int | date) -> int:
    return span if isinstance(span, int) else (span - date(1970, 1, 1)).days


_POSITION: Final = "position"
_READ: Final = (
    "tenant",
    "device",
    "epoch",
    "seq",
    "kind",
    "device_time",
    "latitude",
    "longitude",
    "speed_mps",
    "accuracy_m",
    "device_date",
)


@dataclass(frozen=True, slots=True)
class Increment:
    """The records that a derived table does not cover yet: those with an ingest number after `since`, up to `until`.

    `newest`: the number of the commit of the ingest that `until` stands for. `opened`: the table as the run reads it,
    at the commit `previous`. `number`: the number of the commit that the run may make on it. `stored`: the files of the
    records, without those of clocks far off, whose times belong to no hour or day.
    """

    table: str
    since: int
    until: int
    newest: int | None
    previous: int | None
    number: int
    opened: DeltaTable = field(compare=False, repr=False)
    stored: StoredFiles = field(compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.since < self.until

    @property
    def commit_number(self) -> int:
        """The value of the column `commit_number` in the rows of its commit."""
        return counter_of(self.number)

    @property
    def commits(self) -> int:
        """How many commits of the ingest the table is behind."""
        return self.until - self.since

    @property
    def new_files(self) -> StoredFiles:
        """The files that can hold records of the increment."""
        return self.stored.between("ingest_number", self.since + 1, self.until)


def next_increment(lake: Lake, table: str) -> Increment:
    """The increment that is due.

    Raises OtherRecords for a table that covers records that do not exist, as after one of the two was restored.
    """
    # the table first: a later commit of another run then makes this run's commit a conflict
    opened, records = lake.open(table), lake.open("records")
    since, until, newest = covering(opened, table, records)
    previous = newest_number(opened, table)
    stored = StoredFiles.of(records, "records").of_days()
    return Increment(table, since or 0, until, newest, previous, next_number(previous), opened, stored)


def new_positions(spark: SparkSession, lake: Lake, increment: Increment) -> DataFrame:
    """Tenant, device and device time of the positions of an increment."""
    wanted = {"kind": (_POSITION, _POSITION), "ingest_number": (increment.since + 1, increment.until)}
    return read_files(spark, lake, increment.new_files, ("tenant", "device", "device_time"), wanted)


def positions_at(
    spark: SparkSession,
    lake: Lake,
    increment: Increment,
    first: date | None = None,
    last: date | None = None,
) -> DataFrame:
    """The positions up to an increment's end, of all days or between two days; none of clocks far off."""
    return positions_in(spark, lake, increment, increment.stored.of_days(first, last))


def positions_in(spark: SparkSession, lake: Lake, increment: Increment, stored: StoredFiles) -> DataFrame:
    """The positions up to an increment's end in some of its files."""
    wanted = {"kind": (_POSITION, _POSITION), "ingest_number": (None, increment.until)}
    return read_files(spark, lake, stored.between("ingest_number", high=increment.until), _READ, wanted)


def computable(spans: DataFrame, erased: ErasedSpans, name: str) -> DataFrame:
    """The spans of devices (columns `tenant`, `device`, `name`) whose positions are not erased."""
    return spans.mapInArrow(lambda batches: erased.keep_computable(batches, name), spans.schema)


def rows_of_days(spark: SparkSession, lake: Lake, increment: Increment, days: Collection[date]) -> DataFrame:
    """The rows of some days in the table of an increment, as the run reads it."""
    stored = StoredFiles.of(increment.opened, increment.table).on_days(days)
    return read_files(spark, lake, stored, TABLES[increment.table].schema.names, {})


def touched_spans(positions: DataFrame, name: str, *, span_ms: int, margin_ms: int) -> DataFrame:
    """Devices, and as `name` the numbers of the spans of time in which a new fix can change something.

    Those are all spans from the margin before it to the margin after it. The column `device` must name the tenant, too.
    """
    t_ms = f.unix_millis("device_time")
    around = f.sequence(f.floor((t_ms - margin_ms) / span_ms), f.floor((t_ms + margin_ms) / span_ms))
    return positions.select("device", f.explode(around).alias(name)).distinct()


def commit(
    lake: Lake,
    increment: Increment,
    rows: DataFrame,
    *,
    stamp: str = "emitted_at",
    states: Mapping[str, int] | None = None,
) -> None:
    """Append the rows that were computed for an increment, with what they cover. Without rows: only that.

    `stamp`: the column that takes the time of now. `states`: as for `commit_written`. Raises CommitConflict, and writes
    nothing, if another run has written to the table since this one read it.
    """
    now = datetime.now(UTC)
    number = f.lit(increment.commit_number).cast("bigint")
    stamped = rows.withColumn(stamp, f.lit(now)).withColumn("commit_number", number)
    files = write_files(cast_to(TABLES[increment.table].schema, stamped), lake, increment.table, now)
    commit_written(increment, files, states=states)


def commit_written(increment: Increment, files: Sequence[DataFile], *, states: Mapping[str, int] | None = None) -> None:
    """Make the commit of an increment, from files whose rows have its commit number. Raises CommitConflict.

    `states`: what else the table states from this commit on.
    """
    opened, table = increment.opened, increment.table
    try:
        commit_files(
            opened,
            table,
            files,
            writer=table,
            previous=increment.previous,
            number=increment.number,
            states={COVERS: increment.until, **_covered(increment), **(states or {})},
        )
    except Fenced as error:
        raise CommitConflict(table) from error


def _covered(increment: Increment) -> dict[str, int]:
    return {} if increment.newest is None else {COVERED_COMMIT: increment.newest}
