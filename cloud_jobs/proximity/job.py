"""The proximity job: which slices of time new records touch, who met in them, and the revisions of their encounters.

Pieces of tracks are distributed by slice and cell, and compared there; a pair's parts then come together again.

A cell with more pieces than one task may take is cut into blocks: its devices are dealt into groups, and each pair of
groups is one block, so no key is hot. Devices in a crowd (see `encounters`) meet the crowd instead of each other, so
revisions grow with the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from cloud_jobs.derived.incremental import (
    ErasedSpans,
    Increment,
    by_key,
    commit,
    commit_written,
    computable,
    new_positions,
    next_increment,
    positions_in,
    rows_of_days,
    touched_spans,
)
from cloud_jobs.job_settings import ProximitySettings
from cloud_jobs.lake.erasures import read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.proximity.encounter_revisions import INPUT, REVISIONS, parts_from, revise
from cloud_jobs.proximity.encounters import (
    CROWD,
    FIXES,
    IN_CROWD,
    PARTS,
    PIECES,
    PLACES,
    SEPARATOR,
    SLICE_MS,
    crowded,
    parts_of,
    parts_of_crowds,
    pieces_of,
    places_of,
    slice_day,
)
from cloud_jobs.spark import Transform, cast_to, map_sorted, persist_until
from geo.spatial import TrackSettings
from geo.spatial.ragged import Ints

TABLE = "encounters"
# 64 groups are 2,080 blocks of one cell; a cell that needs more gets larger blocks instead
MAX_GROUPS = 64
_CELL_M = 5_000.0
_FIXES_AT_ONCE = 200_000
_PAIR_ROWS_AT_ONCE = 50_000
_EPOCH = date(1970, 1, 1)
_ROUNDED = timedelta(milliseconds=1)
_TASK = pa.schema([*PIECES, pa.field("task", pa.int64())])


@dataclass(frozen=True, slots=True)
class ProximityRun:
    """The result of a run: the ingest number that it covers, commits of the ingest it was behind, touched slices of
    devices, slices in crowds, and revisions.
    """

    ingest_number: int
    commits_behind: int
    touched_slices: int
    in_crowds: int
    revisions: int

    def __bool__(self) -> bool:
        return self.touched_slices > 0


def compute_encounters(
    spark: SparkSession, lake: Lake, tracks: TrackSettings, settings: ProximitySettings
) -> ProximityRun:
    """Bring the encounters up to the present records. Running it again writes nothing.

    The revisions and the ingest number that they cover are one commit. Raises CommitConflict.
    """
    increment = next_increment(lake, TABLE)
    until = increment.until
    if not increment:
        return ProximityRun(until, 0, 0, 0, 0)
    # read after the records were opened, so that no erased position lacks its erasure
    erased = ErasedSpans(read_erasures(lake), SLICE_MS, tracks.margin_ms)
    with ExitStack() as held:
        new = new_positions(spark, lake, increment)
        touched = persist_until(held, _touched_slices(new, erased))
        count = touched.count()
        if not count:
            commit_written(increment, [])
            return ProximityRun(until, increment.commits, 0, 0, 0)
        slices = np.sort(touched.select("slice").distinct().toArrow()["slice"].to_numpy())
        apart_m = tracks.apart_m(settings.distance_m)
        cut_pieces = partial(pieces_of, slices=slices, tracks=tracks, apart_m=apart_m, cell_m=_CELL_M)
        cutting = by_key(FIXES, "device", _FIXES_AT_ONCE, cut_pieces)
        fixes = _fixes(spark, lake, increment, slices, tracks.margin_ms)
        pieces = persist_until(held, _pieces(fixes, touched, cutting))
        in_crowd = persist_until(held, _crowds(pieces, apart_m, settings.crowd_devices))
        crowd_count = in_crowd.count()
        known_crowds = _known_crowds(lake, slices)
        asked = touched
        if crowd_count or known_crowds.num_rows:
            # one device more or less can put all around it into a crowd, so all of them are asked for
            crowds = in_crowd.select("device", "slice").unionByName(spark.createDataFrame(known_crowds))
            asked = persist_until(held, touched.unionByName(crowds).distinct())
            pieces = persist_until(held, _with_crowds(pieces, asked, in_crowd))
        parts = _parts(pieces, settings, apart_m).unionByName(
            in_crowd.mapInArrow(_crowd_parts(settings), from_arrow_schema(PARTS))
        )
        revisions = persist_until(held, _revisions(asked, parts, _known(spark, lake, increment, asked), erased))
        revision_count = revisions.count()
        commit(lake, increment, revisions)
        return ProximityRun(until, increment.commits, count, crowd_count, revision_count)


def _touched_slices(new: DataFrame, erased: ErasedSpans) -> DataFrame:
    """Slices of devices in which a new fix can change something, and of which nothing is erased."""
    named = new.withColumn("device", _with_tenant("device"))
    touched = touched_spans(named, "slice", span_ms=SLICE_MS, margin_ms=erased.margin_ms)
    if not erased:
        return touched
    parts = f.split("device", SEPARATOR)
    bare = touched.select(parts[0].alias("tenant"), parts[1].alias("device"), "slice")
    return computable(bare, erased, "slice").select(_with_tenant("device").alias("device"), "slice")


def _with_tenant(device: str) -> Column:
    return f.concat_ws(SEPARATOR, "tenant", device)


def _fixes(spark: SparkSession, lake: Lake, increment: Increment, slices: Ints, margin_ms: int) -> DataFrame:
    """The fixes of all devices in the touched slices and around them."""
    reach = -(-margin_ms // SLICE_MS)
    needed = np.unique(slices[:, None] + np.arange(-reach, reach + 1))
    days = {_EPOCH + timedelta(days=slice_day(number)) for number in needed.tolist()}
    stored = increment.stored.on_days(days).within("device_time", _times(needed))
    return (
        positions_in(spark, lake, increment, stored)
        .withColumn("t_ms", f.unix_millis("device_time"))
        .join(
            f.broadcast(spark.createDataFrame(pa.table({"near": needed}))),
            f.floor(f.col("t_ms") / SLICE_MS) == f.col("near"),
            "left_semi",
        )
        .withColumn("device", _with_tenant("device"))
        .withColumn("asked", f.lit(None).cast("bigint"))
    )


def _times(slices: Ints) -> list[tuple[datetime, datetime]]:
    """The times of runs of neighbouring slices, with a millisecond for the rounding of bounds."""
    first = np.flatnonzero(np.append(True, np.diff(slices) > 1))
    last = np.append(first[1:], len(slices)) - 1
    begin, step = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=SLICE_MS)
    limits = zip(slices[first].tolist(), slices[last].tolist(), strict=True)
    return [(begin + low * step - _ROUNDED, begin + (high + 1) * step + _ROUNDED) for low, high in limits]


def _pieces(fixes: DataFrame, touched: DataFrame, cutting: Transform) -> DataFrame:
    asked = touched.select("device", f.col("slice").alias("asked"))
    rows = cast_to(FIXES, fixes).unionByName(cast_to(FIXES, asked))
    return map_sorted(rows, "device", cutting, PIECES, "t_ms", "epoch", "seq")


def _crowds(pieces: DataFrame, apart_m: float, most: int) -> DataFrame:
    """Which devices are in a crowd when (schema IN_CROWD, a row for each device and slice)."""

    places = by_key(PIECES, "device", _FIXES_AT_ONCE, partial(places_of, apart_m=apart_m))
    crowds = by_key(PLACES, "minute", _FIXES_AT_ONCE, partial(crowded, most=most))
    home = pieces.where("home").mapInArrow(places, from_arrow_schema(PLACES))
    found = map_sorted(home, "minute", crowds, IN_CROWD)
    return found.groupBy("device", "slice").agg(f.bit_or("minutes").alias("minutes"))


def _known_crowds(lake: Lake, slices: Ints) -> pa.Table:
    """The devices with a revision with a crowd in these slices, retracted ones too: columns `device` and `slice`."""
    first, last = (pa.scalar(slice_day(int(number)), pa.int32()).cast(pa.date32()) for number in slices[[0, -1]])
    where = [("device_a", "=", CROWD), ("day", ">=", first), ("day", "<=", last)]
    rows = lake.rows(TABLE, ["tenant", "device_b", "parts"], where=where)
    wanted = set(slices.tolist())
    known = {
        (f"{row['tenant']}{SEPARATOR}{row['device_b']}", part.slice)
        for row in rows.to_pylist()
        for part in parts_from(row["parts"])
    }
    found = [{"device": device, "slice": number} for device, number in sorted(known) if number in wanted]
    return pa.Table.from_pylist(found, schema=pa.schema([PIECES.field("device"), PIECES.field("slice")]))


def _with_crowds(pieces: DataFrame, asked: DataFrame, in_crowd: DataFrame) -> DataFrame:
    """The same pieces, marked with what is asked for, and the minutes in which their devices are in a crowd."""
    marked = asked.join(in_crowd, ["device", "slice"], "left").withColumn("now_asked", f.lit(True))
    both = pieces.withColumnRenamed("minutes", "none").join(marked, ["device", "slice"], "left")
    both = both.withColumn("asked", f.coalesce("now_asked", f.lit(False)))
    return cast_to(PIECES, both.withColumn("minutes", f.coalesce("minutes", "none")))


def _crowd_parts(settings: ProximitySettings) -> Transform:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from parts_of_crowds(pa.Table.from_batches([batch]), settings.distance_m)

    return run


def _parts(pieces: DataFrame, settings: ProximitySettings, apart_m: float) -> DataFrame:
    """Parts of encounters (schema PARTS): every piece meets those of its cell, block by block."""
    meet = partial(parts_of, distance_m=settings.distance_m, apart_m=apart_m)
    work = by_key(_TASK, "task", settings.segments_per_task, meet)
    return map_sorted(_blocks(pieces, settings.segments_per_task), "task", work, PARTS)


def _blocks(pieces: DataFrame, most: int) -> DataFrame:
    """Pieces of the cells that are asked for, by task: a task has `most` pieces of a cell, or two groups of as many."""
    cells = (
        pieces.groupBy("slice", "cell")
        .agg(f.count("*").alias("held"), f.max("asked").alias("any_asked"))
        # a cell without a device that is asked for, or with one piece, has no parts to compute
        .where("any_asked AND held > 1")
        .withColumn("groups", f.least(f.ceil(f.col("held") / most), f.lit(MAX_GROUPS)))
        .select("slice", "cell", "groups")
    )
    others = f.sequence(f.lit(0).cast("bigint"), f.col("groups") - 1)
    # two blocks with one hash are one task: more pairs are compared, and the same results found
    task = f.xxhash64("slice", "cell", f.least("group", "other"), f.greatest("group", "other"))
    return (
        pieces.join(cells, ["slice", "cell"])
        .withColumn("group", f.pmod(f.xxhash64("device"), f.col("groups")))
        .withColumn("other", f.explode(others))
        .withColumn("task", task)
        .select(*_TASK.names)
    )


def _known(spark: SparkSession, lake: Lake, increment: Increment, asked: DataFrame) -> DataFrame:
    """The table's rows of the days that are asked for; devices are named with their tenant."""
    days = {row["day"] for row in asked.select(_day_of_slice().alias("day")).distinct().collect()}
    known = rows_of_days(spark, lake, increment, days)
    return known.withColumns({name: _with_tenant(name) for name in ("device_a", "device_b")})


