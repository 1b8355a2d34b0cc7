"""When each of many fences or gates is in force: asked by pairs of one of them and a time, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from geo.spatial.activity import ALWAYS, Activity, whole_ms
from geo.spatial.hours import WEEK_MS, Hours, clock_parts, week_ms
from geo.spatial.ragged import Bools, Floats, Ints, Pairs, distinct, expand, joined_pairs, offsets, run_starts


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
