"""What devices are answered: pending acknowledgements, united."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.validation import Sender
from waybill.record import Ack, IntervalSet
from waybill.record.ack import MAX_ACK_RANGES

MAX_PENDING_RANGES = 262_144
"""Ranges of all devices together. What would be more is forgotten: the device sends again."""


@dataclass(slots=True)
class PendingAcks:
    """One acknowledgement that waits since `since_s`; with `refusal` (why) its records are not taken."""

    sender: Sender
    epoch: int
    refusal: str
    since_s: float
    seqs: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    tokens: list[int] = field(default_factory=list)

    @property
    def ack(self) -> Ack:
        """The message that says it."""
        return Ack(self.epoch, self.seqs, self.pause_s, self.refusal)


class AckCoalescer:
    """Pending acknowledgements by device, epoch and reason of refusal.

    One is due after `interval_s`, or as soon as nothing more of its device is on its way, or when it is full.
    """

    def __init__(self, interval_s: float) -> None:
        self.forgotten = 0
        self._interval_s = interval_s
        self._pending: dict[tuple[Sender, int, str], PendingAcks] = {}
        self._full: deque[PendingAcks] = deque()
        self._ranges = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._full)

    def add(
        self, sender: Sender, epoch: int, seqs: IntervalSet, *, refusal: str = "", token: int, now_s: float
    ) -> bool:
        """These seqs are safe, or refused (then they may be none). False: no room, no acknowledgement."""
        if self._ranges + len(seqs.ranges) > MAX_PENDING_RANGES:
            self.forgotten += 1
            return False
        key = sender, epoch, refusal
        for chunk in _chunks(seqs):
            pending = self._make_room(key, len(chunk.ranges), now_s)
            self._ranges -= len(pending.seqs.ranges)
            pending.seqs |= chunk
            self._ranges += len(pending.seqs.ranges)
        pending.tokens.append(token)  # with the last chunk: its PUBACK leaves when all of them were sent
        return True

    def request_pause(self, sender: Sender, epoch: int, pause_s: float, *, refusal: str = "") -> None:
        """Ask for a pause with the pending acknowledgement; the longest of several counts."""
        pending = self._pending.get((sender, epoch, refusal))
        if pending is not None:
            pending.pause_s = max(pending.pause_s, pause_s)

    def take_due(self, now_s: float, in_flight_of: Callable[[Sender], int], limit: int) -> list[PendingAcks]:
        """Take at most `limit` acknowledgements that are due, those that wait longest first."""
        taken = [self._full.popleft() for _ in range(min(limit, len(self._full)))]
        ready: list[tuple[Sender, int, str]] = []
        for key, pending in self._pending.items():
            if len(taken) + len(ready) >= limit:
                break
            if now_s - pending.since_s >= self._interval_s or not in_flight_of(pending.sender):
                ready.append(key)
        taken += [self._pending.pop(key) for key in ready]
        self._ranges -= sum(len(pending.seqs.ranges) for pending in taken)
        return taken

    @property
    def next_s(self) -> float | None:
        """When the next acknowledgement is due at the latest."""
        if self._full:
            return self._full[0].since_s
        # A dict keeps the order of insertion: the first one waits longest.
        return next((pending.since_s + self._interval_s for pending in self._pending.values()), None)

    def _make_room(self, key: tuple[Sender, int, str], ranges: int, now_s: float) -> PendingAcks:
        """The acknowledgement that so many ranges join: the pending one, or a fresh one where that is full."""
        pending = self._pending.get(key)
        if pending is not None and len(pending.seqs.ranges) + ranges <= MAX_ACK_RANGES:
            return pending
        if pending is not None:
            # The full one is sent before the fresh one: `take_due` empties this queue first.
            self._full.append(self._pending.pop(key))
        self._pending[key] = fresh = PendingAcks(*key, now_s)
        return fresh


def _chunks(seqs: IntervalSet) -> Sequence[IntervalSet]:
    """The set in chunks of as many ranges as an acknowledgement holds; one chunk for the empty set."""
    ranges = seqs.ranges
    if len(ranges) <= MAX_ACK_RANGES:
        return (seqs,)
    starts = range(0, len(ranges), MAX_ACK_RANGES)
    return [IntervalSet(ranges[start : start + MAX_ACK_RANGES]) for start in starts]
