"""The usage job: which hours the new records touch, their fixes to the meter, the rows that follow the older ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.in_force import RefusedVersion
from cloud_jobs.incremental import (
    Increment,
    commit,
    new_positions,
    next_increment,
    positions_at,
    records_behind,
    rows_before,
    touched_spans,
)
from cloud_jobs.key_groups import group_by_key
from cloud_jobs.lake.frames import Transform, map_sorted, persist_until
from cloud_jobs.lake.tables import Lake
from cloud_jobs.published_fences import parse_fences
from cloud_jobs.reference import fences_in
from cloud_jobs.usage.metering import FIXES, HOUR_MS, METERED, meter
from geo.spatial import TrackSettings, ZoneSet

TABLE = "usage"
_FIXES_AT_ONCE = 200_000
_KEY = ["device", "hour", "zone"]


@dataclass(frozen=True, slots=True)
class UsageRun:
    """What one run did: the ingest number up to which it covers the records, how many commits of the ingest and records
    it was behind, touched device hours, rows written.

    `refused_fences`: publications of fences that cannot be used; what they were to replace was metered.
    """

    ingest_number: int
    commits_behind: int
    records_behind: int
    touched_hours: int
    rows: int
    refused_fences: tuple[RefusedVersion, ...]

    def __bool__(self) -> bool:
        """Whether there was anything to compute."""
        return self.touched_hours > 0


def compute_usage(spark: SparkSession, lake: Lake, settings: TrackSettings) -> UsageRun:
    """Brings the usage table up to the records as they are now. Running it again changes nothing.

    The rows and the ingest number up to which they cover the records are one commit: a crash leaves both or none.
    Raises CommitConflict when another run has written meanwhile; nothing is written then.
    """
    increment = next_increment(lake, TABLE)
    until = increment.until
    published = fences_in(lake)
    refused = published.refused
    if not increment:
        return UsageRun(until, 0, 0, 0, 0, refused)
    behind = increment.commits, records_behind(lake, increment)
    margin_h = -(-settings.margin_ms // HOUR_MS)
    with ExitStack() as held:
        touched = persist_until(held, _touched(new_positions(spark, lake, increment), settings.margin_ms))
        count = touched.count()
        if not count:
            return UsageRun(until, *behind, 0, 0, refused)
        fixes = _fixes(spark, lake, increment, touched, margin_h)
        rows = persist_until(
            held, map_sorted(fixes, "device", _meter_devices(published.features, settings), METERED, "epoch", "seq")
        )
        written = rows.unionByName(_zones_left(spark, lake, increment, touched, rows)).select(*METERED.names)
        commit(lake, increment, written, stamp="computed_at")
        return UsageRun(until, *behind, count, rows.count(), refused)


def _hour(moment: Column) -> Column:
    return f.date_trunc("hour", moment)


def _touched(positions: DataFrame, margin: int) -> DataFrame:
    """The device hours in which a new fix can change something: all those within the margin around it."""
    numbers = touched_spans(positions, "number", span_ms=HOUR_MS, margin_ms=margin)
    return numbers.select("device", f.timestamp_millis(f.col("number") * HOUR_MS).alias("hour"))


def _fixes(spark: SparkSession, lake: Lake, increment: Increment, touched: DataFrame, margin_h: int) -> DataFrame:
    """The fixes of the touched hours and of those around them (schema FIXES)."""
    around = f.explode(f.array(*(f.lit(shift) for shift in range(-margin_h, margin_h + 1))))
    needed = (
        touched.withColumn("shift", around)
        .select("device", f.expr("hour + make_dt_interval(0, shift)").alias("hour"))
        .distinct()
        .join(touched.withColumn("touched", f.lit(True)), ["device", "hour"], "left")
    )
    bounds = needed.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    return (
        positions_at(spark, lake, increment, bounds["first"].date(), bounds["last"].date())
        .withColumn("hour", _hour(f.col("device_time")))
        .join(needed, ["device", "hour"])
        .withColumn("t_ms", f.unix_millis("device_time"))
        .withColumn("touched", f.coalesce("touched", f.lit(False)))
        .select(*FIXES.names)
    )


def _meter_devices(fences: Sequence[str], settings: TrackSettings) -> Transform:
    """A function from fixes sorted by device to usage: many devices at once, and never a device in two parts."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        zones = ZoneSet(parse_fences(fences).fences)
        for devices in group_by_key(batches, FIXES, "device", _FIXES_AT_ONCE):
            yield from meter(devices, zones, settings).to_batches()

    return run


def _zones_left(
    spark: SparkSession, lake: Lake, increment: Increment, touched: DataFrame, rows: DataFrame
) -> DataFrame:
    """Rows of zeros for zones that an earlier computation of a touched hour had and this one has not."""
    bounds = touched.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    before = rows_before(spark, lake, increment, bounds["first"].date(), bounds["last"].date())
    before = before.join(touched, ["device", "hour"])
    gone = before.select(*_KEY).distinct().join(rows.select(*_KEY), _KEY, "left_anti")
    zero = f.lit(0).cast("bigint")
    return gone.select(
        *_KEY,
        zero.alias("distance_mm"),
        zero.alias("duration_ms"),
        f.lit(0).alias("entries"),
        f.lit("{}").alias("seq_ranges"),
        f.to_date("hour").alias("day"),
    )
