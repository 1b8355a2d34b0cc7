"""Alerts from their topics into the table `alerts`: each id once, what it said first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number
from cloud_jobs.verdicts.lookups import OpenedTable, moment
from geo.alerts import Alert, MalformedAlert, decode_alert
from geo.spatial import is_identified_by

TABLE: Final = "alerts"
MAX_AHEAD: Final = timedelta(days=1)


class TopicAlert(NamedTuple):
    """A message of a topic of alerts, and whose the topic is (None: that of all)."""

    topic: str
    tenant: str | None
    body: bytes


@dataclass(slots=True)
class CollectedAlerts:
    """What became of messages: alerts that are new, those that were there before, and by reason what is none."""

    added: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    last_refused: str = ""


def collect_alerts(lake: Lake, messages: Iterable[TopicAlert], now: datetime, max_age: timedelta) -> CollectedAlerts:
    """Takes messages into the table in one commit; once it returns they may be acknowledged.

    `max_age`: what happened longer ago is far off, as its records are. Raises CommitConflict if another process
    collects, too; LakeError.
    """
    found, alerts = CollectedAlerts(), dict[str, Alert]()
    for message in messages:
        alert, why = _judged(message, now, max_age)
        if alert is None:
            _refuse(found, message, why)
        elif alerts.setdefault(alert.id, alert) is not alert:
            found.repeated += 1
    if not alerts:
        return found
    table = OpenedTable(lake, TABLE, lake.open(TABLE))
    previous = newest_number(table.opened, TABLE)
    rows = [_row(alert, now) for alert in alerts.values()]
    days = {row["day"] for row in rows}
    there = {row["id"] for row in table.of_devices(days, {TenantDevice(row["tenant"], row["device"]) for row in rows})}
    new = [row for row in rows if row["id"] not in there]
    found.repeated += len(rows) - len(new)
    if new:
        _commit(table, new, previous, now)
        found.added = len(new)
    return found


def _judged(message: TopicAlert, now: datetime, max_age: timedelta) -> tuple[Alert | None, str]:
    """The alert of a message; None: it is none that can be taken, and why."""
    try:
        alert = decode_alert(message.body)
    except MalformedAlert as error:
        return None, f"malformed: {error}"
    if message.tenant is not None and alert.tenant != message.tenant:
        return None, f"wrong-tenant: it is of {alert.tenant}"
    happened = moment(alert.t_ms)
    if not now - max_age <= happened <= now + MAX_AHEAD:
        return None, f"far-off: it says that it happened at {happened.isoformat()}"
    # an id that is another fact's would get two verdicts, of which one is wrong
    if not is_identified_by(alert.id, alert.tenant, alert.device, alert.event):
        return None, f"wrong-id: {alert.id} does not follow from what it says"
    return alert, ""


def _refuse(found: CollectedAlerts, message: TopicAlert, why: str) -> None:
    found.refused[why.partition(":")[0]] += 1
    found.last_refused = f"{message.topic}: {why}"


def _row(alert: Alert, now: datetime) -> dict[str, Any]:
    happened = moment(alert.t_ms)
    return {
        **alert.model_dump(include={"id", "tenant", "device", "region", "epoch", "seq", "kind", "place", "value"}),
        "time": happened,
        "received_at": moment(alert.received_ms),
        "raised_at": moment(alert.raised_ms),
        "seen_until": [number for newest in alert.seen_until for number in newest],
        "collected_at": now,
        "day": happened.astimezone(UTC).date(),
        "commit_number": 0,
    }


def _commit(table: OpenedTable, rows: Sequence[dict[str, Any]], previous: int | None, now: datetime) -> None:
    number = next_number(previous)
    numbered = [row | {"commit_number": counter_of(number)} for row in rows]
    made = pa.Table.from_pylist(numbered, schema=TABLES[TABLE].schema)
    files = write_data_files(table.lake.files(TABLE), made, now, table=TABLE)
    try:
        commit_files(table.opened, TABLE, files, writer=TABLE, previous=previous, number=number, now=now)
    except Fenced as error:
        raise CommitConflict(TABLE) from error
