"""What is not let in is kept beside the records, once, with the reason: messages that cannot be decoded, and records
that came again under their id with another content than the one in the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from cloud_jobs.lake.schemas import CONTENT, QUARANTINE
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import upon_what_is_there

RECORD_ID = ("tenant", "device", "epoch", "seq")


def malformed_rows(malformed: Sequence[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Rows for messages that are no consistent batch, from those of `decoding.Decoded`."""
    return [
        {
            "cause": "malformed",
            "fingerprint": row["fingerprint"],
            "detail": row["malformed"],
            "payload": row["payload"],
            "topic": row["topic"],
            "message_id": row["message_id"],
            "quarantined_at": now,
        }
        for row in malformed
    ]


def conflict_rows(records: pa.Table, now: datetime) -> list[dict[str, Any]]:
    """Rows for records whose ids are known with another content."""
    return [_conflict_row(record, now) for record in records.select([*RECORD_ID, *CONTENT]).to_pylist()]


def _conflict_row(record: dict[str, Any], now: datetime) -> dict[str, Any]:
    content = {name: record[name] for name in CONTENT if record[name] is not None}
    detail = json.dumps(content, default=_text, ensure_ascii=False)
    text = "|".join([*(str(record[name]) for name in RECORD_ID), detail])
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    record_id = {name: record[name] for name in RECORD_ID}
    return {"cause": "conflict", "fingerprint": fingerprint, "detail": detail, "quarantined_at": now, **record_id}


def _text(value: datetime | bytes) -> str:
    return value.isoformat() if isinstance(value, datetime) else value.hex()


def quarantine(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows whose fingerprint is not there yet: the replay of a micro-batch adds nothing. Raises CommitFailed."""
    if not rows:
        return
    # the merge sees only what the table holds: of two that are the same here it would insert both
    once = {row["fingerprint"]: row for row in rows}
    source = pa.Table.from_pylist(list(once.values()), schema=QUARANTINE)

    def merge() -> None:
        (
            lake.open("quarantine")
            .merge(source, "old.fingerprint = new.fingerprint", source_alias="new", target_alias="old")
            .when_not_matched_insert_all()
            .execute()
        )

    upon_what_is_there("quarantine", merge)
