"""What is new in the records since a table that is derived from them was last written, and how that table is written.

The rows of a run and the version of the records that they cover are one commit. A commit is made only on the version
of the table that the run read: of two runs at the same time one gets CommitConflict, and nothing is written twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.errors import CommitConflict
from cloud_jobs.lake.frames import append_once, read_inserted, read_table
from cloud_jobs.lake.tables import Lake, covering

# clocks far off have no partition: what they say of a time is nothing that an hour or a day can be computed from
_POSITIONS: Final = "kind = 'position' AND device_date IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Increment:
    """The records that a derived table does not cover yet: those of versions after `since`, up to `until`.

    `table_version`: the version of the table that a run over them reads.
    """

    table: str
    table_version: int
    since: int
    until: int

    def __bool__(self) -> bool:
        return self.since < self.until


def next_increment(lake: Lake, table: str) -> Increment:
    """What is to be covered now."""
    # the table's version first: a commit that another run makes from here on makes that of this run a conflict
    table_version = lake.open(table).version()
    return Increment(table, table_version, lake.covered_version(table), lake.open("records").version())


def new_positions(spark: SparkSession, lake: Lake, increment: Increment) -> DataFrame:
    """Device and device time of the positions of an increment."""
    if increment.since < 0:
        # the first run reads the table itself: the log of a lake that ran before does not reach back to its beginning
        found = positions_at(spark, lake, increment.until)
    else:
        found = read_inserted(spark, lake, "records", increment.since, increment.until).where(_POSITIONS)
    return found.select("device", "device_time")


def positions_at(spark: SparkSession, lake: Lake, version: int) -> DataFrame:
    """The positions of a version of the records, without those of clocks far off."""
    return read_table(spark, lake, "records", version).where(_POSITIONS)


def touched_spans(positions: DataFrame, name: str, *, span_ms: int, margin_ms: int) -> DataFrame:
    """Devices and, as `name`, the numbers of the spans of time in which a new fix can change something.

    Those are all spans from the margin before it to the margin after it, however many.
    """
    t_ms = f.unix_millis("device_time")
    around = f.sequence(f.floor((t_ms - margin_ms) / span_ms), f.floor((t_ms + margin_ms) / span_ms))
    return positions.select("device", f.explode(around).alias(name)).distinct()


def commit(lake: Lake, increment: Increment, rows: DataFrame, *, stamp: str = "emitted_at") -> None:
    """Appends the rows that were computed for an increment, with the version that they cover. No rows: only that.

    `stamp`: the column that takes the time of now. Raises CommitConflict if the table is another one than the run read;
    nothing is written then.
    """
    made = append_once(
        rows.withColumn(stamp, f.lit(datetime.now(UTC))),
        lake,
        increment.table,
        # a writer's numbers are versions of the table: compare and swap
        writer=increment.table,
        number=increment.table_version + 1,
        metadata=covering(increment.until, token=uuid4().hex),
    )
    if not made:
        raise CommitConflict(increment.table)
