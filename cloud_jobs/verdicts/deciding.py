"""The verdict on an alert, and on an event of which no region said anything: a pure function of what is known.

What is *announced* is every id that a region raised an alert of, and every one of which the centre said that it came
late. Of each announced id exactly one verdict is in force; it is withdrawn, or its event is. So at any moment at which
everything that is announced has its verdict: announced = events in force + withdrawn, and these two share no id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from geo.alerts.verdict import ErrorReason, VerdictKind
from geo.spatial import DayEvent

MAX_CORRECTIVE: Final = 16
NEAR_MS: Final = 300_000
"""An event of the same kind and place so near in time may stand in the place of one that did not happen."""


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """What is said of an id. `event`: what is in force at the centre; None: nothing is."""

    verdict: VerdictKind
    event: DayEvent | None = None
    reason: ErrorReason | None = None


@dataclass(frozen=True, slots=True)
class KnownOfAlert:
    """What is known of one id.

    `alert`: what a region said; None: nothing. `event`: what is in force at the centre; None: nothing is, or not yet.
    `is_covered`: the events are computed with the record that the alert names, and with those after it by which the
    region saw the event, as far as that can be known. `is_received`: the centre has it.
    `is_overdue`: the alert is as old as one may be provisional. `was_announced`: a verdict was given before.
    """

    alert: DayEvent | None
    event: DayEvent | None
    is_covered: bool
    is_received: bool
    is_overdue: bool
    was_announced: bool


def decide(known: KnownOfAlert) -> AlertDecision | None:
    """The verdict on one id; None: nothing can be said yet."""
    if known.alert is None:
        if known.event is not None:
            return AlertDecision(VerdictKind.LATE, known.event)
        # said to be late, and late records took it back
        return _WITHDRAWN if known.was_announced else None
    if known.event is not None:
        if known.event == known.alert:
            return AlertDecision(VerdictKind.CONFIRMED, known.event)
        return AlertDecision(VerdictKind.CORRECTED, known.event, ErrorReason.INCORRECT_DATA)
    if known.is_covered:
        return _WITHDRAWN
    # a record that never came is looked for in the region, and not at the job that stands still
    reason = ErrorReason.NOT_COMPUTED if known.is_received else ErrorReason.NOT_RECEIVED
    return AlertDecision(VerdictKind.WITHDRAWN, None, reason) if known.is_overdue else None


_WITHDRAWN: Final = AlertDecision(VerdictKind.WITHDRAWN, None, ErrorReason.DID_NOT_OCCUR)


def corrective_ids(wrong: DayEvent, events: Mapping[str, DayEvent]) -> tuple[str, ...]:
    """The ids of events that stand in the place of one that did not happen, nearest first.

    `events`: in force, of the same device, each without an alert of its own.
    """
    like = (
        (abs(event.t_ms - wrong.t_ms), name)
        for name, event in events.items()
        if (event.kind, event.place) == (wrong.kind, wrong.place) and abs(event.t_ms - wrong.t_ms) <= NEAR_MS
    )
    return tuple(name for _, name in sorted(like)[:MAX_CORRECTIVE])
