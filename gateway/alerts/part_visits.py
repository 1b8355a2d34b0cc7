"""Visits of parts of tracks: what is new of them, and what is open at the last fixes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gateway.alerts.found import Found, Held, Limits, RecordKey
from gateway.alerts.open_rows import VISIT, OpenRows, open_visits
from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from geo.spatial import Kind, Tracks
from geo.spatial.open_visits import Beginnings, Continued, OpenVisits, continue_visits
from geo.spatial.ragged import Bools, Floats


class PartVisits:
    """The visits of parts; `rows` (VISIT): what is open at their last fixes."""

    def __init__(self, tracks: Tracks, rules: AlertRules, begins: Beginnings, before: OpenRows, limits: Limits) -> None:
        self._names, self._dwell_s, self._limits = rules.fences.names, rules.events.dwell_s, limits
        self._held = before.visits
        self._was = open_visits(before.visit_part, before.visits)
        self.now: Continued = continue_visits(
            tracks, rules.fences, rules.events, begins=begins, before=self._was, dwell_s=self._dwell_s
        )
        rows = self.now.open
        self.rows: Records = np.zeros(len(rows), dtype=VISIT)
        for name in OpenVisits.__slots__[1:]:
            self.rows[name] = getattr(rows, name)
        kept = self.now.open_before >= 0
        for prefix in ("", "dwell_"):
            for name in RecordKey._fields:
                self.rows[prefix + name][kept] = before.visits[prefix + name][self.now.open_before[kept]]

    def found(self) -> Iterator[Found]:
        """Entries, exits and dwells."""
        visits, was = self.now.visits, self._was
        before = visits.before
        has = before >= 0
        doubt, since = (np.full(len(visits), np.nan) for _ in range(2))
        doubt[has], since[has] = was.doubt_ms[before[has]], was.start_ms[before[has]]
        entered = visits.entered & ~visits.was_open
        yield from self._events(entered, visits.start_ms, "enter", np.isnan(since) & (visits.start_ms == doubt))
        lasted_s = (visits.end_ms - visits.start_ms) / 1000.0
        held = visits.was_open & (visits.end_ms == doubt)
        yield from self._events(visits.left, visits.end_ms, "exit", held, values=lasted_s)
        if self._dwell_s is None:
            return
        dwelt = np.zeros(len(visits), dtype=np.bool_)
        dwelt[visits.was_open] = was.dwelt[before[visits.was_open]]
        long = visits.known & ~dwelt & (visits.end_ms - visits.start_ms >= self._dwell_s * 1000.0)
        moment = visits.start_ms + self._dwell_s * 1000.0
        held = visits.was_open & (moment > doubt) & (moment <= self._limits.first_ms[visits.device])
        values = np.full(len(visits), self._dwell_s)
        yield from self._events(long, moment, "dwell", held, values=values, prefix="dwell_")

    def doubted(self) -> Iterator[Found]:
        """What may be events later: of those that were not doubted before, the keys are to be held."""
        now, was, before = self.now.open, self._was, self.now.open_before
        has = before >= 0
        old = np.full(len(now), np.nan)
        old[has] = was.doubt_ms[before[has]]
        is_open = ~np.isnan(now.start_ms)
        for row in np.flatnonzero(~np.isnan(now.doubt_ms) & (now.doubt_ms != old)).tolist():
            yield self._later(row, now.doubt_ms[row], "exit" if is_open[row] else "enter", "")
        if self._dwell_s is None:
            return
        moment = now.start_ms + self._dwell_s * 1000.0
        first_ms, last_ms = (times[now.device] for times in self._limits)
        old_dwell = (now.doubt_ms == old) & (moment <= first_ms)
        held_back = is_open & now.known & ~now.dwelt & (moment > now.doubt_ms) & (moment <= last_ms) & ~old_dwell
        for row in np.flatnonzero(held_back).tolist():
            yield self._later(row, moment[row], "dwell", "dwell_")

    def _later(self, row: int, t_ms: float, kind: Kind, prefix: str) -> Found:
        now = self.now.open
        held = Held(self.rows, row, prefix)
        return Found(int(now.device[row]), round(t_ms), kind, self._names[now.fence[row]], 0.0, None, held, False)

    def _events(
        self, some: Bools, t_ms: Floats, kind: Kind, held: Bools, *, values: Floats | None = None, prefix: str = ""
    ) -> Iterator[Found]:
        visits = self.now.visits
        for row in np.flatnonzero(some).tolist():
            key = Held(self._held, int(visits.before[row]), prefix).key() if held[row] else None
            value = 0.0 if values is None else round(float(values[row]), 3)
            place = self._names[visits.fence[row]]
            yield Found(int(visits.device[row]), round(float(t_ms[row])), kind, place, value, key)
