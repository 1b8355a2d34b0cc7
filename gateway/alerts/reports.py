"""Which events were reported of devices whose last fixes are not decided yet, so that none is twice."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from gateway.alerts.found import PartEvent
from geo.spatial.event_ids import DAY_MS

_MOST_EVENTS: Final = 64
"""Of a device; of more the oldest is forgotten."""

_Facts: TypeAlias = tuple[int, str, str, int, int, int]


class Content(NamedTuple):
    """What of an event may change while its id stays."""

    t_ms: int
    value: float


class Reports:
    """What was reported of slots, by what the ids of events follow from."""

    def __init__(self) -> None:
        self._of: dict[int, dict[_Facts, list[Content]]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, slot: int, event: PartEvent) -> bool:
        """Whether this was not reported; of what goes on nothing was. From now on it was."""
        events = self._of.setdefault(slot, {})
        contents = events.setdefault(_facts(event), [])
        content = Content(event.found.t_ms, event.found.value)
        if content in contents or (event.found.goes_on and contents):
            return False
        contents.append(content)
        if len(events) > _MOST_EVENTS:
            del events[next(iter(events))]
        return True

    def last(self, slot: int, event: PartEvent) -> Content | None:
        """What was reported last of an event."""
        contents = self._of.get(slot, {}).get(_facts(event))
        return contents[-1] if contents else None

    def settle(self, slot: int, event: PartEvent) -> None:
        """It is not found again."""
        events = self._of.get(slot)
        if events is not None:
            events.pop(_facts(event), None)
            if not events:
                del self._of[slot]

    def drop(self, slot: int) -> None:
        """Nothing of a device is found again."""
        self._of.pop(slot, None)


def _facts(event: PartEvent) -> _Facts:
    found = event.found
    return found.t_ms // DAY_MS, found.kind, found.place, *event.key
