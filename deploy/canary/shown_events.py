"""Events of probes as they show: in the region's alerts, and in the centre's table. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from deploy.canary.hops import ProbeItem
from deploy.canary.script import CanaryScript
from geo.spatial import DayEvent, identified

__all__ = ["EventBook", "EventOfProbe", "events_in_force"]

TOLERANCE_MS: Final = 5
"""The moment of a crossing is interpolated, and rounded to a millisecond."""
_PROBES: Final = 1_000


class EventOfProbe(NamedTuple):
    """An event at the canary's fence, and the id that it shows with."""

    id: str
    event: DayEvent


class EventBook:
    """Which events of the newest probes showed at one place."""

    def __init__(self, script: CanaryScript, tenant: str, device: str) -> None:
        self._script, self._tenant, self._device = script, tenant, device
        self._probes: OrderedDict[int, dict[str, str]] = OrderedDict()

    def knows(self, number: int, shown: EventOfProbe) -> bool:
        """Whether this event of a probe showed before, under the same id."""
        return self._probes.get(number, {}).get(shown.event.kind) == shown.id

    def note(self, number: int, shown: EventOfProbe) -> tuple[ProbeItem | None, str]:
        """The item of a probe that an event is, None if it was there before; and what is wrong with it ("": nothing).

        An event under another id than before is another event: the vehicle came in or went out twice.
        """
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        kind, event = shown.event.kind, shown.event
        item = next((one for one in self._script.event_items(number) if one.name == kind), None)
        if item is None:
            return None, f"a probe has no event of the kind {kind!r}"
        before = known.setdefault(kind, shown.id)
        # the id follows from the facts: two ids are two facts
        if before != shown.id:
            return None, f"{kind} is there under two ids, {before} and {shown.id}"
        if shown.id not in identified(self._tenant, self._device, [event]):
            return item, f"{kind} has the id {shown.id}, which does not follow from its facts"
        if abs(event.t_ms - item.t_ms) > TOLERANCE_MS:
            return item, f"{kind} is {event.t_ms - item.t_ms} ms off"
        return item, ""


def events_in_force(revisions: Iterable[dict[str, Any]]) -> list[EventOfProbe]:
    """Of rows of `geofence_events`, any of each id, those that are in force, by time."""
    newest: dict[str, dict[str, Any]] = {}
    for row in revisions:
        if row["id"] not in newest or newest[row["id"]]["revision"] < row["revision"]:
            newest[row["id"]] = row
    # a retracted event is as if it had never been
    held = [row for row in newest.values() if not row["retracted"]]
    return [EventOfProbe(row["id"], _event(row)) for row in sorted(held, key=lambda row: (row["time"], row["id"]))]


def _event(row: dict[str, Any]) -> DayEvent:
    t_ms = round(row["time"].timestamp() * 1000)
    return DayEvent(t_ms, row["kind"], row["place"], row["value"], row["epoch"], row["seq"])
