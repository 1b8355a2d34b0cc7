"""Deletes files that nothing needs any more, and stores the result of the last run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileInfo, FileSelector, FileSystem

from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import commits_of_snapshots
from cloud_jobs.lake.tables import Lake

# Data files of a table version.


class TableFile(NamedTuple):
    """A data file in the log. `low`, `high`: bounds of columns; `nulls`: numbers of null values."""

    path: str
    size: int
    rows: int
    day: date | None
    low: dict[str, Any]
    high: dict[str, Any]
    nulls: dict[str, int]


def table_files(opened: DeltaTable, table: str) -> list[TableFile]:
    actions = pa.table(opened.get_add_actions(flatten=True))
    partitions = TABLES[table].partition_by
    return [_table_file(row, partitions) for batch in actions.to_batches(1000) for row in batch.to_pylist()]


def partition_values(table: str, file: TableFile) -> dict[str, str | None]:
    """The partition values of a file, as Delta writes them."""
    return {name: None if file.day is None else file.day.isoformat() for name in TABLES[table].partition_by}


def by_day(files: list[TableFile]) -> Iterator[tuple[date | None, list[TableFile]]]:
    """The files of each day, the newest day first, those without a day last."""
    days: dict[date | None, list[TableFile]] = {}
    for file in files:
        days.setdefault(file.day, []).append(file)
    for day in sorted(days, key=lambda one: one or date.min, reverse=True):
        yield day, days[day]


def _table_file(row: dict[str, Any], partitions: tuple[str, ...]) -> TableFile:
    def those(prefix: str) -> dict[str, Any]:
        found = ((name.removeprefix(prefix), value) for name, value in row.items() if name.startswith(prefix))
        return {name: value for name, value in found if value is not None}

    day = row.get(f"partition.{partitions[0]}") if partitions else None
    rows = row["num_records"]
    size = row["size_bytes"]
    return TableFile(
        row["path"], size, -1 if rows is None else rows, day, those("min."), those("max."), those("null_count.")
    )


# The result of the last maintenance run, stored in the lake.

_PATH: Final = "last-maintenance.json"
_SHOWN: Final = 20


class LastMaintenance(NamedTuple):
    """The end, duration and errors of a run."""

    ended_at: datetime
    seconds: float
    errors: tuple[str, ...]


def note_last_run(lake: Lake, last: LastMaintenance) -> None:
    document = last._asdict() | {"ended_at": last.ended_at.isoformat(), "errors": last.errors[:_SHOWN]}
    with lake.location.errors_named(), lake.location.files().open_output_stream(_PATH) as file:
        file.write(json.dumps(document).encode())


def read_last_run(lake: Lake) -> LastMaintenance | None:
    """The stored result; None if there is none or it is incomplete. Raises StoreUnavailable."""
    try:
        with lake.location.errors_named(), lake.location.files().open_input_file(_PATH) as file:
            document = json.loads(file.read())
        ended_at = datetime.fromisoformat(document["ended_at"]).astimezone(UTC)
        return LastMaintenance(ended_at, float(document["seconds"]), tuple(map(str, document["errors"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


_LOG: Final = "_delta_log"
_CHECKPOINT_AFTER: Final = 50
"""Commits since the last checkpoint after which a run makes one."""

_log = structlog.get_logger("maintain")


class SweptFiles(NamedTuple):
    """Numbers of deleted files: without a commit, and replaced."""

    orphans: int = 0
    replaced: int = 0


def sweep_table(lake: Lake, table: str, settings: MaintenanceSettings, now: datetime) -> SweptFiles:
    """Deletes unused data files of a table. Raises LakeError, DeltaError, OSError."""
    files = lake.files(table)
    # listed before the table is opened: no later commit can name an old file that no commit names yet
    listed = listed_data(files)
    opened = lake.open(table)
    _set_retention(opened, settings)
    removed = set(opened.vacuum(0, dry_run=True, enforce_retention_duration=False))
    known = {file.path for file in table_files(opened, table)} | {unquote(path) for path in removed}
    oldest = now - timedelta(seconds=settings.orphan_age_s)
    orphans = [info.path for info in listed if info.path not in known and info.mtime < oldest]
    kept_hours = settings.removed_files_kept_hours
    replaced = set(opened.vacuum(kept_hours, dry_run=True, enforce_retention_duration=False))
    # vacuum names a file that was replaced twice two times
    gone = {info.path for info in listed} & {unquote(path) for path in replaced}
    for path in [*orphans, *gone]:
        # another run may have been faster
        with suppress(FileNotFoundError):
            files.delete_file(path)
    return SweptFiles(len(orphans), len(gone))


def sweep_log(lake: Lake, table: str) -> int:
    """Deletes old commits, and returns how many files the log has then. Raises LakeError, OSError."""
    files = lake.files(table)
    checkpoints = [_version(info) for info in _listed(files, _LOG) if ".checkpoint" in info.path]
    opened = lake.open(table)
    try:
        if opened.version() - max(checkpoints, default=0) >= _CHECKPOINT_AFTER:
            opened.create_checkpoint()
        opened.cleanup_metadata()
    except (DeltaError, OSError) as error:
        # the next run, or the next writer's own checkpoint, does it
        _log.warning("log not shortened", table=table, error=str(error))
    return len(_listed(files, _LOG))


def sweep_coverage(lake: Lake, settings: MaintenanceSettings, now: datetime) -> int:
    """Deletes coverage files that neither `history_days` nor a snapshot needs.

    Raises LakeError, OSError, ValueError.
    """
    newest = lake.ingest_commit()
    if newest is None:
        return 0
    oldest = now - timedelta(days=settings.history_days)
    # an attempt writes before it commits
    before = oldest - timedelta(seconds=settings.orphan_age_s)
    # a snapshot that is taken from here on is of a commit that is within those days
    kept = commits_of_snapshots(lake)
    return lake.coverage_log.sweep(newest, oldest.timestamp(), before.timestamp(), kept)


def _set_retention(opened: DeltaTable, settings: MaintenanceSettings) -> None:
    """Sets how long the table keeps commits and removed files."""
    wanted = {
        "delta.logRetentionDuration": f"interval {settings.history_days} days",
        "delta.deletedFileRetentionDuration": f"interval {max(1, settings.removed_files_kept_hours)} hours",
        # of commits; this run does it
        "delta.enableExpiredLogCleanup": "false",
    }
    if any(opened.metadata().configuration.get(name) != value for name, value in wanted.items()):
        opened.alter.set_table_properties(wanted)
        opened.update_incremental()


def listed_data(files: FileSystem) -> list[FileInfo]:
    """All data files in a table's folder; its log, which may be very long, is not listed."""
    found = files.get_file_info(FileSelector("", allow_not_found=True))
    folders = [info.path for info in found if not info.is_file and not info.base_name.startswith("_")]
    inside = [info for folder in folders for info in _listed(files, folder, recursive=True)]
    return [info for info in found if info.is_file and not info.base_name.startswith("_")] + inside


def _listed(files: FileSystem, folder: str = "", *, recursive: bool = False) -> list[FileInfo]:
    found = files.get_file_info(FileSelector(folder, recursive=recursive, allow_not_found=True))
    return [info for info in found if info.is_file]


def _version(info: FileInfo) -> int:
    digits = info.path.rsplit("/", 1)[-1].partition(".")[0]
    return int(digits) if digits.isdigit() else 0
