"""The usage job: which hours the new records touch, their fixes to the meter, the rows that follow the older ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.fences import parse_fences
from cloud_jobs.incremental import commit, covered_version, positions_since, touched_spans
from cloud_jobs.lake import Lake
from cloud_jobs.reference import fences_in
from cloud_jobs.usage.metering import FIXES, HOUR_MS, METERED, margin_ms, meter
from geo.spatial import TrackSettings, ZoneSet

_FIXES_AT_ONCE = 200_000
_KEY = ["device", "hour", "zone"]


@dataclass(frozen=True, slots=True)
class UsageRun:
    """What one run did: versions of the records it covers, touched device hours, rows written.

    `fences_refused`: fences of the reference table that cannot be used, with which nothing was metered.
    """

    from_version: int
    to_version: int
    touched_hours: int
    rows: int
    fences_refused: int


def compute_usage(spark: SparkSession, lake: Lake, settings: TrackSettings) -> UsageRun:
    """Brings the usage table up to the records as they are now. Running it again changes nothing.

    The rows and the version of the records that they cover are one commit, so a crash leaves either both or none.
    Raises Overtaken when another run has written meanwhile; nothing is written then.
    """
    read_version = lake.open("usage").version()
    since, until = covered_version(lake, "usage"), lake.open("records").version()
    published = fences_in(lake)
    refused = len(published.refused)
    if since >= until:
        return UsageRun(since, until, 0, 0, refused)
    margin_h = -(-margin_ms(settings) // HOUR_MS)
    touched = _touched(positions_since(spark, lake, since, until), margin_ms(settings)).persist()
    try:
        count = touched.count()
        if not count:
            return UsageRun(since, until, 0, 0, refused)
        fixes = _fixes(spark, lake, touched, margin_h)
        rows = fixes.mapInArrow(_meter_shards(published.features, settings), from_arrow_schema(METERED)).persist()
        try:
            written = rows.unionByName(_zones_left(spark, lake, touched, rows)).select(*METERED.names)
            commit(lake, "usage", written, read_version=read_version, covers=until, stamp="computed_at")
            return UsageRun(since, until, count, rows.count(), refused)
        finally:
            rows.unpersist()
    finally:
        touched.unpersist()


def _hour(moment: Column) -> Column:
    return f.date_trunc("hour", moment)


def _touched(positions: DataFrame, margin: int) -> DataFrame:
    """The device hours in which a new fix can change something: all those within the margin around it."""
    numbers = touched_spans(positions, "number", span_ms=HOUR_MS, margin_ms=margin)
    return numbers.select("device", f.timestamp_millis(f.col("number") * HOUR_MS).alias("hour"))


def _fixes(spark: SparkSession, lake: Lake, touched: DataFrame, margin_h: int) -> DataFrame:
    """The fixes of the touched hours and of those around them (schema FIXES), sorted by device."""
    around = f.explode(f.array(*(f.lit(shift) for shift in range(-margin_h, margin_h + 1))))
    needed = (
        touched.withColumn("shift", around)
        .select("device", f.expr("hour + make_dt_interval(0, shift)").alias("hour"))
        .distinct()
        .join(touched.withColumn("touched", f.lit(True)), ["device", "hour"], "left")
    )
    bounds = needed.agg(f.min("hour").alias("first"), f.max("hour").alias("last")).collect()[0]
    fixes = (
        spark.read.format("delta")
        .load(lake.path("records"))
        .where(f.col("kind") == "position")
        .where(f.col("device_date").between(bounds["first"].date(), bounds["last"].date()))
        .withColumn("hour", _hour(f.col("device_time")))
        .join(needed, ["device", "hour"])
        .withColumn("t_ms", f.unix_millis("device_time"))
        .withColumn("touched", f.coalesce("touched", f.lit(False)))
        .select(*FIXES.names)
    )
    return fixes.repartition("device").sortWithinPartitions("device", "epoch", "seq")


def _meter_shards(
    fences: Sequence[str], settings: TrackSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function from fixes sorted by device to usage: many devices at once, and never a device in two parts."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        zones = ZoneSet(parse_fences(fences).fences)
        for shard in _whole_devices(batches):
            yield from meter(shard, zones, settings).to_batches()

    return run


def _whole_devices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `_FIXES_AT_ONCE` fixes that each hold all fixes of their devices."""
    held: pa.Table | None = None
    for batch in batches:
        part = pa.Table.from_batches([batch]).cast(FIXES)
        held = part if held is None else pa.concat_tables([held, part])
        if held.num_rows < _FIXES_AT_ONCE:
            continue
        unfinished = held["device"][-1].as_py()
        split = held["device"].index(unfinished).as_py()
        if split > 0:
            yield held.slice(0, split)
            held = held.slice(split)
    if held is not None:
        yield held


def _zones_left(spark: SparkSession, lake: Lake, touched: DataFrame, rows: DataFrame) -> DataFrame:
    """Rows of zeros for zones that an earlier computation of a touched hour had and this one has not."""
    before = spark.read.format("delta").load(lake.path("usage")).join(touched, ["device", "hour"])
    gone = before.select(*_KEY).distinct().join(rows.select(*_KEY), _KEY, "left_anti")
    zero = f.lit(0).cast("bigint")
    return gone.select(
        *_KEY,
        zero.alias("distance_mm"),
        zero.alias("duration_ms"),
        f.lit(0).alias("entries"),
        f.lit("{}").alias("seq_ranges"),
    )
