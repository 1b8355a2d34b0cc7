"""The decisions of one run: what is said of the alerts and events that are new, or looked at again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.derived import COVERED_COMMIT
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import counter_of, stated
from cloud_jobs.verdicts.config import VerdictSettings
from cloud_jobs.verdicts.corrections import EventsInPlace, days_near, touched_withdrawals
from cloud_jobs.verdicts.deciding import AlertDecision, KnownOfAlert, RecordState, decide
from cloud_jobs.verdicts.lookups import OpenedTable, Row, event_of, moment
from cloud_jobs.verdicts.open_alerts import ASKED_ROWS, NEVER, OPEN_ROWS, OpenAlerts, TableCommit
from cloud_jobs.verdicts.record_states import AlertCoverage, record_state, seen_until
from cloud_jobs.verdicts.unproven import bounded, is_unproven, look_again, unproven_in
from cloud_jobs.verdicts.waiting import split_waiting
from geo.alerts.verdict import ErrorReason, VerdictKind

TABLE: Final = "verdicts"
_UTC: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class VerdictRun:
    """What one run did. `provisional`: alerts without a verdict now; `oldest_provisional_s`: since when the oldest.

    `unnoted`: 1 where these could not be noted, so that the next run looks them up in the tables.
    """

    confirmed: int = 0
    corrected: int = 0
    withdrawn: int = 0
    late: int = 0
    provisional: int = 0
    oldest_provisional_s: int = 0
    unnoted: int = 0

    def __bool__(self) -> bool:
        """Whether something was said."""
        return bool(self.confirmed + self.corrected + self.withdrawn + self.late)


class Decisions:
    """The decisions of one run, some devices after the other."""

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
        """What is looked at again of alerts that are not settled: that are overdue, or of which more may be known.

        The others stay as they are. `events`: those that are new, which are looked at anyhow.
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
        """The new rows of `verdicts` for some devices, of which these alerts and events are new, or looked at again."""
        ids, days = {row["id"] for row in (*asked, *events)}, days_near((*asked, *events))
        devices = {TenantDevice(row["tenant"], row["device"]) for row in (*asked, *events)}
        revisions = self._tables["geofence_events"].of_devices(days, devices)
        # where tracks may have long gaps, an event may have been on the other side of midnight's surroundings before
        if more := days_near(row for row in revisions if row["id"] in ids) - days:
            revisions += self._tables["geofence_events"].of_devices(more, devices)
            days |= more
        said = {row["id"]: row for row in self._tables["alerts"].of_devices(days, devices)}
        happened = _newest(revisions)
        verdicts = _newest(self._tables[TABLE].of_devices(days, devices))
        in_force = {name: row for name, row in happened.items() if not row["retracted"]}
        ids |= touched_withdrawals([*events, *(said[name] for name in ids & said.keys())], verdicts.values(), days)
        proven_by = [said.get(name) or verdicts.get(name) for name in ids - in_force.keys()]
        coverage = self._coverage([row for row in proven_by if row is not None], verdicts.keys())
        others = EventsInPlace(in_force, said)
        found, waiting, unproven = [], [], []
        for name in sorted(ids):
            alert, before = said.get(name), verdicts.get(name)
            decision = decide(self._known(alert, in_force.get(name), before, coverage))
            if decision is None:
                if alert is not None:
                    waiting.append(self._open_row(alert, None))
                continue
            # what was said comes first: of what is withdrawn, whoever heard of it is found by that
            row = alert or before or happened[name]
            if is_unproven(decision.verdict, decision.reason):
                unproven.append(self._open_row(row, decision.reason))
            instead = others.of(row) if decision.verdict is VerdictKind.WITHDRAWN else ()
            if before is None or not _is_said(before, decision, instead, alert):
                found.append(self._row(row, decision, instead, alert, before))
        self._looked_at |= ids
        self._waiting.append(pa.Table.from_pylist(waiting, schema=OPEN_ROWS))
        self._unproven.append(pa.Table.from_pylist(unproven, schema=OPEN_ROWS))
        return pa.Table.from_pylist(found, schema=TABLES[TABLE].schema)

    def left(self, verdicts: TableCommit, alerts: TableCommit) -> OpenAlerts:
        """What is not settled, for the next run."""
        waiting = pa.concat_tables(self._waiting).sort_by([("commit_number", "ascending"), ("id", "ascending")])
        is_again = pc.is_in(self._kept_unproven["id"], pa.array(sorted(self._looked_at), pa.string()))
        unproven = pa.concat_tables([self._kept_unproven.filter(pc.invert(is_again)), *self._unproven])
        unproven = bounded(unproven, self._now.astimezone(UTC).date())
        rows = pa.concat_tables([waiting, unproven])
        return OpenAlerts(verdicts, alerts, self._covered_commit, self._now, rows)

    def decided_until(self, newest: int) -> int:
        """Up to which commit of `alerts` each has its verdict."""
        first = self._least("commit_number")
        return newest if first is None else first - 1

    def run(self, new: pa.Table) -> VerdictRun:
        """What was done."""
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
        # what came by a clock that was ahead waits from now on
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
        """What is covered and what is received of the devices of these alerts, or verdicts on what is no alert."""
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

    def _row(
        self, of: Row, decision: AlertDecision, instead: Sequence[str], alert: Row | None, before: Row | None
    ) -> dict[str, Any]:
        event = decision.event or event_of(of)
        return {
            "id": of["id"],
            "revision": 0 if before is None else before["revision"] + 1,
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
            **_said_by(alert, "alerted"),
            **_said_by(before, "previous"),
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


def _said_by(row: Row | None, who: str) -> dict[str, Any]:
    """All else of it follows from the id."""
    return {f"{who}_{name}": None if row is None else row[name] for name in ("time", "value")}


def _is_said(before: Row, decision: AlertDecision, instead: Sequence[str], alert: Row | None) -> bool:
    """Whether a row of `verdicts` says so already, to whoever heard of the alert, too."""
    is_withdrawn = before["verdict"] == VerdictKind.WITHDRAWN
    said = AlertDecision(VerdictKind(before["verdict"]), None if is_withdrawn else event_of(before), _reason_of(before))
    names_alert = alert is None or not is_withdrawn or event_of(before) == event_of(alert)
    return decision == said and [*instead] == before["corrective_ids"] and names_alert


def _reason_of(row: Row) -> ErrorReason | None:
    # one of a newer version is said anew, in the words of this one
    return ErrorReason(row["reason"]) if row["reason"] in {*ErrorReason} else None
