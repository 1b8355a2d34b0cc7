"""The unit of the buffer: an encoded batch of one class, stored as one row.

The row's id is the ordinal of its epoch, then its first sequence number. So batches
sort by the order in which their records got their ids, and a range of record ids is a range of row ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edge_agent.store.arrivals import Arrival
from telemetry import Body

# SQLite's row ids have 63 bits: 17 trillion records of a life, and 19 bits for the number of lives.
SEQ_BITS = 44
SEQ_MASK = (1 << SEQ_BITS) - 1


def batch_row_id(ordinal: int, first: int) -> int:
    """The id of the batch of the epoch with this ordinal whose records begin at `first`."""
    return ordinal << SEQ_BITS | first


def ordinal_of(identity: int) -> int:
    """The ordinal of the epoch of a batch."""
    return identity >> SEQ_BITS


def first_of(identity: int) -> int:
    """The first sequence number of a batch."""
    return identity & SEQ_MASK


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A stored batch. `size`: bytes of its encoded form. `wall_ms`: when it was committed, by the device's clock."""

    id: int
    epoch: int
    last: int
    class_index: int
    records: int
    size: int
    wall_ms: int
    data: bytes = b""

    @property
    def first(self) -> int:
        """The first sequence number that it covers."""
        return first_of(self.id)


class BatchOwner(NamedTuple):
    """Whose a batch is, for one that has to be written anew though it cannot be read."""

    device: str
    epoch: int
    head: int


class PendingRecord(NamedTuple):
    """A record before its commit gives it an id. `topic`, `payload`: the message, should its body not be writable."""

    class_index: int
    body: Body
    device_time_us: int
    monotonic_us: int
    boot: str
    arrival: Arrival
    uncertainty_ms: int = 0
    topic: str = ""
    payload: bytes = b""
