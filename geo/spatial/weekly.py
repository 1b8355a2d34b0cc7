"""Weekly windows in a time zone: a fence counts while the local clock shows a time inside them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from pydantic import ConfigDict, Field, field_validator

from geo.spatial.event_ids import DAY_MS
from waybill.settings import Settings

if TYPE_CHECKING:
    from geo.spatial.activity import Activity

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = get_args(Day)
WEEK_MS: Final = 7 * DAY_MS
MAX_WINDOWS: Final = 64
_CLOCK: Final = r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$"


class WeeklyWindow(Settings):
    """From one time of the local clock until another, on some days. An `until` not after `from` is on the next day."""

    model_config = ConfigDict(serialize_by_alias=True)

    days: Annotated[tuple[Day, ...], Field(min_length=1, max_length=7)]
    start: Annotated[str, Field(alias="from", pattern=_CLOCK)]
    until: Annotated[str, Field(pattern=_CLOCK)]


class Weekly(Settings):
    """Windows that recur each week, by what the local clock shows.

    When clocks change, a skipped hour is in no window, and an hour that comes twice is in its windows twice.
    """

    timezone: str
    windows: Annotated[tuple[WeeklyWindow, ...], Field(min_length=1, max_length=MAX_WINDOWS)]

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in _zones():
            raise ValueError(f"{value!r} is not a valid time zone; they are named like 'Europe/Berlin'")
        return value

    def activity(self) -> Activity:
        """When the windows are open, over `activity.YEARS`."""
        return _activity(self)

    def is_open_at(self, t_ms: int) -> bool:
        """Whether the local clock shows a time in a window at a moment (ms since 1970), in any year."""
        clock = datetime.fromtimestamp(t_ms / 1000, UTC).astimezone(ZoneInfo(self.timezone))
        of_day = ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 1000 + clock.microsecond // 1000
        shown = clock.weekday() * DAY_MS + of_day
        return any(start <= shown < until for start, until in _stretches(self))


@lru_cache(maxsize=1024)
def _stretches(weekly: Weekly) -> tuple[tuple[int, int], ...]:
    return tuple(_of_week(weekly))


@lru_cache(maxsize=32)
def _activity(weekly: Weekly) -> Activity:
    # callers of `is_open_at` do not load numpy
    from geo.spatial.activity import (  # noqa: PLC0415
        YEARS,
        Activity,
        Hours,
    )

    zone = ZoneInfo(weekly.timezone)
    first, last = (int(datetime(year, 1, 1, tzinfo=zone).timestamp()) * 1000 for year in YEARS)
    stretches = Activity(_of_week(weekly)).stretches()
    return Activity([(first, last)], Hours(weekly.timezone, tuple(limit for stretch in stretches for limit in stretch)))


def _of_week(weekly: Weekly) -> Iterator[tuple[int, int]]:
    """The windows in ms of the local week; a window past its end continues at its start."""
    for window in weekly.windows:
        start, until = _clock_ms(window.start), _clock_ms(window.until)
        for name in window.days:
            day = DAYS.index(name) * DAY_MS
            if start < until:
                yield day + start, day + until
            else:
                yield day + start, day + DAY_MS
                following = (day + DAY_MS) % WEEK_MS
                yield following, following + until


# available_timezones() opens every file of the machine's folder of zones.
@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """The IANA names that mean a place; other files in a machine's folder of zones are its own."""
    return frozenset(available_timezones() - {"localtime", "posixrules", "Factory"})


def _clock_ms(clock: str) -> int:
    hours, minutes = clock.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000
