"""What the centre has of each device stream, and whether that is everything. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from telemetry import Header, IntervalSet, Tombstone


class DeviceStream(NamedTuple):
    """All records that one device made with one buffer: the first two parts of their record ids."""

    device: str
    epoch: int


class Completeness(StrEnum):
    """Whether the centre accounts for every record that was made."""

    COMPLETE = "complete"
    DECLARED_LOSS = "complete with declared loss"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The seqs that are known of one device stream.

    `received`: in the records table. `tombstones`: apart from each other. `head`: the highest seq that the device is
    known to have given. Joining is a union: any order, any number of times.
    """

    received: IntervalSet = field(default_factory=IntervalSet)
    tombstones: tuple[Tombstone, ...] = ()
    head: int = 0

    def __or__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.received | other.received,
            _merged_tombstones(self.tombstones, other.tombstones),
            max(self.head, other.head),
        )

    def merged(self, header: Header, accepted: IntervalSet) -> Coverage:
        """This, and what a batch said, of whose records `accepted` were let in."""
        return self | Coverage(accepted, header.tombstones, header.head)

    def with_received(self, seqs: IntervalSet) -> Coverage:
        """This, and seqs found in the records table."""
        # what is in the table was given: the head is there at least
        return self | Coverage(seqs, head=seqs.last or 0)

    @property
    def declared_lost(self) -> IntervalSet:
        """Declared lost, and never received."""
        return IntervalSet((first, last) for first, last, _ in self.tombstones) - self.received

    @property
    def missing(self) -> IntervalSet:
        """Neither received nor declared: still on the device, on the way, or lost without a word."""
        return self.received.gaps(1, self.head) - self.declared_lost

    @property
    def state(self) -> Completeness:
        """Whether this stream is complete."""
        return completeness([self])


def completeness(streams: Iterable[Coverage]) -> Completeness:
    """The state of a device, given all its streams. Nothing heard of it at all is open: it may have driven."""
    streams = list(streams)
    if not streams or any(stream.missing for stream in streams):
        return Completeness.OPEN
    lost = any(stream.declared_lost for stream in streams)
    return Completeness.DECLARED_LOSS if lost else Completeness.COMPLETE


def _merged_tombstones(known: tuple[Tombstone, ...], more: tuple[Tombstone, ...]) -> tuple[Tombstone, ...]:
    """The union; where two reasons are given for one seq, the first one stays."""
    taken = IntervalSet((first, last) for first, last, _ in known)
    added: list[Tombstone] = []
    for first, last, reason in more:
        fresh = IntervalSet([(first, last)]) - taken
        added.extend(Tombstone(*bounds, reason) for bounds in fresh.ranges)
        taken |= fresh
    return tuple(sorted((*known, *added))) if added else known


def to_row(stream: DeviceStream, coverage: Coverage) -> dict[str, Any]:
    """The row of the coverage table."""
    return {
        "device": stream.device,
        "epoch": stream.epoch,
        "received": json.dumps(coverage.received.ranges, separators=(",", ":")),
        "tombstones": json.dumps(coverage.tombstones, separators=(",", ":")),
        "head": coverage.head,
    }


def from_row(row: dict[str, Any]) -> tuple[DeviceStream, Coverage]:
    """The coverage in a row of its table. Raises ValueError, TypeError, KeyError."""
    tombstones = tuple(Tombstone(*parts) for parts in json.loads(row["tombstones"]))
    coverage = Coverage(IntervalSet(json.loads(row["received"])), tombstones, row["head"])
    return DeviceStream(row["device"], row["epoch"]), coverage
