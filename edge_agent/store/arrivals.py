"""Distinguishes a message that is delivered again from a new one with the same content.

A broker delivers again, on a new connection to the same session, what it holds no PUBACK for: in the order in which it
sent it, before anything newer. Three signs show that a message was stored before:

- DUP=1, and the message id and content of a stored one, the newest that had this id: the broker's own word. An id
  that another message had since is free again, so what comes with it is new.
- DUP=0 (a broker that was killed and came back from its last save forgot that it had sent it): on a connection that
  resumed a session, in the order of what was stored, with the message id and content of a stored one, a content that
  was stored once only and that carries a set clock's time. Such a message is an *anchor*.
- It came on the same connection before an anchor, and its message id and content were stored, in that order: what the
  broker sent before something that was received was received too.

Everything else is new. A message that looks like a stored one without being proven to be (no time of its own, a value
that repeats) is stored again and counted: the error is on the side that loses nothing. The first message that was not
stored ends the search until the next connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

# A message id has 16 bits. 8 bytes of a digest do not meet by chance among those that are remembered.
_ENTRY = Struct(">H8s")
_DIGEST_BYTES = 8
SET_CLOCK_US = 1_577_836_800_000_000
"""2020-01-01: an earlier device time is of a clock that nobody had set, and may come again after the next start."""


class Arrival(NamedTuple):
    """How a message came: the broker's message id and a digest of its topic and payload."""

    mid: int
    digest: bytes


def arrival_of(mid: int, topic: str, payload: bytes) -> Arrival:
    """The arrival of a message."""
    # No topic holds a NUL (MQTT 5, 1.5.4), so no two messages make the same bytes.
    return Arrival(mid, blake2b(b"%b\0%b" % (topic.encode(), payload), digest_size=_DIGEST_BYTES).digest())


def pack_arrivals(arrivals: Iterable[Arrival]) -> bytes:
    """Arrivals in 10 bytes each."""
    return b"".join([_ENTRY.pack(*arrival) for arrival in arrivals])


def unpack_arrivals(packed: bytes) -> list[Arrival]:
    """The arrivals that were packed."""
    # iter_unpack raises for a length that does not fit, and a damaged row must not keep the buffer from opening.
    return [Arrival(*entry) for entry in _ENTRY.iter_unpack(packed[: len(packed) // _ENTRY.size * _ENTRY.size])]


class RecentArrivals:
    """The last `size` committed arrivals.

    A broker may deliver again whatever it has no acknowledgement for: at most its window of unacknowledged messages, so
    as many arrivals show every redelivery (MQTT 5, 4.4 and 4.9), but for a broker that lost more than that.
    """

    def __init__(self, size: int, arrivals: Iterable[Arrival] = ()) -> None:
        self._size = size
        self._order: deque[Arrival] = deque()
        self._count: dict[Arrival, int] = {}
        self._newest: dict[int, bytes] = {}
        self.add(arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Remembers arrivals, the oldest first, and forgets the oldest beyond the size."""
        for arrival in arrivals:
            self._order.append(arrival)
            self._count[arrival] = self._count.get(arrival, 0) + 1
            self._newest[arrival.mid] = arrival.digest
        while len(self._order) > self._size:
            # `_newest` keeps its entry: there are 65,535 message ids at most, and `_count` says what is still known.
            oldest = self._order.popleft()
            if self._count[oldest] == 1:
                del self._count[oldest]
            else:
                self._count[oldest] -= 1

    def __contains__(self, arrival: Arrival) -> bool:
        return arrival in self._count

    def is_newest_of_its_id(self, arrival: Arrival) -> bool:
        """Whether it is known, and no other content came with its message id since."""
        return arrival in self._count and self._newest[arrival.mid] == arrival.digest

    def __len__(self) -> int:
        return len(self._order)

    def arrivals(self) -> tuple[Arrival, ...]:
        """All of them, the oldest first."""
        return tuple(self._order)


class RedeliveryMatcher:
    """What a broker may deliver again at the beginning of a connection that resumed a session."""

    def __init__(self, stored: Iterable[Arrival]) -> None:
        self._positions: dict[Arrival, list[int]] = {}
        self._times: dict[bytes, int] = {}
        for position, arrival in enumerate(stored):
            self._positions.setdefault(arrival, []).append(position)
            self._times[arrival.digest] = self._times.get(arrival.digest, 0) + 1
        self._at = -1

    def try_advance(self, arrival: Arrival) -> bool:
        """Whether the arrival was stored behind those that were asked for before; the search goes on behind it."""
        position = next((position for position in self._positions.get(arrival, ()) if position > self._at), None)
        if position is None:
            return False
        self._at = position
        return True

    def is_anchor(self, arrival: Arrival, device_time_us: int | None) -> bool:
        """Whether a message that follows can only be the stored one."""
        timed = device_time_us is not None and device_time_us >= SET_CLOCK_US
        return timed and self._times.get(arrival.digest) == 1
