"""The usage job: the files of a run, the groups of devices that executors compute, and one commit for all.

Nothing is shuffled and no record passes through the JVM's rows: each task reads its part of the files itself, and
writes the files of its result. The driver computes small runs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import structlog
from pyspark.sql import SparkSession

from cloud_jobs.derived.fences import EVERYTHING, changes_since
from cloud_jobs.derived.incremental import Increment, commit_written, next_increment
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.erasures import Erasures, read_erasures
from cloud_jobs.lake.snapshots import note_fences, note_tracks
from cloud_jobs.lake.tables import FENCES, TRACKS, Lake
from cloud_jobs.lake.transactions import stated
from cloud_jobs.reference.tables import fences_in
from cloud_jobs.spark import run_on_executors
from cloud_jobs.usage.devices import (
    NO_USAGE,
    DeviceGroup,
    GroupResult,
    Rules,
    Stamp,
    UsageSums,
    Wanted,
    compute_group,
    device_groups,
    total,
    wanted_files,
)
from cloud_jobs.usage.reading import count_devices
from geo.reference.in_force import RefusedVersion
from geo.spatial import ENGINE_VERSION, TrackSettings

TABLE = "usage"
_log = structlog.get_logger(__name__)
_TASKS_PER_CORE: Final = 4
_FEW_FILES: Final = 16
_FEW_ROWS: Final = 200_000
"""Up to this many rows the driver reads itself: sending them to executors would take longer."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class UsageRun:
    """The result of a run: the ingest number that it covers, commits of the ingest it was behind, changed fences,
    touched device hours, and rows written.

    `records_after_erasure`: new records in hours of which positions are erased; those hours keep what was
    computed. `sums`: what was computed, for which devices. `refused_fences`: publications of fences that cannot be
    used; the versions before them were metered.
    """

    ingest_number: int
    commits_behind: int
    fence_changes: int
    touched_hours: int
    rows: int
    records_after_erasure: int
    refused_fences: tuple[RefusedVersion, ...]
    sums: UsageSums = NO_USAGE

    def __bool__(self) -> bool:
        return self.touched_hours + self.records_after_erasure > 0


def compute_usage(spark: SparkSession, lake: Lake, settings: TrackSettings) -> UsageRun:
    """Bring the usage table up to the present records and fences. Running it again changes nothing.

    The rows, the ingest number that they cover, and the fences that they were computed with are one commit: a crash
    leaves all or none. Raises CommitConflict, and writes nothing, when another run has written meanwhile.
    """
    increment = next_increment(lake, TABLE)
    published = fences_in(lake)
    gap_ms = round(settings.max_gap_s * 1000)
    # the first run computes every hour, whatever the fences
    changes = changes_since(lake, increment.opened, published.features, gap_ms) if increment.since else []
    # written before any commit refers to it, and again if it was removed
    by = settings.model_dump() | {"engine_version": ENGINE_VERSION}
    tracks = note_tracks(lake, by)
    if increment.since and stated(increment.opened, TRACKS) != tracks:
        _log.info("the track settings or the engine changed: all usage is computed again", job=TABLE, **by)
        changes = [EVERYTHING]
    if not increment and not changes:
        return UsageRun(increment.until, 0, 0, 0, 0, 0, published.refused)
    rules = Rules(tuple(published.features), settings, tuple(changes))
    wanted = wanted_files(increment.stored, (increment.since + 1, increment.until), changes, settings.margin_ms)
    stamp = Stamp(increment.commit_number, datetime.now(UTC), tracks)
    # read after the records were opened, so that no erased position lacks its erasure
    erasures = read_erasures(lake)
    work = compute_group(lake.files("records"), lake.files(TABLE), rules, stamp)
    results = _computed(spark, lake, increment, wanted, work, erasures=erasures)
    commit_written(
        increment,
        [file for result in results for file in result.files],
        states={FENCES: note_fences(lake, published.features), TRACKS: tracks},
    )
    return UsageRun(
        increment.until,
        increment.commits,
        len(changes),
        sum(result.touched_hours for result in results),
        sum(result.rows for result in results),
        sum(result.records_after_erasure for result in results),
        published.refused,
        UsageSums.total(result.sums for result in results),
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
    files = lake.files("records")
    counts = total(_run(spark, lambda one: count_devices(files, *one), listed, here=few))
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


def _run(spark: SparkSession, work: Callable[[_Item], _Made], items: Sequence[_Item], *, here: bool) -> Sequence[_Made]:
    return [work(item) for item in items] if here or not items else run_on_executors(spark, work, items)
