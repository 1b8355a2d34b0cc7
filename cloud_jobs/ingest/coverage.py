"""What the centre has of each buffer, and whether a buffer is complete. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from telemetry import Header, IntervalSet, Tombstone


class DeviceStream(NamedTuple):
    """One device's buffer, which names records: the first two parts of every name."""

    device: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The names that are known of one buffer.

    `received`: in the records table. `tombstones`: tombstones, apart from each other. `head`: the highest name that the
    device is known to have given. Joining is a union: any order, any number of times.
    """

    received: IntervalSet = field(default_factory=IntervalSet)
    tombstones: tuple[Tombstone, ...] = ()
    head: int = 0

    def merged(self, header: Header, admitted: IntervalSet) -> Coverage:
        """This, and what a batch said, of whose records `admitted` were let in."""
        return Coverage(
            self.received | admitted,
            _merged_tombstones(self.tombstones, header.tombstones),
            max(self.head, header.head),
        )

    def with_received(self, seqs: IntervalSet) -> Coverage:
        """This, and names found in the records table."""
        return Coverage(self.received | seqs, self.tombstones, max(self.head, seqs.last or 0))

    @property
    def declared_lost(self) -> IntervalSet:
        """Declared lost, and never received."""
        return IntervalSet((first, last) for first, last, _ in self.tombstones) - self.received

    @property
    def missing(self) -> IntervalSet:
        """Neither received nor declared: still on the device, on the way, or lost without a word."""
        return self.received.gaps(1, self.head) - self.declared_lost

    @property
    def state(self) -> str:
        """`complete`, `complete with declared loss`, or `open`."""
        if self.missing:
            return "open"
        return "complete with declared loss" if self.declared_lost else "complete"


def _merged_tombstones(known: tuple[Tombstone, ...], more: tuple[Tombstone, ...]) -> tuple[Tombstone, ...]:
    """The union; where two reasons are given for one name, the first one stays."""
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
    """The coverage in a row of its table."""
    tombstones = tuple(Tombstone(*parts) for parts in json.loads(row["tombstones"]))
    coverage = Coverage(IntervalSet(json.loads(row["received"])), tombstones, row["head"])
    return DeviceStream(row["device"], row["epoch"]), coverage
