"""Weekly price windows in local time, and calendars: the holidays and seasons that they depend on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import MAXYEAR, date, datetime, timedelta
from functools import cached_property
from itertools import pairwise, product
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cloud_jobs.billing.contracts.fields import Contract, Id, PrintedName
from cloud_jobs.billing.contracts.prices import LocalDay
from geo.reference.moments import Moment

# Calendars.

MAX_HOLIDAYS: Final = 5_000
MAX_SEASONS: Final = 100


class Days(Contract):
    """Local days from `begin` until `end` (excluded)."""

    begin: LocalDay
    end: LocalDay

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end <= self.begin:
            raise ValueError(f"it ends on {self.end}, which is not after its begin, {self.begin}")
        return self


class Calendar(Contract):
    """One version of the holidays and seasons of a country or a city. No day is in two seasons.

    `until`: the first local day of which it knows nothing; None: it follows from its dates.
    """

    id: Id
    effective_from: Moment
    until: LocalDay | None = None
    holidays: Annotated[tuple[LocalDay, ...], Field(max_length=MAX_HOLIDAYS)] = ()
    seasons: Annotated[dict[Id, tuple[Days, ...]], Field(max_length=MAX_SEASONS)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_season_a_day(self) -> Self:
        ranges = sorted((one.begin, one.end, name) for name, days in self.seasons.items() for one in days)
        for before, after in pairwise(ranges):
            if after[0] < before[1]:
                raise ValueError(f"{after[0]} is in season {before[2]!r} and in season {after[2]!r}")
        return self

    def known_until(self, windows: Iterable[Window]) -> date:
        """The first local day of which it may lack what the windows need: without `until`, holidays are known for the
        whole year of the last one, and seasons for the year in which the last one begins, and to its end.
        """
        if self.until is not None:
            return self.until
        seasons, bounds = [one for days in self.seasons.values() for one in days], [date.max]
        if any(one.holidays for one in windows):
            bounds.append(_year_after(self.holidays))
        if any(one.season for one in windows):
            bounds.append(max([_year_after(one.begin for one in seasons), *(one.end for one in seasons)]))
        return min(bounds)

    def is_in_season(self, day: date, season: str) -> bool:
        return any(one.begin <= day < one.end for one in self.seasons.get(season, ()))


def _year_after(days: Iterable[date]) -> date:
    return date(min(max(days, default=date.min).year + 1, MAXYEAR), 1, 1)


# Windows.

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
MINUTES_OF_A_DAY: Final = 1_440
_MINUTES_OF_A_WEEK: Final = 7 * MINUTES_OF_A_DAY
_WEEK: Final = (1 << _MINUTES_OF_A_WEEK) - 1
_QUARTER: Final = 15
_DAY: Final = timedelta(days=1)
MAX_TIMES: Final = 6
"""The most hours of a window that its text names."""
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


def _hours(given: str) -> str:
    if _HOURS.fullmatch(given) is None:
        raise ValueError(f'{given!r} is no time of the day; write local times: ["07:00-08:30"], all day: "00:00-00:00"')
    return given


def _listed(given: Any) -> Any:
    """One text is a list of it."""
    return [given] if isinstance(given, str) else given


def _each_day(given: Any) -> Any:
    """The days, also as ranges: `mon-fri`."""
    found = list[Any]()
    for one in given if isinstance(given, list | tuple) else [given]:
        ends = [day.strip() for day in str(one).lower().split("-")]
        if len(ends) > 2 or not {*ends} <= {*WEEKDAYS}:
            raise ValueError(f'{one!r} is no day; write days = "mon-fri" or days = ["sat", "sun"]; without it, all')
        first, last = WEEKDAYS.index(ends[0]), WEEKDAYS.index(ends[-1])
        found += [WEEKDAYS[(first + at) % 7] for at in range((last - first) % 7 + 1)]
    return found


class Window(Contract):
    """A window of local time. `name`: printed beside its hours. `days`: the days on which it begins, `mon-fri`;
    without them, all.

    `hours`: `["06:30-07:00"]`. What does not end after its begin ends on the next day.
    `season`, `holidays`: it begins only on days of this season of the tariff's calendar, without its holidays, or only
    on them.
    """

    id: Id
    name: PrintedName | None = None
    days: Annotated[tuple[Weekday, ...], BeforeValidator(_each_day), Field(min_length=1)] = WEEKDAYS
    hours: Annotated[
        tuple[Annotated[str, AfterValidator(_hours)], ...],
        BeforeValidator(_listed),
        Field(min_length=1, max_length=96),
    ]
    season: Id | None = None
    holidays: Literal["without", "only"] | None = None

    @model_validator(mode="after")
    def _of_distinct_times(self) -> Self:
        if len(set(self.days)) != len(self.days):
            raise ValueError(f"window {self.id!r} names a day twice")
        together = 0
        for minutes in self.minutes:
            together |= minutes
        if together.bit_count() != len(self.days) * sum(length for _, length in self.spans):
            raise ValueError(f"the hours of window {self.id!r} overlap")
        return self

    @property
    def needs_calendar(self) -> bool:
        return self.season is not None or self.holidays is not None

    @property
    def is_on_quarters(self) -> bool:
        """Whether usage, which is kept by the quarter of an hour, can be attributed to it."""
        return not any(begin % _QUARTER or length % _QUARTER for begin, length in self.spans)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Begin and length of each of its times, in minutes of the day on which it begins."""
        numbers = (tuple(map(int, _HOURS.fullmatch(one).groups())) for one in self.hours)  # type: ignore[union-attr]
        ends = ((one * 60 + minute, other * 60 + until) for one, minute, other, until in numbers)
        return tuple((begin, (end - begin) % MINUTES_OF_A_DAY or MINUTES_OF_A_DAY) for begin, end in ends)

    @property
    def minutes(self) -> tuple[int, ...]:
        """For each weekday on which it begins (0 for the others) its minutes of the week, as bits from Monday 00:00."""
        found = []
        for number, day in enumerate(WEEKDAYS):
            bits = 0
            for begin, length in self.spans if day in self.days else ():
                bits |= ((1 << length) - 1) << (number * MINUTES_OF_A_DAY + begin)
            found.append((bits & _WEEK) | (bits >> _MINUTES_OF_A_WEEK))
        return tuple(found)

    def begins_on(self, day: date, calendar: Calendar | None) -> bool:
        """Whether it begins on a local day. Without a calendar no day is in a season or a holiday."""
        if WEEKDAYS[day.weekday()] not in self.days:
            return False
        if self.season is not None and (calendar is None or not calendar.is_in_season(day, self.season)):
            return False
        is_holiday = calendar is not None and day in calendar.holidays
        return self.holidays is None or is_holiday == (self.holidays == "only")

    def holds(self, local: datetime, calendar: Calendar | None) -> bool:
        """Whether a local time is in it."""
        minute, day = local.hour * 60 + local.minute, local.date()
        return any(
            begin <= at < begin + length and self.begins_on(of, calendar)
            for begin, length in self.spans
            for at, of in ((minute, day), (minute + MINUTES_OF_A_DAY, day - _DAY))
        )

    @property
    def text(self) -> str:
        """As documents name it: `night (mon-fri 22:00-06:00)`, `rush (mon, wed 06:00-08:00, season peak)`."""
        runs = list[list[str]]()
        for before, day in pairwise([None, *WEEKDAYS]):
            if day in self.days:
                if before not in self.days:
                    runs.append([])
                runs[-1].append(str(day))
        days = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)
        more = ", …" if len(self.hours) > MAX_TIMES else ""
        season = f", season {self.season}" if self.season else ""
        holidays = f", {self.holidays} holidays" if self.holidays else ""
        name = f": {self.name}" if self.name else ""
        return f"{self.id}{name} ({days} {', '.join(self.hours[:MAX_TIMES])}{more}{season}{holidays})"


def overlaps_of(windows: Sequence[Window]) -> Iterator[str]:
    """A fault for each two windows that may hold at one moment, whatever the calendar."""
    minutes = [window.minutes for window in windows]
    for at, one in enumerate(windows):
        for number, other in enumerate(windows[:at]):
            shared = 0
            for (day, mine), (of, others) in product(enumerate(minutes[at]), enumerate(minutes[number])):
                if day != of or not _are_apart(one, other):
                    shared |= mine & others
            if shared:
                first = _minute_text((shared & -shared).bit_length() - 1)
                yield f"windows {other.id!r} and {one.id!r} overlap on {first}"


def _are_apart(one: Window, other: Window) -> bool:
    """Whether they never begin on the same day: a day has one season, and is a holiday or is none."""
    seasons, holidays = {one.season, other.season} - {None}, {one.holidays, other.holidays} - {None}
    return len(seasons) > 1 or len(holidays) > 1


def _minute_text(minute: int) -> str:
    """A minute of the week as text: `mon 06:15`."""
    day, of_day = divmod(minute, MINUTES_OF_A_DAY)
    return f"{WEEKDAYS[day]} {of_day // 60:02}:{of_day % 60:02}"
