"""Lines and certificates that dead runs of the closing left are deleted: no closing names them, nobody reads them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from cloud_jobs.lake.dead_runs import declare_dead, runs_without_closing
from cloud_jobs.lake.stored_files import StoredFiles, read_stored
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.rewriting import Rewriter
from cloud_jobs.maintenance.table_files import TableFile, table_files

_TABLES: Final = ("rated_lines", "certificates")


class _RunsOfFile(NamedTuple):
    table: str
    file: TableFile
    rows: Counter[str]
    is_old: bool


def sweep_dead_closings(
    rewriter: Rewriter, settings: MaintenanceSettings, now: datetime, *, dry_run: bool = False
) -> int:
    """Deletes the rows of runs that no closing names and that have none younger than `orphan_age_s`; how many.

    A run that goes on all the same closes nothing (see `lake.dead_runs`). Raises LakeError, CommitConflict,
    CommitFailed, OSError.
    """
    lake, oldest = rewriter.lake, now - timedelta(seconds=settings.orphan_age_s)
    files = [one for table in _TABLES for one in _runs(rewriter, table, oldest)]
    # a merge makes old rows younger; they go a few hours later
    young = {run for one in files if not one.is_old for run in one.rows}
    old = {run for one in files for run in one.rows} - young
    # from here on a run that was merely stopped closes nothing
    dead = runs_without_closing(lake, lake.open("closings"), old) if dry_run or not old else declare_dead(lake, old)
    gone = 0
    for one in files:
        found = sum(one.rows[run] for run in dead)
        if found and not dry_run:
            result = rewriter.rewrite(one.table, [one.file], lambda rows: _keep(rows, dead))
            # what another rewrite took first is for the next run
            found = result.dropped if result.done else 0
        gone += found
    return gone


def _keep(rows: pa.Table, dead: set[str]) -> pa.ChunkedArray:
    return pc.invert(pc.is_in(rows["run"].cast(pa.string()), pa.array(sorted(dead), pa.string())))


def _runs(rewriter: Rewriter, table: str, oldest: datetime) -> list[_RunsOfFile]:
    """The runs of each file. Most have one, which their bounds say; of the others one column is read."""
    opened = rewriter.lake.open(table)
    stored = StoredFiles.of(opened, table)
    if not len(stored):
        return []
    files: FileSystem = rewriter.lake.files(table)
    written = stored.actions["modification_time"].cast(pa.timestamp("ms", tz="UTC")).to_pylist()
    by_path = {file.path: file for file in table_files(opened, table)}
    found = []
    for path, (low, high), moment in zip(stored.paths, stored.bounds("run"), written, strict=True):
        file = by_path[path]
        if low is not None and low == high and file.rows >= 0:
            rows = Counter({low: file.rows})
        else:
            rows = Counter(read_stored(files, table, path, ["run"], {})["run"].to_pylist())
        found.append(_RunsOfFile(table, file, rows, moment < oldest))
    return found
