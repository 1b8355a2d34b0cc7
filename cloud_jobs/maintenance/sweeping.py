"""What nobody needs any more is deleted: files that no commit names, files that were replaced, commits and coverage of
long ago. Each is deleted only when it is older than whoever may still need it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import unquote

import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileInfo, FileSelector, FileSystem

from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.table_files import table_files

_LOG: Final = "_delta_log"
_CHECKPOINT_AFTER: Final = 50
"""So many commits after the last checkpoint a run makes one."""

_log = structlog.get_logger("maintain")


class SweptFiles(NamedTuple):
    """How many files were deleted: named by no commit, replaced long ago, of the coverage; and the commits kept."""

    orphans: int = 0
    replaced: int = 0
    log_files_before: int = 0
    log_files: int = 0


def sweep_table(
    lake: Lake, table: str, settings: MaintenanceSettings, now: datetime, *, dry_run: bool = False
) -> SweptFiles:
    """Sweeps the folder of a table and its log. Raises LakeError, DeltaError, OSError."""
    files = lake.files(table)
    # listed before the table is opened: what is old in the list, and then in no commit, never will be
    listed = _listed(files)
    log_files = sum(1 for info in listed if info.path.startswith(f"{_LOG}/"))
    opened = lake.open(table)
    if not dry_run:
        _set_retention(opened, settings)
    removed = set(opened.vacuum(0, dry_run=True, enforce_retention_duration=False))
    known = {file.path for file in table_files(opened, table)} | {unquote(path) for path in removed}
    oldest = now - timedelta(seconds=settings.orphan_age_s)
    orphans = [
        info.path for info in listed if not info.path.startswith("_") and info.path not in known and info.mtime < oldest
    ]
    kept_hours = settings.removed_files_kept_hours
    replaced = set(opened.vacuum(kept_hours, dry_run=True, enforce_retention_duration=False))
    # a file that was replaced twice over is named twice
    gone = {info.path for info in listed} & {unquote(path) for path in replaced}
    if not dry_run:
        for path in [*orphans, *gone]:
            _delete(files, path)
        _shorten_log(lake, table, opened)
    left = log_files if dry_run else len(_log_files(files))
    return SweptFiles(len(orphans), len(gone), log_files, left)


def sweep_coverage(lake: Lake, settings: MaintenanceSettings, now: datetime) -> int:
    """Deletes files of the coverage that no moment within `as_of_days` needs. Raises LakeError, OSError, ValueError."""
    newest = lake.ingest_commit()
    if newest is None:
        return 0
    oldest = now - timedelta(days=settings.as_of_days)
    # an attempt writes before it commits
    before = oldest - timedelta(seconds=settings.orphan_age_s)
    return lake.coverage_log.sweep(newest, oldest.timestamp(), before.timestamp())


def _set_retention(opened: DeltaTable, settings: MaintenanceSettings) -> None:
    """Writes into the table how long its commits, and what it knows of replaced files, are kept."""
    wanted = {
        "delta.logRetentionDuration": f"interval {settings.as_of_days} days",
        "delta.deletedFileRetentionDuration": f"interval {max(1, settings.removed_files_kept_hours)} hours",
        # of commits; this run does it
        "delta.enableExpiredLogCleanup": "false",
    }
    if any(opened.metadata().configuration.get(name) != value for name, value in wanted.items()):
        opened.alter.set_table_properties(wanted)
        opened.update_incremental()


def _shorten_log(lake: Lake, table: str, opened: DeltaTable) -> None:
    files = lake.files(table)
    checkpoints = [_version(info) for info in _log_files(files) if ".checkpoint" in info.path]
    opened = lake.open(table)
    try:
        if opened.version() - max(checkpoints, default=0) >= _CHECKPOINT_AFTER:
            opened.create_checkpoint()
        opened.cleanup_metadata()
    except (DeltaError, OSError) as error:
        # the next run, or the next writer's own checkpoint, does it
        _log.warning("log not shortened", table=table, error=str(error))


def _listed(files: FileSystem) -> list[FileInfo]:
    found = files.get_file_info(FileSelector("", recursive=True, allow_not_found=True))
    return [info for info in found if info.is_file]


def _log_files(files: FileSystem) -> list[FileInfo]:
    found = files.get_file_info(FileSelector(_LOG, allow_not_found=True))
    return [info for info in found if info.is_file]


def _version(info: FileInfo) -> int:
    digits = info.path.rsplit("/", 1)[-1].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _delete(files: FileSystem, path: str) -> None:
    # another run may have been faster
    with suppress(FileNotFoundError):
        files.delete_file(path)
