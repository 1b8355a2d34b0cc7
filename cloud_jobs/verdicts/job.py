"""One run of the verdicts: what alerts and events came since the last one, and the verdicts that follow.

The rows of a run, and up to which commits of `alerts` and `geofence_events` everything is decided, are one commit. It
is made only upon the commit of `verdicts` that the run read: of two concurrent runs one gets CommitConflict. A run
passes the alerts that it leaves open to the next one, so that an alert that waits does not make a run longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.job_settings import VerdictSettings
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import COVERED_COMMIT
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import counter_of, newest_number, stated
from cloud_jobs.verdicts.deciding import (
    ASKED_ROWS,
    NEVER,
    OPEN_ROWS,
    PROVEN,
    REASONS,
    AlertDecision,
    KnownOfAlert,
    OpenAlerts,
    RecordState,
    TableCommit,
    decide,
)
from cloud_jobs.verdicts.subscription import OpenedTable, Row, by_devices, event_of, moment
from geo.alerts.messages import ErrorReason, VerdictKind

# Records that prove an alert. Pure.


class AlertCoverage(NamedTuple):
    """The coverage of the computed events, and of what the centre has received by now."""

    covered: Mapping[DeviceStream, Coverage]
    received: Mapping[DeviceStream, Coverage]


def record_state(row: Row, coverage: AlertCoverage) -> RecordState:
    """The state of the records that prove an alert, or a verdict without an alert."""
    device, seq = (row["tenant"], row["device"]), row["seq"]
    own = coverage.covered.get(DeviceStream(*device, row["epoch"]), Coverage())
    # the id names its record: without it there is no such event
    if seq in own.declared_lost:
        return RecordState.LOST
    numbers = seen_until(row)
    newest = [*zip(numbers[::2], numbers[1::2], strict=True)]
    if newest and all(
        coverage.covered.get(DeviceStream(*device, epoch), Coverage()).covered_through >= until
        for epoch, until in (*newest, (row["epoch"], seq))
    ):
        return RecordState.COMPLETE
    if seq in own.received:
        return RecordState.COVERED
    now = coverage.received.get(DeviceStream(*device, row["epoch"]), Coverage())
    return RecordState.RECEIVED if seq in now.received else RecordState.ABSENT


def seen_until(row: Row) -> tuple[int, ...]:
    """Epoch, seq, epoch, seq, ...: the newest records that the region used; empty: unknown."""
    # a late event has no alert
    return tuple(row["seen_until"] or ()) if "seen_until" in row else (row["epoch"], row["seq"])


# Unproven withdrawals, which are checked again.

KEPT: Final = timedelta(days=31)
"""Withdrawn alerts of older events are not checked again."""
MAX_KEPT: Final = 100_000
"""The newest ones."""
AT_ONCE: Final = 2_000
# some have a later verdict
_MAX_FOUND: Final = 2 * MAX_KEPT
_SAYS_WHAT_IS: Final = ErrorReason.DID_NOT_OCCUR.value

CoverageOf = Callable[[Collection[Row]], Mapping[DeviceStream, Coverage]]
"""The coverage of the computed events, for the devices of some rows."""


class ReviewBatch(NamedTuple):
    """`due`: alerts of which more is known now (schema ASKED_ROWS); `kept`: all others."""

    due: pa.Table
    kept: pa.Table


def is_unproven(verdict: str, reason: str | None) -> bool:
    """Whether a verdict says that records are missing."""
    return verdict == VerdictKind.WITHDRAWN and reason != _SAYS_WHAT_IS


def look_again(unproven: pa.Table, covered: int, coverage_of: CoverageOf) -> ReviewBatch:
    """The withdrawn alerts that have to be decided again, as of an ingest commit."""
    is_old = pc.not_equal(unproven["looked_at"], covered)
    ordered = unproven.filter(is_old).sort_by("looked_at")
    now, later = ordered.slice(0, AT_ONCE), ordered.slice(AT_ONCE)
    rows = now.to_pylist()
    coverage = AlertCoverage(coverage_of(rows), {}) if rows else AlertCoverage({}, {})
    is_due = pa.array([_is_more_known(row, coverage) for row in rows], pa.bool_())
    same = now.filter(pc.invert(is_due))
    looked = pa.repeat(pa.scalar(covered, pa.int64()), same.num_rows)
    same = same.set_column(OPEN_ROWS.get_field_index("looked_at"), OPEN_ROWS.field("looked_at"), looked)
    kept = pa.concat_tables([unproven.filter(pc.invert(is_old)), same, later])
    return ReviewBatch(now.filter(is_due).select(ASKED_ROWS.names), kept)


def bounded(unproven: pa.Table, today: date) -> pa.Table:
    """The newest of them, in an order that depends on their content alone."""
    kept = unproven.filter(pc.greater_equal(unproven["day"], pa.scalar(today - KEPT)))
    newest = kept.sort_by([("day", "descending"), ("id", "ascending")]).slice(0, MAX_KEPT)
    return newest.sort_by([("looked_at", "ascending"), ("id", "ascending")])


def unproven_in(verdicts: OpenedTable, today: date) -> pa.Table:
    """The unproven withdrawals of the table, for the first run of a process."""
    columns = [*ASKED_ROWS.names, "epoch", "seq", "verdict", "reason", "revision"]
    found: dict[str, Row] = {}
    for part in verdicts.from_day(today - KEPT, columns):
        withdrawn = pc.equal(part["verdict"], VerdictKind.WITHDRAWN.value)
        unproven = pc.fill_null(pc.and_(withdrawn, pc.not_equal(part["reason"], _SAYS_WHAT_IS)), False)
        # the verdict in force may be one that came later
        for row in part.filter(pc.or_(unproven, pc.greater(part["revision"], 0))).to_pylist():
            if row["id"] not in found or found[row["id"]]["revision"] < row["revision"]:
                found[row["id"]] = row
        if len(found) > _MAX_FOUND:
            break
    rows = [
        {name: row.get(name) for name in OPEN_ROWS.names} | {"looked_at": NEVER}
        for row in found.values()
        if is_unproven(row["verdict"], row["reason"])
    ]
    return pa.Table.from_pylist(rows, schema=OPEN_ROWS)


def _is_more_known(row: Row, coverage: AlertCoverage) -> bool:
    state = record_state(row, coverage)
    # a row from the table does not say which records the region used
    return row["seen_until"] is None or (state in PROVEN and REASONS[state] != row["reason"])


# Alerts that new data may settle.


class WaitingAlerts(NamedTuple):
    """`due`: alerts that can be decided now; `kept`: alerts that go on waiting (schema OPEN_ROWS)."""

    due: pa.Table
    kept: pa.Table


def split_waiting(
    waiting: pa.Table, is_due: pa.ChunkedArray, changed: pa.Table | None, coverage_of: CoverageOf
) -> WaitingAlerts:
    """Split alerts into those that can be decided and the others.

    `is_due`: alerts that are decided anyway. `changed`: devices (tenant, device) with new records since the last run;
    None: unknown, so all.
    """
    due, rest = waiting.filter(is_due), waiting.filter(pc.invert(is_due))
    asked = rest if changed is None else rest.filter(pc.is_in(_device(rest), _device(changed).combine_chunks()))
    rows = asked.to_pylist()
    coverage = AlertCoverage(coverage_of(rows), {}) if rows else AlertCoverage({}, {})
    proven = [row["id"] for row in rows if record_state(row, coverage) in PROVEN]
    is_proven = pc.is_in(rest["id"], pa.array(proven, pa.string()))
    return WaitingAlerts(pa.concat_tables([due, rest.filter(is_proven)]), rest.filter(pc.invert(is_proven)))


def _device(rows: pa.Table) -> pa.ChunkedArray:
    # neither name contains a line end
    return pc.binary_join_element_wise(rows["tenant"], rows["device"], "\n")


# The decisions of one run.

TABLE: Final = "verdicts"
_UTC: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class VerdictRun:
    """The result of a run. `provisional`: alerts without a verdict; `oldest_provisional_s`: the age of the oldest."""

    confirmed: int = 0
    corrected: int = 0
    withdrawn: int = 0
    late: int = 0
    provisional: int = 0
    oldest_provisional_s: int = 0

    def __bool__(self) -> bool:
        return bool(self.confirmed + self.corrected + self.withdrawn + self.late)


class Decisions:
    """The decisions of one run, for some devices at a time."""

    def __init__(
        self,
        lake: Lake,
        settings: VerdictSettings,
        now: datetime,
        tables: Mapping[str, OpenedTable],
        before: OpenAlerts | None,
    ) -> None:
        self._lake, self._now, self._tables, self._before = lake, now, tables, before
        self._covered_commit = stated(tables["geofence_events"].opened, COVERED_COMMIT)
        self._longest = timedelta(seconds=settings.max_provisional_s)
        self._waiting = [OPEN_ROWS.empty_table()]
        self._unproven = [OPEN_ROWS.empty_table()]
        self._kept_unproven = OPEN_ROWS.empty_table()
        self._since: dict[str, datetime] = {}
        self._looked_at = set[str]()

    def due(self, events: pa.Table) -> pa.Table:
        """The open alerts to decide now: overdue ones, and those of which more may be known.

        `events`: the new events, whose alerts are decided anyway.
        """
        before = self._before
        left = OPEN_ROWS.empty_table() if before is None else before.waiting
        if before is not None and left.num_rows:
            is_overdue = pc.less_equal(left["since"], pa.scalar(self._now - self._longest, _UTC))
            is_due = pc.or_(is_overdue, pc.is_in(left["id"], events["id"].combine_chunks()))
            changed = self._lake.devices_changed(before.covered, self._covered_commit)
            left, kept = split_waiting(left, is_due, changed, self._covered)
            self._waiting.append(kept)
        self._since = dict(zip(left["id"].to_pylist(), left["since"].to_pylist(), strict=True))
        today = self._now.astimezone(UTC).date()
        unproven = unproven_in(self._tables[TABLE], today) if before is None else before.unproven
        again = look_again(unproven, counter_of(self._covered_commit), self._covered)
        self._kept_unproven = again.kept
        return pa.concat_tables([left.select(ASKED_ROWS.names), again.due])

    def rows(self, asked: Sequence[Row], events: Sequence[Row]) -> pa.Table:
        """The new rows of `verdicts` for the devices of these alerts and events."""
        # the id of an event has its day in it
        ids, days = ({row[name] for row in (*asked, *events)} for name in ("id", "day"))
        devices = {TenantDevice(row["tenant"], row["device"]) for row in (*asked, *events)}
        revisions = self._tables["geofence_events"].of_devices(days, devices)
        said = {row["id"]: row for row in self._tables["alerts"].of_devices(days, devices)}
        happened = _newest(revisions)
        verdicts = _newest(self._tables[TABLE].of_devices(days, devices))
        in_force = {name: row for name, row in happened.items() if not row["retracted"]}
        proven_by = [said.get(name) or verdicts.get(name) for name in ids - in_force.keys()]
        coverage = self._coverage([row for row in proven_by if row is not None], verdicts.keys())
        found, waiting, unproven = [], [], []
        for name in sorted(ids):
            alert, before = said.get(name), verdicts.get(name)
            decision = decide(self._known(alert, in_force.get(name), before, coverage))
            if decision is None:
                if alert is not None:
                    waiting.append(self._open_row(alert, None))
                continue
            # the alert first, as its recipients have to find the withdrawal
            row = alert or before or happened[name]
            if is_unproven(decision.verdict, decision.reason):
                unproven.append(self._open_row(row, decision.reason))
            if before is None or not _is_said(before, decision, alert):
                found.append(self._row(row, decision, alert, before))
        self._looked_at |= ids
        self._waiting.append(pa.Table.from_pylist(waiting, schema=OPEN_ROWS))
        self._unproven.append(pa.Table.from_pylist(unproven, schema=OPEN_ROWS))
        return pa.Table.from_pylist(found, schema=TABLES[TABLE].schema)

    def left(self, verdicts: TableCommit, alerts: TableCommit) -> OpenAlerts:
        waiting = pa.concat_tables(self._waiting).sort_by([("commit_number", "ascending"), ("id", "ascending")])
        is_again = pc.is_in(self._kept_unproven["id"], pa.array(sorted(self._looked_at), pa.string()))
        unproven = pa.concat_tables([self._kept_unproven.filter(pc.invert(is_again)), *self._unproven])
        unproven = bounded(unproven, self._now.astimezone(UTC).date())
        rows = pa.concat_tables([waiting, unproven])
        return OpenAlerts(verdicts, alerts, self._covered_commit, rows)

    def decided_until(self, newest: int) -> int:
        """The commit of `alerts` up to which each alert has its verdict."""
        first = self._least("commit_number")
        return newest if first is None else first - 1

    def run(self, new: pa.Table) -> VerdictRun:
        counts = {row["values"]: row["counts"] for row in pc.value_counts(new["verdict"]).to_pylist()}
        oldest = self._least("since")
        oldest_s = 0 if oldest is None else int((self._now - oldest).total_seconds())
        by_kind = {kind.value: int(counts.get(kind, 0)) for kind in VerdictKind}
        provisional = sum(rows.num_rows for rows in self._waiting)
        return VerdictRun(**by_kind, provisional=provisional, oldest_provisional_s=oldest_s)

    def _least(self, column: str) -> Any:
        return min((pc.min(rows[column]).as_py() for rows in self._waiting if rows.num_rows), default=None)

    def _known(self, alert: Row | None, event: Row | None, before: Row | None, coverage: AlertCoverage) -> KnownOfAlert:
        proven_by = alert or before
        return KnownOfAlert(
            alert=None if alert is None else event_of(alert),
            event=None if event is None else event_of(event),
            record=RecordState.ABSENT if proven_by is None else record_state(proven_by, coverage),
            is_overdue=alert is not None and self._is_overdue(alert),
            was_announced=before is not None,
            before=None if before is None else _reason_of(before),
        )

    def _waits_since(self, alert: Row) -> datetime:
        known: datetime | None = self._since.get(alert["id"])
        # an alert collected by a clock that was ahead waits from now on
        return known or min(alert["collected_at"], self._now)

    def _is_overdue(self, alert: Row) -> bool:
        return self._waits_since(alert) <= self._now - self._longest

    def _open_row(self, row: Row, reason: ErrorReason | None) -> dict[str, Any]:
        known = {name: row.get(name) for name in OPEN_ROWS.names}
        if reason is None:
            return known | {"since": self._waits_since(row), "reason": None, "looked_at": NEVER}
        looked = {"reason": reason, "looked_at": counter_of(self._covered_commit), "seen_until": [*seen_until(row)]}
        return known | looked | {"commit_number": None}

    def _coverage(self, rows: Sequence[Row], announced: Collection[str]) -> AlertCoverage:
        known = AlertCoverage(self._covered(rows), {})
        asked = [
            row
            for row in rows
            if (row["id"] in announced or self._is_overdue(row)) and record_state(row, known) is RecordState.ABSENT
        ]
        return known._replace(received=self._coverage_at(self._lake.ingest_commit(), asked)) if asked else known

    def _covered(self, rows: Collection[Row]) -> Mapping[DeviceStream, Coverage]:
        return self._coverage_at(self._covered_commit, rows)

    def _coverage_at(self, commit: int | None, alerts: Collection[Row]) -> Mapping[DeviceStream, Coverage]:
        devices = {TenantDevice(row["tenant"], row["device"]) for row in alerts}
        return self._lake.coverage_at(commit, devices) if devices and commit is not None else {}

    def _row(self, of: Row, decision: AlertDecision, alert: Row | None, before: Row | None) -> dict[str, Any]:
        event = decision.event or event_of(of)
        return {
            "id": of["id"],
            "revision": 0 if before is None else before["revision"] + 1,
            "tenant": of["tenant"],
            "device": of["device"],
            "verdict": decision.verdict,
            "reason": decision.reason,
            "epoch": event.epoch,
            "seq": event.seq,
            "kind": event.kind,
            "place": event.place,
            "time": moment(event.t_ms),
            "value": event.value,
            **_said_by(alert, "alerted"),
            **_said_by(before, "previous"),
            "day": of["day"],
            "emitted_at": self._now,
            "commit_number": 0,
        }


def _newest(rows: Iterable[Row]) -> dict[str, Row]:
    newest: dict[str, Row] = {}
    for row in rows:
        if row["id"] not in newest or newest[row["id"]]["revision"] < row["revision"]:
            newest[row["id"]] = row
    return newest


def _said_by(row: Row | None, who: str) -> dict[str, Any]:
    return {f"{who}_{name}": None if row is None else row[name] for name in ("time", "value")}


def _is_said(before: Row, decision: AlertDecision, alert: Row | None) -> bool:
    """Whether the verdict in force says the same already, also to those who received the alert."""
    is_withdrawn = before["verdict"] == VerdictKind.WITHDRAWN
    said = AlertDecision(VerdictKind(before["verdict"]), None if is_withdrawn else event_of(before), _reason_of(before))
    names_alert = alert is None or not is_withdrawn or event_of(before) == event_of(alert)
    return decision == said and names_alert


def _reason_of(row: Row) -> ErrorReason | None:
    # an unknown reason of a newer version is replaced
    return ErrorReason(row["reason"]) if row["reason"] in {*ErrorReason} else None


DECIDED_ALERTS: Final = "decided_alerts"
"""The name of the state: the commit of `alerts` up to which each alert has a verdict."""
DECIDED_EVENTS: Final = "decided_events"
"""The same for `geofence_events`."""


def provisional_since(lake: Lake) -> datetime | None:
    """When the oldest alert without a verdict was collected; None: each has one. Raises LakeError.

    It is read from the tables, so it is right while the job is stopped.
    """
    alerts = OpenedTable(lake, "alerts", lake.open("alerts"))
    newest = counter_of(newest_number(alerts.opened, "alerts"))
    decided = stated(lake.open(TABLE), DECIDED_ALERTS) or 0
    if decided >= newest:
        return None
    # the oldest is in the first undecided commit, unless its rows were erased
    for until in (decided + 1, newest):
        moments: list[datetime] = alerts.since(decided, until)["collected_at"].to_pylist()
        if moments:
            return min(moments)
    return None


def give_verdicts(
    lake: Lake, settings: VerdictSettings, now: datetime, before: OpenAlerts | None = None
) -> tuple[VerdictRun, OpenAlerts]:
    """Decide about all new alerts and events, in one commit. Raises CommitConflict, LakeError.

    `before`: the open alerts after the last run. Without it, all alerts since the oldest open one are read again.
    """
    tables = {name: OpenedTable(lake, name, lake.open(name)) for name in (TABLE, "alerts", "geofence_events")}
    opened = tables[TABLE].opened
    previous = newest_number(opened, TABLE)
    since, until = {}, {}
    for name, state in (("alerts", DECIDED_ALERTS), ("geofence_events", DECIDED_EVENTS)):
        until[name] = counter_of(newest_number(tables[name].opened, name))
        decided = stated(opened, state) or 0
        # a table that was restored or created again is decided from its beginning
        since[name] = decided if decided <= until[name] else 0
    left = before
    if left is not None and left.is_of(_commit_of(tables[TABLE]), _commit_of(tables["alerts"])):
        since["alerts"] = counter_of(left.alerts.number)
    else:
        left = None
    alerts = tables["alerts"].since(since["alerts"], until["alerts"])
    events = tables["geofence_events"].since(since["geofence_events"], until["geofence_events"])
    deciding = Decisions(lake, settings, now, tables, left)
    again = deciding.due(events)
    new_or_due = pa.concat_tables([alerts.select(ASKED_ROWS.names), again])
    made = [deciding.rows(*rows) for rows in by_devices(new_or_due, events)]
    new = pa.concat_tables([TABLES[TABLE].schema.empty_table(), *made])
    states = {DECIDED_ALERTS: deciding.decided_until(until["alerts"]), DECIDED_EVENTS: until["geofence_events"]}
    if new.num_rows or any((stated(opened, name) or 0) != value for name, value in states.items()):
        tables[TABLE].commit(new, previous, now, states)
    return deciding.run(new), deciding.left(_commit_of(tables[TABLE]), _commit_of(tables["alerts"]))


def _commit_of(table: OpenedTable) -> TableCommit:
    return TableCommit(str(table.opened.metadata().id), newest_number(table.opened, table.name))
