"""Rows of a data subject, or older than their retention: found, exported and erased.

The erasures are declared first, so nobody takes a version without the positions for all there was. Up to which erasure
and for which records the files have been searched is kept with the records table, as an application transaction.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import day_of
from cloud_jobs.lake.erasures import Erasure, is_erased
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.schemas import RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.maintenance.compaction import Keep, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.sweeping import TableFile, listed_data, table_files
from geo.reference.moments import stamp

# Personal data of a device and a period: its rows, files, export and access log.

DERIVED: Final = ("alerts", "verdicts", "geofence_events", "encounters")
"""The tables from which a request erases rows, beside `records` and `quarantine`. Alerts go before events: an alert
without an event would be withdrawn, and its receivers notified."""
EXPORTED: Final = ("records", *DERIVED, "usage", "quarantine")
KEPT_FOR_BILLS: Final = "usage and the register of bills: quantities by hour and place stay, as invoices rest on them"
NOT_COVERED: Final = (
    "Pulsar's topics and the region's broker: until their retention ends",
    "the device's own buffer: until the centre acknowledged its records",
    "backups and snapshots of disks: until their operator deletes them",
    "what was delivered: webhooks, invoices, exports, messages of topics that others read",
    "malformed messages in quarantine, which name no device: until `erase_quarantine_after_days`",
)
_DAY: Final = timedelta(days=1)
_ROWS: Final = 1 << 10
"""So many rows are read in one piece: those of the quarantine have whole messages."""
_CONFLICT: Final = "conflict"
_CONFLICT_COLUMNS: Final = ("cause", "detail", "tenant", "device", "quarantined_at")
_AHEAD: Final = timedelta(days=1)
"""A device time so much after its conflict was quarantined is that of a wrong clock."""
_TIME: Final = {
    "records": "device_time",
    "geofence_events": "time",
    "encounters": "start",
    "alerts": "time",
    "verdicts": "time",
    "usage": "hour",
    "quarantine": "quarantined_at",
}
_README: Final = """What is stored about one device and one period. Times are UTC. A line of a .jsonl file is a row.

track.geojson         the positions; any map program opens it
records.jsonl         all records in order of time. device_time: when it was measured. latitude, longitude: degrees
                      (WGS84). altitude_m, accuracy_m: metres. speed_mps: metres per second. heading_deg: degrees from
                      north. epoch, seq: the number of the record. payload: Base64
geofence_events.jsonl entering, leaving and speeding at places that were watched
encounters.jsonl      periods in which another device was near. min_m: the smallest distance in metres
alerts.jsonl          messages that were sent at the time; verdicts.jsonl: whether they were right
usage.jsonl           quantities for the bill by hour and place (zone; empty: outside all places). Each quantity has
                      four numbers, one for each quarter of the hour. distance_mm: millimetres. duration_ms:
                      milliseconds. entries, crossings, events, content_bytes: counts
