"""Positions are erased from the data files: their ids stay known to the coverage, so they do not come back.

The erasures are declared first, so nobody takes a version without the positions for all there was. Up to which erasure
and for which records the files have been searched is kept with the records table, as an application transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
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
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.maintenance.rewriting import MaintenancePoint, Rewriter
from cloud_jobs.maintenance.table_files import TableFile, table_files

ERASED: Final = "erased"
"""The name under which it is kept how far the records have been searched: erasures, and commits of the ingest."""
_BITS: Final = 32
_CONFLICT: Final = "conflict"
_CONFLICT_COLUMNS: Final = ("cause", "detail", "tenant", "device", "quarantined_at")
_AHEAD: Final = timedelta(days=1)
"""A device time so much after its conflict was quarantined is that of a wrong clock."""
_CONFLICTS_READ: Final = 1 << 12
"""So many rows of the quarantine are looked at in one piece."""
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
    """How many positions, and conflicts with them in the quarantine, were erased, how many files are left, and what
    failed."""

    positions: int = 0
    conflicts: int = 0
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
    try:
        made.conflicts = _erase_conflicts(rewriter, [_erasure(row) for row in declared], dry_run=dry_run)
    except (CommitFailed, LakeError, DeltaError, OSError, ValueError) as error:
        made.errors.append(f"conflicts with erased positions were not erased: {error}")
    if dry_run:
        return made
    if not made.left and until != since:
        _keep_searched(rewriter.lake, since, until)
    rewriter.reached(MaintenancePoint.ERASED)
    return made


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
    if file.nulls.get("latitude") == file.rows:
        return False
    newest = file.high.get("ingest_number")
    if row["number"] <= since.erasure and newest is not None and newest <= since.ingest_number:
        return False
    device, tenant = row["device"], row["tenant"]
    earliest = file.low.get("device_time")
    return (
        (file.day is None or earliest is None or earliest < row["before"])
        and (device is None or file.low.get("device", device) <= device <= file.high.get("device", device))
        and (tenant is None or file.low.get("tenant", tenant) <= tenant <= file.high.get("tenant", tenant))
    )


def _erase_conflicts(rewriter: Rewriter, erasures: Sequence[Erasure], *, dry_run: bool) -> int:
    """Erases what the quarantine keeps of other contents of erased positions."""
    gone = 0
    for file in table_files(rewriter.lake.open("quarantine"), "quarantine"):
        if file.rows < 0 or not (found := _count_conflicts(rewriter.lake.files("quarantine"), file, erasures)):
            continue
        if not dry_run:
            result = rewriter.rewrite("quarantine", [file], lambda rows: pc.invert(_conflicts_erased(rows, erasures)))
            found = result.dropped if result.done else 0
        gone += found
    return gone


def _count_conflicts(files: FileSystem, file: TableFile, erasures: Sequence[Erasure]) -> int:
    if not file.low.get("cause", _CONFLICT) <= _CONFLICT <= file.high.get("cause", _CONFLICT):
        return 0
    with files.open_input_file(file.path) as opened:
        parquet = pq.ParquetFile(opened)
        columns = [name for name in _CONFLICT_COLUMNS if name in parquet.schema_arrow.names]
        batches = parquet.iter_batches(batch_size=_CONFLICTS_READ, columns=columns, use_threads=False)
        return sum(pc.sum(_conflicts_erased(pa.Table.from_batches([one]), erasures)).as_py() or 0 for one in batches)


def _conflicts_erased(rows: pa.Table, erasures: Sequence[Erasure]) -> pa.ChunkedArray:
    of_each = rows.select([name for name in _CONFLICT_COLUMNS if name in rows.column_names]).to_pylist()
    return pa.chunked_array(
        [pa.array([row["cause"] == _CONFLICT and _is_erased(row, erasures) for row in of_each], pa.bool_())]
    )


def _is_erased(row: dict[str, Any], erasures: Sequence[Erasure]) -> bool:
    content = json.loads(row["detail"])
    if content.get("kind") != "position":
        return False
    moment = datetime.fromisoformat(content["device_time"])
    # when the record was received is not kept with it: of a clock far ahead it goes with any erasure of its device
    ahead = moment > row["quarantined_at"] + _AHEAD
    return any(
        # a row without a tenant may be anybody's
        (ahead or moment < before)
        and device in (None, row["device"])
        and (tenant is None or row.get("tenant", tenant) == tenant)
        for tenant, device, before in erasures
    )


def _erasure(row: dict[str, Any]) -> Erasure:
    return Erasure(row["tenant"], row["device"], row["before"])


def searched(opened: DeltaTable) -> Searched:
    """How far the version of the records that was opened has been searched."""
    number = newest_number(opened, ERASED)
    return Searched(0, 0) if number is None else Searched(number >> _BITS, number & ((1 << _BITS) - 1))


def _keep_searched(lake: Lake, since: Searched, until: Searched) -> None:
    opened = lake.open("records")
    # another run may have come further
    if searched(opened) != since:
        return
    number = until.erasure << _BITS | until.ingest_number
    properties = CommitProperties(app_transactions=[Transaction(ERASED, number)])
    try:
        opened.create_write_transaction([], "append", RECORDS, ["device_date"], commit_properties=properties)
    except (DeltaError, OSError, ValueError) as error:
        # the next run searches again
        _log.info("not kept how far was searched", error=str(error))
