"""Records that are there twice are kept once: of the copies one stays, file by file, however many there are.

`maintain` makes none; another program that merges files does. A copy goes from a file only in a commit upon a table
that still has the files with the other copy, so of two that do this at once none takes away what the other one left.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from numpy.typing import NDArray

from cloud_jobs.lake.schemas import RECORDS, TABLES
from cloud_jobs.lake.stream_order import stream_codes
from cloud_jobs.maintenance.key_ranges import KeyRange, RowSource
from cloud_jobs.maintenance.merge_plan import may_share, settled_merges
from cloud_jobs.maintenance.rewriting import Keep, Rewriter
from cloud_jobs.maintenance.table_files import TableFile, by_day, table_files

_TABLE: Final = "records"
_ORDER: Final = TABLES[_TABLE].order
_IDS: Final = pa.schema([(name, RECORDS.field(name).type) for name in _ORDER])

_log = structlog.get_logger("maintain")


class OnceEachResult(NamedTuple):
    """How many copies went, and how many files were not looked at, of days that grow, or left to other runs."""

    copies: int = 0
    left: int = 0


def keep_once_each(rewriter: Rewriter, hot_days: int, *, dry_run: bool = False) -> OnceEachResult:
    """Keeps each record once, on all days that are sorted; a dry run only counts. Raises LakeError, CommitFailed.

    A day that still grows is not sorted, so it is left: so many files of which each may hold any device would each be
    read as often as there are files.
    """
    grows_from = (rewriter.now() - timedelta(days=hot_days - 1)).date()
    copies = left = 0
    for day, files in by_day(table_files(rewriter.lake.open(_TABLE), _TABLE)):
        if _is_sorted(rewriter, day, files, grows_from):
            of_day = _of_day(rewriter, files, dry_run=dry_run)
            copies, left = copies + of_day.copies, left + of_day.left
        elif len(files) > 1:
            left += len(files)
    return OnceEachResult(copies, left)


def _is_sorted(rewriter: Rewriter, day: date | None, files: Sequence[TableFile], grows_from: date) -> bool:
    # what has no day is little, and never past
    return day is None or (day < grows_from and not settled_merges(files, rewriter.limits, _ORDER))


def _of_day(rewriter: Rewriter, files: Sequence[TableFile], *, dry_run: bool) -> OnceEachResult:
    copies = left = 0
    there = list(files)
    # the smaller of two files is written again
    for file in sorted(files, key=lambda one: one.rows):
        if rewriter.stopped():
            break
        # of a file whose log does not say how many rows it has it cannot be said that none was lost
        if file.rows < 0:
            left += 1
            continue
        others = [other for other in there if other is not file and may_share(file, other, _ORDER)]
        found = _count(rewriter, file, others)
        if not found:
            continue
        done = dry_run or rewriter.rewrite(_TABLE, [file], _kept_beside(_ids(rewriter, others)), beside=others).done
        # what it has from now on is in no other file
        there.remove(file)
        copies, left = copies + found * done, left + (not done)
        _log.info("kept once" if done else "left", table=_TABLE, path=file.path, copies=found)
    return OnceEachResult(copies, left)


def _count(rewriter: Rewriter, file: TableFile, others: Sequence[TableFile]) -> int:
    """How many rows of a file are copies; only ids are read, no more at a time than fits into memory."""
    mine, theirs = _ids(rewriter, [file]), _ids(rewriter, others)
    found = 0
    for keys in _ids(rewriter, [file, *others]).ranges(rewriter.limits.memory):
        rows = mine.read(keys)
        if rows.num_rows:
            found += pc.sum(pc.invert(_stay(rows, theirs.read(keys)))).as_py() or 0
    return found


def _kept_beside(others: RowSource) -> Keep:
    def kept(rows: pa.Table) -> pa.ChunkedArray:
        return _stay(rows, others.read(_range_of(rows)) if rows.num_rows else _IDS.empty_table())

    return kept


def _ids(rewriter: Rewriter, files: Sequence[TableFile]) -> RowSource:
    return RowSource(rewriter.lake.files(_TABLE), tuple(file.path for file in files), _IDS, _ORDER)


def _stay(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Which rows stay, in their order: the first of each id that is in no other file."""
    # those of others first: of equal ids the first one is no copy
    ids = pa.concat_tables([others, rows.select(_IDS.names).cast(_IDS)])
    at, codes, seqs = _sorted(ids)
    is_copy = np.zeros(ids.num_rows, bool)
    is_copy[at[1:]] = (np.diff(codes[at]) == 0) & (np.diff(seqs[at]) == 0)
    return pa.chunked_array([pa.array(~is_copy[others.num_rows :])])


def _sorted(ids: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The places of ids in their order, equal ones as they came; a number for the stream of each, and its seq."""
    codes, seqs = stream_codes(ids), ids["seq"].to_numpy()
    return np.lexsort((seqs, codes)), codes, seqs


def _range_of(rows: pa.Table) -> KeyRange:
    """The range of keys from the lowest to the highest of some rows."""
    at, _, _ = _sorted(rows)
    low, high = (tuple(row.values()) for row in rows.select(_ORDER).take(pa.array(at[[0, -1]])).to_pylist())
    return KeyRange(low, (*high[:-1], high[-1] + 1))
