"""When each of many fences or gates is in force: asked by pairs of one of them and a time, however many there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from geo.spatial.activity import ALWAYS, FOREVER_MS, Activity, whole_ms
from geo.spatial.hours import WEEK_MS, Hours, instants, merged, week_ms
from geo.spatial.ragged import Bools, Floats, Ints, distinct, offsets, run_starts


class Schedule:
    """Activities, those that are alike kept once. Immutable."""

    def __init__(self, activities: Sequence[Activity]) -> None:
        number = {active: at for at, active in enumerate(dict.fromkeys(activities))}
        kinds = list(number)
        self._always = all(active == ALWAYS for active in kinds)
        self._of_item = np.array([number[active] for active in activities], dtype=np.int64)
        self._dated = _Switches([active.switches for active in kinds])
        hours = dict.fromkeys(active.hours for active in kinds if active.hours is not None)
        place = {one: at for at, one in enumerate(hours)}
        self._hours_of = np.array(
            [-1 if active.hours is None else place[active.hours] for active in kinds], dtype=np.int64
        )
        self._weekly = _Weekly(list(place))
        ends = self._dated.values
        self._dates: Ints = ends[np.abs(ends) < FOREVER_MS]

    def in_force(self, item: Ints, t_ms: Ints | Floats) -> Bools:
        """Is each of these (by its number) in force at its time?"""
        if self._always:
            return np.ones(len(item), dtype=np.bool_)
        kind, t_ms = self._of_item[item], whole_ms(t_ms)
        force = self._dated.odd(kind, t_ms)
        hours = self._hours_of[kind]
        rows = np.flatnonzero(force & (hours >= 0))
        if len(rows):
            force[rows] = self._weekly.open(hours[rows], t_ms[rows])
        return force

    def switches_during(self, start_ms: Ints | Floats, end_ms: Ints | Floats) -> Ints:
        """When any of them may come into force or go out of it, ascending: all of it within these stretches of time,
        which are whole milliseconds, and perhaps some of it elsewhere.
        """
        if not self._weekly.clocks:
            return self._dates
        stretches = merged(whole_ms(start_ms), whole_ms(end_ms))
        found = [instants(timezone, clocks, *stretches) for timezone, clocks in self._weekly.clocks.items()]
        return distinct(np.concatenate([self._dates, *found]))


class _Switches:
    """Ascending values of many owners, asked together."""

    def __init__(self, several: Sequence[Ints]) -> None:
        self._first = offsets(np.array([len(values) for values in several], dtype=np.int64))
        every = np.concatenate([np.zeros(0, dtype=np.int64), *several])
        self.values = distinct(every)
        owner = np.repeat(np.arange(len(several)), np.diff(self._first))
        # the rank of a value stands for it, so that owner and value are one number
        self._keys = owner * (len(self.values) + 1) + np.searchsorted(self.values, every) + 1

    def odd(self, owner: Ints, value: Ints) -> Bools:
        """Are an odd number of the owner's values not above this one?"""
        rank = np.searchsorted(self.values, value, side="right")
        count = np.searchsorted(self._keys, owner * (len(self.values) + 1) + rank, side="right")
        return np.asarray((count - self._first[owner]) % 2 == 1, dtype=np.bool_)


class _Weekly:
    """The weekly hours of many; `clocks`: all at which something switches, by time zone."""

    def __init__(self, several: Sequence[Hours]) -> None:
        zones = {zone: at for at, zone in enumerate(dict.fromkeys(hours.timezone for hours in several))}
        self._zones = list(zones)
        self._zone_of = np.array([zones[hours.timezone] for hours in several], dtype=np.int64)
        self._switches = _Switches([hours.switches for hours in several])
        by_zone: dict[str, list[Ints]] = {zone: [] for zone in zones}
        for hours in several:
            by_zone[hours.timezone].append(hours.switches)
        # the end of a week is the start of the next one
        self.clocks = {zone: distinct(np.concatenate(found) % WEEK_MS) for zone, found in by_zone.items()}

    def open(self, hours: Ints, t_ms: Ints) -> Bools:
        """Does the clock of each of these hours show a time in them?"""
        zone = self._zone_of[hours]
        order = np.argsort(zone, kind="stable")
        starts = np.flatnonzero(run_starts(zone[order]))
        shown = np.empty(len(hours), dtype=np.int64)
        for rows in np.split(order, starts[1:]):
            shown[rows] = week_ms(self._zones[zone[rows[0]]], t_ms[rows])
        return self._switches.odd(hours, shown)
