"""Positions are erased from the data files: their ids stay known to the coverage, so they do not come back.

The erasures are declared first, so nobody takes a version without the positions for all there was. Up to which erasure
and for which records the files have been searched is kept with the records table, as an application transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.maintenance.rewriting import Keep, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.table_files import TableFile, table_files

ERASED: Final = "erased"
"""The name under which it is kept how far the records have been searched: erasures, and commits of the ingest."""
_BITS: Final = 32
_SEARCHED_COLUMNS: Final = ("tenant", "device", "kind", "device_time", "received_at")

_log = structlog.get_logger("maintain")


class Searched(NamedTuple):
    """All erasures up to one number, in all records up to one ingest number, are done."""

    erasure: int
    ingest_number: int


class EraseResult(NamedTuple):
    """How many positions, and conflicts with them in the quarantine, were erased, and how many files are left."""

    positions: int = 0
    conflicts: int = 0
    left: int = 0


def declare_old(lake: Lake, after_days: int, now: datetime) -> None:
    """Declares the positions of all devices that are older than so many days, to the UTC day."""
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    declare_erasure(lake, Erasure(None, None, midnight - timedelta(days=after_days)), now)


def erase(rewriter: Rewriter, *, dry_run: bool = False) -> EraseResult:
    """Erases what is declared. Done again it changes nothing. Raises LakeError, CommitFailed."""
    opened = rewriter.lake.open("records")
    declared = rewriter.lake.rows("erasures").to_pylist()
    if not declared:
        return EraseResult()
    until = Searched(max(row["number"] for row in declared), counter_of(newest_number(opened, INGEST)))
    since = _searched(opened)
    erasures = [_erasure(row) for row in declared]
    positions = left = 0
    for file in files_to_search(table_files(opened, "records"), declared, since):
        found = _count(rewriter.lake.files("records"), file, erasures)
        if found and not dry_run:
            done = rewriter.rewrite("records", [file], _kept(file, erasures)).done
            # taken by another rewrite: the file that it made is searched by the next run
            left += not done
            found *= done
            _log.info("erased" if done else "left", table="records", path=file.path, positions=found)
        positions += found
    if dry_run:
        return EraseResult(positions)
    conflicts = _erase_conflicts(rewriter, erasures)
    if not left and until != since:
        _keep_searched(rewriter.lake, since, until)
    rewriter.reached(MaintenancePoint.ERASED)
    return EraseResult(positions, conflicts, left)


def files_to_search(files: Iterable[TableFile], declared: Sequence[dict[str, Any]], since: Searched) -> list[TableFile]:
    """The files that may hold positions to be erased, by their bounds and by what was searched before."""
    return [file for file in files if any(_may_hold(file, row, since) for row in declared)]


def is_erased(rows: pa.Table, erasures: Iterable[Erasure], *, has_day: bool) -> pa.ChunkedArray:
    """Which records are positions that are erased. Of those without a day, whose clock was far off, the moment of
    receipt counts."""
    moment = rows["device_time"] if has_day else pc.coalesce(rows["received_at"], rows["device_time"])
    erased = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for tenant, device, before in erasures:
        mine = pc.less(moment, pa.scalar(before, RECORDS.field("device_time").type))
        if device is not None:
            mine = pc.and_(mine, pc.equal(rows["device"], device))
        if tenant is not None:
            mine = pc.and_(mine, pc.equal(rows["tenant"], tenant))
        erased = pc.or_(erased, pc.fill_null(mine, False))
    return pc.and_(pc.equal(rows["kind"], "position"), erased)


def _kept(file: TableFile, erasures: Sequence[Erasure]) -> Keep:
    return lambda rows: pc.invert(is_erased(rows, erasures, has_day=file.day is not None))


def _count(files: FileSystem, file: TableFile, erasures: Sequence[Erasure]) -> int:
    """How many positions of a file are erased; only what says so is read."""
    columns = pa.schema([RECORDS.field(name) for name in _SEARCHED_COLUMNS])
    with files.open_input_file(file.path) as opened:
        batches = pq.ParquetFile(opened).iter_batches(columns=[*_SEARCHED_COLUMNS], use_threads=False)
        return sum(
            pc.sum(
                is_erased(pa.Table.from_batches([batch]).cast(columns), erasures, has_day=file.day is not None)
            ).as_py()
            or 0
            for batch in batches
        )


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


def _erase_conflicts(rewriter: Rewriter, erasures: Sequence[Erasure]) -> int:
    """Erases what the quarantine keeps of other contents of erased positions."""
    gone = 0
    for file in table_files(rewriter.lake.open("quarantine"), "quarantine"):
        if file.rows >= 0:
            result = rewriter.rewrite("quarantine", [file], lambda rows: pc.invert(_conflicts_erased(rows, erasures)))
            gone += result.dropped if result.done else 0
    return gone


def _conflicts_erased(rows: pa.Table, erasures: Sequence[Erasure]) -> pa.ChunkedArray:
    names = [name for name in ("tenant", "device") if name in rows.column_names]
    of_each = rows.select(["cause", "detail", *names]).to_pylist()
    return pa.chunked_array(
        [pa.array([row["cause"] == "conflict" and _is_erased(row, erasures) for row in of_each], pa.bool_())]
    )


def _is_erased(row: dict[str, Any], erasures: Sequence[Erasure]) -> bool:
    content = json.loads(row["detail"])
    if content.get("kind") != "position":
        return False
    moment = datetime.fromisoformat(content["device_time"])
    return any(
        # a row without a tenant may be anybody's
        moment < before and device in (None, row["device"]) and (tenant is None or row.get("tenant", tenant) == tenant)
        for tenant, device, before in erasures
    )


def _erasure(row: dict[str, Any]) -> Erasure:
    return Erasure(row["tenant"], row["device"], row["before"])


def _searched(opened: DeltaTable) -> Searched:
    number = newest_number(opened, ERASED)
    return Searched(0, 0) if number is None else Searched(number >> _BITS, number & ((1 << _BITS) - 1))


def _keep_searched(lake: Lake, since: Searched, until: Searched) -> None:
    opened = lake.open("records")
    # another run may have come further
    if _searched(opened) != since:
        return
    number = until.erasure << _BITS | until.ingest_number
    properties = CommitProperties(app_transactions=[Transaction(ERASED, number)])
    try:
        opened.create_write_transaction([], "append", RECORDS, ["device_date"], commit_properties=properties)
    except (DeltaError, OSError, ValueError) as error:
        # the next run searches again
        _log.info("not kept how far was searched", error=str(error))
