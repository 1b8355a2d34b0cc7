"""An event as it is published: the value of a message, JSON."""

from __future__ import annotations

from typing import Any

from cloud_jobs.timestamps import iso_ms


def event_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `geofence_events` as consumers get it; `time` in ISO 8601 with milliseconds."""
    names = ("id", "revision", "device", "kind", "place", "value", "retracted")
    return {name: row[name] for name in names} | {"time": iso_ms(row["time"])}
