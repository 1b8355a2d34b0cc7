"""How moments are written in messages."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_ms(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, as in `2026-01-05T10:17:02.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
