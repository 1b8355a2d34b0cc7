"""Weekly windows in a time zone: a fence counts while the local clock shows a time inside them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from pydantic import Field, field_validator

from geo.spatial.activity import Activity
from geo.spatial.ragged import Ints
from settings import Settings

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = get_args(Day)
# windows have no end; they are laid out for these years, and a fence with windows is not in force outside of them
YEARS: Final = (2015, 2045)
MAX_WINDOWS: Final = 64
_DAY_MS: Final = 86_400_000
_NOTHING: Final = np.zeros(0, dtype=np.int64)
_CLOCK: Final = r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$"


class Window(Settings):
    """From a time of the local clock until another, on some days. Until at or before from: on the day after."""

    days: Annotated[tuple[Day, ...], Field(min_length=1, max_length=7)]
    start: Annotated[str, Field(alias="from", pattern=_CLOCK)]
    until: Annotated[str, Field(pattern=_CLOCK)]


class Weekly(Settings):
    """Windows that recur each week. On a day when clocks change, what counts is what the local clock shows:

    an hour that is skipped is in no window, and one that comes twice is in its windows twice.
    """

    timezone: str
    windows: Annotated[tuple[Window, ...], Field(min_length=1, max_length=MAX_WINDOWS)]

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in _zones():
            raise ValueError(f"{value!r} is no time zone; they are named like 'Europe/Berlin'")
        return value

    def activity(self) -> Activity:
        """When the windows are open, over `YEARS`."""
        return _laid_out(self)


@lru_cache(maxsize=32)
def _laid_out(weekly: Weekly) -> Activity:
    weekday, midnight_ms, begin, end = _days(weekly.timezone)
    lows, highs = [_NOTHING], [_NOTHING]
    for day, windows in enumerate(_of_weekdays(weekly)):
        rows = np.flatnonzero(weekday == day)
        for start, until in windows:
            lows.append(np.maximum(midnight_ms[rows] + start, begin[rows]))
            highs.append(np.minimum(midnight_ms[rows] + until, end[rows]))
    return Activity.of_columns(np.concatenate(lows), np.concatenate(highs))


def _of_weekdays(weekly: Weekly) -> list[list[tuple[int, int]]]:
    """For each weekday, Monday first, its windows in ms of the local clock; those that meet are one."""
    opened: list[list[tuple[int | None, int | None]]] = [[] for _ in DAYS]
    for window in weekly.windows:
        start, until = _clock_ms(window.start), _clock_ms(window.until)
        for name in window.days:
            day = DAYS.index(name)
            if start < until:
                opened[day].append((start, until))
            else:
                opened[day].append((start, _DAY_MS))
                opened[(day + 1) % 7].append((0, until))
    return [Activity(windows).stretches() for windows in opened]


@lru_cache(maxsize=128)
def _days(timezone: str) -> tuple[Ints, Ints, Ints, Ints]:
    weekday, midnight_ms, begin, end = np.array(list(_steady(ZoneInfo(timezone))), dtype=np.int64).T
    return weekday, midnight_ms, begin, end


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """The names of the IANA list; what else the machine's folder of zones holds is its own, and another elsewhere."""
    return frozenset(available_timezones() - {"localtime", "posixrules"})


def _steady(zone: ZoneInfo) -> Iterator[tuple[int, int, int, int]]:
    """Local days, or parts of them, with one offset: (weekday, its 00:00 by that offset, begin, end), in ms."""
    day, last = date(YEARS[0], 1, 1), date(YEARS[1], 1, 1)
    while day < last:
        begin, end = _instant(day, zone), _instant(day + timedelta(days=1), zone)
        at = begin
        while at < end:
            offset = _offset_ms(at, zone)
            stop = end if _offset_ms(end - 1, zone) == offset else _change(at, end, zone)
            yield day.weekday(), _utc_ms(day) - offset, at, stop
            at = stop
        day += timedelta(days=1)


def _instant(day: date, zone: ZoneInfo) -> int:
    return int(datetime.combine(day, time(), tzinfo=zone).timestamp() * 1000)


def _utc_ms(day: date) -> int:
    return int(datetime.combine(day, time(), tzinfo=UTC).timestamp() * 1000)


def _offset_ms(at_ms: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at_ms / 1000, tz=zone).utcoffset() or timedelta()
    return int(offset.total_seconds() * 1000)


def _change(begin: int, end: int, zone: ZoneInfo) -> int:
    """The first whole second at which the offset is another than at `begin`."""
    offset, low, high = _offset_ms(begin, zone), begin // 1000, -(-end // 1000)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset_ms(middle * 1000, zone) == offset else (low, middle)
    return high * 1000


def _clock_ms(clock: str) -> int:
    hours, minutes = clock.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000


def weekly_of(value: Any) -> Weekly:
    """Windows as they are published, `{"timezone": ..., "windows": [{"days": [...], "from": ..., "until": ...}]}`."""
    return Weekly.model_validate(value)
