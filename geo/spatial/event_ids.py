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
    """One state of what has an id, counted from 0. A retracted one did not happen; it shows what was said before."""

    id: str
    revision: int
    content: Content
    retracted: bool = False


def fact_id(*facts: str | int) -> str:
    """The id of what these facts identify: the same in every process, another one for other facts.

    The first 96 bits of a SHA-256, as 24 hexadecimal digits: among 10^9 ids two are equal once in 10^11 times.
    """
    text = json.dumps(facts, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARS]


def ordinals(keys: Iterable[Hashable]) -> list[int]:
    """For each key how many equal ones were before it."""
    seen: dict[Hashable, int] = {}
    numbers: list[int] = []
    for key in keys:
        numbers.append(seen.get(key, 0))
        seen[key] = numbers[-1] + 1
    return numbers


def latest_by_id(known: Iterable[Revision[Content]]) -> dict[str, Revision[Content]]:
    """Of each id the highest revision, whatever the order."""
    latest: dict[str, Revision[Content]] = {}
    for one in known:
        if one.id not in latest or latest[one.id].revision < one.revision:
            latest[one.id] = one
    return latest


def in_force(known: Iterable[Revision[Content]]) -> dict[str, Content]:
    """The content of each id that was not retracted, in the order of ids."""
    return {name: one.content for name, one in sorted(latest_by_id(known).items()) if not one.retracted}


def new_revisions(known: Iterable[Revision[Content]], now: Mapping[str, Content]) -> list[Revision[Content]]:
    """What to publish, in the order of ids, so that `now` is in force.

    `known` (any revisions, in any order) and `now` must be of the same devices and the same stretch of time. What has
    other content than before, or was retracted and happened after all, is the next revision of its id; what is no
    longer there is retracted.
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
