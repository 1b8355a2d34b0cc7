"""Looking into the buffer: what waits, batch by batch or record by record. Reads only, and streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from sqlite_utils import Database

from edge_agent.config import AgentSettings
from edge_agent.status import connect_reading
from edge_agent.store.block import first_of, ordinal_of
from edge_agent.store.buffer import DATABASE
from edge_agent.store.connection import mapped_errors
from telemetry import Batch, Raw, WireError, decode


def stored_batches(settings: AgentSettings, limit: int) -> list[dict[str, Any]]:
    """The oldest batches that wait, as rows for people. Raises StoreError."""
    names = [one.name for one in settings.classes]
    columns = "id, last, class, records, lost, size, wall_ms, sent"
    with mapped_errors(), closing(connect_reading(settings.buffer.path / DATABASE)) as connection:
        rows = Database(connection).query(
            f"SELECT {columns} FROM blocks WHERE batch IS NOT NULL ORDER BY id LIMIT ?",  # noqa: S608 - fixed columns
            (limit,),
        )
        return [
            {
                "epoch": ordinal_of(row["id"]),
                "first": first_of(row["id"]),
                "last": row["last"],
                "class": names[min(row["class"], len(names) - 1)],
                "records": row["records"],
                "lost": row["lost"],
                "bytes": row["size"],
                "committed": datetime.fromtimestamp(row["wall_ms"] / 1000, UTC).isoformat(timespec="seconds"),
            }
            for row in rows
        ]


def exported_lines(settings: AgentSettings) -> Iterator[str]:
    """Every record and tombstone that waits, as JSON; a batch that cannot be read as an object that says so."""
    with mapped_errors(), closing(connect_reading(settings.buffer.path / DATABASE)) as connection:
        for row in Database(connection).query("SELECT id, batch FROM blocks WHERE batch IS NOT NULL ORDER BY id"):
            try:
                yield from _lines(decode(row["batch"]))
            except WireError as error:
                yield json.dumps({"unreadable": row["id"], "first": first_of(row["id"]), "error": str(error)})


def _lines(batch: Batch) -> Iterator[str]:
    for record in batch.records:
        body = record.body.model_dump(exclude_none=True, exclude={"payload"})
        if isinstance(record.body, Raw):
            body["payload_base64"] = base64.b64encode(record.body.payload).decode("ascii")
        yield json.dumps(
            {
                "device": batch.device,
                "epoch": batch.epoch,
                "seq": record.seq,
                "kind": type(record.body).__name__.lower(),
                "device_time_us": record.device_time_us,
                "uncertainty_ms": record.uncertainty_ms,
                **body,
            }
        )
    for first, last, reason in batch.tombstones:
        yield json.dumps({"device": batch.device, "epoch": batch.epoch, "lost": [first, last], "reason": reason})
