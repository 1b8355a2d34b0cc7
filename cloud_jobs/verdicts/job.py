"""One run of the verdicts: what alerts and events came since the last one, and what is to be said of them now.

The rows of a run, and up to which commits of `alerts` and `geofence_events` everything is decided, are one commit, made
only upon the commit of `verdicts` that the run read: of two runs at once one gets CommitConflict. Alerts that are
left without a verdict, or withdrawn while records are missing, are noted beside the tables (`open_alerts`): one that
waits does not make a run longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number, stated
from cloud_jobs.verdicts.config import VerdictSettings
from cloud_jobs.verdicts.decisions import TABLE, Decisions, VerdictRun
from cloud_jobs.verdicts.lookups import OpenedTable, by_devices
from cloud_jobs.verdicts.open_alerts import ASKED_ROWS, OpenAlerts, TableCommit, read_open_alerts, write_open_alerts

__all__ = ["TABLE", "VerdictRun", "give_verdicts", "open_alerts_file", "provisional_since"]

DECIDED_ALERTS: Final = "decided_alerts"
"""Under which name the table states up to which commit of `alerts` every alert has a verdict."""
DECIDED_EVENTS: Final = "decided_events"
"""The same of the commits of `geofence_events`."""
_NOTED_EACH: Final = timedelta(minutes=1)
_LOG: Final = structlog.get_logger("verdicts", job="verdicts")


def provisional_since(lake: Lake) -> datetime | None:
    """Since when the oldest alert of the table waits for a verdict; None: each has one.

    Read from the tables, whether or not somebody gives verdicts. Raises LakeError.
    """
    alerts = OpenedTable(lake, "alerts", lake.open("alerts"))
    newest = counter_of(newest_number(alerts.opened, "alerts"))
    decided = stated(lake.open(TABLE), DECIDED_ALERTS) or 0
    if decided >= newest:
        return None
    # the first one that waits is in the commit behind those of which each has its verdict; its rows may be erased
    for until in (decided + 1, newest):
        moments: list[datetime] = alerts.since(decided, until)["collected_at"].to_pylist()
        if moments:
            return min(moments)
    return None


def open_alerts_file(checkpoints: Path) -> Path:
    """Where the job notes which alerts have no verdict yet."""
    return checkpoints / "open-alerts.parquet"


def give_verdicts(lake: Lake, settings: VerdictSettings, now: datetime, open_file: Path) -> VerdictRun:
    """Brings the verdicts up to the alerts and events as they are now. Raises CommitConflict, LakeError.

    `open_file`: what the run before left open, and this one leaves; without it all is looked at that came after the
    oldest alert that waits.
    """
    tables = {name: OpenedTable(lake, name, lake.open(name)) for name in (TABLE, "alerts", "geofence_events")}
    opened = tables[TABLE].opened
    previous = newest_number(opened, TABLE)
    since, until = {}, {}
    for name, state in (("alerts", DECIDED_ALERTS), ("geofence_events", DECIDED_EVENTS)):
        until[name] = counter_of(newest_number(tables[name].opened, name))
        decided = stated(opened, state) or 0
        # a table that was brought back from a copy, or made anew, is decided from its beginning
        since[name] = decided if decided <= until[name] else 0
    left = read_open_alerts(open_file)
    if left is not None and left.is_of(_commit_of(tables[TABLE]), _commit_of(tables["alerts"])):
        since["alerts"] = counter_of(left.alerts.number)
    else:
        left = None
    alerts = tables["alerts"].since(since["alerts"], until["alerts"])
    events = tables["geofence_events"].since(since["geofence_events"], until["geofence_events"])
    deciding = Decisions(lake, settings, now, tables, None if left is None else left.at(now))
    again = deciding.due(events)
    new_or_due = pa.concat_tables([alerts.select(ASKED_ROWS.names), again])
    made = [deciding.rows(*rows) for rows in by_devices(new_or_due, events)]
    new = pa.concat_tables([TABLES[TABLE].schema.empty_table(), *made])
    states = {DECIDED_ALERTS: deciding.decided_until(until["alerts"]), DECIDED_EVENTS: until["geofence_events"]}
    if new.num_rows or any((stated(opened, name) or 0) != value for name, value in states.items()):
        _commit(tables[TABLE], new, previous, states, now)
    now_left = deciding.left(_commit_of(tables[TABLE]), _commit_of(tables["alerts"]))
    is_noted = not _is_news(left, now_left) or _note(open_file, now_left)
    return replace(deciding.run(new), unnoted=int(not is_noted))


def _note(open_file: Path, left: OpenAlerts) -> bool:
    """Whether it could be noted; the tables decide without it, and a full disk is no reason to say nothing."""
    try:
        write_open_alerts(open_file, left)
    except OSError as error:
        _LOG.warning("what waits cannot be noted", file=str(open_file), error=str(error))
        return False
    return True


def _is_news(before: OpenAlerts | None, left: OpenAlerts) -> bool:
    if before is None or replace(before, as_of=left.as_of) != left:
        return True
    # how long alerts wait is known from when the clock said what
    return bool(left.waiting.num_rows) and not before.as_of <= left.as_of < before.as_of + _NOTED_EACH


def _commit_of(table: OpenedTable) -> TableCommit:
    return TableCommit(str(table.opened.metadata().id), newest_number(table.opened, table.name))


def _commit(table: OpenedTable, rows: pa.Table, previous: int | None, states: Mapping[str, int], now: datetime) -> None:
    number = next_number(previous)
    numbers = pa.repeat(pa.scalar(counter_of(number), pa.int64()), rows.num_rows)
    rows = rows.set_column(rows.schema.get_field_index("commit_number"), "commit_number", numbers)
    files = write_data_files(table.lake.files(TABLE), rows.cast(TABLES[TABLE].schema), now, table=TABLE)
    try:
        commit_files(table.opened, TABLE, files, writer=TABLE, previous=previous, number=number, states=states, now=now)
    except Fenced as error:
        raise CommitConflict(TABLE) from error
