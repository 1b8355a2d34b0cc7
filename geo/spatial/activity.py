"""When a fence is in force: stretches of time, as sorted instants at which it switches, and hours of each week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from geo.spatial.event_ids import DAY_MS
from geo.spatial.ragged import Bools, Floats, Ints, Pairs, distinct, expand, joined_pairs, offsets, run_starts

# Weekly hours in local time, laid out year by year when they are asked for.

WEEK_MS: Final = 7 * DAY_MS
YEARS: Final = (2015, 2045)
"""Weekly hours count from the start of the first of these local years to the start of the last."""
_NONE: Final = np.zeros(0, dtype=np.int64)
_MONDAY_MS: Final = 3 * DAY_MS  # 1970-01-01 was a Thursday


@dataclass(frozen=True, slots=True)
class Hours:
    """Stretches [from, until) of a local week; immutable.

    The local clock decides: a skipped hour never counts, and an hour that comes twice counts twice. `switches`: from
    and until of each stretch in turn, ascending, in ms since the local Monday 00:00.
    """

    timezone: str
    switches: tuple[int, ...]

    def at(self, t_ms: Ints) -> Bools:
        """Whether the local clock shows a time in them."""
        if not len(t_ms):
            return np.zeros(0, dtype=np.bool_)
        parts = [_changes(self.timezone, year) for year in _years(t_ms, t_ms)]
        since, offset = (np.concatenate(column) for column in zip(*parts, strict=True))
        period = np.maximum(np.searchsorted(since, t_ms, side="right") - 1, 0)
        shown = (t_ms + offset[period] + _MONDAY_MS) % WEEK_MS
        return np.asarray(np.searchsorted(self.switches, shown, side="right") % 2 == 1, dtype=np.bool_)

    def instants(self, begin_ms: Ints, end_ms: Ints) -> Ints:
        """When they may open or close, ascending, in all years between the first begin and the last end."""
        return np.concatenate([_instants(self, year) for year in _years(begin_ms, end_ms)])


def _years(begin_ms: Ints, end_ms: Ints) -> range:
    """The UTC years of some times, as far as weekly hours can be in force in them."""
    first, last = (
        datetime.fromtimestamp(min(max(int(t_ms) // 1000, 0), _END_S), UTC).year
        for t_ms in (begin_ms.min(), end_ms.max())
    )
    return range(max(first, YEARS[0] - 1), max(last, YEARS[0] - 1) + 1)


_END_S: Final = int(datetime(YEARS[1], 12, 31, tzinfo=UTC).timestamp())


@lru_cache(maxsize=1 << 10)
def _instants(hours: Hours, year: int) -> Ints:
    """When the local clock shows a time at which hours open or close, or is changed, in a UTC year; ascending."""
    clocks = distinct(np.array(hours.switches, dtype=np.int64) % WEEK_MS)
    since, offset = _changes(hours.timezone, year)
    found = [since]
    ends = [*since[1:].tolist(), int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp()) * 1000]
    for begin, end, shift in zip(since.tolist(), ends, (offset + _MONDAY_MS).tolist(), strict=True):
        weeks = np.arange((begin + shift) // WEEK_MS, (end + shift) // WEEK_MS + 1)
        t_ms = (weeks[:, None] * WEEK_MS + clocks).reshape(-1) - shift
        found.append(t_ms[(t_ms >= begin) & (t_ms < end)])
    return distinct(np.concatenate(found))


@lru_cache(maxsize=1 << 14)
def _changes(timezone: str, year: int) -> tuple[Ints, Ints]:
    """(since ms, ms east of UTC): the offsets of a zone from the start of a UTC year to its end."""
    zone = ZoneInfo(timezone)
    begin, end = (int(datetime(at, 1, 1, tzinfo=UTC).timestamp()) for at in (year, year + 1))
    since, offset = [begin], [_offset_s(begin, zone)]
    for day in range(begin, end, 86_400):
        last = min(day + 86_400, end - 1)
        # A day may have several changes: after each one, search the rest of the day.
        while _offset_s(last, zone) != offset[-1]:
            since.append(_change(max(day, since[-1]), last, zone))
            offset.append(_offset_s(since[-1], zone))
    return np.array(since, dtype=np.int64) * 1000, np.array(offset, dtype=np.int64) * 1000


def _offset_s(at_s: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at_s, tz=zone).utcoffset() or timedelta()
    return int(offset.total_seconds())


def _change(low: int, high: int, zone: ZoneInfo) -> int:
    """The first whole second with another offset than at `low`."""
    offset = _offset_s(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset_s(middle, zone) == offset else (low, middle)
    return high


# Versions of one fence or gate: each ends where the next one starts.


def effective_ms(version: Any) -> int:
    """From when a fence or gate stands for its id: what was declared, which weekly windows do not move."""
    return begin_ms(version.active) if version.effective_from_ms is None else version.effective_from_ms


def superseded(versions: Iterable[Any]) -> list[Any]:
    """Versions of fences or gates, limited so that at most one version of an id is in force at any time.

    Each ends where the next one begins, and begins where the one before it ends. Of equal beginnings the last one given
    wins.
    """
    by_id: dict[str, list[Any]] = {}
    for version in versions:
        by_id.setdefault(version.id, []).append(version)
    kept: list[Any] = []
    for same in by_id.values():
        same.sort(key=effective_ms)
        begins: list[int | None] = [effective_ms(version) for version in same]
        for version, begin, end in zip(same, [None, *begins[1:]], [*begins[1:], None], strict=True):
            limited = _limited(version.active, begin, end)
            # An id with no version ever in force keeps its last version, so its name stays among the names.
            if len(limited.switches) or version is same[-1]:
                kept.append(version if limited is version.active else replace(version, active=limited))
    return kept


def _limited(active: Activity, begin: int | None, end: int | None) -> Activity:
    early = begin is not None and begin_ms(active) < begin
    return active & Activity([(begin if early else None, end)]) if early or end is not None else active


class Versions:
    """Which version of each name began last. `begin_ms`: when each fence is first in force.

    Those of a name come one after the other in time (see `superseded`).
    """

    def __init__(self, name: Ints, begin_ms: Sequence[int]) -> None:
        begin = np.array(begin_ms, dtype=np.int64)
        self._order = np.lexsort((begin, name))
        self._begins = _Switches(np.bincount(name), begin[self._order])

    def at(self, name: Ints, t_ms: Floats) -> Ints:
        """The version of each name that began last before or at each time, in force or not; before all, the first."""
        return self._order[self._place(name, t_ms)]

    def within(self, name: Ints, start_ms: Floats, end_ms: Floats) -> tuple[Ints, Ints]:
        """(row, version): those of each name that may be in force in a stretch of time, both ends included."""
        first = self._place(name, start_ms)
        row, place = expand(first, self._place(name, end_ms) - first + 1)
        return row, self._order[place]

    def _place(self, name: Ints, t_ms: Floats) -> Ints:
        return np.maximum(self._begins.before(name, whole_ms(t_ms) + 1) - 1, self._begins.first[name])


# When each of many fences or gates is in force, by pairs of id and time.


class Schedule:
    """The activities of many fences or gates; equal ones are kept once and share a number, `kind[n]`. Immutable."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        number = {active: at for at, active in enumerate(dict.fromkeys(activities))}
        kinds = list(number)
        self.always: Final = all(active == ALWAYS for active in kinds)
        self.kind: Final[Ints] = np.array([number[active] for active in activities], dtype=np.int64)
        dated = [active.switches for active in kinds]
        self._dated = _Switches(np.array(list(map(len, dated)), dtype=np.int64), np.concatenate([_NONE, *dated]))
        self._hours = list(dict.fromkeys(active.hours for active in kinds if active.hours is not None))
        place: dict[Hours | None, int] = {hours: at for at, hours in enumerate(self._hours)}
        self._hours_of = np.array([place.get(active.hours, -1) for active in kinds], dtype=np.int64)

    def in_force(self, item: Ints, t_ms: Ints | Floats) -> Bools:
        """Whether each of these (by its number) is in force at its time."""
        # fast path for fences without times
        if self.always:
            return np.ones(len(item), dtype=np.bool_)
        kind, t_ms = self.kind[item], whole_ms(t_ms)
        force = self._dated.odd(kind, t_ms)
        for hours, rows in self._by_hours(kind):
            force[rows] &= hours.at(t_ms[rows])
        return force

    def switches(self, kind: Ints, start_ms: Ints | Floats, end_ms: Ints | Floats) -> Switchings:
        """When each of these kinds may come into force or go out of it, from each start on and before each end."""
        start_ms, end_ms = whole_ms(start_ms), whole_ms(end_ms)
        first, last = self._dated.before(kind, start_ms), self._dated.before(kind, end_ms)
        parts = [_Part(np.arange(len(kind)), self._dated.every, first, np.maximum(last - first, 0))]
        for hours, rows in self._by_hours(kind):
            instants = hours.instants(start_ms[rows], end_ms[rows])
            low, high = (np.searchsorted(instants, limit[rows]) for limit in (start_ms, end_ms))
            parts.append(_Part(rows, instants, low, np.maximum(high - low, 0)))
        return Switchings(len(kind), parts)

    def _by_hours(self, kind: Ints) -> Iterator[tuple[Hours, Ints]]:
        """Weekly hours, and the rows of `kind` that have them."""
        place = self._hours_of[kind]
        order = np.argsort(place, kind="stable")
        order = order[np.searchsorted(place[order], 0) :]
        starts = np.flatnonzero(run_starts(place[order]))
        for rows in np.split(order, starts[1:]) if len(order) else ():
            yield self._hours[int(place[rows[0]])], rows


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """For each of `row` (one may be there several times) `count` of the values, from `first` on."""

    row: Ints
    values: Ints
    first: Ints
    count: Ints

    def made(self) -> Pairs:
        item, position = expand(self.first, self.count)
        return self.row[item], self.values[position]


