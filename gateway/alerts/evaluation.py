"""From fixes as they arrive to events as a region sees them. Pure: time is passed in.

The engine is that of the centre (`geo.spatial`). Of each device an *anchor* is held, the fix up to which all is decided,
what is open there (visits, what may be a change of sides, stretches over a speed limit), and the few fixes after it. The
way from the last fix to a new one is plain if it comes near no border and no gate; then, and if nothing is open that
could count by time alone, the new fix is the anchor. All other ways are given to the engine together.

In order and without a gap in what arrives, the events are those of the centre, ids and contents, whatever the batches.
A region may see otherwise than the centre:

- *Late fixes.* One that is after the anchor of its device is put in its place, and what it changes is reported with
  its own id. An older one is `too_late`: the centre alone knows what it says.
- *Held back.* A dwell whose moment came while the device was on the other side of the border, but not for sure; and all
  about a fix that was reached impossibly fast, until the next one shows whether it is an outlier. The centre, which
  looks at what it has, may have them first; what it takes back afterwards, a region never said.
- *Cut.* With too many undecided fixes (of a receiver that jumps to and fro) a device starts anew.
- *Unknown beginnings.* Of a device that was not heard before, or was forgotten, it is not known since when it is where it
  is: there is no dwell of such a visit, and its exit has the seconds since the first fix. So it is with a fence that is
  published while a vehicle stands in it.
- *Long visits.* The centre looks `reach_h` beyond a day; a region knows the beginning of a visit however long ago it was.
- *Old events.* What is older than `max_age_s` when it is seen is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from gateway.alerts.arrivals import arrived
from gateway.alerts.decisions import Decisions
from gateway.alerts.device_states import DeviceStates
from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.alerts.fix_columns import FixColumns
from gateway.alerts.found import PartEvent
from gateway.alerts.passed_over import PassedOver
from gateway.alerts.plain_ways import surely_plain
from gateway.alerts.reports import Reports
from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from gateway.alerts.ways import Ways, joined
from geo.spatial import DayEvent
from geo.spatial.event_ids import event_id
from geo.spatial.ragged import Bools, Ints, run_starts

__all__ = ["FoundEvent", "LiveEvents", "PassedOver"]

_LOOKS: Final = 16
"""So often within `forget_after_s` it is looked who was not heard."""


class FoundEvent(NamedTuple):
    """An event that was not reported before, or not with this content: what an alert says, and of whom.

    `received_ms`: of the fix by which it was seen, or of an earlier one that was taken with it.
    """

    tenant: str
    device: str
    id: str
    event: DayEvent
    received_ms: int


class LiveEvents:
    """Finds events in fixes as they arrive. Holds of each device its last fixes and what is open there.

    One thread at a time. `passed_over` counts from the beginning.
    """

    def __init__(self, rules: AlertRules, settings: EvaluationSettings | None = None) -> None:
        self._rules, self._settings = rules, settings or EvaluationSettings()
        self._states = DeviceStates(self._settings.max_devices)
        self._reports = Reports()
        self._looked_ms = 0
        self.passed_over = PassedOver()

    @property
    def device_count(self) -> int:
        """Of how many devices something is held."""
        return len(self._states.slots)

    @property
    def nbytes(self) -> int:
        """What is held, apart from names and rules."""
        return self._states.nbytes

    def take(self, fixes: FixColumns, now_ms: int, *, report: bool = True) -> list[FoundEvent]:
        """What is new, by device and time. `now_ms`: by this region's clock.

        `report=False` takes the fixes and says nothing: so a process that was started anew reads again what its
        predecessor had read.
        """
        self._forget(now_ms)
        taken = arrived(
            fixes,
            now_ms,
            slots=self._states.slots,
            tracks=self._rules.tracks,
            settings=self._settings,
            passed_over=self.passed_over,
        )
        self._note_forgotten()
        slots, ways = self._ways(*taken)
        evaluated = self._take_plain(slots, ways)
        if not evaluated.any():
            return []
        decisions = Decisions(self._states, self._rules, self._settings, slots[evaluated], ways.of(evaluated))
        since_ms = now_ms - round(self._settings.max_age_s * 1000)
        news = list(self._news(decisions, since_ms if report else None))
        self.passed_over.cut += decisions.settle(self._reports)
        return sorted(news, key=lambda one: (one.tenant, one.device, one.event))

    def replace_rules(self, rules: AlertRules) -> None:
        """From now on these count; what is open at fences that are still there stays open."""
        self._states.renumber(self._rules.fences.names, rules.fences.names)
        self._rules = rules

    def _ways(self, slot: Ints, rows: Records) -> tuple[Ints, Ways]:
        """The slots of what arrived, and their ways from the anchors on; a first fix is an anchor."""
        states = self._states
        first = run_starts(slot) if len(slot) else np.zeros(0, dtype=np.bool_)
        slots, owner = slot[first], np.cumsum(first) - 1
        fresh = np.flatnonzero(~states.slots.device["placed"][slots])
        begin = np.flatnonzero(first)[fresh]
        # the first record of a device has no others before it
        states.place(slots[fresh], rows[begin], rows["seq"][begin] == 1)
        rest = np.ones(len(slot), dtype=np.bool_)
        rest[begin] = False
        anchors = np.arange(len(slots)), states.slots.anchor[slots]
        parts = [anchors, states.tails.of(slots), (owner[rest], rows[rest])]
        joined_owner, joined_rows, new, repeated = joined(parts)
        self.passed_over.repeated += repeated
        ways = Ways(joined_owner, joined_rows, new, np.zeros(len(new), dtype=np.bool_))
        end = np.flatnonzero(~ways.first)
        limits = states.slots.device["limit_mps"][slots][joined_owner[end]]
        ways.plain[end] = surely_plain(joined_rows[end - 1], joined_rows[end], limits, self._rules)
        return slots, ways

    def _take_plain(self, slots: Ints, ways: Ways) -> Bools:
        """Moves the anchors of those to whom nothing happened, or holds their fixes; the others are to be evaluated."""
        states, count = self._states, len(slots)
        owner, last = ways.owner, ways.last
        held = states.tails.counts(slots)
        happens = np.bincount(owner[ways.new & ~ways.plain], minlength=count) > 0
        # one that is put between others changes the way to the next one
        happens |= np.bincount(owner[1:][~ways.new[1:] & ways.new[:-1] & ~ways.first[1:]], minlength=count) > 0
        happens |= states.slots.device["due_ms"][slots] <= ways.rows["t_ms"][last]
        length = np.bincount(owner, minlength=count) - 1
        quiet = ~happens & (length > 0)
        moves = quiet & (held == 0)
        states.slots.anchor[slots[moves]] = ways.rows[last][moves]
        waits = quiet & (held > 0) & (length <= 2 * self._settings.late_fixes)
        if waits.any():
            waiting = ways.of(waits)
            states.tails.replace(slots[waits], waiting.owner[~waiting.first], waiting.rows[~waiting.first])
        return (length > 0) & ~moves & ~waits

    def _news(self, decisions: Decisions, since_ms: int | None) -> Iterator[FoundEvent]:
        """What was not reported; `since_ms`: what is older is not to be. None: nothing is."""
        for slot, event, received_ms in decisions.events():
            if not self._reports.add(slot, event) or since_ms is None:
                continue
            if event.found.t_ms < since_ms:
                self.passed_over.too_old += 1
                continue
            tenant, device = self._states.slots.name(slot)
            what = day_event(event)
            yield FoundEvent(tenant, device, event_id(tenant, device, what, event.key.number), what, received_ms)

    def _forget(self, now_ms: int) -> None:
        after_ms = round(self._settings.forget_after_s * 1000)
        if now_ms - self._looked_ms >= after_ms // _LOOKS:
            self._looked_ms = now_ms
            self._states.slots.forget_before(now_ms - after_ms)

    def _note_forgotten(self) -> None:
        forgotten = self._states.slots.take_forgotten()
        self.passed_over.forgotten += len(forgotten)
        for slot in forgotten:
            self._reports.drop(slot)


def day_event(event: PartEvent) -> DayEvent:
    """As it is published."""
    found, key = event
    return DayEvent(found.t_ms, found.kind, found.place, found.value, key.epoch, key.seq)
