"""Ids of events, which follow from facts alone, and revisions: what is published when the facts change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, NamedTuple, TypeVar

# Corrections: events to publish again after late fixes.

Content = TypeVar("Content")
_ID_CHARS: Final = 24


@dataclass(frozen=True, slots=True)
class Revision(Generic[Content]):
    """One state of an event or encounter, counted from 0. A retracted one did not happen; it keeps the content
    before.
    """

    id: str
    revision: int
    content: Content
    retracted: bool = False


def fact_id(*facts: str | int) -> str:
    """The id of some facts: the same in every process, and another one for other facts.

    The first 96 bits of a SHA-256, as 24 hexadecimal digits: among 10^9 ids two are equal once in 10^11 times.
    """
    text = json.dumps(facts, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARS]


def ordinals(keys: Iterable[Hashable]) -> list[int]:
    """For each key the number of equal keys before it."""
    seen: dict[Hashable, int] = {}
    numbers: list[int] = []
    for key in keys:
        numbers.append(seen.get(key, 0))
        seen[key] = numbers[-1] + 1
    return numbers


def latest_by_id(known: Iterable[Revision[Content]]) -> dict[str, Revision[Content]]:
    """The highest revision of each id, whatever the order."""
    latest: dict[str, Revision[Content]] = {}
    for one in known:
        if one.id not in latest or latest[one.id].revision < one.revision:
            latest[one.id] = one
    return latest


def in_force(known: Iterable[Revision[Content]]) -> dict[str, Content]:
    """The content of each id that is not retracted, in the order of ids."""
    return {name: one.content for name, one in sorted(latest_by_id(known).items()) if not one.retracted}


def new_revisions(known: Iterable[Revision[Content]], now: Mapping[str, Content]) -> list[Revision[Content]]:
    """The revisions to publish so that `now` is in force, in the order of ids.

    `known` (any revisions, in any order) and `now` must cover the same devices and the same time. An id with changed
    content, or one that was retracted and happened after all, gets the next revision. An id that is gone is retracted.
    """
    latest = latest_by_id(known)
    changed: list[Revision[Content]] = []
    for name in sorted(now.keys() | latest.keys()):
        before = latest.get(name)
        if before is None:
            changed.append(Revision(name, 0, now[name]))
        elif name in now:
            if before.retracted or before.content != now[name]:
                changed.append(Revision(name, before.revision + 1, now[name]))
        elif not before.retracted:
            changed.append(replace(before, revision=before.revision + 1, retracted=True))
    return changed


DAY_MS: Final = 86_400_000

Kind = Literal["enter", "exit", "dwell", "forward", "backward", "speeding"]


class DayEvent(NamedTuple):
    """An event of a device and UTC day. `epoch` and `seq` name the fix at its time or the first one after it."""

    t_ms: int
    kind: str
    place: str
    value: float
    epoch: int
    seq: int


_MAX_EQUAL: Final = 64
"""No vehicle makes more equal events on one segment."""


def identified(tenant: str, device: str, events: Iterable[DayEvent]) -> dict[str, DayEvent]:
    """The events of one device by their ids.

    An id follows from tenant, device, day, fix, kind, place and the index among equal events. The day is part of it,
    because known events are looked up by day. `events` must hold all events of each fix, or none.
    """
    in_order = sorted(events)
    keys = [_facts(one) for one in in_order]
    names = (_id(tenant, device, key, number) for key, number in zip(keys, ordinals(keys), strict=True))
    found = dict(zip(names, in_order, strict=True))
    assert len(found) == len(in_order), "two events have one id"
    return found


def is_identified_by(name: str, tenant: str, device: str, event: DayEvent) -> bool:
    """Whether an id can belong to such an event, whatever its index among equal ones."""
    facts = _facts(event)
    return any(_id(tenant, device, facts, number) == name for number in range(_MAX_EQUAL))


def _facts(event: DayEvent) -> tuple[int, int, int, str, str]:
    return event.t_ms // DAY_MS, event.epoch, event.seq, event.kind, event.place


def _id(tenant: str, device: str, facts: tuple[int, int, int, str, str], number: int) -> str:
    return fact_id("event", tenant, device, *facts, number)