def _day_of_slice() -> Column:
    return f.expr(f"date_from_unix_date(cast(floor(slice * {SLICE_MS} / 86400000) as int))")


def _revisions(asked: DataFrame, parts: DataFrame, known: DataFrame, erased: ErasedSpans) -> DataFrame:
    """New revisions (schema REVISIONS) of pairs of which a device is asked for."""
    asked = asked.groupBy("device", _day_of_slice().alias("day")).agg(f.collect_set("slice").alias("slices"))
    of_a = asked.select(f.col("device").alias("device_a"), "day", f.col("slices").alias("slices_a"))
    of_b = asked.select(f.col("device").alias("device_b"), "day", f.col("slices").alias("slices_b"))
    none = f.array().cast("array<bigint>")
    known = (
        known.join(of_a, ["device_a", "day"], "left")
        .join(of_b, ["device_b", "day"], "left")
        .where("slices_a IS NOT NULL OR slices_b IS NOT NULL")
        .withColumn("asked", f.array_union(f.coalesce("slices_a", none), f.coalesce("slices_b", none)))
        .withColumn("slice", f.floor(f.unix_date("day") * f.lit(86_400_000 // SLICE_MS)))
        .drop("min_m")
    )
    rows = cast_to(INPUT, _paired(parts)).unionByName(cast_to(INPUT, _paired(known)))
    work = by_key(INPUT, "pair", _PAIR_ROWS_AT_ONCE, lambda pairs: revise(pairs, erased.first_computable).to_batches())
    return map_sorted(rows, "pair", work, REVISIONS)


def _paired(frame: DataFrame) -> DataFrame:
    return frame.withColumn("pair", f.concat_ws("\n", "device_a", "device_b"))
