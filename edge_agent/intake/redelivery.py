"""Telling a message that is delivered again from a new one that says the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

_ENTRY = Struct(">H8s")
_DIGEST_BYTES = 8


class Arrival(NamedTuple):
    """How a message came: the broker's message id and a digest of its topic and payload."""

    mid: int
    digest: bytes


def arrival_of(mid: int, topic: str, payload: bytes) -> Arrival:
    """The arrival of a message."""
    return Arrival(mid, blake2b(b"%b\0%b" % (topic.encode(), payload), digest_size=_DIGEST_BYTES).digest())


def pack_arrivals(arrivals: Iterable[Arrival]) -> bytes:
    """Arrivals in 10 bytes each."""
    return b"".join([_ENTRY.pack(*arrival) for arrival in arrivals])


def unpack_arrivals(packed: bytes) -> list[Arrival]:
    """The arrivals that were packed."""
    return [Arrival(*entry) for entry in _ENTRY.iter_unpack(packed[: len(packed) // _ENTRY.size * _ENTRY.size])]


class Ring:
    """The last `size` committed arrivals.

    A broker may deliver again whatever it has no acknowledgement for: at most its window of unacknowledged messages, so
    a ring of that size sees every redelivery (MQTT 5, 4.4 and 4.9).
    """

    def __init__(self, size: int, arrivals: Iterable[Arrival] = ()) -> None:
        self._size = size
        self._order: deque[Arrival] = deque()
        self._count: dict[Arrival, int] = {}
        self.add(arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Remembers arrivals, the oldest first, and forgets the oldest beyond the size."""
        for arrival in arrivals:
            self._order.append(arrival)
            self._count[arrival] = self._count.get(arrival, 0) + 1
        while len(self._order) > self._size:
            oldest = self._order.popleft()
            if self._count[oldest] == 1:
                del self._count[oldest]
            else:
                self._count[oldest] -= 1

    def __contains__(self, arrival: Arrival) -> bool:
        return arrival in self._count

    def __len__(self) -> int:
        return len(self._order)
