"""What is new in the records since a table that is derived from them was last written, and how that table is written.

The rows of a run and the ingest number up to which they cover the records are one commit. A commit is made only upon
the commit of the table that the run read: of two runs at the same time one gets CommitConflict, and nothing is written
twice. What is new is found by the ingest number that each record keeps, whatever was compacted or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.erased_spans import COUNTED, ErasedSpans
from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.data_files import DataFile
from cloud_jobs.lake.derived import COVERED_COMMIT, covering
from cloud_jobs.lake.frames import cast_to, read_files, write_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.stored_files import StoredFiles, stored_rows
from cloud_jobs.lake.tables import COVERS, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number

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

    `newest`: the number of the commit of the ingest that `until` stands for.
    `opened`: the table as a run over them reads it, at the commit `previous`. `number`: that of the commit which the
    run may make upon it.
    `stored`: the files of the records, without those of clocks far off: what they say of a time is nothing that an hour
    or a day can be computed from.
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
        """What the rows of its commit have in that column."""
        return counter_of(self.number)

    @property
    def commits(self) -> int:
        """How many commits of the ingest the table is behind."""
        return self.until - self.since

    @property
    def new_files(self) -> StoredFiles:
        """The files that can hold records of it."""
        return self.stored.between("ingest_number", self.since + 1, self.until)


def next_increment(lake: Lake, table: str) -> Increment:
    """What is to be covered now.

    Raises OtherRecords for a table that covers what the records do not have, as after one of the two was restored.
    """
    # the table first: a commit that another run makes from here on makes that of this run a conflict
    opened, records = lake.open(table), lake.open("records")
    since, until, newest = covering(opened, table, records)
    previous = newest_number(opened, table)
    stored = StoredFiles.of(records, "records").of_days()
    return Increment(table, since or 0, until, newest, previous, next_number(previous), opened, stored)


def records_behind(lake: Lake, increment: Increment) -> int:
    """How many records an increment has. Files that were merged with older ones are opened, for that one column."""
    if not increment:
        return 0
    wanted, files, count = (increment.since + 1, increment.until), lake.files("records"), 0
    stored = increment.new_files
    for path, rows, (low, high) in zip(stored.paths, stored.row_counts, stored.bounds("ingest_number"), strict=True):
        if low is not None and wanted[0] <= low and high <= wanted[1]:
            count += rows
        else:
            found = stored_rows(files, "records", path, ["ingest_number"], {"ingest_number": wanted})
            count += sum(part.num_rows for part in found)
    return count


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
    """The positions up to an increment's end, of all days or of those between two; none of clocks far off."""
    return positions_in(spark, lake, increment, increment.stored.of_days(first, last))


def positions_in(spark: SparkSession, lake: Lake, increment: Increment, stored: StoredFiles) -> DataFrame:
    """The positions up to an increment's end in some of its files."""
    wanted = {"kind": (_POSITION, _POSITION), "ingest_number": (None, increment.until)}
    return read_files(spark, lake, stored.between("ingest_number", high=increment.until), _READ, wanted)


def computable(spans: DataFrame, erased: ErasedSpans, name: str) -> DataFrame:
    """Those of the spans of devices (columns `tenant`, `device`, `name`) whose positions are not erased."""
    return spans.mapInArrow(lambda batches: erased.keep_computable(batches, name), spans.schema)


def fixes_after_erasure(positions: DataFrame, erased: ErasedSpans) -> int:
    """How many positions lie in spans that keep what was computed."""
    counts = positions.mapInArrow(erased.count_erased, from_arrow_schema(COUNTED))
    return int(counts.agg(f.sum("fixes")).collect()[0][0] or 0)


def rows_of_days(spark: SparkSession, lake: Lake, increment: Increment, days: Collection[date]) -> DataFrame:
    """What the table of an increment holds of some days, as the run reads it."""
    stored = StoredFiles.of(increment.opened, increment.table).on_days(days)
    return read_files(spark, lake, stored, TABLES[increment.table].schema.names, {})


def touched_spans(positions: DataFrame, name: str, *, span_ms: int, margin_ms: int) -> DataFrame:
    """Devices, by the column `device` alone, which is to name the tenant, too, and, as `name`, the numbers of the spans
    of time in which a new fix can change something.

    Those are all spans from the margin before it to the margin after it, however many.
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
    """Appends the rows that were computed for an increment, with what they cover. No rows: only that.

    `stamp`: the column that takes the time of now. `states`: as `commit_written` has it.

    Raises CommitConflict if another run has written to the table since
    this one read it; nothing is written then.
    """
    now = datetime.now(UTC)
    number = f.lit(increment.commit_number).cast("bigint")
    stamped = rows.withColumn(stamp, f.lit(now)).withColumn("commit_number", number)
    files = write_files(cast_to(TABLES[increment.table].schema, stamped), lake, increment.table, now)
    commit_written(increment, files, states=states)


def commit_written(increment: Increment, files: Sequence[DataFile], *, states: Mapping[str, int] | None = None) -> None:
    """Makes the commit of an increment, from files whose rows have its commit number. Raises CommitConflict.

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
