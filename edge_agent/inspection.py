"""What the buffer holds, in all, batch by batch or record by record. Reads only, and disturbs no agent."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from edge_agent.clocks import SET_CLOCK_MS
from edge_agent.config import AgentSettings
from edge_agent.errors import StoreError, StoreFailing, StoreForeign
from edge_agent.store.batch_rows import first_of, ordinal_of
from edge_agent.store.connection import DATABASE, has_tables
from edge_agent.store.database import mapped_errors
from edge_agent.store.rebuild import FOREIGN, archived_databases, gaps
from waybill.identity.names import device_name
from waybill.record import Batch, Raw, WireError, decode

# Read-only access to the buffer.


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


SHOWN_BYTES = 32


def _rows(connection: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
    from sqlite_utils import Database  # noqa: PLC0415 - heavy, and the daemon never comes here

    found: Iterator[dict[str, Any]] = Database(connection).query(query, values)
    return found


def stored_batches(settings: AgentSettings, limit: int) -> list[dict[str, Any]]:
    """The oldest batches that wait, ready for JSON. `dead_letter`: why it is not sent, or None. Raises StoreError."""
    names = [one.name for one in settings.classes]
    with reading(settings) as connection:
        epochs = dict(connection.execute("SELECT ordinal, epoch FROM epochs").fetchall())
        rows = _rows(
            connection,
            "SELECT id, last, class, records, lost, size, wall_ms, reason FROM batches"
            " LEFT JOIN dead_letter_batches USING (id)"
            " WHERE batch IS NOT NULL ORDER BY id LIMIT ?",
            (limit,),
        )
        return [
            {
                "epoch": epochs[ordinal_of(row["id"])],
                "first": first_of(row["id"]),
                "last": row["last"],
                "class": names[min(row["class"], len(names) - 1)],
                "records": row["records"],
                "lost": row["lost"],
                "bytes": row["size"],
                "committed": _time(row["wall_ms"]),
                "dead_letter": row["reason"],
            }
            for row in rows
        ]


def dead_letters(settings: AgentSettings, limit: int) -> list[dict[str, Any]]:
    """The newest messages that no record could carry, ready for JSON. Raises StoreError."""
    with reading(settings) as connection:
        rows = _rows(
            connection,
            "SELECT wall_ms, topic, bytes, reason, payload FROM dead_letters ORDER BY id DESC LIMIT ?",
            (limit,),
        )
        return [
            {
                "came": _time(row["wall_ms"]),
                "topic": row["topic"],
                "bytes": row["bytes"],
                "reason": row["reason"],
                "begins": repr(row["payload"][:SHOWN_BYTES]),
            }
            for row in rows
        ]


def _time(wall_ms: int) -> str:
    if wall_ms < SET_CLOCK_MS:
        return "unknown"
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")


def exported_lines(settings: AgentSettings, kept: str = "") -> Iterator[str]:
    """Every record and tombstone that waits, as JSON; a batch that cannot be read as an object that says so.

    `kept`: the file of another owner's buffer. Raises StoreError.
    """
    with reading(settings, kept) as connection:
        tenant, _, _ = owner_of(connection).partition("/")
        for row in _rows(
            connection,
            "SELECT id, batch, reason FROM batches LEFT JOIN dead_letter_batches USING (id)"
            " WHERE batch IS NOT NULL ORDER BY id",
        ):
            about = {"dead_letter": row["reason"]} if row["reason"] else {}
            try:
                yield from _lines(decode(row["batch"]), tenant, about)
            except WireError as error:
                yield json.dumps({"unreadable": row["id"], "first": first_of(row["id"]), "error": str(error)})
        for row in _rows(connection, "SELECT topic, reason, payload FROM dead_letters ORDER BY id"):
            payload = base64.b64encode(row["payload"]).decode("ascii")
            yield json.dumps({"dead_letter_message": row["reason"], "topic": row["topic"], "payload_base64": payload})


def export_to(settings: AgentSettings, target: Path, kept: str = "") -> None:
    """Writes `exported_lines` to a new file, for its owner alone, which appears when it is complete.

    Raises StoreError, OSError; StoreFailing for a target that exists or is in the buffer's folder.
    """
    if target.resolve().is_relative_to(settings.buffer.path.resolve()):
        raise StoreFailing(f"{target} is in the buffer's folder: write to another one")
    if target.exists() or target.is_symlink():
        raise StoreFailing(f"{target} exists: name a file that does not, or remove it")
    if not target.parent.is_dir():
        raise StoreFailing(f"{target}: there is no such folder")
    lines = exported_lines(settings, kept)
    with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        beside = Path(file.name)
        try:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


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
                **body,
                **about,
            }
        )
    for first, last, reason in batch.tombstones:
        yield json.dumps({**whose, "lost": [first, last], "reason": reason, **about})
