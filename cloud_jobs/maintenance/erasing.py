"""Finds, exports and erases rows that a data subject asks for or that exceed their retention.

An erasure is declared before the first row goes, so every reader knows why positions are missing. How far a table was
searched is stored with it as an application transaction.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import partial, reduce
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
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import INGEST, KEPT_FROM, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number, stated
from cloud_jobs.maintenance.compaction import Keep, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.sweeping import TableFile, listed_data, table_files
from geo.reference.moments import stamp

# Personal data of a device and a period: its rows, files, export and access log.

DERIVED: Final = ("alerts", "verdicts", "geofence_events", "encounters")
"""The tables that a request erases, besides `records` and `quarantine`. Alerts come before events: an alert without its
event would be withdrawn, and its receivers notified."""
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
_ROWS: Final = 1 << 16
_QUARANTINE_ROWS: Final = 1 << 10
"""Rows that are read in one batch."""
_CONFLICT: Final = "conflict"
_CONFLICT_COLUMNS: Final = ("cause", "detail", "tenant", "device", "quarantined_at")
_AHEAD: Final = timedelta(days=1)
"""A device time this long after its quarantine is that of a wrong clock."""
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


def rows_of(table: str, rows: pa.Table, asked: Sequence[Erasure]) -> pa.ChunkedArray:
    """Which rows of a table an erasure concerns."""
    if table == "records":
        return is_erased(rows, asked)
    if table == "quarantine":
        conflicts = rows.select(_CONFLICT_COLUMNS).to_pylist()
        concerned = [any(is_quarantined_of(row, one) for one in asked) for row in conflicts]
        return pa.chunked_array([pa.array(concerned, pa.bool_())])
    return reduce(pc.or_, (_rows_of_request(table, rows, one) for one in asked))


def _rows_of_request(table: str, rows: pa.Table, asked: Erasure) -> pa.ChunkedArray:
    columns = [name for name in ("device", "device_a", "device_b") if name in rows.column_names]
    theirs = reduce(pc.or_, (pc.equal(rows[name], asked.device) for name in columns))
    theirs = pc.and_(theirs, pc.equal(rows["tenant"], asked.tenant))
    if table == "encounters":
        within = pc.and_(pc.less(rows["start"], asked.before), pc.greater_equal(rows["end"], asked.since))
        return pc.and_(theirs, within)
    within = pa.scalar(False)
    for name in ("time", "hour", "alerted_time", "previous_time"):
        if name in rows.column_names:
            here = pc.and_(pc.greater_equal(rows[name], asked.since), pc.less(rows[name], asked.before))
            within = pc.or_(within, pc.fill_null(here, False))
    return pc.and_(theirs, within)


def is_quarantined_of(row: dict[str, Any], erasure: Erasure) -> bool:
    """Whether a row of the quarantine is erased. Malformed messages name no device and stay."""
    tenant, device, before, since = erasure
    # a row without a tenant may belong to any tenant
    if row["cause"] != _CONFLICT or device not in (None, row["device"]) or row["tenant"] not in (None, tenant):
        return False
    content = json.loads(row["detail"])
    if since is None and content.get("kind") != "position":
        return False
    moment = datetime.fromisoformat(content["device_time"])
    # the moment of receipt is unknown, so a record of a clock far ahead goes with any erasure of its device
    return moment > row["quarantined_at"] + _AHEAD or (moment < before and (since is None or moment >= since))


def may_hold(table: str, file: TableFile, asked: Erasure) -> bool:
    """Whether a file may hold rows of an erasure, by its day and its bounds. A file without bounds may hold any."""
    since = asked.since or datetime.min.replace(tzinfo=UTC)
    if file.day is not None and not (since.date() <= file.day + _DAY and file.day - _DAY <= asked.before.date()):
        return False
    if table == "records" and file.day is not None and file.low.get("device_time", since) >= asked.before:
        return False
    if asked.since is None and file.nulls.get("latitude") == file.rows:
        return False
    names = ("device_a", "device_b") if table == "encounters" else ("device",)
    return _is_between(file, "tenant", asked.tenant) and any(_is_between(file, name, asked.device) for name in names)


def _is_between(file: TableFile, column: str, value: str | None) -> bool:
    return value is None or bool(file.low.get(column, value) <= value <= file.high.get(column, value))


def file_rows(files: FileSystem, table: str, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file in batches, with all columns of the table or some; a column that it lacks is null."""
    layout = TABLES[table]
    fields = [layout.schema.field(name).with_nullable(True) for name in columns or layout.schema.names]
    with files.open_input_file(path) as opened:
        file = pq.ParquetFile(opened)
        there = [field.name for field in fields if field.name in file.schema_arrow.names]
        # a row of the quarantine has a whole message
        size = _QUARANTINE_ROWS if table == "quarantine" else _ROWS
        for batch in file.iter_batches(batch_size=size, columns=there, use_threads=False):
            rows = pa.Table.from_batches([batch])
            for field in fields:
                if field.name not in there:
                    value = day_of(path) if field.name in layout.partition_by else None
                    rows = rows.append_column(field.name, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
            yield rows.select([field.name for field in fields]).cast(pa.schema(fields))


def remaining_files(lake: Lake, asked: Erasure) -> list[str]:
    """Unreferenced files on the disk that still hold rows of a request. Raises LakeError."""
    found = []
    for table in ("records", *DERIVED, "quarantine"):
        files = lake.files(table)
        with lake.damage_as_error(table):
            # listed first: files that are committed meanwhile are then in force
            listed = listed_data(files)
            in_force = {file.path for file in table_files(lake.open(table), table)}
            for info in listed:
                day = day_of(info.path) if TABLES[table].partition_by else None
                file = TableFile(info.path, info.size, -1, day, {}, {}, {})
                if info.path in in_force or not may_hold(table, file, asked):
                    continue
                try:
                    parts = file_rows(files, table, info.path)
                    is_theirs = any(pc.any(rows_of(table, rows, [asked])).as_py() for rows in parts)
                except FileNotFoundError:
                    continue
                except pa.ArrowInvalid:
                    # an unfinished file may hold anything
                    is_theirs = True
                if is_theirs:
                    found.append(f"{table}/{info.path}")
    return found


def export_subject(lake: Lake, asked: Erasure, folder: Path, now: datetime) -> dict[str, Any]:
    """Writes the data of a device and a period into a new folder: one JSONL file for each table, and the manifest that
    is returned. Raises LakeError for a folder that is not empty, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise LakeError(f"{folder} is not empty: an export needs a folder of its own")
    try:
        return _export(lake, asked, folder, now)
    except BaseException:
        # an incomplete export would look complete
        for path in folder.iterdir():
            path.unlink()
        raise


def _export(lake: Lake, asked: Erasure, folder: Path, now: datetime) -> dict[str, Any]:
    counts, versions = dict.fromkeys(EXPORTED, 0), dict[str, int]()
    for table in EXPORTED:
        opened = lake.open(table)
        versions[table] = opened.version()
        with _private(folder / f"{table}.jsonl") as out:
            for rows in _asked_rows(lake, table, opened, asked):
                for row in rows.sort_by(_TIME[table]).to_pylist():
                    out.write(_line(table, row, asked))
                counts[table] += rows.num_rows
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
    return {
        table: sum(rows.num_rows for rows in _asked_rows(lake, table, lake.open(table), asked)) for table in EXPORTED
    }


def _asked_rows(lake: Lake, table: str, opened: DeltaTable, asked: Erasure) -> Iterator[pa.Table]:
    chosen = [file for file in table_files(opened, table) if may_hold(table, file, asked)]
    with lake.damage_as_error(table):
        for _, files in groupby(sorted(chosen, key=_day), _day):
            parts = (rows for file in files for rows in file_rows(lake.files(table), table, file.path))
            if found := [rows.filter(rows_of(table, rows, [asked])) for rows in parts]:
                yield pa.concat_tables(found)


def _day(file: TableFile) -> str:
    return str(file.day)


def access_log_of(location: Location) -> Path:
    """The default log of accesses to positions, next to the lake, one file for each user. Raises LakeError."""
    if location.folder is None:
        raise LakeError(
            f"reads of positions must be logged, but {location} is not a folder: name a file with --access-log, "
            "WAYBILL_ACCESS_LOG or privacy.access_log"
        )
    return location.folder.absolute().parent / f"{location.folder.name}-access-{_user()}.jsonl"


def _user() -> str:
    # a user of a container may have no name; the environment could be forged
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def log_access(lake: Location, log: Path | None, command: str, *whose: TenantDevice, **what: object) -> None:
    """Appends a line to the log of accesses to positions: who, when, which command, which devices.

    `log`: the configured file; None: `access_log_of` the lake. Raises LakeError if that fails; then nothing may be
    shown.
    """
    path = log or access_log_of(lake)
    what = {name: stamp(value) if isinstance(value, datetime) else value for name, value in what.items()}
    line = {
        "at": stamp(datetime.now(UTC)),
        "user": _user(),
        "command": command,
        "devices": [f"{one.tenant}/{one.device}" for one in whose],
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
            f"the access log {path} cannot be written, so nothing is shown: {error}. Each user"
            " needs the right to append to it, or a separate log"
        ) from error


def _private(path: Path) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")  # noqa: PTH123


def _line(table: str, row: dict[str, Any], asked: Erasure) -> str:
    if table == "encounters":
        # the other device belongs to another person
        row = {name: value for name, value in row.items() if name not in ("device_a", "device_b")}
        row["device"] = asked.device
    return json.dumps(row, default=_plain, ensure_ascii=True) + "\n"


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value.isoformat())


ERASED: Final = "erased"
"""The application transaction that stores how far a table has been searched: erasures and commits."""
_BITS: Final = 32
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SEARCHED_COLUMNS: Final = ("tenant", "device", "kind", "device_time", "received_at", "device_date", "ingest_number")

_log = structlog.get_logger("maintain")


class SearchProgress(NamedTuple):
    """All erasures up to one number were carried out in all rows up to one commit number."""

    erasure: int
    commit: int


class EraseResult(NamedTuple):
    """`rows`: erased rows by table. `left`: files that still have some. `errors`: why."""

    rows: dict[str, int]
    left: int
    errors: list[str]


def old_positions(after_days: int, now: datetime) -> Erasure:
    """The erasure of the positions of all devices that are older than a number of days, to the UTC day."""
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    return Erasure(None, None, midnight - timedelta(days=after_days))


def erase(rewriter: Rewriter, covered: int) -> EraseResult:
    """Carries out the declared erasures, in records up to the ingest number `covered`. May be repeated.

    Raises LakeError.
    """
    declared = rewriter.lake.rows("erasures").to_pylist()
    requests = [row for row in declared if row["since"] is not None]
    erased, errors, left = dict[str, int](), list[str](), 0
    for table, rows in {"records": declared, "quarantine": declared, **dict.fromkeys(DERIVED, requests)}.items():
        erased[table] = 0
        if not rows:
            continue
        opened = rewriter.lake.open(table)
        since, until = searched(opened), _search_goal(opened, table, rows, covered)
        left_before = left
        for file, asked in _files_to_search(opened, table, rows, since):
            try:
                gone, done = _drop(rewriter, table, file, partial(_spared, table, file, asked, covered))
                erased[table] += gone * done
                left += not done
            except (CommitFailed, LakeError, DeltaError, OSError, ValueError) as error:
                # other files do not wait for this one
                left += 1
                errors.append(f"rows of {table} in {file.path} were not erased: {error}")
        if left == left_before and until != since:
            _keep_searched(rewriter.lake, table, since, until)
    rewriter.reached(MaintenancePoint.ERASED)
    return EraseResult(erased, left, errors)


def erase_old(rewriter: Rewriter, table: str, before: datetime) -> int:
    """Erases rows of earlier days; from the quarantine, rows that were quarantined before the moment.

    Raises LakeError, and what a file raises.
    """

    def is_young(rows: pa.Table) -> pa.ChunkedArray:
        if table == "quarantine":
            return pc.greater_equal(rows["quarantined_at"], before)
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])

    def is_old(file: TableFile) -> bool:
        # nothing is known of a file without bounds
        oldest = file.low.get("quarantined_at", _EVER) if table == "quarantine" else file.day
        return oldest is not None and oldest < (before if table == "quarantine" else before.date())

    gone, opened, first_day = 0, rewriter.lake.open(table), before.date().toordinal()
    old = [file for file in table_files(opened, table) if is_old(file)]
    if old and (stated(opened, KEPT_FROM) or 0) < first_day:
        # declared first: a closing never takes erased events for none
        _state(opened, table, KEPT_FROM, first_day)
    for file in old:
        found, done = _drop(rewriter, table, file, is_young)
        gone += found * done
    return gone


def _drop(rewriter: Rewriter, table: str, file: TableFile, keep: Keep) -> tuple[int, bool]:
    """Rewrites a file without the rows not to keep: their number, and whether the file is without them now."""
    parts = file_rows(rewriter.lake.files(table), table, file.path, _SEARCHED_COLUMNS if table == "records" else None)
    found = sum(rows.num_rows - (pc.sum(keep(rows)).as_py() or 0) for rows in parts)
    done = not found or rewriter.rewrite(table, [file], keep)
    if found:
        _log.info("erased" if done else "left", table=table, path=file.path, rows=found)
    return found, done


def _spared(table: str, file: TableFile, asked: Sequence[Erasure], covered: int, rows: pa.Table) -> pa.ChunkedArray:
    if table != "records":
        return pc.invert(rows_of(table, rows, asked))
    if "device_date" not in rows.column_names:
        rows = rows.append_column("device_date", pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows))
    # usage first reads what is erased
    return pc.invert(pc.and_(is_erased(rows, asked), pc.less_equal(rows["ingest_number"], covered)))


def count_uncovered(lake: Lake, asked: Erasure, covered: int) -> int:
    """The number of records of an erasure that were ingested after an ingest number.

    Raises LakeError, and what a file raises.
    """
    files, count = lake.files("records"), 0
    for file in table_files(lake.open("records"), "records"):
        if may_hold("records", file, asked) and file.high.get("ingest_number", covered + 1) > covered:
            for rows in file_rows(files, "records", file.path, _SEARCHED_COLUMNS):
                is_new = pc.greater(rows["ingest_number"], covered)
                count += pc.sum(pc.and_(is_erased(rows, [asked]), is_new)).as_py() or 0
    return count


def _commit_column(table: str) -> str:
    return "ingest_number" if table == "records" else "commit_number"


def _search_goal(opened: DeltaTable, table: str, declared: Sequence[dict[str, Any]], covered: int) -> SearchProgress:
    last = max(row["number"] for row in declared)
    if table == "records":
        return SearchProgress(last, min(covered, counter_of(newest_number(opened, INGEST))))
    return SearchProgress(
        last, max((file.high.get("commit_number", 0) for file in table_files(opened, table)), default=0)
    )


def _files_to_search(
    opened: DeltaTable, table: str, declared: Sequence[dict[str, Any]], since: SearchProgress
) -> Iterator[tuple[TableFile, list[Erasure]]]:
    """The files that may hold rows to be erased, each with the erasures it was not searched for."""
    for file in table_files(opened, table):
        is_new = file.high.get(_commit_column(table), since.commit + 1) > since.commit
        wanted = [
            Erasure(*(row[name] for name in Erasure._fields))
            for row in declared
            if is_new or row["number"] > since.erasure
        ]
        if asked := [one for one in wanted if may_hold(table, file, one)]:
            yield file, asked


def searched(opened: DeltaTable) -> SearchProgress:
    number = newest_number(opened, ERASED)
    return SearchProgress(0, 0) if number is None else SearchProgress(number >> _BITS, number & ((1 << _BITS) - 1))


def _keep_searched(lake: Lake, table: str, since: SearchProgress, until: SearchProgress) -> None:
    opened = lake.open(table)
    # another run may have come further
    if searched(opened) != since:
        return
    try:
        _state(opened, table, ERASED, until.erasure << _BITS | until.commit)
    except (DeltaError, OSError, ValueError) as error:
        # the next run searches again
        _log.info("search progress not stored", error=str(error))


def _state(opened: DeltaTable, table: str, name: str, number: int) -> None:
    layout, properties = TABLES[table], CommitProperties(app_transactions=[Transaction(name, number)])
    opened.create_write_transaction([], "append", layout.schema, [*layout.partition_by], commit_properties=properties)
