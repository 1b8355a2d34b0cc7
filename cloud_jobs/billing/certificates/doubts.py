"""Why the sum of a period may be wrong although every record of it came: what could not be read. Pure.

Doubts are judged by the bounds of the payer's contract. One decision accepts all of them, as they were when it was
made: what is more than that is a doubt again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cloud_jobs.billing.contracts import DoubtBounds
from telemetry import NO_FAULTS


class Observed(NamedTuple):
    """What usage says of a device and period beside what is metered.

    `messages`: of the contract, that could be read. `unreadable`: those that are carried raw, by reason, sorted.
    """

    messages: int = 0
    unreadable: tuple[tuple[str, int], ...] = ()

    @property
    def faults(self) -> int:
        """Messages that could not be read and should have been."""
        return sum(count for reason, count in self.unreadable if reason not in NO_FAULTS)

    @property
    def amounts(self) -> dict[str, int]:
        """What a decision accepts: it covers what is in none of these more than it was then."""
        raw = sum(count for _, count in self.unreadable)
        return {"unreadable": self.faults, "raw_alone": 0 if self.messages else raw}

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"messages": self.messages, "unreadable": dict(self.unreadable)}

    def doubts(self, bounds: DoubtBounds) -> tuple[str, ...]:
        """Why a sum of the period may be wrong, each in words; none if all is within the bounds."""
        found, total = [], self.messages + self.faults
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.unreadable)
        if self.unreadable and not self.messages:
            found.append(f"none of its messages could be read: {reasons}")
        elif self.faults * 100 > bounds.unreadable_percent * total:
            share = f"{self.faults * 100 / total:.2f} %, {bounds.unreadable_percent:f} % are accepted"
            found.append(f"{self.faults:,} of {total:,} messages could not be read ({share}): {reasons}")
        return tuple(found)
