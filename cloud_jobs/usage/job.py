"""The usage job: which files a run needs, the groups of devices that executors compute, and the one commit of it all.

Nothing is shuffled and no record passes through the JVM's rows: each task reads its part of the files itself, and
writes the files of its result. What is little is computed by the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyarrow.fs import FileSystem
from pyspark.sql import SparkSession

from cloud_jobs.derived.fences import EVERYTHING, FenceChange, changes_since
from cloud_jobs.derived.incremental import Increment, commit_written, next_increment, records_behind
from cloud_jobs.lake.data_files import StoredFiles, read_stored
from cloud_jobs.lake.erasures import Erasures, read_erasures
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshots import note_fences, note_tracks
from cloud_jobs.lake.tables import FENCES, TRACKS, Lake
from cloud_jobs.lake.transactions import stated
from cloud_jobs.reference.tables import fences_in
from cloud_jobs.spark import run_on_executors
from cloud_jobs.usage.devices import (
    DeviceGroup,
    GroupResult,
    Rules,
    Stamp,
    Wanted,
    compute_group,
    counted,
    days_of,
    device_groups,
    total,
    wanted_files,
)
from geo.reference.in_force import RefusedVersion
from geo.spatial import ENGINE_VERSION, TrackSettings

# Hours that changed fences would affect, if their positions were not erased.

_KEY = ("tenant", "device", "hour")


def count_erased_hours(files: FileSystem, stored: StoredFiles, erasures: Erasures, margin_ms: int) -> int:
    """How many device hours of some files of usage keep what was computed, whatever changes.

    Near which fences they lie, nobody knows any more: all are counted in which an erased position may have a say.
    """
    if not erasures:
        return 0
    margin, by_day = timedelta(milliseconds=margin_ms), dict[str, list[str]]()
    for path in stored.paths:
        by_day.setdefault(path.partition("/")[0], []).append(path)
    # a day at once: rows of an hour are all of one
    return sum(_count(files, paths, erasures, margin) for paths in by_day.values())


def _count(files: FileSystem, paths: Collection[str], erasures: Erasures, margin: timedelta) -> int:
    rows = pa.concat_tables(read_stored(files, "usage", path, _KEY, {}) for path in paths)
    erased = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for tenant, device, before, _ in erasures:
        mine = pc.less(rows["hour"], pa.scalar(before + margin, USAGE.field("hour").type))
        if device is not None:
            mine = pc.and_(mine, pc.equal(rows["device"], device))
        if tenant is not None:
            mine = pc.and_(mine, pc.equal(rows["tenant"], tenant))
        erased = pc.or_(erased, mine)
    return int(rows.filter(erased).group_by([*_KEY]).aggregate([]).num_rows)


TABLE = "usage"
_log = structlog.get_logger(__name__)
_TASKS_PER_CORE: Final = 4
_FEW_FILES: Final = 16
_FEW_ROWS: Final = 200_000
"""What the driver reads itself: to send it to executors would take longer."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class UsageRun:
    """What one run did: the ingest number up to which it covers the records, how many commits of the ingest and records
    it was behind, fences that changed, touched device hours, rows written.

    `records_after_erasure`: new records in hours of which positions are erased; those hours keep what was computed.
    `hours_erased`: the metered hours of that kind on days for which fences changed; they keep it, too.
    `refused_fences`: publications of fences that cannot be used; what they were to replace was metered.
    """

    ingest_number: int
    commits_behind: int
    records_behind: int
    fence_changes: int
    touched_hours: int
    rows: int
    records_after_erasure: int
    hours_erased: int
    refused_fences: tuple[RefusedVersion, ...]

    def __bool__(self) -> bool:
        """Whether there was anything to compute, or to say."""
        return self.touched_hours + self.records_after_erasure + self.hours_erased > 0


def compute_usage(spark: SparkSession, lake: Lake, settings: TrackSettings) -> UsageRun:
    """Brings the usage table up to the records and the fences as they are now. Running it again changes nothing.

    The rows, the ingest number up to which they cover the records, and the fences that they were computed with are one
    commit: a crash leaves all or none. Raises CommitConflict when another run has written meanwhile; nothing is written
    then.
    """
    increment = next_increment(lake, TABLE)
    published = fences_in(lake)
    gap_ms = round(settings.max_gap_s * 1000)
    # the first run computes every hour that there is, whatever the fences
    changes = changes_since(lake, increment.opened, published.features, gap_ms) if increment.since else []
    # written before any commit states it, and again if somebody removed it
    by = settings.model_dump() | {"engine_version": ENGINE_VERSION}
    tracks = note_tracks(lake, by)
    if increment.since and stated(increment.opened, TRACKS) != tracks:
        _log.info("the track settings or the engine are others: all is computed again", job=TABLE, **by)
        changes = [EVERYTHING]
    behind = increment.commits, records_behind(lake, increment)
    if not increment and not changes:
        return UsageRun(increment.until, *behind, 0, 0, 0, 0, 0, published.refused)
    rules = Rules(tuple(published.features), settings, tuple(changes))
    wanted = wanted_files(increment.stored, (increment.since + 1, increment.until), changes, settings.margin_ms)
    stamp = Stamp(increment.commit_number, datetime.now(UTC), tracks)
    # after the records were opened: a version without the erased positions is never without the erasure
    erasures = read_erasures(lake)
    work = compute_group(lake.files("records"), lake.files(TABLE), rules, stamp)
    results = _computed(spark, lake, increment, wanted, work, erasures=erasures)
    hours_erased = _hours_erased(lake, increment, changes, erasures, settings.margin_ms)
    commit_written(
        increment,
        [file for result in results for file in result.files],
        states={FENCES: note_fences(lake, published.features), TRACKS: tracks},
    )
    return UsageRun(
        increment.until,
        *behind,
        len(changes),
        sum(result.touched_hours for result in results),
        sum(result.rows for result in results),
        sum(result.records_after_erasure for result in results),
        hours_erased,
        published.refused,
    )


def _computed(
    spark: SparkSession,
    lake: Lake,
    increment: Increment,
    wanted: Wanted,
    work: Callable[[DeviceGroup], GroupResult],
    *,
    erasures: Erasures,
) -> Sequence[GroupResult]:
    listed = wanted.listed
    rows = sum(wanted.new.row_counts) + (sum(wanted.changed.row_counts) if wanted.changed else 0)
    few = len(listed) <= _FEW_FILES and rows <= _FEW_ROWS
    counts = total(_run(spark, counted(lake.files("records")), listed, here=few))
    groups = [
        *device_groups(
            counts,
            wanted,
            StoredFiles.of(increment.opened, TABLE),
            erasures,
            tasks=spark.sparkContext.defaultParallelism * _TASKS_PER_CORE,
        )
    ]
    return _run(spark, work, groups, here=few and len(groups) == 1)


def _hours_erased(
    lake: Lake, increment: Increment, changes: Sequence[FenceChange], erasures: Erasures, margin_ms: int
) -> int:
    if not changes:
        return 0
    stored = StoredFiles.of(increment.opened, TABLE).of_days(*days_of(changes))
    return count_erased_hours(lake.files(TABLE), stored, erasures, margin_ms)


def _run(spark: SparkSession, work: Callable[[_Item], _Made], items: Sequence[_Item], *, here: bool) -> Sequence[_Made]:
    return [work(item) for item in items] if here or not items else run_on_executors(spark, work, items)
