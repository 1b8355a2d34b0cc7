"""When a job last read the topics of reference data: a note in the lake. Knows no Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from cloud_jobs.lake.tables import Lake

_NOTE: Final = "last-reference.json"


def note_taken(lake: Lake, now: datetime) -> None:
    """Leaves a note that the topics were read, for whoever asks whether anybody does. Raises OSError, LakeError."""
    with lake.location.errors_named(), lake.location.files().open_output_stream(_NOTE) as file:
        file.write(json.dumps({"taken_at": now.isoformat()}).encode())


def reference_taken_at(lake: Lake) -> datetime | None:
    """When a job last read the topics; None: no such note is there. Raises StoreUnavailable."""
    try:
        with lake.location.errors_named(), lake.location.files().open_input_file(_NOTE) as file:
            return datetime.fromisoformat(json.loads(file.read())["taken_at"]).astimezone(UTC)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
