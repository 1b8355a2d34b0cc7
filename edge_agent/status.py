"""What the buffer holds, read without disturbing the agent that uses it, or when none runs."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edge_agent.clock.age import SET_CLOCK_MS
from edge_agent.config import AgentSettings
from edge_agent.errors import StoreError, StoreFailing, StoreForeign
from edge_agent.store.archive import FOREIGN, archived_databases
from edge_agent.store.batch_rows import ordinal_of
from edge_agent.store.connection import DATABASE, has_tables
from edge_agent.store.database import mapped_errors
from edge_agent.store.gaps import gaps
from waybill.identity.names import device_name


@contextmanager
def reading(settings: AgentSettings, kept: str = "") -> Iterator[sqlite3.Connection]:
    """A connection to the buffer of these settings' device that cannot write. Raises StoreError.

    `kept`: the file beside it that holds another owner's buffer, which is read instead.
    """
    path = settings.buffer.path / (kept or DATABASE)
    if kept and path not in archived_databases(settings.buffer.path / DATABASE, FOREIGN):
        raise StoreFailing(f"{path} is no buffer that was kept apart; `edge-agent status` names them")
    try:
        path.stat()
    except FileNotFoundError as error:
        raise StoreFailing(f"there is no buffer at {path}") from error
    except OSError as error:
        raise StoreFailing(f"the buffer cannot be read: {error}") from error
    with (
        mapped_errors(),
        closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5, isolation_level=None)
        ) as connection,
    ):
        owner, mine = owner_of(connection), device_name(settings.device.tenant, settings.device.id)
        if not owner:
            raise StoreFailing(f"the buffer at {path} has no epoch yet")
        if owner != mine and not kept:
            raise StoreForeign(f"the buffer at {path} is of {owner}, and the settings are of {mine}")
        yield connection


def owner_of(connection: sqlite3.Connection) -> str:
    """Whose a buffer is, as `tenant/device`; empty before its first start. Raises StoreVersion, sqlite3.Error."""
    newest = "SELECT owner FROM epochs ORDER BY ordinal DESC LIMIT 1"
    row = connection.execute(newest).fetchone() if has_tables(connection) else None
    return str(row[0]) if row else ""


def kept_buffers(settings: AgentSettings) -> list[dict[str, Any]]:
    """The buffers of other owners that were kept apart: file, owner and records that wait in it (None: unreadable)."""
    found: list[dict[str, Any]] = []
    for path in archived_databases(settings.buffer.path / DATABASE, FOREIGN):
        found.append({"file": path.name, "owner": None, "records": None})
        with suppress(StoreError), reading(settings, path.name) as connection:
            (records,) = connection.execute("SELECT coalesce(sum(records), 0) FROM batches").fetchone()
            found[-1] |= {"owner": owner_of(connection), "records": records}
    return found


def is_running(settings: AgentSettings) -> bool | None:
    """Whether an agent has the buffer; None if this user may not know."""
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
        # One snapshot for all queries: a commit between two of them would look like a gap.
        connection.execute("BEGIN")
        counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counters").fetchall())
        ordinal, epoch, head = connection.execute(
            "SELECT ordinal, epoch, head FROM epochs ORDER BY ordinal DESC LIMIT 1"
        ).fetchone()
        newest = connection.execute("SELECT id, last FROM batches ORDER BY id DESC LIMIT 1").fetchone()
        classes = _classes(connection, settings)
        (oldest_ms,) = connection.execute(
            "SELECT min(wall_ms) FROM batches WHERE records > 0 AND wall_ms >= ?"
            " AND id NOT IN (SELECT id FROM dead_letter_batches)",
            (SET_CLOCK_MS,),
        ).fetchone()
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
            "oldest_age_s": None if oldest_ms is None else round(max(0.0, time.time() - oldest_ms / 1000), 1),
            "classes": classes,
            "acknowledged": counters.get("acknowledged", 0),
            "duplicates": counters.get("duplicates", 0),
            "messages_dead_lettered": counters.get("messages_dead_lettered", 0),
            "dead_letter_batches": dead_letter_batches,
            "dead_letter_records": dead_letter_records,
            "tombstones_waiting": lost or 0,
            **gaps(connection, ordinal, head, counters),
            "counters": counters,
            "kept_buffers": kept_buffers(settings),
            "file_bytes": _file_bytes(settings.buffer.path / DATABASE),
        }


def _classes(connection: sqlite3.Connection, settings: AgentSettings) -> dict[str, dict[str, int]]:
    rows = connection.execute(
        "SELECT class, count(*), sum(records), sum(size) FROM batches WHERE batch IS NOT NULL GROUP BY class"
    ).fetchall()
    names = [one.name for one in settings.classes]
    by_class = {name: {"batches": 0, "records": 0, "bytes": 0} for name in names}
    for index, batches, records, size in rows:
        entry = by_class[names[min(index, len(names) - 1)]]
        entry["batches"] += batches
        entry["records"] += records
        entry["bytes"] += size
    return by_class


def _file_bytes(path: Path) -> int:
    parts = (path, path.with_name(path.name + "-wal"))
    return sum(part.stat().st_size for part in parts if part.exists())
