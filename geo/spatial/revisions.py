"""Corrections: what must be emitted anew when late fixes change the events of a device.

Every event that was emitted has an id and a revision. Computed again with more fixes, an event is the same (nothing is
emitted), moved (same id, next revision), gone (its id is retracted), or new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from geo.spatial.events import GeofenceEvent


@dataclass(frozen=True, slots=True)
class EventRevision:
    """An event as it was emitted. A retracted one did not happen."""

    id: str
    revision: int
    event: GeofenceEvent
    retracted: bool = False


def new_revisions(
    known: Sequence[EventRevision], events: Iterable[GeofenceEvent], namespace: str = ""
) -> list[EventRevision]:
    """What to emit, given all that was emitted so far (every revision, in any order) and the events as they are now.

    Both must be of the same devices and the same stretch of time. Events of one device, place and kind are matched
    first by equal time, then in order of time, so that a late fix moves the event that it explains. An id is drawn
    from the event's first revision and `namespace` (the device's own name makes it good across processes): pure, and
    the same in every replay.
    """
    new: list[EventRevision] = []
    now: dict[tuple[int, str, str], list[GeofenceEvent]] = {}
    for event in events:
        now.setdefault(_key(event), []).append(event)
    before: dict[tuple[int, str, str], list[EventRevision]] = {}
    for revision in in_force(known):
        before.setdefault(_key(revision.event), []).append(revision)
    used = {revision.id for revision in known}
    # Sorted: the order of a set differs from run to run, and what is emitted must not.
    for key in sorted(now.keys() | before.keys()):
        new += _matched(before.get(key, []), now.get(key, []), used, namespace)
    return new


def in_force(known: Iterable[EventRevision]) -> list[EventRevision]:
    """The latest revision of each event that was not retracted, in order of the events."""
    latest: dict[str, EventRevision] = {}
    for revision in known:
        if revision.id not in latest or latest[revision.id].revision <= revision.revision:
            latest[revision.id] = revision
    return sorted(
        (revision for revision in latest.values() if not revision.retracted),
        key=lambda revision: (revision.event, revision.id),
    )


def _key(event: GeofenceEvent) -> tuple[int, str, str]:
    return event.device, event.place, event.kind


def _matched(
    before: list[EventRevision], now: list[GeofenceEvent], used: set[str], namespace: str
) -> list[EventRevision]:
    waiting: dict[int, list[EventRevision]] = {}
    # Backwards, as pop() takes from the end: of equal times the first is matched first.
    for revision in sorted(before, key=lambda revision: (revision.event, revision.id), reverse=True):
        waiting.setdefault(revision.event.t_ms, []).append(revision)
    changed: list[EventRevision] = []
    unmatched: list[GeofenceEvent] = []
    for event in sorted(now):
        same = waiting.get(event.t_ms)
        if not same:
            unmatched.append(event)
        elif (revision := same.pop()).event != event:
            changed.append(replace(revision, revision=revision.revision + 1, event=event))
    left = sorted(
        (revision for same in waiting.values() for revision in same), key=lambda revision: (revision.event, revision.id)
    )
    moved = zip(left, unmatched, strict=False)
    changed += [replace(revision, revision=revision.revision + 1, event=event) for revision, event in moved]
    changed += [
        replace(revision, revision=revision.revision + 1, retracted=True) for revision in left[len(unmatched) :]
    ]
    changed += [EventRevision(new_id(_id_seed(event, namespace), used), 0, event) for event in unmatched[len(left) :]]
    return changed


def _id_seed(event: GeofenceEvent, namespace: str) -> str:
    return f"{namespace}|{event.device}|{event.place}|{event.kind}|{event.t_ms}"


def new_id(seed: str, used: set[str]) -> str:
    """A name that nothing else has, and that is taken from then on: drawn from how an event was first emitted.

    Pure: the same revisions in the same order have the same names in every replay. In another order of arrival the
    first revision is another one, so names follow the history, never the facts.
    """
    count = 0
    while True:
        name = hashlib.sha256(f"{seed}|{count}".encode()).hexdigest()[:24]
        if name not in used:
            used.add(name)
            return name
        count += 1
