"""Revisions of events and encounters, as they are published."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

NOTE: Final = "-"
"""A row whose id begins so is a note of the job that wrote it, for its later runs: retracted, and never published."""


def event_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `geofence_events` as consumers get it, as JSON; `time` in ISO 8601 with milliseconds."""
    names = ("id", "revision", "tenant", "device", "epoch", "seq", "kind", "place", "value", "retracted")
    return {name: row[name] for name in names} | {"time": _iso_ms(row["time"])}


def encounter_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `encounters` as consumers get it, as JSON; times in ISO 8601 with milliseconds."""
    names = ("id", "revision", "tenant", "device_a", "device_b", "min_m", "retracted")
    return {name: row[name] for name in names} | {name: _iso_ms(row[name]) for name in ("start", "end", "min_at")}


def _iso_ms(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, as in `2026-01-05T10:17:02.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
