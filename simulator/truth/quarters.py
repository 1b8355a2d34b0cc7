"""Usage by quarters of an hour, and which local day each quarter belongs to."""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

QUARTER = timedelta(minutes=15)
WHOLE_DEVICE = "*"
"""The zone of the rows that count all records of a device, wherever it was."""


class TrueQuarter(NamedTuple):
    """What a device did in a zone in the quarter that begins at `begin` (UTC).

    `zone`: "" outside, a fence, a gate, or WHOLE_DEVICE, whose rows alone have events and bytes of content.
    """

    tenant: str
    device: str
    begin: datetime
    zone: str
    distance_mm: int = 0
    duration_ms: int = 0
    entries: int = 0
    crossings: int = 0
    events: int = 0
    content_bytes: int = 0
    inferred_entries: int = 0


class TrueDays(NamedTuple):
    """A billing period: whole local days of a time zone, both included."""

    time_zone: str
    first_day: date
    last_day: date


@lru_cache(maxsize=64)
def quarters_of(days: TrueDays) -> tuple[tuple[datetime, datetime], ...]:
    """Every quarter of the period: its beginning in UTC and in local time.

    A day of 23 or 25 hours comes out as it is: each quarter of UTC is asked for its local date.
    """
    zone = ZoneInfo(days.time_zone)
    # No place is as much as two days from UTC.
    moment = datetime(days.first_day.year, days.first_day.month, days.first_day.day, tzinfo=UTC) - timedelta(days=2)
    end = datetime(days.last_day.year, days.last_day.month, days.last_day.day, tzinfo=UTC) + timedelta(days=3)
    found = []
    while moment < end:
        local = moment.astimezone(zone)
        if days.first_day <= local.date() <= days.last_day:
            found.append((moment, local))
        moment += QUARTER
    return tuple(found)


def month_of(time_zone: str, year: int, month: int) -> TrueDays:
    """The period of a calendar month."""
    first = date(year, month, 1)
    return TrueDays(time_zone, first, (first + timedelta(days=31)).replace(day=1) - timedelta(days=1))
