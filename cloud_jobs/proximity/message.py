"""An encounter as it is published: the value of a message, JSON."""

from __future__ import annotations

from typing import Any

from cloud_jobs.timestamps import iso_ms


def encounter_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `encounters` as consumers get it; times in ISO 8601 with milliseconds."""
    names = ("id", "revision", "device_a", "device_b", "min_m", "retracted")
    return {name: row[name] for name in names} | {name: iso_ms(row[name]) for name in ("start", "end", "min_at")}
