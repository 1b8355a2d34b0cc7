"""What the centre has of each buffer, and whether a buffer is complete. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from telemetry import Header, IntervalSet, Tombstone


class Buffer(NamedTuple):
    """One device's buffer, which names records: the first two parts of every name."""

    device: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The names that are known of one buffer.

    `received`: in the records table. `declared`: tombstones, apart from each other. `head`: the highest name that the
    device is known to have given. Joining is a union: any order, any number of times.
    """

    received: IntervalSet = field(default_factory=IntervalSet)
    declared: tuple[Tombstone, ...] = ()
    head: int = 0

    def joined(self, header: Header, admitted: IntervalSet) -> Coverage:
        """This, and what a batch said, of whose records `admitted` were let in."""
        return Coverage(
            self.received | admitted, _with_tombstones(self.declared, header.tombstones), max(self.head, header.head)
        )

    def with_received(self, names: IntervalSet) -> Coverage:
        """This, and names found in the records table."""
        return Coverage(self.received | names, self.declared, max(self.head, names.last or 0))

    @property
    def lost(self) -> IntervalSet:
        """Declared lost, and never received."""
        return IntervalSet((first, last) for first, last, _ in self.declared) - self.received

    @property
    def missing(self) -> IntervalSet:
        """Neither received nor declared: still on the device, on the way, or lost without a word."""
        return self.received.gaps(1, self.head) - self.lost

    @property
    def state(self) -> str:
        """`complete`, `complete with declared loss`, or `open`."""
        if self.missing:
            return "open"
        return "complete with declared loss" if self.lost else "complete"


def _with_tombstones(known: tuple[Tombstone, ...], more: tuple[Tombstone, ...]) -> tuple[Tombstone, ...]:
    """The union; where two reasons are given for one name, the first one stays."""
    taken = IntervalSet((first, last) for first, last, _ in known)
    added: list[Tombstone] = []
    for first, last, reason in more:
        fresh = IntervalSet([(first, last)]) - taken
        added.extend(Tombstone(*bounds, reason) for bounds in fresh.ranges)
        taken |= fresh
    return tuple(sorted((*known, *added))) if added else known


def to_row(buffer: Buffer, coverage: Coverage) -> dict[str, Any]:
    """The row of the coverage table."""
    return {
        "device": buffer.device,
        "epoch": buffer.epoch,
        "received": json.dumps(coverage.received.ranges, separators=(",", ":")),
        "declared": json.dumps(coverage.declared, separators=(",", ":")),
        "head": coverage.head,
    }


def from_row(row: dict[str, Any]) -> tuple[Buffer, Coverage]:
    """The coverage in a row of its table."""
    declared = tuple(Tombstone(*parts) for parts in json.loads(row["declared"]))
    coverage = Coverage(IntervalSet(json.loads(row["received"])), declared, row["head"])
    return Buffer(row["device"], row["epoch"]), coverage
