"""Which events stand in the place of what was withdrawn, and which withdrawals news may touch. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

from cloud_jobs.verdicts.deciding import NEAR_MS, corrective_ids
from cloud_jobs.verdicts.lookups import Row, event_of
from cloud_jobs.verdicts.unproven import is_unproven
from geo.alerts.verdict import VerdictKind

_NEAR: Final = timedelta(milliseconds=NEAR_MS)
_LIKE: Final = ("tenant", "device", "kind", "place")


def days_near(rows: Iterable[Row]) -> set[date]:
    """The days of some rows, and of what is near to something near to them."""
    days = set[date]()
    for row in rows:
        days |= {row["day"], *_days_around(row["time"], 2 * _NEAR)}
    return days


def touched_withdrawals(news: Collection[Row], verdicts: Iterable[Row], days: Collection[date]) -> set[str]:
    """The ids of withdrawn verdicts whose events in their place, or whose reason, may be others now.

    `news`: events and alerts. `verdicts`: those in force of their devices, on `days`. One whose surroundings are not
    all on these days is not among them.
    """
    if not news:
        return set()
    ids, devices = {row["id"] for row in news}, {(row["tenant"], row["device"]) for row in news}
    moments: dict[tuple[str, ...], list[datetime]] = defaultdict(list)
    for row in news:
        moments[_like(row)].append(row["time"])
    for times in moments.values():
        times.sort()
    return {
        row["id"]
        for row in verdicts
        if row["verdict"] == VerdictKind.WITHDRAWN
        and (row["tenant"], row["device"]) in devices
        and _days_around(row["time"], _NEAR) <= {*days}
        and (
            is_unproven(row["verdict"], row["reason"])
            or not ids.isdisjoint(row["corrective_ids"])
            or _is_near(row["time"], moments.get(_like(row), ()))
        )
    }


class EventsInPlace:
    """The events in force of which no region said anything, by what they are like."""

    def __init__(self, in_force: Mapping[str, Row], said: Collection[str]) -> None:
        self._like: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
        for name, row in in_force.items():
            if name not in said:
                self._like[_like(row)][name] = row

    def of(self, withdrawn: Row) -> tuple[str, ...]:
        """The ids of those that stand in the place of what was withdrawn, nearest first."""
        like = self._like.get(_like(withdrawn), {})
        return corrective_ids(event_of(withdrawn), {name: event_of(row) for name, row in like.items()})


def _like(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in _LIKE)


def _is_near(moment: datetime, times: Sequence[datetime]) -> bool:
    at = bisect_left(times, moment - _NEAR)
    return at < len(times) and times[at] <= moment + _NEAR


def _days_around(moment: datetime, by: timedelta) -> set[date]:
    return {(moment + shift).astimezone(UTC).date() for shift in (-by, timedelta(), by)}
