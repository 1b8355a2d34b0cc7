"""The local day, the window and the version of the tariff of each quarter of an hour of a period."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.billing.contracts import Tariff, Window
from cloud_jobs.billing.rating.contract import TariffInForce

Ints = NDArray[np.int64]
QUARTER: Final = timedelta(minutes=15)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_LOCAL_TIMES: Final = 64
"""Of how many time zones and periods the local times are kept ready."""


class LocalTimes(NamedTuple):
    """What the clocks of a time zone show at the beginning of each quarter: the day (as an ordinal) and the minute."""

    day: Ints
    minute: Ints


def quarter_number(moment: datetime) -> int:
    """Which quarter of an hour begins at a moment, counted from 1970; the one that it lies in."""
    return (moment - EPOCH) // QUARTER


@lru_cache(maxsize=MAX_LOCAL_TIMES)
def local_times(time_zone: str, first: int, count: int) -> LocalTimes:
    """Of `count` quarters from the number `first`. Each is asked for by itself, so a change of clocks is exact."""
    zone = ZoneInfo(time_zone)
    moments = [(EPOCH + QUARTER * number).astimezone(zone) for number in range(first, first + count)]
    return LocalTimes(
        np.array([moment.toordinal() for moment in moments], np.int64),
        np.array([moment.hour * 60 + moment.minute for moment in moments], np.int64),
    )


def _minute(clock: time) -> int:
    return clock.hour * 60 + clock.minute


def window_mask(window: Window, local: LocalTimes) -> NDArray[np.bool_]:
    """The quarters in a window. One that ends at or before its beginning goes on into the next day."""
    begin, end = _minute(window.begin), _minute(window.end)
    weekday = (local.day - 1) % 7  # the ordinal 1 was a Monday
    days = np.zeros(7, np.bool_)
    days[[WEEKDAYS.index(day) for day in window.days]] = True
    if begin < end:
        return days[weekday] & (begin <= local.minute) & (local.minute < end)
    return (days[weekday] & (local.minute >= begin)) | (days[(weekday - 1) % 7] & (local.minute < end))


class Slot(NamedTuple):
    """What a price can depend on besides meter and zone."""

    day: date | None
    window: str
    version: int


class Calendar(NamedTuple):
    """Of each quarter of a period: `run`, which rises wherever day, window or version change; and of each run what
    they are. `slot` counts the different (day or None, window, version), `day` the local days."""

    run: Ints
    run_slot: Ints
    run_day: Ints
    slots: tuple[Slot, ...]


def calendar_of(tariffs: tuple[TariffInForce, ...], local: LocalTimes, first: int, *, by_day: bool) -> Calendar:
    """The calendar of an account for the quarters from the number `first`; `by_day`: whether prices look at days."""
    numbers = np.arange(first, first + len(local.day), dtype=np.int64)
    begins = np.array([quarter_number(one.begin) for one in tariffs], np.int64)
    version = np.searchsorted(begins, numbers, side="right").astype(np.int64) - 1
    names = [""]
    window = np.zeros(len(numbers), np.int64)
    for number in np.unique(version[version >= 0]):
        held = version == number
        _name_windows(tariffs[number].tariff, local, held, names, window)
    changes = (np.diff(local.day) != 0) | (np.diff(window) != 0) | (np.diff(version) != 0)
    run = np.concatenate(([0], np.cumsum(changes))).astype(np.int64)
    begin = np.concatenate(([0], np.flatnonzero(changes) + 1))
    slots: dict[Slot, int] = {}
    run_slot = np.empty(len(begin), np.int64)
    for index, (day, at, of) in enumerate(
        zip(local.day[begin].tolist(), window[begin].tolist(), version[begin].tolist(), strict=True)
    ):
        slot = Slot(date.fromordinal(day) if by_day else None, names[at], of)
        run_slot[index] = slots.setdefault(slot, len(slots))
    return Calendar(run, run_slot, local.day[begin], tuple(slots))


def _name_windows(
    tariff: Tariff, local: LocalTimes, held: NDArray[np.bool_], names: list[str], window: NDArray[Any]
) -> None:
    # backwards: of windows that overlap the first one counts
    for one in reversed(tariff.windows):
        if one.id not in names:
            names.append(one.id)
        window[held & window_mask(one, local)] = names.index(one.id)
