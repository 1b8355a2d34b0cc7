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


def identified(tenant: str, device: str, events: Iterable[DayEvent]) -> dict[str, DayEvent]:
    """Events of one device by their ids, each from facts alone.

    Those are tenant and device, the fix, kind and place; which of several such it is, in order; and the day, because
    what is known of an event is looked up by it. `events`: of each fix that ends a segment, all or none.
    """
    in_order = sorted(events)
    keys = [(one.t_ms // DAY_MS, one.epoch, one.seq, one.kind, one.place) for one in in_order]
    names = (fact_id("event", tenant, device, *key, number) for key, number in zip(keys, ordinals(keys), strict=True))
    found = dict(zip(names, in_order, strict=True))
    assert len(found) == len(in_order), "two events have one id"
    return found
