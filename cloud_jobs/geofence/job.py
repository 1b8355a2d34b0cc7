"""The geofence job: which days of devices new records and new fences touch, and the revisions of their events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from cloud_jobs.derived.fences import FenceChange, changes_since, days_of
from cloud_jobs.derived.incremental import (
    ErasedSpans,
    Increment,
    by_key,
    commit,
    commit_written,
    computable,
    new_positions,
    next_increment,
    positions_at,
    positions_in,
    rows_of_days,
)
from cloud_jobs.geofence.event_revisions import INPUT, REACH_MS, REVISIONS, EventRules, GeofenceSettings, revise
from cloud_jobs.lake.erasures import read_erasures
from cloud_jobs.lake.snapshots import note_fences
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.reference.tables import fences_in
from cloud_jobs.spark import Transform, cast_to, map_sorted, persist_until
from geo.reference.in_force import RefusedVersion
from geo.spatial import TrackSettings
from geo.spatial.event_ids import DAY_MS

TABLE = "geofence_events"
_ROWS_AT_ONCE = 200_000
_DAY = timedelta(days=1)
_FEW_DEVICES = 1_000


@dataclass(frozen=True, slots=True)
class GeofenceRun:
    """The result of a run: the ingest number that it covers, commits of the ingest it was behind, changed fences,
    touched days of devices, and revisions.

    `refused_fences`: publications of fences that cannot be used; the versions before them stayed in force.
    """

    ingest_number: int
    commits_behind: int
    fence_changes: int
    touched_days: int
    revisions: int
    refused_fences: tuple[RefusedVersion, ...]

    def __bool__(self) -> bool:
        return self.touched_days > 0


def compute_events(spark: SparkSession, lake: Lake, tracks: TrackSettings, settings: GeofenceSettings) -> GeofenceRun:
    """Bring the events up to the present records and fences. Running it again writes nothing.

    The revisions, the ingest number that they cover, and the fences that they were computed with are one commit: a
    crash leaves all or none. Raises CommitConflict.
    """
    increment = next_increment(lake, TABLE)
    since, until = increment.since, increment.until
    # read after the records were opened, so that no erased position lacks its erasure
    erased = ErasedSpans(read_erasures(lake), DAY_MS, REACH_MS)
    published = fences_in(lake)
    fences, refused = published.features, published.refused
    reach_ms = erased.margin_ms
    # the first run computes every day, whatever the fences
    changes = changes_since(lake, increment.opened, fences, reach_ms) if since else []
    if not increment and not changes:
        return GeofenceRun(until, 0, 0, 0, 0, refused)
    # refuse settings that do not fit before Spark works for minutes
    EventRules.of((), tracks, settings)
    new = new_positions(spark, lake, increment)
    touched = _touched_days(new, reach_ms) if increment else None
    if changes:
        near = _days_near(spark, lake, increment, changes)
        touched = near if touched is None else touched.unionByName(near).distinct()
    assert touched is not None
    with ExitStack() as held:
        if erased:
            touched = computable(touched, erased, "day")
        count, revision_count = persist_until(held, touched).count(), 0
        if count:
            rows = _rows(spark, lake, touched, increment, reach_ms)
            revise_days = _revise_days(fences, tracks, settings)
            revisions = persist_until(held, map_sorted(rows, "unit", revise_days, REVISIONS, "t_ms", "epoch", "seq"))
            revision_count = int(revisions.count())
            commit(lake, increment, revisions, states={FENCES: note_fences(lake, fences)})
        else:
            commit_written(increment, [], states={FENCES: note_fences(lake, fences)})
        return GeofenceRun(until, increment.commits, len(changes), count, revision_count, refused)


def _days_near(spark: SparkSession, lake: Lake, increment: Increment, changes: list[FenceChange]) -> DataFrame:
    """The days of devices in which a change of fences may matter: those in its time whose way came near it.

    A way is represented by the box around its fixes, from the day before to the day after.
    """
    first, last = days_of(changes)
    boxes = (
        positions_at(spark, lake, increment, first - _DAY, last + _DAY)
        .groupBy("tenant", "device", "device_date")
        .agg(*_box("longitude", "latitude", "longitude", "latitude"))
        .withColumn("day", f.explode(f.array(*(f.date_add("device_date", by) for by in (-1, 0, 1)))))
        .groupBy("tenant", "device", "day")
        .agg(*_box("west", "south", "east", "north"), f.max(f.col("day") == f.col("device_date")).alias("driven"))
        .where("driven")
    )
    names = FenceChange._fields
    changed = pa.table({f"of_{name}": [one[at] for one in changes] for at, name in enumerate(names)})
    number = f.unix_date("day").cast("bigint")
    in_time = number.between(f.col("of_first_day"), f.col("of_last_day"))
    beside = (f.col("west") <= f.col("of_east")) & (f.col("east") >= f.col("of_west"))
    # the box of a way over the antimeridian spans the world
    around = (f.col("east") - f.col("west") > 180.0) | (f.col("west") <= -180.0) | (f.col("east") >= 180.0)
    level = (f.col("south") <= f.col("of_north")) & (f.col("north") >= f.col("of_south"))
    near = boxes.join(f.broadcast(spark.createDataFrame(changed)), in_time & level & (beside | around), "left_semi")
    return near.select("tenant", "device", "day")


def _box(west: str, south: str, east: str, north: str) -> list[Column]:
    lows = [f.min(west).alias("west"), f.min(south).alias("south")]
    return [*lows, f.max(east).alias("east"), f.max(north).alias("north")]


def _touched_days(positions: DataFrame, reach_ms: int) -> DataFrame:
    """The days of devices whose events a new fix may affect: its own, and those within reach."""
    reach_s = reach_ms // 1000
    # the reach is below a day, so no day in between is skipped
    shifts = f.array(*(f.lit(shift) for shift in (-reach_s, 0, reach_s)))
    return (
        positions.withColumn("shift", f.explode(shifts))
        .select("tenant", "device", f.to_date(f.expr("device_time + make_dt_interval(0, 0, 0, shift)")).alias("day"))
        .distinct()
    )


def _rows(spark: SparkSession, lake: Lake, touched: DataFrame, increment: Increment, reach_ms: int) -> DataFrame:
    """The input of each touched day of a device (schema INPUT): a day is a key, so no device is a hot key."""
    days, devices = _days_and_devices(touched)
    stored = increment.stored.on_days({day + by * _DAY for day in days for by in (-1, 0, 1)})
    if devices:
        stored = stored.within("device", [(one, one) for one in sorted(devices)])
    around = touched.withColumn("device_date", f.explode(f.array(*(f.date_add("day", by) for by in (-1, 0, 1)))))
    midnight_ms = f.unix_date("day").cast("bigint") * DAY_MS
    fixes = (
        positions_in(spark, lake, increment, stored)
        .join(around, ["tenant", "device", "device_date"])
        .withColumn("t_ms", f.unix_millis("device_time"))
        .where(f.col("t_ms").between(midnight_ms - reach_ms, midnight_ms + (DAY_MS + reach_ms)))
        .withColumn("touched", f.col("device_date") == f.col("day"))
        .withColumn("unit", f.concat_ws("\n", "tenant", "device", "day"))
        # the kind of the record, not of an event
        .drop("kind")
    )
    known = (
        rows_of_days(spark, lake, increment, days)
        .join(touched, ["tenant", "device", "day"])
        .withColumn("t_ms", f.unix_millis("time"))
        .withColumn("unit", f.concat_ws("\n", "tenant", "device", "day"))
    )
    return cast_to(INPUT, fixes).unionByName(cast_to(INPUT, known))


def _days_and_devices(touched: DataFrame) -> tuple[set[date], set[str]]:
    """The days, and the devices unless they are too many to look for their files."""
    rows = touched.groupBy("day").agg(f.collect_set("device").alias("devices")).withColumn("many", f.size("devices"))
    few = rows.select("day", "many", f.when(f.col("many") <= _FEW_DEVICES, f.col("devices")).alias("devices")).collect()
    named = {device for row in few for device in row["devices"] or ()}
    return {row["day"] for row in few}, named if all(row["many"] <= _FEW_DEVICES for row in few) else set()


def _revise_days(fences: Sequence[str], tracks: TrackSettings, settings: GeofenceSettings) -> Transform:
    """A function from rows sorted by unit to their revisions: many units are one columnar value."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # built by the worker, which gets the fences as texts
        rules = EventRules.of(fences, tracks, settings)
        yield from by_key(INPUT, "unit", _ROWS_AT_ONCE, lambda units: revise(units, rules).to_batches())(batches)

    return run
