"""Positions are erased from the data files: their ids stay known to the coverage, so they do not come back.

The erasures are declared first, so nobody takes a version without the positions for all there was. Up to which erasure
and for which records the files have been searched is kept with the records table, as an application transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.erasures import Erasure, is_erased
from cloud_jobs.lake.schemas import RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.maintenance.personal import DERIVED, file_rows, may_hold, rows_of
from cloud_jobs.maintenance.rewriting import Keep, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.table_files import TableFile, table_files

ERASED: Final = "erased"
"""The name under which it is kept how far the records have been searched: erasures, and commits of the ingest."""
_BITS: Final = 32
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SEARCHED_COLUMNS: Final = ("tenant", "device", "kind", "device_time", "received_at", "ingest_number")

_log = structlog.get_logger("maintain")


class Searched(NamedTuple):
    """All erasures up to one number, in all records up to one ingest number, are done."""

    erasure: int
    ingest_number: int


class Plan(NamedTuple):
    """Erasures (rows of the table), and the ingest numbers of the positions that they are for: after one, up to one."""

    rows: Sequence[dict[str, Any]]
    after: int
    up_to: int

    def chosen(self, rows: pa.Table, *, has_day: bool) -> pa.ChunkedArray:
        """Which records are positions that it is for."""
        number = rows["ingest_number"]
        mine = pc.and_(pc.greater(number, self.after), pc.less_equal(number, self.up_to))
        # any day says that there is one: rows of a file do not have it
        day = pa.repeat(pa.scalar(date.min if has_day else None, pa.date32()), rows.num_rows)
        dated = rows.append_column("device_date", day)
        return pc.and_(is_erased(dated, [_erasure(row) for row in self.rows]), mine)


@dataclass
class EraseResult:
    """How many positions (of a request: records), and rows of other tables, were erased, how many files are left, and
    what failed."""

    positions: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    left: int = 0
    errors: list[str] = field(default_factory=list)


def old_positions(after_days: int, now: datetime) -> Erasure:
    """The erasure of the positions of all devices that are older than so many days, to the UTC day."""
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    return Erasure(None, None, midnight - timedelta(days=after_days))


def erase(rewriter: Rewriter, covered: int, planned: Sequence[Erasure] = (), *, dry_run: bool = False) -> EraseResult:
    """Erases what is declared, of records up to an ingest number. Done again it changes nothing. Raises LakeError.

    `planned`: what is taken for declared besides.
    """
    opened = rewriter.lake.open("records")
    declared = rewriter.lake.rows("erasures").to_pylist()
    last = max((row["number"] for row in declared), default=0)
    declared += [one._asdict() | {"number": last + at} for at, one in enumerate(planned, 1)]
    made = EraseResult()
    if not declared:
        return made
    plan, since = Plan(declared, 0, covered), searched(opened)
    until = Searched(last, min(covered, counter_of(newest_number(opened, INGEST))))
    for file in files_to_search(table_files(opened, "records"), plan, since):
        try:
            made.positions += _erase_from(rewriter, file, plan, made, dry_run=dry_run)
        except (CommitFailed, LakeError, DeltaError, OSError, ValueError) as error:
            # what lies in other files does not wait for it
            made.left += 1
            made.errors.append(f"positions in {file.path} were not erased: {error}")
    requests = [row for row in declared if row["since"] is not None]
    for table, rows in {"quarantine": declared, **dict.fromkeys(DERIVED, requests)}.items():
        try:
            made.rows[table] = _erase_rows(rewriter, table, rows, made, dry_run=dry_run) if rows else 0
        except (CommitFailed, LakeError, DeltaError, OSError, ValueError) as error:
            made.errors.append(f"rows of {table} were not erased: {error}")
    if dry_run:
        return made
    if not made.left and until != since:
        _keep_searched(rewriter.lake, "records", since, until)
    rewriter.reached(MaintenancePoint.ERASED)
    return made


def _erase_rows(
    rewriter: Rewriter, table: str, declared: Sequence[dict[str, Any]], made: EraseResult, *, dry_run: bool
) -> int:
    """Erases what a table has of erasures; what was searched for one before is not searched again."""
    opened = rewriter.lake.open(table)
    files, since, gone, left = table_files(opened, table), searched(opened), 0, made.left
    last = max(row["number"] for row in declared)
    until = Searched(last, max((file.high.get("commit_number", 0) for file in files), default=0))
    for file in files:
        is_new = file.high.get("commit_number", until.ingest_number) > since.ingest_number
        asked = [_erasure(row) for row in declared if is_new or row["number"] > since.erasure]
        if asked := [one for one in asked if may_hold(table, file, one)]:
            found, done = _drop(rewriter, table, file, partial(_of_none, table, asked), dry_run=dry_run)
            made.left += not done
            gone += found * done
    if not dry_run and made.left == left and until != since:
        _keep_searched(rewriter.lake, table, since, until)
    return gone


def erase_old(rewriter: Rewriter, table: str, before: datetime, *, dry_run: bool = False) -> int:
    """Erases rows of days, of the quarantine what was quarantined, before a moment. Raises LakeError, and what a file
    raises."""

    def is_young(rows: pa.Table) -> pa.ChunkedArray:
        if table == "quarantine":
            return pc.greater_equal(rows["quarantined_at"], before)
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])

    gone = 0
    for file in table_files(rewriter.lake.open(table), table):
        # of a file without bounds nothing is known
        oldest = file.low.get("quarantined_at", _EVER) if table == "quarantine" else file.day
        if oldest is not None and oldest < (before if table == "quarantine" else before.date()):
            found, done = _drop(rewriter, table, file, is_young, dry_run=dry_run)
            gone += found * done
    return gone


def _drop(rewriter: Rewriter, table: str, file: TableFile, keep: Keep, *, dry_run: bool) -> tuple[int, bool]:
    """Rewrites a file without the rows that do not stay: how many these are, and whether it was, or need not be."""
    parts = file_rows(rewriter.lake.files(table), table, file.path)
    found = sum(rows.num_rows - (pc.sum(keep(rows)).as_py() or 0) for rows in parts)
    return found, not found or dry_run or rewriter.rewrite(table, [file], keep).done


def _of_none(table: str, asked: Sequence[Erasure], rows: pa.Table) -> pa.ChunkedArray:
    spared = pa.chunked_array([pa.repeat(True, rows.num_rows)])
    for one in asked:
        spared = pc.and_(spared, pc.invert(rows_of(table, rows, one)))
    return spared


def not_covered(lake: Lake, erasure: Erasure, covered: int) -> int:
    """How many positions of an erasure came after an ingest number. Raises LakeError, and what a file raises."""
    opened = lake.open("records")
    plan = Plan([erasure._asdict() | {"number": 1}], covered, counter_of(newest_number(opened, INGEST)))
    files = files_to_search(table_files(opened, "records"), plan, Searched(0, 0))
    return sum(_count(lake.files("records"), file, plan) for file in files)


def files_to_search(files: Iterable[TableFile], plan: Plan, since: Searched) -> list[TableFile]:
    """The files that may hold positions to be erased, by their bounds and by what was searched before."""
    return [
        file
        for file in files
        if file.low.get("ingest_number", plan.up_to) <= plan.up_to
        and file.high.get("ingest_number", plan.up_to) > plan.after
        and any(_may_hold(file, row, since) for row in plan.rows)
    ]


def _erase_from(rewriter: Rewriter, file: TableFile, plan: Plan, made: EraseResult, *, dry_run: bool) -> int:
    """Erases the positions in a file and returns how many there were; what is left is counted."""
    found = _count(rewriter.lake.files("records"), file, plan)
    if not found or dry_run:
        return found
    has_day = file.day is not None
    done = rewriter.rewrite("records", [file], lambda rows: pc.invert(plan.chosen(rows, has_day=has_day))).done
    # taken by another rewrite: the file that it made is searched by the next run
    made.left += not done
    _log.info("erased" if done else "left", table="records", path=file.path, positions=found)
    return found * done


def _count(files: FileSystem, file: TableFile, plan: Plan) -> int:
    """How many positions of a file are erased; only what says so is read."""
    columns = pa.schema([RECORDS.field(name) for name in _SEARCHED_COLUMNS])
    with files.open_input_file(file.path) as opened:
        batches = pq.ParquetFile(opened).iter_batches(columns=[*_SEARCHED_COLUMNS], use_threads=False)
        tables = (pa.Table.from_batches([batch]).cast(columns) for batch in batches)
        return sum(pc.sum(plan.chosen(rows, has_day=file.day is not None)).as_py() or 0 for rows in tables)


def _may_hold(file: TableFile, row: dict[str, Any], since: Searched) -> bool:
    asked, newest = _erasure(row), file.high.get("ingest_number")
    if asked.since is None and file.nulls.get("latitude") == file.rows:
        return False
    if row["number"] <= since.erasure and newest is not None and newest <= since.ingest_number:
        return False
    tenant, earliest = asked.tenant, file.low.get("device_time")
    return (
        (file.day is None or earliest is None or earliest < asked.before)
        and (tenant is None or file.low.get("tenant", tenant) <= tenant <= file.high.get("tenant", tenant))
        and may_hold("records", file, asked)
    )


def _erasure(row: dict[str, Any]) -> Erasure:
    return Erasure(*(row[name] for name in Erasure._fields))


def searched(opened: DeltaTable) -> Searched:
    """How far the version of a table that was opened has been searched; of a derived one commits of its own count."""
    number = newest_number(opened, ERASED)
    return Searched(0, 0) if number is None else Searched(number >> _BITS, number & ((1 << _BITS) - 1))


def _keep_searched(lake: Lake, table: str, since: Searched, until: Searched) -> None:
    opened, layout = lake.open(table), TABLES[table]
    # another run may have come further
    if searched(opened) != since:
        return
    number = until.erasure << _BITS | until.ingest_number
    properties = CommitProperties(app_transactions=[Transaction(ERASED, number)])
    try:
        opened.create_write_transaction(
            [], "append", layout.schema, [*layout.partition_by], commit_properties=properties
        )
    except (DeltaError, OSError, ValueError) as error:
        # the next run searches again
        _log.info("not kept how far was searched", error=str(error))
