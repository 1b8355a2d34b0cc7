"""Ids of events: the same in a region and at the centre, as they follow from facts alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from geo.spatial.revisions import fact_id, ordinals

DAY_MS: Final = 86_400_000

Kind = Literal["enter", "exit", "dwell", "forward", "backward", "speeding"]


class DayEvent(NamedTuple):
    """An event of a device and UTC day, and the record id of the fix at its time or the first one after it."""

    t_ms: int
    kind: str
    place: str
    value: float
    epoch: int
    seq: int


def facts_of(event: DayEvent) -> tuple[int, int, int, str, str]:
    """What of an event its id follows from, apart from whose it is and which of several such."""
    return event.t_ms // DAY_MS, event.epoch, event.seq, event.kind, event.place


def event_id(tenant: str, device: str, event: DayEvent, number: int) -> str:
    """The id of an event that has `number` others of the same facts before it."""
    return fact_id("event", tenant, device, *facts_of(event), number)


def identified(tenant: str, device: str, events: Iterable[DayEvent]) -> dict[str, DayEvent]:
    """Events of one device by their ids, each from facts alone.

    Those are tenant and device, the fix, kind and place; which of several such it is, in order; and the day, because
    what is known of an event is looked up by it. `events`: of each fix that ends a segment, all or none.
    """
    in_order = sorted(events)
    numbers = ordinals(map(facts_of, in_order))
    names = (event_id(tenant, device, one, number) for one, number in zip(in_order, numbers, strict=True))
    found = dict(zip(names, in_order, strict=True))
    assert len(found) == len(in_order), "two events have one id"
    return found
