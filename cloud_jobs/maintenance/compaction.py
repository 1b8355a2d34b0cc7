"""Files of every table are merged and sorted, day by day, so that their number stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

import structlog

from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.maintenance.merge_plan import growing_merges, settled_merges
from cloud_jobs.maintenance.rewriting import Rewriter
from cloud_jobs.maintenance.table_files import TableFile, by_day, table_files

_log = structlog.get_logger("maintain")
_MAX_ROUNDS: Final = 3


class CompactionResult(NamedTuple):
    """How many merges were made, of how many files, and how many were left because others took their files first."""

    merges: int = 0
    files: int = 0
    left: int = 0


def compact(rewriter: Rewriter, table: str, hot_days: int, *, dry_run: bool = False) -> CompactionResult:
    """Merges what is due in a table. A dry run only counts. Raises LakeError, CommitFailed."""
    merges = files = left = 0
    # what was merged may be due again, in the next size
    for _ in range(1 if dry_run else _MAX_ROUNDS):
        due = due_merges(rewriter, table, rewriter.now(), hot_days)
        for merge in due:
            if rewriter.stopped():
                return CompactionResult(merges, files, left)
            made = dry_run or rewriter.rewrite(table, merge).done
            merges, files, left = merges + made, files + len(merge) * made, left + (not made)
            if not dry_run:
                _log.info("merged" if made else "left", table=table, day=_text(merge[0].day), files=len(merge))
        if not due:
            break
    return CompactionResult(merges, files, left)


def due_merges(rewriter: Rewriter, table: str, now: datetime, hot_days: int) -> list[Sequence[TableFile]]:
    """The merges that are due in a table as it is."""
    due: list[Sequence[TableFile]] = []
    growing_from = (now - timedelta(days=hot_days - 1)).date()
    # a file of which the log does not say how many rows it has is another writer's: it is left as it is
    files = [file for file in table_files(rewriter.lake.open(table), table) if file.rows >= 0]
    for day, of_day in by_day(files):
        is_past = day is not None and day < growing_from
        settled = settled_merges(of_day, rewriter.limits, TABLES[table].order) if is_past else []
        due += settled or growing_merges(of_day, rewriter.limits)
    return due


def _text(day: date | None) -> str:
    return day.isoformat() if day else ""
