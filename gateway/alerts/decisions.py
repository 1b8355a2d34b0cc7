"""What is decided by the fixes that are there: events, and how far the anchors of devices move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gateway.alerts.device_states import DeviceStates, due_ms
from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.alerts.found import PartEvent
from gateway.alerts.open_rows import OpenRows
from gateway.alerts.part_events import PartResult, evaluate_parts
from gateway.alerts.reports import Reports
from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from gateway.alerts.ways import Ways
from geo.spatial import Fixes, Tracks, build_tracks
from geo.spatial.ragged import Ints, run_starts
from geo.spatial.tracks import decided


class _Moves(NamedTuple):
    """Of each owner: how many fixes after its anchor are decided, and to which of them the anchor moves (0: it stays)."""

    decided: Ints
    to: Ints


class Decisions:
    """The ways of some slots, evaluated. Each that is decided is a part up to its last fix; each whose anchor moves, but
    not so far, is another one up to there: a later fix may still be put in its place behind it.
    """

    def __init__(
        self, states: DeviceStates, rules: AlertRules, settings: EvaluationSettings, slots: Ints, ways: Ways
    ) -> None:
        self._states, self._rules, self._settings, self._slots, self._ways = states, rules, settings, slots, ways
        self._tracks = decided(build_tracks(_fixes(ways.owner, ways.rows), rules.kept), rules.kept)
        self._moves = _moves(ways, self._tracks, settings.late_fixes)
        number, to = self._moves
        whole, short = np.flatnonzero(number > 0), np.flatnonzero((to > 0) & (to < number))
        self._parts = np.concatenate([whole, short])
        self._whole = len(whole)
        tracks, rows = self._part_tracks(whole, short)
        part_slots = slots[self._parts]
        begins, before = states.beginnings(part_slots), states.open_rows(part_slots)
        self._result: PartResult = evaluate_parts(tracks, rows, rules, begins, before)
        end = np.append(run_starts(tracks.fixes.device)[1:], True)[: len(rows)]
        self._ends = rows[end]

    def _part_tracks(self, whole: Ints, short: Ints) -> tuple[Tracks, Records]:
        """The decided fixes of all parts, as tracks of which the parts are the devices."""
        owner = self._ways.owner[self._tracks.row]
        place = _place(owner)
        number = np.full(len(self._slots), -1, dtype=np.int64)
        number[whole] = np.arange(len(whole))
        limit = np.zeros(len(self._slots), dtype=np.int64)
        limit[short] = self._moves.to[short]
        first, again = np.flatnonzero(number[owner] >= 0), np.flatnonzero((limit[owner] > 0) & (place <= limit[owner]))
        of_short = np.zeros(len(self._slots), dtype=np.int64)
        of_short[short] = len(whole) + np.arange(len(short))
        part = np.concatenate([number[owner[first]], of_short[owner[again]]])
        kept = np.concatenate([first, again])
        rows = self._ways.rows[self._tracks.row[kept]]
        nothing = np.zeros(len(rows), dtype=np.uint8)
        linked, metres = self._tracks.linked[kept], self._tracks.metres[kept]
        return Tracks(_fixes(part, rows), np.arange(len(rows)), linked, metres, nothing, 0, 0), rows

    def events(self) -> Iterator[tuple[int, PartEvent, int]]:
        """The events up to the last fixes: (slot, event, when the fix was received by which it was seen)."""
        new = np.flatnonzero(self._ways.new)
        limits = np.searchsorted(self._ways.owner[new], np.arange(len(self._slots) + 1))
        rows = self._ways.rows[new]
        for event in self._result.events:
            if event.found.part >= self._whole:
                continue
            owner = self._parts[event.found.part]
            mine = rows[limits[owner] : limits[owner + 1]]
            seen = mine[(mine["seq"] == event.key.seq) & (mine["epoch"] == event.key.epoch)]
            received_ms = (seen if len(seen) else mine)["received_ms"].min(initial=np.iinfo(np.int64).max)
            yield int(self._slots[owner]), event, int(received_ms)

    def settle(self, reports: Reports) -> int:
        """Moves the anchors; how many devices begin anew as too much of them is undecided."""
        to, states = self._moves.to, self._states
        moving = np.flatnonzero(to > 0)
        part_of = np.zeros(len(self._slots), dtype=np.int64)
        part_of[self._parts] = np.arange(len(self._parts))  # the short one, where there is one
        self._settle_reports(reports, part_of)
        kept_owner = self._ways.owner[self._tracks.row]
        first = np.flatnonzero(run_starts(kept_owner))
        anchors = self._ways.rows[self._tracks.row[first[moving] + to[moving]]]
        now_open = _of_parts(self._result.open, part_of[moving], len(self._parts))
        states.move(self._slots[moving], anchors, self._result.begun_ms[part_of[moving]], now_open)
        behind = self._ways.rows["t_ms"] > states.slots.anchor["t_ms"][self._slots][self._ways.owner]
        states.tails.replace(self._slots, self._ways.owner[behind], self._ways.rows[behind])
        self._set_due()
        return self._cut()

    def _settle_reports(self, reports: Reports, part_of: Ints) -> None:
        """What is not found again need not be known; of what goes on it is held what was reported last."""
        for event in self._result.events:
            owner = int(self._parts[event.found.part])
            if self._moves.to[owner] == 0 or part_of[owner] != event.found.part:
                continue
            slot, hold = int(self._slots[owner]), event.found.hold
            last = reports.last(slot, event)
            if hold is not None and event.found.goes_on and last is not None:
                hold.rows["said_mps"][hold.row] = last.value
            reports.settle(slot, event)

    def _set_due(self) -> None:
        """When something may happen by time alone, and the least speed limit, at the last fixes."""
        states, whole = self._states, self._whole
        device = states.slots.device
        device["due_ms"][self._slots] = -np.inf
        owners, ends = self._parts[:whole], self._ends[:whole]
        due = due_ms(len(self._parts), self._result.open, self._rules.events.dwell_s)[:whole]
        last_ms = self._ways.rows["t_ms"][self._ways.last][owners]
        undecided = ends["t_ms"] < last_ms
        due[undecided | (self._result.begun_ms[:whole] == ends["t_ms"])] = -np.inf
        device["due_ms"][self._slots[owners]] = due
        if self._rules.has_limits:
            limits = np.full(whole, np.inf)
            fix, fence = self._rules.fences.holding(ends["longitude"], ends["latitude"], ends["t_ms"])
            np.minimum.at(limits, fix, self._rules.limits_mps[fence])
            device["limit_mps"][self._slots[owners]] = limits

    def _cut(self) -> int:
        long = self._states.tails.counts(self._slots) > self._settings.max_fixes_held
        slots = self._slots[long]
        self._states.place(slots, self._ways.rows[self._ways.last][long], np.zeros(len(slots), dtype=np.bool_))
        return len(slots)


def _fixes(device: Ints, rows: Records) -> Fixes:
    return Fixes(
        device=device,
        t_ms=rows["t_ms"],
        lat=rows["latitude"],
        lon=rows["longitude"],
        accuracy_m=rows["accuracy_m"],
        speed_mps=rows["speed_mps"],
    )


def _place(owner: Ints) -> Ints:
    """The place of each row among those of its owner, of which there are none between."""
    first = run_starts(owner)
    return np.asarray(np.arange(len(owner)) - np.flatnonzero(first)[np.cumsum(first) - 1], dtype=np.int64)


def _moves(ways: Ways, tracks: Tracks, late_fixes: int) -> _Moves:
    """An anchor moves up to the last fix where nothing happened on the last ways, or on all; else `late_fixes` are left
    behind it, and it moves only when there are twice as many.
    """
    owner = ways.owner
    length = np.bincount(owner) - 1
    number = np.bincount(owner[tracks.row]) - 1
    happened = np.zeros(len(length), dtype=np.int64)
    np.maximum.at(happened, owner, np.where(ways.plain, 0, _place(owner)))
    calm = (number == length) & ((happened == 0) | (length - happened >= late_fixes))
    to = np.where(number > 2 * late_fixes, number - late_fixes, 0)
    return _Moves(number, np.where(calm | (late_fixes == 0), number, to))


def _of_parts(rows: OpenRows, parts: Ints, count: int) -> OpenRows:
    """The rows of some parts, numbered by their places."""
    number = np.full(count, -1, dtype=np.int64)
    number[parts] = np.arange(len(parts))

    def some(part: Ints, records: Records) -> tuple[Ints, Records]:
        mine = np.flatnonzero(number[part] >= 0)
        mine = mine[np.argsort(number[part[mine]], kind="stable")]
        return number[part[mine]], records[mine]

    return OpenRows(*some(rows.visit_part, rows.visits), *some(rows.speeding_part, rows.speeding))
