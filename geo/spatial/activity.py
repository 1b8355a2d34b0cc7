"""When a fence is in force: stretches of time, as sorted instants at which it switches, and hours of each week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from geo.spatial.ragged import Bools, Floats, Ints, Pairs, distinct, expand, joined_pairs, offsets, run_starts

# Weekly hours in local time, computed on demand.

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


# Versions of one fence or gate: each ends where the next one starts.


class Version(Protocol):
    """One version of a fence or gate: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> str:
        """What its versions share."""

    @property
    def active(self) -> Activity:
        """When it is in force."""

    @property
    def effective_from_ms(self) -> int | None:
        """From when it stands for its id, as it was declared."""


V = TypeVar("V", bound=Version)


def effective_ms(version: Version) -> int:
    """From when a version stands for its id: what was declared, which weekly windows do not move."""
    return begin_ms(version.active) if version.effective_from_ms is None else version.effective_from_ms


def superseded(versions: Iterable[V]) -> list[V]:
    """Each version of an id ends where the next one begins; equal beginnings: the last given wins.

    And it begins where the one before it ends: at most one of them is in force at any time.
    """
    by_id: dict[str, list[V]] = {}
    for version in versions:
        by_id.setdefault(version.id, []).append(version)
    kept: list[V] = []
    for same in by_id.values():
        same.sort(key=effective_ms)
        begins: list[int | None] = [effective_ms(version) for version in same]
        for version, begin, end in zip(same, [None, *begins[1:]], [*begins[1:], None], strict=True):
            limited = _limited(version.active, begin, end)
            # An id of which no version is ever in force keeps the last one: its name stays among the names.
            if len(limited.switches) or version is same[-1]:
                kept.append(version if limited is version.active else replace(version, active=limited))
    return kept


def _limited(active: Activity, begin: int | None, end: int | None) -> Activity:
    early = begin is not None and begin_ms(active) < begin
    return active & Activity([(begin if early else None, end)]) if early or end is not None else active


class Versions:
    """Which version of each name began last, however many there are. `begin_ms`: when each fence is first in force.

    Those of a name come one after the other in time (see `superseded`).
    """

    def __init__(self, name: Ints, begin_ms: Sequence[int]) -> None:
        begin = np.array(begin_ms, dtype=np.int64)
        self._begins = distinct(begin)
        rank = np.searchsorted(self._begins, begin) + 1
        self._order = np.lexsort((rank, name))
        # the rank of a time stands for it, so that name and time are one number
        self._keys = (name * (len(self._begins) + 1) + rank)[self._order]

    def at(self, name: Ints, t_ms: Floats) -> Ints:
        """The version of each name that began last before or at each time, in force or not; before all, the first."""
        return self._order[self._place(name, t_ms)]

    def within(self, name: Ints, start_ms: Floats, end_ms: Floats) -> tuple[Ints, Ints]:
        """(row, version): those of each name that may be in force in a stretch of time, both ends included."""
        first = self._place(name, start_ms)
        row, place = expand(first, self._place(name, end_ms) - first + 1)
        return row, self._order[place]

    def _place(self, name: Ints, t_ms: Floats) -> Ints:
        rank = np.searchsorted(self._begins, whole_ms(t_ms), side="right")
        first = name * (len(self._begins) + 1)
        last = np.searchsorted(self._keys, first + rank, side="right") - 1
        return np.maximum(last, np.searchsorted(self._keys, first))


# When each of many fences or gates is in force, by pairs of id and time.