quarantine.jsonl      records that contradicted earlier ones (detail: their content)
manifest.json         how many rows each file has, and what is not in this export
"""
_POSITION: Final = ("device_time", "epoch", "seq", "speed_mps", "heading_deg", "accuracy_m")


def rows_of(table: str, rows: pa.Table, asked: Erasure) -> pa.ChunkedArray:
    """Which rows of a table are of the device and the time of a request."""
    if table == "records":
        return is_erased(rows, [asked])
    if table == "quarantine":
        mine = [is_quarantined_of(row, asked) for row in rows.select(_CONFLICT_COLUMNS).to_pylist()]
        return pa.chunked_array([pa.array(mine, pa.bool_())])
    columns = [name for name in ("device", "device_a", "device_b") if name in rows.column_names]
    theirs = pc.equal(rows[columns[0]], asked.device)
    for name in columns[1:]:
        theirs = pc.or_(theirs, pc.equal(rows[name], asked.device))
    theirs = pc.and_(theirs, pc.equal(rows["tenant"], asked.tenant))
    if table == "encounters":
        return pc.and_(
            theirs, pc.and_(pc.less(rows["start"], asked.before), pc.greater_equal(rows["end"], asked.since))
        )
    within = pa.scalar(False)
    for name in ("time", "hour", "alerted_time", "previous_time"):
        if name in rows.column_names:
            here = pc.and_(pc.greater_equal(rows[name], asked.since), pc.less(rows[name], asked.before))
            within = pc.or_(within, pc.fill_null(here, False))
    return pc.and_(theirs, within)


def is_quarantined_of(row: dict[str, Any], erasure: Erasure) -> bool:
    """Whether a row of the quarantine holds what is erased. Malformed messages name no device: none is."""
    tenant, device, before, since = erasure
    # a row without a tenant may be anybody's
    if row["cause"] != _CONFLICT or device not in (None, row["device"]) or row["tenant"] not in (None, tenant):
        return False
    content = json.loads(row["detail"])
    if since is None and content.get("kind") != "position":
        return False
    moment = datetime.fromisoformat(content["device_time"])
    # when the record was received is not kept with it: of a clock far ahead it goes with any erasure of its device
    return moment > row["quarantined_at"] + _AHEAD or (moment < before and (since is None or moment >= since))


def may_hold(table: str, file: TableFile, asked: Erasure) -> bool:
    """Whether a file may hold rows of an erasure, by its day and its bounds."""
    device, since = asked.device, asked.since or datetime.min.replace(tzinfo=UTC)
    if file.day is not None and not (since.date() <= file.day + _DAY and file.day - _DAY <= asked.before.date()):
        return False
    names = ("device_a", "device_b") if table == "encounters" else ("device",)
    # a file without bounds may hold any
    return device is None or any(file.low.get(name, device) <= device <= file.high.get(name, device) for name in names)


def file_rows(files: FileSystem, table: str, path: str) -> Iterator[pa.Table]:
    """The rows of a file with all columns of the table, some at a time."""
    layout = TABLES[table]
    with files.open_input_file(path) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(batch_size=_ROWS, use_threads=False):
            rows = pa.Table.from_batches([batch])
            for field in layout.schema:
                if field.name not in rows.column_names:
                    value = day_of(path) if field.name in layout.partition_by else None
                    rows = rows.append_column(field.name, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
            yield rows.select(layout.schema.names).cast(
                pa.schema([field.with_nullable(True) for field in layout.schema])
            )


def remaining_files(lake: Lake, asked: Erasure) -> list[str]:
    """Files on the disk that still hold rows of a request, and that no version in force names: replaced ones, and those
    of attempts that became no commit. Raises LakeError."""
    found = []
    for table in ("records", *DERIVED, "quarantine"):
        files = lake.files(table)
        with lake.damage_as_error(table):
            # listed first: what is committed meanwhile is then in force
            listed = listed_data(files)
            in_force = {file.path for file in table_files(lake.open(table), table)}
            for info in listed:
                day = day_of(info.path) if TABLES[table].partition_by else None
                file = TableFile(info.path, info.size, -1, day, {}, {}, {})
                if info.path in in_force or not may_hold(table, file, asked):
                    continue
                try:
                    parts = file_rows(files, table, info.path)
                    is_theirs = any(pc.any(rows_of(table, rows, asked)).as_py() for rows in parts)
                except FileNotFoundError:
                    continue
                except pa.ArrowInvalid:
                    # of an attempt that goes on, or died: it may hold anything
                    is_theirs = True
                if is_theirs:
                    found.append(f"{table}/{info.path}")
    return found


def export_subject(lake: Lake, asked: Erasure, folder: Path, now: datetime) -> dict[str, Any]:
    """Writes what the lake has of a device and a time into a new folder: a JSONL file for each table, the track as
    GeoJSON, and a manifest, which is returned. Raises LakeError for a folder that is not empty, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise LakeError(f"{folder} is not empty: an export needs a folder of its own")
    try:
        return _export(lake, asked, folder, now)
    except BaseException:
        # a part of an export would be taken for all of it
        for path in folder.iterdir():
            path.unlink()
        raise


