"""Revisions of events and encounters: which of them holds, and how they are published."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar


class _Numbered(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def revision(self) -> int: ...


_Revision = TypeVar("_Revision", bound=_Numbered)


def latest_by_id(revisions: Iterable[_Revision]) -> dict[str, _Revision]:
    """Of each id the highest revision, whatever the order."""
    latest: dict[str, _Revision] = {}
    for one in revisions:
        if one.id not in latest or latest[one.id].revision < one.revision:
            latest[one.id] = one
    return latest


def event_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `geofence_events` as consumers get it, as JSON; `time` in ISO 8601 with milliseconds."""
    names = ("id", "revision", "device", "kind", "place", "value", "retracted")
    return {name: row[name] for name in names} | {"time": _iso_ms(row["time"])}


def encounter_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `encounters` as consumers get it, as JSON; times in ISO 8601 with milliseconds."""
    names = ("id", "revision", "device_a", "device_b", "min_m", "retracted")
    return {name: row[name] for name in names} | {name: _iso_ms(row[name]) for name in ("start", "end", "min_at")}


def _iso_ms(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, as in `2026-01-05T10:17:02.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