class Schedule:
    """Activities, those that are alike kept once. Immutable. `kind[n]`: what is alike has the same number."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        number = {active: at for at, active in enumerate(dict.fromkeys(activities))}
        kinds = list(number)
        self.always: Final = all(active == ALWAYS for active in kinds)
        self.kind: Final[Ints] = np.array([number[active] for active in activities], dtype=np.int64)
        self._dated = _Switches([active.switches for active in kinds])
        hours = dict.fromkeys(active.hours for active in kinds if active.hours is not None)
        place = {one: at for at, one in enumerate(hours)}
        self._hours_of = np.array(
            [-1 if active.hours is None else place[active.hours] for active in kinds], dtype=np.int64
        )
        self._weekly = _Weekly(list(place))

    def in_force(self, item: Ints, t_ms: Ints | Floats) -> Bools:
        """Is each of these (by its number) in force at its time?"""
        # A set without times pays nothing for being asked.
        if self.always:
            return np.ones(len(item), dtype=np.bool_)
        kind, t_ms = self.kind[item], whole_ms(t_ms)
        force = self._dated.odd(kind, t_ms)
        hours = self._hours_of[kind]
        rows = np.flatnonzero(force & (hours >= 0))
        if len(rows):
            force[rows] = self._weekly.open(hours[rows], t_ms[rows])
        return force

    def switches(self, kind: Ints, start_ms: Ints | Floats, end_ms: Ints | Floats) -> Switchings:
        """When each of these kinds may come into force or go out of it, from each start on and before each end."""
        start_ms, end_ms = whole_ms(start_ms), whole_ms(end_ms)
        first, last = self._dated.before(kind, start_ms), self._dated.before(kind, end_ms)
        parts = [_Part(np.arange(len(kind)), self._dated.every, first, np.maximum(last - first, 0))]
        rows = np.flatnonzero(self._hours_of[kind] >= 0)
        parts += self._weekly.switches(rows, self._hours_of[kind[rows]], start_ms[rows], end_ms[rows])
        return Switchings(len(kind), parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """For each of `row` (one may be there several times) `count` of the values, from `first` on.

    `weeks`: of each the place where its values begin, how many they are in a week, and how far they are to be moved;
    what is past a week goes on in the next one.
    """

    row: Ints
    values: Ints
    first: Ints
    count: Ints
    weeks: tuple[Ints, Ints, Ints] | None = None

    def made(self) -> Pairs:
        item, position = expand(self.first, self.count)
        if self.weeks is None:
            return self.row[item], self.values[position]
        place, size, shift = (column[item] for column in self.weeks)
        return self.row[item], self.values[place + position % size] + position // size * WEEK_MS + shift


class Switchings:
    """When something may switch, by rows of what was asked: counted before they are made."""

    def __init__(self, rows: int, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self.count: Final[Ints] = np.zeros(rows, dtype=np.int64)
        for part in parts:
            np.add.at(self.count, part.row, part.count)

    def made(self) -> Pairs:
        """(row, ms) of each, in no particular order; one may be there twice."""
        return joined_pairs(part.made() for part in self._parts)


class _Switches:
    """Ascending values of many owners, asked together."""

    def __init__(self, several: Sequence[Ints]) -> None:
        self.first: Final = offsets(np.array([len(values) for values in several], dtype=np.int64))
        self.every: Final[Ints] = np.concatenate([np.zeros(0, dtype=np.int64), *several])
        self._values = distinct(self.every)
        owner = np.repeat(np.arange(len(several)), np.diff(self.first))
        # the rank of a value stands for it, so that owner and value are one number
        self._keys = owner * (len(self._values) + 1) + np.searchsorted(self._values, self.every) + 1

    def before(self, owner: Ints, value: Ints) -> Ints:
        """Where in `every` the owner's values are no longer below this one."""
        rank = np.searchsorted(self._values, value)
        return np.searchsorted(self._keys, owner * (len(self._values) + 1) + rank, side="right")

    def odd(self, owner: Ints, value: Ints) -> Bools:
        """Are an odd number of the owner's values not above this one?"""
        return np.asarray((self.before(owner, value + 1) - self.first[owner]) % 2 == 1, dtype=np.bool_)


class _Weekly:
    """The weekly hours of many."""

    def __init__(self, several: Sequence[Hours]) -> None:
        zones = {zone: at for at, zone in enumerate(dict.fromkeys(hours.timezone for hours in several))}
        self._zones = list(zones)
        self._zone_of = np.array([zones[hours.timezone] for hours in several], dtype=np.int64)
        self._switches = _Switches([hours.switches for hours in several])
        # the end of a week is the start of the next one
        self._clocks = _Switches([distinct(hours.switches % WEEK_MS) for hours in several])

    def switches(self, row: Ints, hours: Ints, start_ms: Ints, end_ms: Ints) -> Iterator[_Part]:
        """For each row, when the clock of its hours shows a time at which they switch, or is changed."""
        for zone, rows in self._by_zone(hours):
            item, begin, end, shift, changed = clock_parts(self._zones[zone], start_ms[rows], end_ms[rows])
            own, asked = rows[item], hours[rows[item]]
            low, high = (self._clocks_before(asked, limit + shift) for limit in (begin, end))
            place, size = self._clocks.first[asked], np.diff(self._clocks.first)[asked]
            weeks = place, np.maximum(size, 1), -shift
            yield _Part(row[own], self._clocks.every, low, np.maximum(high - low, 0), weeks)
            # times out of the years of weekly hours are moved to them
            opens = np.flatnonzero(changed & (begin >= start_ms[own]) & (begin < end_ms[own]))
            yield _Part(row[own[opens]], begin, opens, np.ones_like(opens))

    def _clocks_before(self, hours: Ints, shown_ms: Ints) -> Ints:
        """How many times each clock showed one of its times before it showed this, counted from a Monday."""
        week, within = np.divmod(shown_ms, WEEK_MS)
        first = self._clocks.first
        return week * np.diff(first)[hours] + self._clocks.before(hours, within) - first[hours]

    def _by_zone(self, hours: Ints) -> Iterator[tuple[int, Ints]]:
        """(zone, rows of `hours` in it)."""
        zone = self._zone_of[hours]
        order = np.argsort(zone, kind="stable")
        for rows in np.split(order, np.flatnonzero(run_starts(zone[order]))[1:]):
            if len(rows):
                yield int(zone[rows[0]]), rows

    def open(self, hours: Ints, t_ms: Ints) -> Bools:
        """Does the clock of each of these hours show a time in them?"""
        shown = np.empty(len(hours), dtype=np.int64)
        for zone, rows in self._by_zone(hours):
            shown[rows] = week_ms(self._zones[zone], t_ms[rows])
        return self._switches.odd(hours, shown)


