"""One run of the verdicts: what alerts and events came since the last one, and what is to be said of them now.

The rows of a run, and up to which commits of `alerts` and `geofence_events` everything is decided, are one commit, made
only upon the commit of `verdicts` that the run read: of two runs at once one gets CommitConflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.derived import COVERED_COMMIT
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number, stated
from cloud_jobs.verdicts.config import VerdictSettings
from cloud_jobs.verdicts.deciding import AlertDecision, KnownOfAlert, corrective_ids, decide
from cloud_jobs.verdicts.lookups import OpenedTable, Row, by_devices, event_of, ingested_at, moment
from geo.alerts.verdict import ErrorReason, VerdictKind
from geo.spatial import DayEvent

TABLE: Final = "verdicts"
DECIDED_ALERTS: Final = "decided_alerts"
"""Under which name the table states up to which commit of `alerts` every alert has a verdict."""
DECIDED_EVENTS: Final = "decided_events"
"""The same of the commits of `geofence_events`."""


@dataclass(frozen=True, slots=True)
class VerdictRun:
    """What one run did. `provisional`: alerts without a verdict now; `oldest_provisional_s`: since when the oldest."""

    confirmed: int = 0
    corrected: int = 0
    withdrawn: int = 0
    late: int = 0
    provisional: int = 0
    oldest_provisional_s: int = 0

    def __bool__(self) -> bool:
        """Whether something was said."""
        return bool(self.confirmed + self.corrected + self.withdrawn + self.late)


class AlertCoverage(NamedTuple):
    """With what the events are computed, and what the centre has now, which is asked for overdue alerts alone."""

    covered: Mapping[DeviceStream, Coverage]
    received: Mapping[DeviceStream, Coverage]


def provisional_since(lake: Lake) -> datetime | None:
    """Since when the oldest alert of the table waits for a verdict; None: each has one.

    Read from the tables, whether or not somebody gives verdicts. Raises LakeError.
    """
    alerts = OpenedTable(lake, "alerts", lake.open("alerts"))
    newest = counter_of(newest_number(alerts.opened, "alerts"))
    decided = stated(lake.open(TABLE), DECIDED_ALERTS) or 0
    if decided >= newest:
        return None
    # the first one that waits is in the commit behind those of which each has its verdict
    moments = alerts.since(decided, newest)["collected_at"].to_pylist()
    return min(moments, default=None)


def give_verdicts(lake: Lake, settings: VerdictSettings, now: datetime) -> VerdictRun:
    """Brings the verdicts up to the alerts and events as they are now. Raises CommitConflict, LakeError."""
    tables = {name: OpenedTable(lake, name, lake.open(name)) for name in (TABLE, "alerts", "geofence_events")}
    opened = tables[TABLE].opened
    previous = newest_number(opened, TABLE)
    since, until = {}, {}
    for name, state in (("alerts", DECIDED_ALERTS), ("geofence_events", DECIDED_EVENTS)):
        until[name] = counter_of(newest_number(tables[name].opened, name))
        decided = stated(opened, state) or 0
        # a table that was brought back from a copy, or made anew, is decided from its beginning
        since[name] = decided if decided <= until[name] else 0
    alerts = tables["alerts"].since(since["alerts"], until["alerts"])
    events = tables["geofence_events"].since(since["geofence_events"], until["geofence_events"])
    deciding = _Deciding(lake, settings, now, tables)
    made = [deciding.rows(*rows) for rows in by_devices(alerts, events)]
    new = pa.concat_tables([TABLES[TABLE].schema.empty_table(), *made])
    states = {DECIDED_ALERTS: deciding.decided_until(until["alerts"]), DECIDED_EVENTS: until["geofence_events"]}
    if new.num_rows or any((stated(opened, name) or 0) != value for name, value in states.items()):
        _commit(tables[TABLE], new, previous, states, now)
    return deciding.run(new)


def _commit(table: OpenedTable, rows: pa.Table, previous: int | None, states: Mapping[str, int], now: datetime) -> None:
    number = next_number(previous)
    numbers = pa.repeat(pa.scalar(counter_of(number), pa.int64()), rows.num_rows)
    rows = rows.set_column(rows.schema.get_field_index("commit_number"), "commit_number", numbers)
    files = write_data_files(table.lake.files(TABLE), rows.cast(TABLES[TABLE].schema), now, table=TABLE)
    try:
        commit_files(table.opened, TABLE, files, writer=TABLE, previous=previous, number=number, states=states, now=now)
    except Fenced as error:
        raise CommitConflict(TABLE) from error


class _Deciding:
    """The decisions of one run, some devices after the other."""

    def __init__(self, lake: Lake, settings: VerdictSettings, now: datetime, tables: Mapping[str, OpenedTable]) -> None:
        self._lake, self._now, self._tables = lake, now, tables
        self._covered_commit = stated(tables["geofence_events"].opened, COVERED_COMMIT)
        self._longest = timedelta(seconds=settings.max_provisional_s)
        self._settle = timedelta(seconds=settings.settle_s)
        self._first_open: int | None = None
        self._oldest_open: datetime | None = None
        self._open = 0

    def rows(self, alerts: Sequence[Row], events: Sequence[Row]) -> pa.Table:
        """The new rows of `verdicts` for some devices, of which these alerts and events are new."""
        days = {row["day"] for row in (*alerts, *events)}
        devices = {TenantDevice(row["tenant"], row["device"]) for row in (*alerts, *events)}
        ids = {row["id"] for row in (*alerts, *events)}
        said = {row["id"]: row for row in self._tables["alerts"].of_devices(days, devices)}
        happened = _newest(self._tables["geofence_events"].of_devices(days, devices))
        verdicts = _newest(self._tables[TABLE].of_devices(days, devices))
        in_force = {name: row for name, row in happened.items() if not row["retracted"]}
        coverage = self._coverage(said[name] for name in ids if name in said and name not in in_force)
        found = []
        for name in sorted(ids):
            alert, before = said.get(name), verdicts.get(name)
            decision = decide(self._known(alert, in_force.get(name), before, coverage))
            if decision is None:
                if alert is not None:
                    self._note_open(alert)
            elif before is None or decision != _decision_of(before):
                row = alert or happened[name]
                instead = self._corrective(row, decision, in_force, said)
                found.append(self._row(row, decision, 0 if before is None else before["revision"] + 1, instead))
        return pa.Table.from_pylist(found, schema=TABLES[TABLE].schema)

    def decided_until(self, newest: int) -> int:
        """Up to which commit of `alerts` each has its verdict."""
        return newest if self._first_open is None else self._first_open - 1

    def run(self, new: pa.Table) -> VerdictRun:
        """What was done."""
        counts = {row["values"]: row["counts"] for row in pc.value_counts(new["verdict"]).to_pylist()}
        oldest_s = 0 if self._oldest_open is None else int((self._now - self._oldest_open).total_seconds())
        by_kind = {kind.value: int(counts.get(kind, 0)) for kind in VerdictKind}
        return VerdictRun(**by_kind, provisional=self._open, oldest_provisional_s=max(0, oldest_s))

    def _known(self, alert: Row | None, event: Row | None, before: Row | None, coverage: AlertCoverage) -> KnownOfAlert:
        is_overdue = alert is not None and alert["collected_at"] <= self._now - self._longest
        has_record = alert is not None and _has(coverage.covered, alert)
        return KnownOfAlert(
            alert=None if alert is None else event_of(alert),
            event=None if event is None else event_of(event),
            # a region sees some events by later fixes than the one that they name: these are waited for
            is_covered=has_record and alert is not None and (is_overdue or self._is_settled(alert)),
            is_received=alert is not None and _has(coverage.received, alert),
            is_overdue=is_overdue,
            was_announced=before is not None,
        )

    def _is_settled(self, alert: Row) -> bool:
        """Whether the events are computed with what the ingest committed so long after the region saw the event."""
        covered_at = self._covered_at
        return covered_at is not None and covered_at >= alert["received_at"] + self._settle

    @cached_property
    def _covered_at(self) -> datetime | None:
        return None if self._covered_commit is None else ingested_at(self._lake, self._covered_commit)

    def _coverage(self, alerts: Iterable[Row]) -> AlertCoverage:
        """What is covered and what is received of the devices of these alerts."""
        rows = [*alerts]
        covered = self._coverage_at(self._covered_commit, rows)
        due = self._now - self._longest
        overdue = [row for row in rows if row["collected_at"] <= due and not _has(covered, row)]
        return AlertCoverage(covered, self._coverage_at(self._lake.ingest_commit(), overdue) if overdue else {})

    def _coverage_at(self, commit: int | None, alerts: Sequence[Row]) -> Mapping[DeviceStream, Coverage]:
        devices = {TenantDevice(row["tenant"], row["device"]) for row in alerts}
        return self._lake.coverage_at(commit, devices) if devices and commit is not None else {}

    def _note_open(self, alert: Row) -> None:
        self._open += 1
        number, since = alert["commit_number"], alert["collected_at"]
        self._first_open = number if self._first_open is None else min(self._first_open, number)
        self._oldest_open = since if self._oldest_open is None else min(self._oldest_open, since)

    def _corrective(
        self, row: Row, decision: AlertDecision, in_force: Mapping[str, Row], said: Mapping[str, Row]
    ) -> tuple[str, ...]:
        if decision.verdict is not VerdictKind.WITHDRAWN:
            return ()
        owner = row["tenant"], row["device"]
        others: dict[str, DayEvent] = {
            name: event_of(other)
            for name, other in in_force.items()
            if name not in said and (other["tenant"], other["device"]) == owner
        }
        return corrective_ids(event_of(row), others)

    def _row(self, of: Row, decision: AlertDecision, revision: int, instead: Sequence[str]) -> dict[str, Any]:
        # of what is withdrawn, what was said: whoever heard of it is found by that
        event = decision.event or event_of(of)
        return {
            "id": of["id"],
            "revision": revision,
            "tenant": of["tenant"],
            "device": of["device"],
            "verdict": decision.verdict,
            "reason": decision.reason,
            "corrective_ids": [*instead],
            "epoch": event.epoch,
            "seq": event.seq,
            "kind": event.kind,
            "place": event.place,
            "time": moment(event.t_ms),
            "value": event.value,
            "day": of["day"],
            "emitted_at": self._now,
            "commit_number": 0,
        }


def _newest(rows: Iterable[Row]) -> dict[str, Row]:
    """Of each id the row with the highest revision."""
    newest: dict[str, Row] = {}
    for row in rows:
        if row["id"] not in newest or newest[row["id"]]["revision"] < row["revision"]:
            newest[row["id"]] = row
    return newest


def _has(coverage: Mapping[DeviceStream, Coverage], alert: Row) -> bool:
    """Whether the record is in it that an alert names."""
    stream = coverage.get(DeviceStream(alert["tenant"], alert["device"], alert["epoch"]))
    return stream is not None and alert["seq"] in stream.received


def _decision_of(row: Row) -> AlertDecision:
    """The decision that a row of `verdicts` holds."""
    event = None if row["verdict"] == VerdictKind.WITHDRAWN else event_of(row)
    reason = None if row["reason"] is None else ErrorReason(row["reason"])
    return AlertDecision(VerdictKind(row["verdict"]), event, reason)
