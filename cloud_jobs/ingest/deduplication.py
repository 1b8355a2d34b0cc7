"""Which records of a micro-batch are let in: those whose ids the centre does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from telemetry import Header, IntervalSet


class MessageRef(NamedTuple):
    """Where a message is: unique within a micro-batch, meaningless outside its cluster."""

    topic: str
    message_id: str


class ReceivedBatch(NamedTuple):
    """A message whose batch is consistent."""

    ref: MessageRef
    header: Header


@dataclass(frozen=True, slots=True)
class DeduplicationResult:
    """The decision on a micro-batch.

    `accepted`, `duplicates`: for each message the seqs let in and those that the centre has already (or that an
    earlier message of the same micro-batch brought); messages without any are left out.
    `coverage`: the new state of the streams that were touched.
    """

    accepted: dict[MessageRef, IntervalSet] = field(default_factory=dict)
    duplicates: dict[MessageRef, IntervalSet] = field(default_factory=dict)
    coverage: dict[DeviceStream, Coverage] = field(default_factory=dict)

    @property
    def accepted_count(self) -> int:
        """How many records are let in."""
        return sum(seqs.count for seqs in self.accepted.values())

    @property
    def duplicate_count(self) -> int:
        """How many records came again."""
        return sum(seqs.count for seqs in self.duplicates.values())


def deduplicate(known: Mapping[DeviceStream, Coverage], batches: Iterable[ReceivedBatch]) -> DeduplicationResult:
    """Decides on a micro-batch, in the order in which its messages are given.

    The records let in are always the same set: the union of all ids less those known. Which copy of a record that
    comes twice is let in depends on the order.
    """
    decision = DeduplicationResult()
    for ref, header in batches:
        stream = DeviceStream(header.device, header.epoch)
        # what an earlier message of this micro-batch brought counts already
        before = decision.coverage.get(stream) or known.get(stream) or Coverage()
        fresh = header.record_seqs - before.received
        again = header.record_seqs & before.received
        if fresh:
            decision.accepted[ref] = fresh
        if again:
            decision.duplicates[ref] = again
        after = before.merged(header, fresh)
        assert after.received.count == before.received.count + fresh.count, "nothing is counted twice"
        decision.coverage[stream] = after
    return decision
