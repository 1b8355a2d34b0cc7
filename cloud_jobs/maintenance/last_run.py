"""What the last run of the maintenance left as a note in the lake: for whoever asks whether there still are any."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cloud_jobs.lake.tables import Lake

_PATH: Final = "last-maintenance.json"
_SHOWN: Final = 20


class LastMaintenance(NamedTuple):
    """When a run ended, how long it took, and what failed in it; when logs and coverage were swept last."""

    ended_at: datetime
    seconds: float
    errors: tuple[str, ...]
    log_swept_at: datetime | None = None


def note_last_run(lake: Lake, last: LastMaintenance) -> None:
    """Puts the note in the place of the one before. Raises OSError, StoreUnavailable."""
    document = last._asdict() | {"ended_at": last.ended_at.isoformat(), "errors": last.errors[:_SHOWN]}
    document["log_swept_at"] = None if last.log_swept_at is None else last.log_swept_at.isoformat()
    with lake.location.errors_named(), lake.location.files().open_output_stream(_PATH) as file:
        file.write(json.dumps(document).encode())


def read_last_run(lake: Lake) -> LastMaintenance | None:
    """The note; None where there is none, or one that is half written. Raises StoreUnavailable."""
    try:
        with lake.location.errors_named(), lake.location.files().open_input_file(_PATH) as file:
            document = json.loads(file.read())
        ended_at = datetime.fromisoformat(document["ended_at"]).astimezone(UTC)
        swept = document.get("log_swept_at")
        swept_at = None if swept is None else datetime.fromisoformat(swept).astimezone(UTC)
        return LastMaintenance(ended_at, float(document["seconds"]), tuple(map(str, document["errors"])), swept_at)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
