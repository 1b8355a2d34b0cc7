"""Events, encounters, and alerts with their verdicts, in a span: what is in force, bounded in rows.

A revision replaces the one before it, and may move its time. So the first revisions within the span are read, and the
few later ones of all its days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import is_canary
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.schemas import TABLES, WRITTEN_BY
from cloud_jobs.lake.tables import Condition
from cloud_jobs.lake.transactions import newest_number
from console.asked import moment_asked, tenant_asked
from console.context import Query
from console.errors import BadQuery
from console.lake import OpenLake
from console.page import Clock

MAX_ROWS: Final = 200_000
"""A selection with more rows is not counted: its reader has to narrow it."""
_FILES_AT_ONCE: Final = 16
_MANY_IN_A_DAY: Final = 100_000
_LOOK_BACK: Final = 5
_LONGEST: Final = timedelta(days=400)

EVENT_KINDS: Final = ("enter", "exit", "dwell", "forward", "backward", "speeding")
NO_VERDICT: Final = "none yet"


class NotRead(Exception):
    """Rows that cannot be told, as they are too many or were never computed: their number is unknown."""


def _require(lake: OpenLake, *tables: str) -> None:
    """Raises NotRead if a table of a job is missing, or none has a commit of the job: each job creates all tables."""
    if not all(map(lake.has, tables)) or not any(_was_written(lake, table) for table in tables):
        job = WRITTEN_BY[tables[0]]
        raise NotRead(f"the {job.rpartition(' ')[2]} job has not run yet: run {job}")


def _was_written(lake: OpenLake, table: str) -> bool:
    return newest_number(lake.opened(table), table) is not None or len(lake.stored(table)) > 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for. "": any. `start` until before `end`. `is_default`: the address names no span."""

    tenant: str
    device: str
    fence: str
    kind: str
    start: datetime
    end: datetime
    is_default: bool
    tenants: frozenset[str] | None = None

    def conditions(self) -> list[Condition]:
        """Of the tenant and of what may be seen. Canaries are left out unless they are asked for."""
        found: list[Condition] = []
        if self.tenant:
            found.append(("tenant", "=", self.tenant))
        if self.tenants is not None:
            found.append(("tenant", "in", sorted(self.tenants)))
        return found

    def seen(self, rows: pa.Table) -> pa.Table:
        """Rows without those of canaries, unless these are asked for."""
        if self.tenant:
            return rows
        tenants = [one for one in pc.unique(rows["tenant"]).to_pylist() if not is_canary(one)]
        return rows.filter(pc.is_in(rows["tenant"], pa.array(tenants, pa.string())))


def selection(lake: OpenLake, query: Query, clock: Clock, *tables: str) -> Selection:
    """The selection of an address. Without a span: the newest day on which these tables have something.

    Raises BadQuery, NotThere, LakeError, StoreUnavailable.
    """
    tenant, device, now = tenant_asked(query), query.get("device"), clock.now
    if "/" in device:
        tenant, _, device = device.partition("/")
        query.viewer.require_tenant(tenant)
    start, end = (moment_asked(query, name, clock) for name in ("since", "until"))
    first = Selection(
        tenant, device, query.get("fence"), query.get("kind"), now, now, is_default=False, tenants=query.viewer.tenants
    )
    if start is None and end is None:
        start, end = _newest_span(lake, tables, first, clock)
        return replace(first, start=start, end=end, is_default=True)
    start = start or (end or now) - timedelta(days=1)
    end = end or min(start + _LONGEST, max(now, start) + timedelta(days=1))
    if not start < end <= start + _LONGEST:
        raise BadQuery("until", f"the span ends after it begins, and has at most {_LONGEST.days} days")
    return replace(first, start=start, end=end)


def _newest_span(lake: OpenLake, tables: Sequence[str], asked: Selection, clock: Clock) -> tuple[datetime, datetime]:
    """The local day of the newest row of the tables, or its last hour if the day has very many."""
    found = [one for one in (_newest_in(lake, table, asked) for table in tables) if one is not None]
    if not found:
        return clock.now - timedelta(days=1), clock.now
    newest, count = max(time for time, _ in found), max(count for _, count in found)
    local = newest.astimezone(clock.zone)
    begin = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if count > _MANY_IN_A_DAY:
        begin = max(begin, local - timedelta(hours=1))
    return begin.astimezone(UTC), newest + timedelta(seconds=1)


