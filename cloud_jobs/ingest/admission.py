"""Which records of a micro-batch are let in: those whose names the centre does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cloud_jobs.ingest.coverage import Buffer, Coverage
from telemetry import Header, IntervalSet


class Place(NamedTuple):
    """Where a message is: unique within a micro-batch, meaningless outside its cluster."""

    topic: str
    message_id: str


class Arrival(NamedTuple):
    """A message whose batch was found honest."""

    place: Place
    header: Header


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision on a micro-batch.

    `admitted`, `duplicates`: for each message the names let in and those that the centre has already (or that an
    earlier message of the same micro-batch brought); messages without any are left out.
    `coverage`: the new state of the buffers that were touched.
    """

    admitted: dict[Place, IntervalSet] = field(default_factory=dict)
    duplicates: dict[Place, IntervalSet] = field(default_factory=dict)
    coverage: dict[Buffer, Coverage] = field(default_factory=dict)

    @property
    def admitted_count(self) -> int:
        """How many records are let in."""
        return sum(names.count for names in self.admitted.values())

    @property
    def duplicate_count(self) -> int:
        """How many records came again."""
        return sum(names.count for names in self.duplicates.values())


def admit(known: Mapping[Buffer, Coverage], arrivals: Iterable[Arrival]) -> Admission:
    """Decides on a micro-batch, in the order in which its messages are given.

    The records let in are always the same set: the union of all names less those known. Which copy of a name that
    comes twice is let in depends on the order.
    """
    decision = Admission()
    for place, header in arrivals:
        buffer = Buffer(header.device, header.epoch)
        before = decision.coverage.get(buffer) or known.get(buffer) or Coverage()
        fresh = header.ranges - before.received
        again = header.ranges & before.received
        if fresh:
            decision.admitted[place] = fresh
        if again:
            decision.duplicates[place] = again
        after = before.joined(header, fresh)
        assert after.received.count == before.received.count + fresh.count, "nothing is counted twice"
        decision.coverage[buffer] = after
    return decision
