"""Billing periods: whole local days of a time zone, from midnight to midnight."""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cloud_jobs.billing.errors import BadPeriod
from geo.reference.moments import FIRST_YEAR, LAST_YEAR, QUARTER
from waybill.settings import nearest

_HELP: Final = (
    "use 2026, 2026-Q1, 2026-03, 2026-03-05, or FIRST/LAST with both days included, for instance 2026-03-05/2026-03-19"
)
_TEXT: Final = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?", re.ASCII)
_QUARTER: Final = re.compile(r"(\d{4})-Q([1-4])", re.ASCII)
_DAY: Final = timedelta(days=1)
_EPOCH: Final = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
_OF_THE_MACHINE: Final = {"Factory", "localtime", "posixrules"}
"""Names that mean another zone on each machine, or none."""


@dataclass(frozen=True, slots=True, order=True)
class BillingPeriod:
    """From the start of `first_day` to the end of `last_day` in `time_zone` (IANA).

    Raises BadPeriod for an unknown zone, days in the wrong order or out of range, and a midnight that is not on a
    quarter of an hour in UTC, because usage is kept by the quarter.
    """

    time_zone: str
    first_day: date
    last_day: date

    def __post_init__(self) -> None:
        zone_of(self.time_zone)
        if self.first_day > self.last_day:
            raise BadPeriod(f"the period {self.first_day} to {self.last_day} ends before it begins")
        if self.first_day.year < FIRST_YEAR or self.last_day.year > LAST_YEAR:
            raise BadPeriod(f"the period {self} is not within the years {FIRST_YEAR} to {LAST_YEAR}")
        for moment in (self.start, self.end):
            if (moment - _EPOCH) % QUARTER:
                raise BadPeriod(
                    f"in {self.time_zone} the period {self} begins or ends at {moment.isoformat()}, which is not on a "
                    "quarter of an hour"
                )
        if self.start == self.end:
            raise BadPeriod(f"{self.time_zone} had no day {self}: its clocks went from the day before to the day after")

    @classmethod
    def parse(cls, text: str, time_zone: str) -> BillingPeriod:
        """A year, a quarter, a month, a day, or two of them separated by a slash. Raises BadPeriod."""
        try:
            first, _, last = text.partition("/")
            return cls(time_zone, _days(first)[0], _days(last if "/" in text else first)[1])
        except ValueError as error:
            raise BadPeriod(f"{text[:100]!r} is not a valid period; {_HELP}") from error

    @property
    def start(self) -> datetime:
        """The first moment, in UTC."""
        return day_start(self.time_zone, self.first_day)

    @property
    def end(self) -> datetime:
        """The first moment after the period, in UTC."""
        return day_start(self.time_zone, self.last_day + _DAY)

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    def __str__(self) -> str:
        return days_text(self.first_day, self.last_day)


class Cycle(StrEnum):
    """How often a payer is billed."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


_MONTHS: Final = {Cycle.MONTH: 1, Cycle.QUARTER: 3, Cycle.YEAR: 12}


def cycle_days(cycle: Cycle, anchor: date, day: date) -> tuple[date, date]:
    """First and last day of the cycle that has a day.

    Months, quarters and years are counted from `anchor`; a month without the anchor's day has the first of the next
    month instead. Weeks begin on Mondays.
    """
    if cycle is Cycle.DAY:
        return day, day
    if cycle is Cycle.WEEK:
        monday = day - _DAY * day.weekday()
        return monday, monday + _DAY * 6
    step, months = _MONTHS[cycle], (day.year - anchor.year) * 12 + day.month - anchor.month
    number = months // step
    if _after_months(anchor, number * step) > day:
        number -= 1
    return _after_months(anchor, number * step), _after_months(anchor, (number + 1) * step) - _DAY


def _after_months(day: date, months: int) -> date:
    years, month = divmod(day.month - 1 + months, 12)
    first = date(day.year + years, month + 1, 1)
    length = monthrange(first.year, first.month)[1]
    return first + _DAY * min(day.day - 1, length)


def days_text(first: date, last: date) -> str:
    """The shortest text that `BillingPeriod.parse` reads as these days, both included."""
    if (first.year, first.month, first.day, last.month, last.day) == (last.year, 1, 1, 12, 31):
        return f"{first.year:04}"
    whole_months = first.day == 1 and last.day == monthrange(last.year, last.month)[1]
    if whole_months and (first.year, first.month) == (last.year, last.month):
        return f"{first.year:04}-{first.month:02}"
    return str(first) if first == last else f"{first}/{last}"


def zone_of(name: str) -> ZoneInfo:
    """Raises BadPeriod for a name that is not in the IANA database."""
    if name not in time_zones():
        near = nearest(name[:100], time_zones())
        advice = f"did you mean {near!r}?" if near else "use an IANA name, for instance Europe/Berlin"
        raise BadPeriod(f"no time zone {name[:100]!r}; {advice}")
    return ZoneInfo(name)


@cache
def time_zones() -> frozenset[str]:
    return frozenset(available_timezones() - _OF_THE_MACHINE)


@lru_cache(maxsize=65536)
def day_start(time_zone: str, day: date) -> datetime:
    """The first moment, in UTC, at which the clocks of a zone show this day or a later one. Raises BadPeriod.

    Of two midnights it is the first. Where clocks are put forward across midnight it is the moment of the change: the
    offset before the change gives it (PEP 495, fold 0).
    """
    return datetime(day.year, day.month, day.day, tzinfo=zone_of(time_zone)).astimezone(UTC)


def _days(text: str) -> tuple[date, date]:
    """First and last day of a text. Raises ValueError."""
    if found := _QUARTER.fullmatch(text.strip()):
        year, last_month = int(found[1]), 3 * int(found[2])
        return date(year, last_month - 2, 1), date(year, last_month, monthrange(year, last_month)[1])
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    year, month, day = (int(part or 0) for part in match.groups())
    if day:
        return date(year, month, day), date(year, month, day)
    last_month = month or 12
    return date(year, month or 1, 1), date(year, last_month, monthrange(year, last_month)[1])
