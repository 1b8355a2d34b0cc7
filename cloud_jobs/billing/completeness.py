"""The certificate: does the centre account for every record that a device made?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from cloud_jobs.billing.seq_ranges import SeqRanges
from telemetry import IntervalSet


class Completeness(StrEnum):
    """The state of a device. Nothing heard of it at all is `open`: it may have driven."""

    COMPLETE = "complete"
    DECLARED_LOSS = "complete with declared loss"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """What is known of one epoch of a device: names received, names declared lost, the highest it had committed."""

    device: str
    epoch: int
    received: IntervalSet
    declared_lost: IntervalSet
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A device's completeness with its reasons. `declared`: lost for good. `missing`: neither received nor declared."""

    device: str
    state: Completeness
    received: int = 0
    declared_lost: SeqRanges = field(default_factory=SeqRanges)
    missing: SeqRanges = field(default_factory=SeqRanges)


def certify(device: str, coverage: Iterable[CoverageRow]) -> Certificate:
    """The certificate of one device from the rows of its epochs; rows of one epoch are united."""
    received: dict[int, IntervalSet] = {}
    declared: dict[int, IntervalSet] = {}
    head: dict[int, int] = {}
    for row in coverage:
        if row.device == device:
            received[row.epoch] = received.get(row.epoch, IntervalSet()) | row.received
            declared[row.epoch] = declared.get(row.epoch, IntervalSet()) | row.declared_lost
            head[row.epoch] = max(head.get(row.epoch, 0), row.head)
    lost = SeqRanges.of({epoch: declared[epoch] - received[epoch] for epoch in head})
    missing = SeqRanges.of({epoch: (received[epoch] | declared[epoch]).gaps(1, head[epoch]) for epoch in head})
    count = sum(seqs.count for seqs in received.values())
    return Certificate(
        device=device, state=_state(head, lost, missing), received=count, declared_lost=lost, missing=missing
    )


def _state(head: dict[int, int], lost: SeqRanges, missing: SeqRanges) -> Completeness:
    if missing or not head:
        return Completeness.OPEN
    return Completeness.DECLARED_LOSS if lost else Completeness.COMPLETE
