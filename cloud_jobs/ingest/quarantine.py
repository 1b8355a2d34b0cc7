"""What is not let in is kept beside the records, once, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from cloud_jobs.lake import Lake
from cloud_jobs.tables import QUARANTINE


def rejected_rows(refused: Sequence[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Rows for messages that are no consistent batch, from header rows of `decoding.DECODED`."""
    return [
        {
            "cause": "refused",
            "fingerprint": row["fingerprint"],
            "detail": row["refused"],
            "payload": row["payload"],
            "topic": row["topic"],
            "message_id": row["message_id"],
            "quarantined_at": now,
        }
        for row in refused
    ]


def quarantine(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows whose fingerprint is not there yet: the replay of a micro-batch adds nothing."""
    if not rows:
        return
    once = {row["fingerprint"]: row for row in rows}
    source = pa.Table.from_pylist(list(once.values()), schema=QUARANTINE)
    (
        lake.open("quarantine")
        .merge(source, "old.fingerprint = new.fingerprint", source_alias="new", target_alias="old")
        .when_not_matched_insert_all()
        .execute()
    )
