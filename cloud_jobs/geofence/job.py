"""The geofence job: which days of which devices the new records touch, and what is to be told of them now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.changes import commit, covered_version, positions_since, records_at
from cloud_jobs.geofence.config import GeofenceSettings
from cloud_jobs.geofence.telling import NEWS, ROWS, EventRules, tell
from cloud_jobs.lake import Lake
from cloud_jobs.reference import fences_in
from cloud_jobs.shards import whole_keys
from geo.spatial import TrackSettings

TABLE = "geofence_events"
_ROWS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class GeofenceRun:
    """What one run did: versions of the records it covers, days of devices touched, revisions told."""

    from_version: int
    to_version: int
    touched_days: int
    told: int


def tell_events(spark: SparkSession, lake: Lake, tracks: TrackSettings, settings: GeofenceSettings) -> GeofenceRun:
    """Brings the events up to the records as they are now. Running it again writes nothing.

    The revisions and the version of the records that they cover are one commit. Raises Overtaken.
    """
    read_version = lake.open(TABLE).version()
    since, until = covered_version(lake, TABLE), lake.open("records").version()
    if since >= until:
        return GeofenceRun(since, until, 0, 0)
    EventRules.of('{"type": "FeatureCollection", "features": []}', tracks, settings)
    touched = _touched_days(positions_since(spark, lake, since, until), settings.reach_h).persist()
    try:
        count = touched.count()
        if not count:
            return GeofenceRun(since, until, 0, 0)
        shards = _rows(spark, lake, touched, until).repartition("device")
        rows = shards.sortWithinPartitions("device", "t_ms", "epoch", "seq")
        told = _tell_shards(fences_in(lake), tracks, settings)
        news = rows.mapInArrow(told, from_arrow_schema(NEWS)).persist()
        try:
            told_count = news.count()
            commit(lake, TABLE, news, read_version=read_version, covers=until)
            return GeofenceRun(since, until, count, told_count)
        finally:
            news.unpersist()
    finally:
        touched.unpersist()


def _touched_days(positions: DataFrame, reach_h: float) -> DataFrame:
    """The days of devices in whose events a new fix may have a say: its own, and those within reach."""
    reach_s = round(reach_h * 3600)
    shifts = f.array(*(f.lit(shift) for shift in (-reach_s, 0, reach_s)))
    return (
        positions.withColumn("shift", f.explode(shifts))
        .select("device", f.to_date(f.expr("device_time + make_dt_interval(0, 0, 0, shift)")).alias("day"))
        .distinct()
    )


def _rows(spark: SparkSession, lake: Lake, touched: DataFrame, version: int) -> DataFrame:
    """The fixes of touched days and their neighbours, and what was told of touched days (schema ROWS)."""
    days = touched.agg(f.min("day").alias("first"), f.max("day").alias("last")).collect()[0]
    needed = (
        touched.withColumn("device_date", f.explode(f.array(*(f.date_add("day", by) for by in (-1, 0, 1)))))
        .groupBy("device", "device_date")
        .agg(f.max(f.col("device_date") == f.col("day")).alias("touched"))
    )
    fixes = (
        records_at(spark, lake, version)
        .where(f.col("device_date").between(f.date_sub(f.lit(days["first"]), 1), f.date_add(f.lit(days["last"]), 1)))
        .join(needed, ["device", "device_date"])
        .withColumn("t_ms", f.unix_millis("device_time"))
    )
    told = (
        spark.read.format("delta")
        .load(lake.path(TABLE))
        .where(f.col("day").between(days["first"], days["last"]))
        .join(touched, ["device", "day"])
        .withColumn("t_ms", f.unix_millis("time"))
    )
    types = {field.name: field.dataType for field in from_arrow_schema(ROWS)}
    both = [
        frame.select(
            *(
                f.col(name) if name in frame.columns and name not in absent else f.lit(None).cast(kind).alias(name)
                for name, kind in types.items()
            )
        )
        for frame, absent in ((fixes, {"kind"}), (told, set[str]()))
    ]
    return both[0].unionByName(both[1])


def _tell_shards(
    fences: str, tracks: TrackSettings, settings: GeofenceSettings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function from rows sorted by device to what is to be told: a shard of devices is one columnar value."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rules = EventRules.of(fences, tracks, settings)
        for shard in whole_keys(batches, ROWS, "device", _ROWS_AT_ONCE):
            yield from tell(shard, rules).to_batches()

    return run
