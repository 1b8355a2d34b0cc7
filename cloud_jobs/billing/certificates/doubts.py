"""Why the sum of a period may be wrong although every record of it came: what could not be read, and where it is not
known which way a device went. Pure.

Doubts are judged by the bounds of the payer's contract. One decision accepts all of them, as they were when it was
made: what is more than that is a doubt again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.contracts import DoubtBounds
from cloud_jobs.lake.vehicle_counters import OdometerWay
from waybill.record import NO_FAULTS

USUAL_BOUNDS: Final = DoubtBounds()
"""Of a payer who agreed on nothing else."""
UNKNOWN_TOPIC: Final = "unknown-topic"
_NO_VALUE: Final = "no-value"
_MIN_AFTER: Final = 60
"""Fewer messages on unknown topics after the last position say nothing."""
_DROPPED: Final = "messages dropped by the vehicle's broker before the agent"


class Observed(NamedTuple):
    """What usage says of a device and period beside what is metered.

    `messages`: of the contract, that could be read: `positions`, a customer's `events`, and signals. `kept`: positions
    that tracks take; `refused`: those that they do not take, and that may hide a way. `driven_ms`: of segments that
    were driven. `unknown_ms`, `unknown_mm`: time and beeline of gaps in which the device moved; `inferred_entries`:
    what must have happened in them. `far_off`: records of a clock far off, which usage has in no hour, that came since
    the period began. `unreadable`: messages that are carried raw, by kind and reason, sorted. `positions_until`: the
    end of the last quarter of an hour with a position that could be read ("": none was), `unknown_after`: messages on
    unknown topics from then on. `dropped`: messages that the vehicle's broker dropped, as the agent saw. `odometer`: of
    a device that sends two readings.
    """

    messages: int = 0
    positions: int = 0
    kept: int = 0
    refused: int = 0
    driven_ms: int = 0
    unknown_ms: int = 0
    unknown_mm: int = 0
    inferred_entries: int = 0
    events: int = 0
    far_off: int = 0
    unreadable: tuple[tuple[str, int], ...] = ()
    positions_until: str = ""
    unknown_after: int = 0
    dropped: int = 0
    odometer: OdometerWay | None = None

    @property
    def signals(self) -> int:
        """Signals that could be read."""
        return self.messages - self.positions - self.events

    @property
    def faults(self) -> int:
        """Messages that could not be read and should have been."""
        return sum(count for reason, count in self.unreadable if reason not in NO_FAULTS)

    @property
    def no_faults(self) -> dict[str, int]:
        """Messages that are raw although nothing is wrong, by reason."""
        return {reason: count for reason, count in self.unreadable if reason in NO_FAULTS}

    @property
    def reasons(self) -> str:
        """Why messages are raw, and how many for each reason, in words."""
        return listed(self.unreadable)

    @property
    def amounts(self) -> dict[str, int]:
        """What a decision accepts: it covers what is in none of these more than it was then."""
        raw = sum(count for _, count in self.unreadable)
        names = ("far_off", "refused", "unknown_ms", "unknown_mm", "inferred_entries", "unknown_after", "dropped")
        unknown = {name: getattr(self, name) for name in names}
        no_value = 0 if self.signals else self.no_faults.get(_NO_VALUE, 0)
        alone = {"raw_alone": 0 if self.positions else raw, "no_value_alone": no_value}
        return {"unreadable": self.faults, **alone, **unknown}

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        way = None if self.odometer is None else self.odometer.document()
        return self._asdict() | {"unreadable": dict(self.unreadable), "odometer": way, "remarks": [*self.remarks]}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else is to be said beside the state of a device, in words."""
        lost = f"{self.dropped:,} {_DROPPED}" if self.dropped else ""
        return tuple(filter(None, (lost, "" if self.odometer is None else str(self.odometer))))

    @property
    def unknown(self) -> str:
        """What is not known of the way, in words; "" if all is."""
        if not self.unknown_mm:
            return ""
        count = self.inferred_entries
        made = f", {count:,} {'entry' if count == 1 else 'entries'} inferred" if count else ""
        return f"{_km(self.unknown_mm)} and {_clock(self.unknown_ms)} of the way are unknown{made}"

    def doubts(self, bounds: DoubtBounds) -> tuple[str, ...]:
        """Why a sum of the period may be wrong, each in words; none if all is within the bounds."""
        found = []
        if self.unreadable and not self.messages:
            found.append(f"none of its messages could be read: {self.reasons}")
        elif not self.positions and (others := self.no_faults.keys() - {_NO_VALUE}):
            # signals and events say nothing of the way
            reasons = [one for one in self.unreadable if one[0] in others]
            found.append(f"none of its positions could be read: {listed(reasons)}")
        if self.messages:
            if not self.signals and (count := self.no_faults.get(_NO_VALUE, 0)):
                found.append(f"none of its signals could be read: {_NO_VALUE} {count:,}")
            found += self._unreadable_kinds(bounds)
        # a topic that was there before is not that of the positions under another name
        before, after = self.no_faults.get(UNKNOWN_TOPIC, 0) - self.unknown_after, self.unknown_after
        if after > max(before, _MIN_AFTER) and after * 100 > bounds.unreadable_percent * (self.positions + after):
            came = f"although {after:,} messages on unknown topics came"
            found.append(f"no position could be read after {self.positions_until}, {came}")
        total = self.messages + self.faults + self.far_off
        if self.far_off * 100 > bounds.unreadable_percent * total:
            share = f"{self.far_off * 100 / total:.2f} %, {bounds.unreadable_percent:f} % are accepted"
            found.append(f"{self.far_off:,} of {total:,} messages are of no time, as the clock was far off ({share})")
        if self.dropped * 100 > bounds.unreadable_percent * (total + self.dropped):
            share = f"{self.dropped * 100 / (total + self.dropped):.2f} %, {bounds.unreadable_percent:f} % are accepted"
            found.append(f"{self.dropped:,} {_DROPPED} ({share})")
        if self.refused * 100 > bounds.refused_percent * self.positions:
            share = f"{self.refused * 100 / self.positions:.2f} %, {bounds.refused_percent:f} % are accepted"
            found.append(f"{self.refused:,} of {self.positions:,} positions are of no use to any track ({share})")
        drove_ms = self.driven_ms + self.unknown_ms
        if self.unknown_ms * 100 > bounds.unknown_percent * drove_ms:
            share = f"{self.unknown_ms * 100 / drove_ms:.2f} % of the driven time, {bounds.unknown_percent:f} % are"
            found.append(f"{self.unknown} ({share} accepted)")
        return tuple(found)

    def _unreadable_kinds(self, bounds: DoubtBounds) -> Iterator[str]:
        """Of each kind by itself: few positions are lost among many signals, and all of the way with them."""
        readable = {"position": self.positions, "event": self.events, "signal": self.signals}
        faults: dict[str, list[tuple[str, int]]] = {}
        for name, count in self.unreadable:
            kind, _, reason = name.rpartition("/")
            if reason not in NO_FAULTS:
                faults.setdefault(kind if kind in readable else "message", []).append((reason, count))
        for kind, reasons in faults.items():
            count = sum(one for _, one in reasons)
            total = count + readable.get(kind, self.messages)
            if count * 100 > bounds.unreadable_percent * total:
                share = f"{count * 100 / total:.2f} %, {bounds.unreadable_percent:f} % are accepted"
                yield f"{count:,} of {total:,} {kind}s could not be read ({share}): {listed(reasons)}"


def listed(reasons: Iterable[tuple[str, int]]) -> str:
    """Reasons and how many messages each has, in words."""
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons)


def _km(mm: int) -> str:
    return f"{mm / 1_000_000:.2f} km"


def _clock(ms: int) -> str:
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} h"