FOREVER_MS: Final = 1 << 62
# no hour of a week is skipped so many weeks in a row
_SURELY_OPEN_MS: Final = 63 * DAY_MS


class Activity:
    """Half-open stretches [from, until) of Unix milliseconds; immutable, in order, without overlap.

    With `hours` it is in force in those of them only.
    """

    __slots__ = ("hours", "switches")

    def __init__(self, stretches: Iterable[tuple[int | None, int | None]], hours: Hours | None = None) -> None:
        known = sorted((-FOREVER_MS if a is None else a, FOREVER_MS if b is None else b) for a, b in stretches)
        united: list[list[int]] = []
        for start, end in known:
            # Two that touch are one: between them there is no switch.
            if united and start <= united[-1][1]:
                united[-1][1] = max(united[-1][1], end)
            elif start < end:
                united.append([start, end])
        self.hours = hours
        self.switches: Ints = np.array(united, dtype=np.int64).reshape(-1)

    def stretches(self) -> list[tuple[int, int]]:
        """The stretches, with ±`FOREVER_MS` for an open end, whatever the hours are."""
        return [(int(a), int(b)) for a, b in self.switches.reshape(-1, 2)]

    def at(self, t_ms: NDArray[np.integer] | Floats) -> Bools:
        """Is it in force at these times?"""
        whole = whole_ms(t_ms)
        force = np.searchsorted(self.switches, whole, side="right") % 2 == 1
        if self.hours is not None:
            force &= self.hours.at(whole)
        return np.asarray(force, dtype=np.bool_)

    def ever(self) -> bool:
        """Is it in force at any time?"""
        if self.hours is None:
            return len(self.switches) > 0
        if not len(self.hours.switches):
            return False
        return any(until - start > _SURELY_OPEN_MS or self._open_in(start, until) for start, until in self.stretches())

    def _open_in(self, start: int, until: int) -> bool:
        assert self.hours is not None
        limits = np.array([start]), np.array([until])
        moments = np.append(instants(self.hours.timezone, self.hours.switches, *limits), start)
        return bool(self.hours.at(moments[moments < until]).any())

    def __and__(self, other: Activity) -> Activity:
        """When both are in force. Raises ValueError if both have hours: there is no need for two clocks."""
        if self.hours is not None and other.hours is not None:
            raise ValueError("both have weekly hours")
        ends = distinct(np.concatenate([self.switches, other.switches]))
        force = np.searchsorted(self.switches, ends, side="right") % 2 == 1
        force &= np.searchsorted(other.switches, ends, side="right") % 2 == 1
        changed = np.flatnonzero(np.diff(np.concatenate([[False], force, [False]]).astype(np.int8)))
        both = Activity((), other.hours if self.hours is None else self.hours)
        # past the last instant neither is in force, except for ever
        both.switches = np.append(ends, FOREVER_MS)[changed]
        return both

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Activity)
            and bool(np.array_equal(self.switches, other.switches))
            and self.hours == other.hours
        )

    def __hash__(self) -> int:
        return hash((self.switches.tobytes(), self.hours))


ALWAYS: Final = Activity([(None, None)])


def whole_ms(t_ms: NDArray[np.integer] | Floats) -> Ints:
    """Times in whole milliseconds: as switches are at such, nothing changes within one."""
    # A cast alone rounds towards zero: times before 1970 would be a millisecond late.
    return np.floor(t_ms).astype(np.int64) if t_ms.dtype.kind == "f" else t_ms.astype(np.int64, copy=False)


def begin_ms(active: Activity) -> int:
    """When the first stretch begins; it is `FOREVER_MS` where there is none."""
    return int(active.switches[0]) if len(active.switches) else FOREVER_MS
