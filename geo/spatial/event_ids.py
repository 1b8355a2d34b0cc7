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


_MAX_EQUAL: Final = 64
"""More equal events of one segment are no vehicle's."""


def identified(tenant: str, device: str, events: Iterable[DayEvent]) -> dict[str, DayEvent]:
    """Events of one device by their ids, each from facts alone.

    Those are tenant and device, the fix, kind and place; which of several such it is, in order; and the day, because
    what is known of an event is looked up by it. `events`: of each fix that ends a segment, all or none.
    """
    in_order = sorted(events)
    keys = [_facts(one) for one in in_order]
    names = (_id(tenant, device, key, number) for key, number in zip(keys, ordinals(keys), strict=True))
    found = dict(zip(names, in_order, strict=True))
    assert len(found) == len(in_order), "two events have one id"
    return found


def is_identified_by(name: str, tenant: str, device: str, event: DayEvent) -> bool:
    """Whether a name is an id of such an event: of the first one of its segment, or of one of those after it."""
    facts = _facts(event)
    return any(_id(tenant, device, facts, number) == name for number in range(_MAX_EQUAL))


def _facts(event: DayEvent) -> tuple[int, int, int, str, str]:
    return event.t_ms // DAY_MS, event.epoch, event.seq, event.kind, event.place


def _id(tenant: str, device: str, facts: tuple[int, int, int, str, str], number: int) -> str:
    return fact_id("event", tenant, device, *facts, number)