def _newest_in(lake: OpenLake, table: str, asked: Selection) -> tuple[datetime, int] | None:
    """The time of the newest row that may be seen, and the number of rows of its day."""
    if not lake.has(table):
        return None
    stored = lake.stored(table)
    days = sorted({day for day in stored.actions["partition.day"].to_pylist() if day is not None}, reverse=True)
    for day in days[:_LOOK_BACK]:
        files = stored.of_days(day, day)
        newest = _newest(lake, files, "start" if table == "encounters" else "time", asked)
        if newest is not None:
            return newest, sum(files.row_counts)
    return None


def _newest(lake: OpenLake, files: StoredFiles, column: str, asked: Selection) -> datetime | None:
    best: datetime | None = None
    for part in _parts(lake, files, ("tenant", column), asked.conditions()):
        newest = pc.max(asked.seen(part)[column]).as_py()
        if newest is not None and (best is None or newest > best):
            best = newest
    return best


class EventRow(NamedTuple):
    """An event in force. `value`: see the table's description."""

    id: str
    tenant: str
    device: str
    time: datetime
    kind: str
    place: str
    value: float
    revision: int


_EVENT: Final = (*EventRow._fields, "retracted")


def events(lake: OpenLake, asked: Selection) -> list[EventRow]:
    """The events in force, newest first. Raises NotRead, LakeError, StoreUnavailable."""
    _require(lake, "geofence_events")
    rows = _in_force(lake, "geofence_events", _EVENT, asked, time="time", device="device")
    rows = _only(rows.filter(pc.invert(rows["retracted"])), asked)
    rows = rows.select(EventRow._fields).sort_by([("time", "descending"), ("id", "ascending")])
    return [EventRow(**row) for row in rows.to_pylist()]


class EncounterRow(NamedTuple):
    """An encounter in force."""

    id: str
    tenant: str
    device_a: str
    device_b: str
    start: datetime
    end: datetime
    min_m: float
    min_at: datetime
    revision: int


_ENCOUNTER: Final = (*EncounterRow._fields, "retracted")


def encounters(lake: OpenLake, asked: Selection) -> list[EncounterRow]:
    """The encounters in force that begin in the span, newest first. Raises NotRead, LakeError, StoreUnavailable."""
    if asked.fence or asked.kind not in {"", "encounter"}:
        return []
    _require(lake, "encounters")
    rows = _in_force(lake, "encounters", _ENCOUNTER, asked, time="start")
    if asked.device:
        rows = rows.filter(pc.or_(pc.equal(rows["device_a"], asked.device), pc.equal(rows["device_b"], asked.device)))
    rows = rows.filter(pc.invert(rows["retracted"])).select(EncounterRow._fields)
    return [EncounterRow(**row) for row in rows.sort_by([("start", "descending"), ("id", "ascending")]).to_pylist()]


class AlertRow(NamedTuple):
    """An alert with the verdict in force, or an event without an alert (`region` None).

    `verdict`: NO_VERDICT: not decided yet. `correct_time`, `correct_value`: of the event, if it was corrected.
    """

    id: str
    tenant: str
    device: str
    region: str | None
    time: datetime
    kind: str
    place: str
    value: float
    raised_at: datetime | None
    verdict: str
    reason: str | None
    correct_time: datetime | None
    correct_value: float | None
    decided_at: datetime | None


_ALERT: Final = ("id", "tenant", "device", "region", "time", "kind", "place", "value", "raised_at")
_VERDICT: Final = (
    *("id", "revision", "tenant", "device", "verdict", "reason", "kind", "place", "time", "value", "emitted_at"),
)


def alerts(lake: OpenLake, asked: Selection) -> list[AlertRow]:
    """The alerts of the span with their verdicts, and late events, newest first.

    Raises NotRead, LakeError, StoreUnavailable.
    """
    _require(lake, "alerts", "verdicts")
    raised = _only(asked.seen(_bounded(lake, _files(lake, "alerts", asked), _ALERT, _within(asked, "time"))), asked)
    ids = raised["id"].combine_chunks()
    found = dict[str, dict[str, Any]]()
    files = _files(lake, "verdicts", asked)
    for part in _parts(lake, files, _VERDICT, _of_device(asked)):
        of_these = pc.is_in(part["id"], ids)
        is_late = pc.equal(part["verdict"], "late")
        for row in asked.seen(part.filter(pc.or_(of_these, is_late))).to_pylist():
            if row["id"] not in found or found[row["id"]]["revision"] < row["revision"]:
                found[row["id"]] = row
        _check_count(len(found))
    rows = [_alert_row(row, found.pop(row["id"], None)) for row in raised.to_pylist()]
    late = (_late_row(row) for row in found.values() if row["verdict"] == "late" and row["time"] is not None)
    rows += [row for row in late if asked.start <= row.time < asked.end and _is_asked(row, asked)]
    return sorted(rows, key=lambda row: (row.time, row.id), reverse=True)


