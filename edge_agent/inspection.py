"""Reads a buffer without disturbing the agent that uses it."""

from __future__ import annotations

import base64
import fcntl
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from edge_agent.clocks import SET_CLOCK_MS
from edge_agent.config import AgentSettings
from edge_agent.errors import StoreFailing, StoreForeign
from edge_agent.store.batch_rows import first_of, ordinal_of
from edge_agent.store.connection import DATABASE, has_tables
from edge_agent.store.database import mapped_errors
from edge_agent.store.rebuild import count_missing
from waybill.identity.names import device_name
from waybill.record import Batch, Raw, WireError, decode

# Read-only access to the buffer.


@contextmanager
def reading(settings: AgentSettings) -> Iterator[sqlite3.Connection]:
    """A read-only connection to the buffer of these settings' device. Raises StoreError."""
    path = settings.buffer.path / DATABASE
    try:
        path.stat()
    except FileNotFoundError as error:
        raise StoreFailing(f"there is no buffer at {path}: the agent has not run with these settings yet") from error
    except OSError as error:
        raise StoreFailing(f"the buffer at {path} cannot be read: {error.strerror}") from error
    address = f"{path.absolute().as_uri()}?mode=ro"
    with mapped_errors(), closing(sqlite3.connect(address, uri=True, timeout=5, isolation_level=None)) as connection:
        owner, mine = owner_of(connection), device_name(settings.device.tenant, settings.device.id)
        if not owner:
            raise StoreFailing(f"the buffer at {path} has no epoch yet")
        if owner != mine:
            raise StoreForeign(f"the buffer at {path} belongs to {owner}, and the settings name {mine}")
        yield connection


def owner_of(connection: sqlite3.Connection) -> str:
    """The buffer's owner, as `tenant/device`; empty before its first start. Raises StoreVersion, sqlite3.Error."""
    newest = "SELECT owner FROM epochs ORDER BY ordinal DESC LIMIT 1"
    row = connection.execute(newest).fetchone() if has_tables(connection) else None
    return str(row[0]) if row else ""


def is_running(settings: AgentSettings) -> bool | None:
    """Whether an agent uses the buffer; None if this user may not know."""
    try:
        with (settings.buffer.path / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def read_status(settings: AgentSettings) -> dict[str, Any]:
    """The state of the buffer as plain values, ready for JSON. Raises StoreError."""
    with reading(settings) as connection:
        # One snapshot for all queries: a commit between two queries would look like a gap.
        connection.execute("BEGIN")
        counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counters").fetchall())
        ordinal, epoch, head = connection.execute(
            "SELECT ordinal, epoch, head FROM epochs ORDER BY ordinal DESC LIMIT 1"
        ).fetchone()
        newest = connection.execute("SELECT id, last FROM batches ORDER BY id DESC LIMIT 1").fetchone()
        classes = _classes(connection, settings)
        ages_s = [one["oldest_age_s"] for one in classes.values() if one["oldest_age_s"] is not None]
        (lost,) = connection.execute("SELECT sum(lost) FROM batches WHERE batch IS NOT NULL").fetchone()
        dead_letter_batches, dead_letter_records = connection.execute(
            "SELECT count(*), coalesce(sum(records), 0) FROM batches JOIN dead_letter_batches USING (id)"
            " WHERE batch IS NOT NULL"
        ).fetchone()
        if newest and ordinal_of(newest[0]) == ordinal:
            head = max(head, newest[1])
        return {
            "device": settings.device.id,
            "tenant": settings.device.tenant,
            "epoch": epoch,
            "head": head,
            "epochs": ordinal,
            "depth_records": sum(one["records"] for one in classes.values()),
            "depth_bytes": sum(one["bytes"] for one in classes.values()),
            "oldest_age_s": max(ages_s, default=None),
            "classes": classes,
            "acknowledged": counters.get("acknowledged", 0),
            "duplicates": counters.get("duplicates", 0),
            "dead_letter_batches": dead_letter_batches,
            "dead_letter_records": dead_letter_records,
            "tombstones_waiting": lost or 0,
            "gaps": count_missing(connection, head, counters),
            "counters": counters,
        }


def _classes(connection: sqlite3.Connection, settings: AgentSettings) -> dict[str, dict[str, Any]]:
    rows = connection.execute(
        "SELECT class, count(*), sum(records), sum(size), min(CASE WHEN records > 0 AND wall_ms >= ?"
        " AND id NOT IN (SELECT id FROM dead_letter_batches) THEN wall_ms END)"
        " FROM batches WHERE batch IS NOT NULL GROUP BY class",
        (SET_CLOCK_MS,),
    ).fetchall()
    names = [one.name for one in settings.classes]
    by_class: dict[str, dict[str, Any]] = {
        name: {"batches": 0, "records": 0, "bytes": 0, "oldest_age_s": None} for name in names
    }
    for index, batches, records, size, oldest_ms in rows:
        entry = by_class[names[min(index, len(names) - 1)]]
        entry["batches"] += batches
        entry["records"] += records
        entry["bytes"] += size
        if oldest_ms is not None:
            age_s = round(max(0.0, time.time() - oldest_ms / 1000), 1)
            entry["oldest_age_s"] = max(age_s, entry["oldest_age_s"] or 0.0)
    return by_class


def exported_lines(settings: AgentSettings) -> Iterator[str]:
    """Every waiting record and tombstone as a JSON line. An unreadable batch becomes a line with the error.

    Raises StoreError.
    """
    with reading(settings) as connection:
        for identity, batch, reason in connection.execute(
            "SELECT id, batch, reason FROM batches LEFT JOIN dead_letter_batches USING (id)"
            " WHERE batch IS NOT NULL ORDER BY id"
        ):
            about = {"dead_letter": reason} if reason else {}
            try:
                yield from _lines(decode(batch), settings.device.tenant, about)
            except WireError as error:
                yield json.dumps({"unreadable": identity, "first": first_of(identity), "error": str(error)})


def _lines(batch: Batch, tenant: str, about: dict[str, str]) -> Iterator[str]:
    whose = {"tenant": tenant, "device": batch.device, "epoch": batch.epoch}
    for record in batch.records:
        body = record.body.model_dump(exclude_none=True, exclude={"payload"})
        if isinstance(record.body, Raw):
            body["payload_base64"] = base64.b64encode(record.body.payload).decode("ascii")
        yield json.dumps(
            {
                **whose,
                "seq": record.seq,
                "kind": type(record.body).__name__.lower(),
                "device_time_us": record.device_time_us,
                "uncertainty_ms": record.uncertainty_ms,
                **({"mapping": record.mapping} if record.mapping else {}),
                **body,
                **about,
            }
        )
    for first, last, reason in batch.tombstones:
        yield json.dumps({**whose, "lost": [first, last], "reason": reason, **about})
