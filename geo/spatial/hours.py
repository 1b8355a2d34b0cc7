"""Hours of a local clock that recur each week, asked for at times: nothing is laid out that nobody asks for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np

from geo.spatial.ragged import Bools, Ints, distinct, expand, run_starts

DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS
YEARS: Final = (2015, 2045)
"""Weekly hours count from the start of the first of these local years to the start of the last."""
_MONDAY_MS: Final = 3 * DAY_MS  # 1970-01-01 was a Thursday
_FIRST_DAY: Final = (datetime(YEARS[0] - 1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
_LAST_DAY: Final = (datetime(YEARS[1] + 1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days - 1
_YEAR_OF_DAY: Final = np.arange(_FIRST_DAY, _LAST_DAY + 1).astype("datetime64[D]").astype("datetime64[Y]").astype(int)


class Hours:
    """Stretches [from, until) of a local week, in ms since its Monday 00:00; immutable.

    What counts is what the clock shows: an hour that is skipped never is, and one that comes twice is twice.
    """

    __slots__ = ("switches", "timezone")

    def __init__(self, timezone: str, switches: Iterable[int]) -> None:
        """`switches`: ascending, the stretches' froms and untils in turn."""
        self.timezone = timezone
        self.switches: Ints = np.fromiter(switches, dtype=np.int64)

    def at(self, t_ms: Ints) -> Bools:
        """Does the local clock show a time in them?"""
        count = np.searchsorted(self.switches, week_ms(self.timezone, t_ms), side="right")
        return np.asarray(count % 2 == 1, dtype=np.bool_)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Hours)
            and self.timezone == other.timezone
            and bool(np.array_equal(self.switches, other.switches))
        )

    def __hash__(self) -> int:
        return hash((self.timezone, self.switches.tobytes()))


def week_ms(timezone: str, t_ms: Ints) -> Ints:
    """What the local clock and calendar show at times, in ms since Monday 00:00."""
    t_ms = _bounded(t_ms)
    since, offset = _offsets(timezone, t_ms, t_ms)
    at = np.searchsorted(since, t_ms, side="right") - 1
    return np.asarray((t_ms + offset[at] + _MONDAY_MS) % WEEK_MS)


def instants(timezone: str, clocks: Ints, begin_ms: Ints, end_ms: Ints) -> Ints:
    """When the local clock shows one of `clocks` (ms of the week, ascending) or is changed, in stretches of time that
    do not overlap, ascending.
    """
    if not len(clocks) or not len(begin_ms):
        return np.zeros(0, dtype=np.int64)
    begin_ms, end_ms = _bounded(begin_ms), _bounded(end_ms)
    since, offset = _offsets(timezone, begin_ms, end_ms)
    change, stretch = _within(since, begin_ms, end_ms)
    begin = np.concatenate([begin_ms, since[change]])
    end = np.concatenate([end_ms, end_ms[stretch]])
    order = np.lexsort((begin, end))
    begin, end = begin[order], end[order]
    # a change of the clock ends the part before it
    end[:-1] = np.minimum(end[:-1], begin[1:])
    shift = offset[np.searchsorted(since, begin, side="right") - 1] + _MONDAY_MS
    low, high = (_number_of(clocks, limit + shift) for limit in (begin, end + 1))
    part, number = expand(low, np.maximum(high - low, 0))
    shown = number // len(clocks) * WEEK_MS + clocks[number % len(clocks)]
    return distinct(np.concatenate([shown - shift[part], since[change]]))


def clock_parts(timezone: str, begin_ms: Ints, end_ms: Ints) -> tuple[Ints, Ints, Ints, Ints, Bools]:
    """Stretches of time cut where the local clock is changed: (row, from, until, ms from there to what it shows, since
    a Monday; whether it begins with a change, or with a year), by row and time.
    """
    begin_ms, end_ms = _bounded(begin_ms), _bounded(end_ms)
    since, offset = _offsets(timezone, begin_ms, end_ms)
    first = np.searchsorted(since, begin_ms, side="right") - 1
    row, period = expand(first, np.maximum(np.searchsorted(since, end_ms) - 1 - first, 0) + 1)
    until = np.append(since[1:], end_ms.max(initial=0))[period]
    begin, end = np.maximum(begin_ms[row], since[period]), np.minimum(end_ms[row], until)
    return row, begin, end, offset[period] + _MONDAY_MS, begin == since[period]


def _number_of(clocks: Ints, shown_ms: Ints) -> Ints:
    """How many times the clock showed one of `clocks` before it showed these, counted from a Monday."""
    return np.asarray(shown_ms // WEEK_MS * len(clocks) + np.searchsorted(clocks, shown_ms % WEEK_MS))


def _within(values: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(place in `values`, stretch) of the values that lie in a stretch, after its begin."""
    stretch = np.searchsorted(begin, values, side="left") - 1
    place = np.flatnonzero((stretch >= 0) & (values <= end[stretch]))
    return place, stretch[place]


def _bounded(t_ms: Ints) -> Ints:
    # Outside these years weekly hours are never in force, and datetime ends with the year 9999.
    return np.clip(t_ms, _FIRST_DAY * DAY_MS, (_LAST_DAY + 1) * DAY_MS - 1)


def _offsets(timezone: str, begin_ms: Ints, end_ms: Ints) -> tuple[Ints, Ints]:
    """(since when, ms east of UTC) of a zone in the years that stretches of time reach into."""
    days = len(_YEAR_OF_DAY)
    begun = np.bincount(begin_ms // DAY_MS - _FIRST_DAY, minlength=days)
    over = np.bincount(end_ms // DAY_MS - _FIRST_DAY + 1, minlength=days + 1)[:days]
    year = _YEAR_OF_DAY[np.cumsum(begun - over) > 0]
    parts = [_changes(timezone, 1970 + at) for at in year[run_starts(year)].tolist()]
    none = np.zeros(0, dtype=np.int64)
    since, offset = (np.concatenate([none, *(part[at] for part in parts)]) for at in range(2))
    return since, offset


@lru_cache(maxsize=1 << 14)
def _changes(timezone: str, year: int) -> tuple[Ints, Ints]:
    """Since when which offset holds, from the start of a UTC year to its end."""
    zone = ZoneInfo(timezone)
    begin, end = (int(datetime(at, 1, 1, tzinfo=UTC).timestamp()) for at in (year, year + 1))
    since, offset = [begin], [_offset_s(begin, zone)]
    for day in range(begin, end, 86_400):
        last = min(day + 86_400, end - 1)
        # More than one change may fall into a day: after each the rest of the day is looked at again.
        while _offset_s(last, zone) != offset[-1]:
            since.append(_change(max(day, since[-1]), last, zone))
            offset.append(_offset_s(since[-1], zone))
    return np.array(since, dtype=np.int64) * 1000, np.array(offset, dtype=np.int64) * 1000


def _offset_s(at_s: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at_s, tz=zone).utcoffset() or timedelta()
    return int(offset.total_seconds())


def _change(low: int, high: int, zone: ZoneInfo) -> int:
    """The first whole second at which the offset is another than at `low`."""
    offset = _offset_s(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset_s(middle, zone) == offset else (low, middle)
    return high