def _alert_row(alert: dict[str, Any], verdict: dict[str, Any] | None) -> AlertRow:
    said: dict[str, Any] = verdict or {}
    is_corrected = said.get("verdict") == "corrected"
    return AlertRow(
        **alert,
        verdict=said.get("verdict", NO_VERDICT),
        reason=said.get("reason"),
        correct_time=said["time"] if is_corrected else None,
        correct_value=said["value"] if is_corrected else None,
        decided_at=said.get("emitted_at"),
    )


def _late_row(row: dict[str, Any]) -> AlertRow:
    known = {
        name: row[name] for name in ("id", "tenant", "device", "time", "kind", "place", "value", "verdict", "reason")
    }
    return AlertRow(
        **known, region=None, raised_at=None, correct_time=None, correct_value=None, decided_at=row["emitted_at"]
    )


def _is_asked(row: AlertRow, asked: Selection) -> bool:
    return all(not wanted or value == wanted for wanted, value in ((asked.fence, row.place), (asked.kind, row.kind)))


# Reading, a few files at a time.


def _in_force(
    lake: OpenLake, table: str, columns: Sequence[str], asked: Selection, *, time: str, device: str = ""
) -> pa.Table:
    """The highest revision of each id, with its time in the span. `time`, `device`: the columns of both."""
    files = _files(lake, table, asked, device)
    of_device = _of_device(asked) if device else asked.conditions()
    first = _bounded(lake, files, columns, [*of_device, *_span(asked, time), ("revision", "=", 0)])
    later = _bounded(lake, files, columns, [*of_device, ("revision", ">", 0)])
    both = asked.seen(pa.concat_tables([first, later])).sort_by([("id", "ascending"), ("revision", "descending")])
    if both.num_rows:
        ids = both["id"].combine_chunks()
        is_first = pa.concat_arrays([pa.array([True]), pc.not_equal(ids[1:], ids[:-1])])
        both = both.filter(is_first)
    start, end = (pa.scalar(one, TABLES[table].schema.field(time).type) for one in (asked.start, asked.end))
    return both.filter(pc.and_(pc.greater_equal(both[time], start), pc.less(both[time], end)))


def _only(rows: pa.Table, asked: Selection) -> pa.Table:
    for column, wanted in (("place", asked.fence), ("kind", asked.kind)):
        if wanted:
            rows = rows.filter(pc.equal(rows[column], wanted))
    return rows


def _files(lake: OpenLake, table: str, asked: Selection, device: str = "device") -> StoredFiles:
    last = (asked.end - timedelta(microseconds=1)).astimezone(UTC).date()
    found = lake.stored(table).of_days(_day(asked.start), last)
    return found.within(device, [(asked.device, asked.device)]) if asked.device and device else found


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _of_device(asked: Selection) -> list[Condition]:
    return [*asked.conditions(), *([("device", "=", asked.device)] if asked.device else [])]


def _span(asked: Selection, time: str) -> list[Condition]:
    return [(time, ">=", asked.start), (time, "<", asked.end)]


def _within(asked: Selection, time: str) -> list[Condition]:
    return [*_of_device(asked), *_span(asked, time)]


def _bounded(lake: OpenLake, files: StoredFiles, columns: Sequence[str], where: Sequence[Condition]) -> pa.Table:
    found, count = [], 0
    for part in _parts(lake, files, columns, where):
        found.append(part)
        count += part.num_rows
        _check_count(count)
    schema = pa.schema([TABLES[files.table].schema.field(name) for name in columns])
    return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in found)])


def _check_count(count: int) -> None:
    if count > MAX_ROWS:
        raise NotRead(f"more than {MAX_ROWS:,} rows match; name a device, a tenant or a shorter span")


def _parts(
    lake: OpenLake, files: StoredFiles, columns: Sequence[str], where: Sequence[Condition]
) -> Iterator[pa.Table]:
    for at in range(0, len(files), _FILES_AT_ONCE):
        yield lake.rows_in(StoredFiles(files.table, files.actions.slice(at, _FILES_AT_ONCE)), columns, where=where)
