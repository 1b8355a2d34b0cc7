"""What devices are still to be told: unions of ranges, so that many batches make one acknowledgement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.admission import Address
from telemetry import Ack, IntervalSet
from telemetry.ack import MAX_ACK_RANGES

MAX_OWED_RANGES = 262_144
"""Ranges that all devices are owed together. What would be more is forgotten: the device sends again."""


@dataclass(slots=True)
class Owed:
    """One acknowledgement that a device is owed since `since_s`; with `refused` (why) its ranges are not taken."""

    device: Address
    epoch: int
    refused: str
    since_s: float
    ranges: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    tokens: list[int] = field(default_factory=list)

    @property
    def ack(self) -> Ack:
        """The message that says it."""
        return Ack(self.epoch, self.ranges, self.pause_s, self.refused)


class Ledger:
    """Owed acknowledgements by device, epoch and reason of refusal.

    One is due after `interval_s`, or as soon as nothing more of its device is on its way, or when it is full.
    """

    def __init__(self, interval_s: float) -> None:
        self.forgotten = 0
        self._interval_s = interval_s
        self._owed: dict[tuple[Address, int, str], Owed] = {}
        self._full: deque[Owed] = deque()
        self._ranges = 0

    def __len__(self) -> int:
        return len(self._owed) + len(self._full)

    def add(
        self, device: Address, epoch: int, ranges: IntervalSet, *, refused: str = "", token: int, now_s: float
    ) -> bool:
        """These ranges are safe, or refused (then they may be empty). False: no room, nothing is owed for them."""
        if self._ranges + len(ranges.ranges) > MAX_OWED_RANGES:
            self.forgotten += 1
            return False
        for chunk in _chunks(ranges):
            owed = self._with_room(Owed(device, epoch, refused, now_s), len(chunk.ranges))
            self._ranges -= len(owed.ranges.ranges)
            owed.ranges |= chunk
            self._ranges += len(owed.ranges.ranges)
        owed.tokens.append(token)
        return True

    def pause(self, device: Address, epoch: int, pause_s: float, *, refused: str = "") -> None:
        """Ask for a pause with what the device is owed; the longest of several counts."""
        owed = self._owed.get((device, epoch, refused))
        if owed is not None:
            owed.pause_s = max(owed.pause_s, pause_s)

    def due(self, now_s: float, pending: Callable[[Address], int], limit: int) -> list[Owed]:
        """Take at most `limit` acknowledgements that are due, the longest owed first."""
        taken = [self._full.popleft() for _ in range(min(limit, len(self._full)))]
        ready: list[tuple[Address, int, str]] = []
        for key, owed in self._owed.items():
            if len(taken) + len(ready) >= limit:
                break
            if now_s - owed.since_s >= self._interval_s or not pending(owed.device):
                ready.append(key)
        taken += [self._owed.pop(key) for key in ready]
        self._ranges -= sum(len(owed.ranges.ranges) for owed in taken)
        return taken

    @property
    def next_s(self) -> float | None:
        """When the next debt is due at the latest."""
        if self._full:
            return self._full[0].since_s
        return next((owed.since_s + self._interval_s for owed in self._owed.values()), None)

    def _with_room(self, fresh: Owed, ranges: int) -> Owed:
        """The debt that these ranges may join: the one there is, or `fresh` when that one would become too large."""
        key = (fresh.device, fresh.epoch, fresh.refused)
        owed = self._owed.get(key)
        if owed is not None and len(owed.ranges.ranges) + ranges <= MAX_ACK_RANGES:
            return owed
        if owed is not None:
            self._full.append(self._owed.pop(key))
        self._owed[key] = fresh
        return fresh


def _chunks(ranges: IntervalSet) -> Iterator[IntervalSet]:
    """The set in pieces of as many ranges as an acknowledgement holds; one piece for the empty set."""
    if len(ranges.ranges) <= MAX_ACK_RANGES:
        yield ranges
        return
    for at in range(0, len(ranges.ranges), MAX_ACK_RANGES):
        yield IntervalSet(ranges.ranges[at : at + MAX_ACK_RANGES])
