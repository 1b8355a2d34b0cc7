"""The time a bill is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from cloud_jobs.billing.errors import BadPeriod

_HELP = "use 2026, 2026-03, 2026-03-05, or FROM/TO, for instance 2026-03-05T06:00Z/2026-03-05T09:00Z"


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """From `start`, included, to `end`, excluded; both in UTC and on whole hours. Raises BadPeriod."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        for moment in (self.start, self.end):
            if moment.tzinfo is None or moment.utcoffset() != timedelta(0):
                raise BadPeriod(f"{moment.isoformat()} is not in UTC; {_HELP}")
            if moment.minute or moment.second or moment.microsecond:
                raise BadPeriod(f"{moment.isoformat()} is not a whole hour; usage is kept by the hour")
        if self.start >= self.end:
            raise BadPeriod(f"the period {self.start.isoformat()} to {self.end.isoformat()} is empty")

    @classmethod
    def parse(cls, text: str) -> Period:
        """The period that a person writes: a year, a month, a day, or two moments with a stroke between."""
        try:
            if "/" in text:
                start, end = (_moment(part) for part in text.split("/", maxsplit=1))
                return cls(start, end)
            return _calendar_period(text)
        except ValueError as error:
            raise BadPeriod(f"{text!r} is not a valid period; {_HELP}") from error

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    @property
    def first_day(self) -> date:
        """The day the period begins on."""
        return self.start.date()

    @property
    def last_day(self) -> date:
        """The last day the period touches."""
        # the end is excluded: midnight does not touch the day that it begins
        return (self.end - timedelta(microseconds=1)).date()

    def __str__(self) -> str:
        return f"{stamp(self.start)}/{stamp(self.end)}"


# the hours of a month are few, and the charges that name them are many
@lru_cache(maxsize=4096)
def stamp(moment: datetime) -> str:
    """A moment in UTC as ISO 8601 text that ends in Z, with fractions only if there are any."""
    text = moment.astimezone(UTC).isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z"


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.strip())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _calendar_period(text: str) -> Period:
    if not re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", text):
        raise ValueError(text)
    year, month, day = (*(int(part) for part in text.split("-")), 0, 0)[:3]
    start = datetime(year, month or 1, day or 1, tzinfo=UTC)
    if day:
        return Period(start, start + timedelta(days=1))
    if month:
        return Period(start, start.replace(year=year + month // 12, month=month % 12 + 1))
    return Period(start, start.replace(year=year + 1))