class Switchings:
    """When something may switch, by rows of what was asked; counted before they are made."""

    def __init__(self, rows: int, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self.count: Final[Ints] = np.zeros(rows, dtype=np.int64)
        for part in parts:
            np.add.at(self.count, part.row, part.count)

    def made(self) -> Pairs:
        """(row, ms) of each, in no particular order; duplicates are possible."""
        return joined_pairs(part.made() for part in self._parts)


class _Switches:
    """Ascending values of many owners, looked up together."""

    def __init__(self, counts: Ints, values: Ints) -> None:
        """`values`: those of all owners, laid end to end; `counts`: how many each owner has."""
        self.first: Final = offsets(counts)
        self.every: Final = values
        self._values = distinct(values)
        owner = np.repeat(np.arange(len(counts)), counts)
        # the rank of a value stands for it, so that owner and value are one number
        self._keys = owner * (len(self._values) + 1) + np.searchsorted(self._values, values) + 1

    def before(self, owner: Ints, value: Ints) -> Ints:
        """Where in `every` the owner's values are no longer below this one."""
        rank = np.searchsorted(self._values, value)
        return np.searchsorted(self._keys, owner * (len(self._values) + 1) + rank, side="right")

    def odd(self, owner: Ints, value: Ints) -> Bools:
        """Whether an odd number of the owner's values are at or below this one."""
        return np.asarray((self.before(owner, value + 1) - self.first[owner]) % 2 == 1, dtype=np.bool_)


FOREVER_MS: Final = 1 << 62
# no hour of a week is skipped this many weeks in a row
_SURELY_OPEN_MS: Final = 63 * DAY_MS


class Activity:
    """Half-open stretches [from, until) of Unix milliseconds; immutable, in order, without overlap.

    With `hours`, it is in force only during those.
    """

    __slots__ = ("hours", "switches")

    def __init__(self, stretches: Iterable[tuple[int | None, int | None]], hours: Hours | None = None) -> None:
        known = sorted((-FOREVER_MS if a is None else a, FOREVER_MS if b is None else b) for a, b in stretches)
        united: list[list[int]] = []
        for start, end in known:
            # Two stretches that touch are one: there is no switch between them.
            if united and start <= united[-1][1]:
                united[-1][1] = max(united[-1][1], end)
            elif start < end:
                united.append([start, end])
        self.hours = hours
        self.switches: Ints = np.array(united, dtype=np.int64).reshape(-1)

    def stretches(self) -> list[tuple[int, int]]:
        """The stretches, with ±`FOREVER_MS` for an open end, without regard to the hours."""
        return [(int(a), int(b)) for a, b in self.switches.reshape(-1, 2)]

    def at(self, t_ms: NDArray[np.integer] | Floats) -> Bools:
        """Whether it is in force at these times."""
        whole = whole_ms(t_ms)
        force = np.searchsorted(self.switches, whole, side="right") % 2 == 1
        if self.hours is not None:
            force &= self.hours.at(whole)
        return np.asarray(force, dtype=np.bool_)

    def ever(self) -> bool:
        if self.hours is None:
            return len(self.switches) > 0
        if not len(self.hours.switches):
            return False
        return any(until - start > _SURELY_OPEN_MS or self._open_in(start, until) for start, until in self.stretches())

    def _open_in(self, start: int, until: int) -> bool:
        assert self.hours is not None
        moments = np.append(self.hours.instants(np.array([start]), np.array([until])), start)
        return bool(self.hours.at(moments[(moments >= start) & (moments < until)]).any())

    def __and__(self, other: Activity) -> Activity:
        """When both are in force. Raises ValueError if both have hours."""
        if self.hours is not None and other.hours is not None:
            raise ValueError("both have weekly hours")
        ends = distinct(np.concatenate([self.switches, other.switches]))
        force = np.searchsorted(self.switches, ends, side="right") % 2 == 1
        force &= np.searchsorted(other.switches, ends, side="right") % 2 == 1
        changed = np.flatnonzero(np.diff(np.concatenate([[False], force, [False]]).astype(np.int8)))
        both = Activity((), other.hours if self.hours is None else self.hours)
        # past the last instant neither is in force, unless both are forever
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
    """Times in whole milliseconds, rounded down: switches are at whole ones, so nothing changes within one."""
    # A cast alone rounds towards zero: times before 1970 would be a millisecond late.
    return np.floor(t_ms).astype(np.int64) if t_ms.dtype.kind == "f" else t_ms.astype(np.int64, copy=False)


def begin_ms(active: Activity) -> int:
    """When the first stretch begins; `FOREVER_MS` if there is none."""
    return int(active.switches[0]) if len(active.switches) else FOREVER_MS
