"""Looking into the buffer: what waits, batch by batch or record by record. Reads only, and streams."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from sqlite_utils import Database

from edge_agent.clock.age import SET_CLOCK_MS
from edge_agent.config import AgentSettings
from edge_agent.errors import StoreFailing
from edge_agent.status import owner_of, reading
from edge_agent.store.batch_rows import first_of, ordinal_of
from waybill.record import Batch, Raw, WireError, decode

SHOWN_BYTES = 32


def stored_batches(settings: AgentSettings, limit: int) -> list[dict[str, Any]]:
    """The oldest batches that wait, ready for JSON. `dead_letter`: why it is not sent, or None. Raises StoreError."""
    names = [one.name for one in settings.classes]
    with reading(settings) as connection:
        epochs = dict(connection.execute("SELECT ordinal, epoch FROM epochs").fetchall())
        rows = Database(connection).query(
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
        rows = Database(connection).query(
            "SELECT wall_ms, topic, bytes, reason, payload FROM dead_letters ORDER BY id DESC LIMIT ?", (limit,)
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
        for row in Database(connection).query(
            "SELECT id, batch, reason FROM batches LEFT JOIN dead_letter_batches USING (id)"
            " WHERE batch IS NOT NULL ORDER BY id"
        ):
            about = {"dead_letter": row["reason"]} if row["reason"] else {}
            try:
                yield from _lines(decode(row["batch"]), tenant, about)
            except WireError as error:
                yield json.dumps({"unreadable": row["id"], "first": first_of(row["id"]), "error": str(error)})
        for row in Database(connection).query("SELECT topic, reason, payload FROM dead_letters ORDER BY id"):
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
            _publish(beside, target)
        finally:
            beside.unlink(missing_ok=True)


def _publish(complete: Path, target: Path) -> None:
    """Gives the complete file its name, unless something took that name meanwhile (StoreFailing): that one stays."""
    try:
        try:
            os.link(complete, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links here, as on a FAT stick: the name is taken first, and then replaced by ours
            target.touch(mode=0o600, exist_ok=False)
            complete.replace(target)
    except FileExistsError as error:
        raise StoreFailing(f"{target} was made by somebody else meanwhile: name a file that does not exist") from error


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