def _export(lake: Lake, asked: Erasure, folder: Path, now: datetime) -> dict[str, Any]:
    counts, versions = dict.fromkeys(("track", *EXPORTED), 0), dict[str, int]()
    with ExitStack() as stack:
        track = stack.enter_context(_private(folder / "track.geojson"))
        track.write('{"type":"FeatureCollection","features":[')
        for table in EXPORTED:
            opened = lake.open(table)
            versions[table] = opened.version()
            out = stack.enter_context(_private(folder / f"{table}.jsonl"))
            for rows in _asked_rows(lake, table, opened, asked):
                for row in rows.sort_by(_TIME[table]).to_pylist():
                    out.write(_line(table, row, asked))
                    if row.get("latitude") is not None:
                        track.write(("," if counts["track"] else "") + _feature(row))
                        counts["track"] += 1
                    counts[table] += 1
        track.write("]}\n")
    manifest = {
        "tenant": asked.tenant,
        "device": asked.device,
        "from": stamp(asked.since) if asked.since else None,
        "until": stamp(asked.before),
        "exported_at": stamp(now),
        "rows": counts,
        "table_versions": versions,
        "not_covered": ("invoices and their lines: `waybill bill show`", *NOT_COVERED),
    }
    with _private(folder / "README.txt") as file:
        file.write(_README)
    with _private(folder / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return manifest


def count_rows(lake: Lake, asked: Erasure) -> dict[str, int]:
    """How many rows of each table are of a request. Raises LakeError."""
    return {
        table: sum(rows.num_rows for rows in _asked_rows(lake, table, lake.open(table), asked)) for table in EXPORTED
    }


def _asked_rows(lake: Lake, table: str, opened: DeltaTable, asked: Erasure) -> Iterator[pa.Table]:
    """The rows of a request, those of one day together, of files that may hold any."""
    chosen = [file for file in table_files(opened, table) if may_hold(table, file, asked)]
    with lake.damage_as_error(table):
        for _, files in groupby(sorted(chosen, key=_day), _day):
            parts = (rows for file in files for rows in file_rows(lake.files(table), table, file.path))
            if found := [rows.filter(rows_of(table, rows, asked)) for rows in parts]:
                yield pa.concat_tables(found)


def _day(file: TableFile) -> str:
    return str(file.day)


def access_log_of(location: Location) -> Path:
    """Where this user's readings of positions are logged, if no setting says it: beside the lake. Raises LakeError.

    Each user has a file: nobody writes into another one's.
    """
    if location.folder is None:
        raise LakeError(
            f"readings of positions must be logged, and {location} is no folder: name a file by --access-log, "
            "WAYBILL_ACCESS_LOG or privacy.access_log"
        )
    return location.folder.absolute().parent / f"{location.folder.name}-access-{_user()}.jsonl"


def _user() -> str:
    # a user of a container may have no name; what the environment says of it, the user may have written
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def log_access(lake: Location, log: Path | None, command: str, whose: TenantDevice, **what: object) -> None:
    """Appends one line to the log of readings of positions, before anything is shown: who, when, by which command, of
    which device. `log`: a file of the settings; None: `access_log_of` the lake. Raises LakeError if it cannot be
    written: then nothing may be shown."""
    path = log or access_log_of(lake)
    what = {name: stamp(value) if isinstance(value, datetime) else value for name, value in what.items()}
    line = {
        "at": stamp(datetime.now(UTC)),
        "user": _user(),
        "command": command,
        "devices": [f"{whose.tenant}/{whose.device}"],
        **what,
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 - a descriptor, not a path
            # one write: lines of two processes do not mix
            file.write(json.dumps(line, default=str).encode() + b"\n")
            os.fsync(descriptor)
    except OSError as error:
        raise LakeError(
            f"the reading of positions cannot be logged in {path}, so nothing is shown: {error}. Each user who reads"
            " needs the right to append to it, or a log of its own"
        ) from error


def _private(path: Path) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")  # noqa: PTH123


def _line(table: str, row: dict[str, Any], asked: Erasure) -> str:
    if table == "encounters":
        # the other device is of another person
        row = {name: value for name, value in row.items() if name not in ("device_a", "device_b")}
        row["device"] = asked.device
    return json.dumps(row, default=_plain, ensure_ascii=True) + "\n"


def _feature(row: dict[str, Any]) -> str:
    geometry = {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]}
    properties = {name: row[name] for name in _POSITION}
    return json.dumps({"type": "Feature", "geometry": geometry, "properties": properties}, default=_plain)


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value.isoformat())


ERASED: Final = "erased"
"""The name under which it is kept how far the records have been searched: erasures, and commits of the ingest."""
_BITS: Final = 32
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SEARCHED_COLUMNS: Final = ("tenant", "device", "kind", "device_time", "received_at", "ingest_number")

_log = structlog.get_logger("maintain")


class SearchProgress(NamedTuple):
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
    until = SearchProgress(last, min(covered, counter_of(newest_number(opened, INGEST))))
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
    until = SearchProgress(last, max((file.high.get("commit_number", 0) for file in files), default=0))
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
    files = files_to_search(table_files(opened, "records"), plan, SearchProgress(0, 0))
    return sum(_count(lake.files("records"), file, plan) for file in files)


def files_to_search(files: Iterable[TableFile], plan: Plan, since: SearchProgress) -> list[TableFile]:
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


def _may_hold(file: TableFile, row: dict[str, Any], since: SearchProgress) -> bool:
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


def searched(opened: DeltaTable) -> SearchProgress:
    """How far the version of a table that was opened has been searched; of a derived one commits of its own count."""
    number = newest_number(opened, ERASED)
    return SearchProgress(0, 0) if number is None else SearchProgress(number >> _BITS, number & ((1 << _BITS) - 1))


def _keep_searched(lake: Lake, table: str, since: SearchProgress, until: SearchProgress) -> None:
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
