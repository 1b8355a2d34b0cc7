"""Batches in flight, batches waiting for a retry, and the record ids sent to each region.

    in flight ──refused, or skipped while later ones are acknowledged──▶ retrying ──backoff is over──▶ in flight
                                                                               │
                                                                               │ refused too often
                                                                               ├─ several records ─▶ halves, retrying
                                                                               └─ one record ─▶ dead letter

A refused batch is retried alone, after growing delays. It is dead-lettered only if the region acknowledged something
else meanwhile. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from edge_agent.store.batch_rows import StoredBatch
from waybill.daemon.backoff import Backoff
from waybill.record import IntervalSet

MAX_RANGES = 4096
"""Ranges remembered for each region and epoch; the lowest are forgotten first."""
MAX_STREAMS = 64
"""Remembered pairs of region and epoch; the least recently used is forgotten first."""
MAX_BACKOFF_S = 3600.0
MAX_RETRY_ENTRIES = 4096
"""With this many refused batches nothing new is sent."""


@dataclass(slots=True)
class InFlightBatch:
    """`unacked`: its unacknowledged record ids. `is_retry`: it was refused before."""

    epoch: int
    unacked: IntervalSet
    stored: tuple[StoredBatch, ...]
    size: int
    backlog: bool
    sent_s: float
    is_retry: bool = False


class SendWindow:
    """Bounds unacknowledged batches and bytes; the backlog never fills the window."""

    def __init__(self, batches: int, size: int, timeout_s: float) -> None:
        self._most = batches
        self._most_size = size
        self._timeout_s = timeout_s
        self._batches: OrderedDict[int, InFlightBatch] = OrderedDict()
        self._number = 0
        self._size = 0
        self._backlog = 0
        self._backlog_size = 0
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._batches)

    def has_room(self, *, backlog: bool) -> bool:
        """Whether one more batch may be sent. The backlog leaves a quarter of the window to live data."""
        if backlog and (
            self._backlog >= self._most - self._most // 4 or self._backlog_size >= self._most_size * 3 // 4
        ):
            return False
        return len(self._batches) < self._most and (self._size < self._most_size or not self._batches)

    def add(self, entry: InFlightBatch) -> None:
        self._number += 1
        self._batches[self._number] = entry
        self._count(entry, 1)
        self.ids.update(batch.id for batch in entry.stored)

    def on_acked(self, epoch: int, seqs: IntervalSet) -> list[InFlightBatch]:
        """Removes acknowledged record ids; returns the batches that are complete now."""
        done: list[InFlightBatch] = []
        for number, entry in list(self._batches.items()):
            if entry.epoch == epoch and entry.unacked & seqs:
                entry.unacked -= seqs
                if not entry.unacked:
                    done.append(self._remove(number))
        return done

    def take_refused(self, epoch: int, seqs: IntervalSet) -> list[InFlightBatch]:
        affected = [number for number, one in self._batches.items() if one.epoch == epoch and one.unacked & seqs]
        return [self._remove(number) for number in affected]

    def take_overdue(self, now_s: float) -> list[InFlightBatch]:
        late = [number for number, entry in self._batches.items() if entry.sent_s + self._timeout_s <= now_s]
        return [self._remove(number) for number in late]

    def take_all(self) -> list[InFlightBatch]:
        return [self._remove(number) for number in list(self._batches)]

    def next_timeout_in(self, now_s: float) -> float | None:
        # All have the same timeout and are in sending order: the first is due first.
        oldest_s = next((entry.sent_s for entry in self._batches.values()), None)
        return None if oldest_s is None else max(0.0, oldest_s + self._timeout_s - now_s)

    def _remove(self, number: int) -> InFlightBatch:
        entry = self._batches.pop(number)
        self._count(entry, -1)
        self.ids.difference_update(batch.id for batch in entry.stored)
        return entry

    def _count(self, entry: InFlightBatch, sign: int) -> None:
        self._size += sign * entry.size
        if entry.backlog:
            self._backlog += sign
            self._backlog_size += sign * entry.size


class SentSeqs:
    """Record ids sent to regions since the agent started. An acknowledgement of any other id is ignored.

    An id that was forgotten, or sent before a restart, is sent again; the centre removes the duplicate.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int], IntervalSet] = OrderedDict()

    def add(self, region: str, epoch: int, seqs: IntervalSet) -> None:
        sent = self._sent.pop((region, epoch), IntervalSet()) | seqs
        # Each hole is a range, and a backlog may have one for each acknowledged batch.
        if len(sent.ranges) > MAX_RANGES:
            sent = IntervalSet(sent.ranges[-MAX_RANGES:])
        self._sent[region, epoch] = sent
        if len(self._sent) > MAX_STREAMS:
            self._sent.popitem(last=False)

    def take_acked(self, region: str, epoch: int, seqs: IntervalSet) -> IntervalSet:
        """The acknowledged ids that this region was sent; they are removed for all regions."""
        safe = self._sent.get((region, epoch), IntervalSet()) & seqs
        if safe:
            for life in [life for life in self._sent if life[1] == epoch]:
                self._sent[life] -= safe
                if not self._sent[life]:
                    del self._sent[life]
        return safe


@dataclass(slots=True)
class RetryEntry:
    """`first_s`: when the batch was first sent. `due_s`: its next try; None while it is in flight."""

    batch: StoredBatch
    reason: str
    first_s: float
    refusals: int = 0
    due_s: float | None = None


class RetryQueue:
    """Refused batches that are not dead-lettered. `few`: so many at once may all be bad."""

    def __init__(self, most: int, pause_s: float, few: int) -> None:
        self._most = most
        self._pause_s = pause_s
        # Without jitter: they are one device's own batches.
        self._backoff = Backoff(pause_s, MAX_BACKOFF_S, lambda: 1.0)
        self._few = few
        self._entries: dict[int, RetryEntry] = {}
        self._acknowledged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, identity: int) -> bool:
        return identity in self._entries

    @property
    def region_refuses_all(self) -> bool:
        """Whether so much is refused, and nothing accepted, that the region is at fault and not the batches."""
        if len(self._entries) < self._few:
            return False
        # A dict keeps insertion order: the first was refused first.
        first = next(iter(self._entries.values()))
        return len(self._entries) >= MAX_RETRY_ENTRIES or self._acknowledged_s < first.first_s

    def on_refused(self, now_s: float, batch: StoredBatch, reason: str, sent_s: float) -> bool:
        """Counts a refusal; True when the batch was refused often enough to be dead-lettered."""
        entry = self._entries.setdefault(batch.id, RetryEntry(batch, reason, sent_s))
        entry.refusals += 1
        entry.reason = reason
        entry.due_s = now_s + self._backoff.delay_s(entry.refusals)
        return entry.refusals >= self._most and self._acknowledged_s >= entry.first_s

    def add_half(self, now_s: float, batch: StoredBatch, reason: str, first_s: float) -> None:
        """Adds half of a batch that was refused too often: it has one try."""
        self._entries[batch.id] = RetryEntry(batch, reason, first_s, self._most - 1, now_s + self._pause_s)

    def first_s(self, identity: int) -> float:
        return self._entries[identity].first_s

    def retry_now(self, identity: int) -> None:
        """The batch was neither accepted nor refused: it is due at once."""
        self._entries[identity].due_s = 0.0

    def on_acked(self, sent_s: float) -> None:
        """The region accepted something that was sent at `sent_s`."""
        self._acknowledged_s = max(sent_s, self._acknowledged_s)

    def is_passed_over(self, sent_s: float) -> bool:
        """Whether something was accepted that was sent later."""
        return self._acknowledged_s > sent_s

    def remove(self, identity: int) -> None:
        self._entries.pop(identity, None)

    def take_all(self) -> list[StoredBatch]:
        batches = [one.batch for one in self._entries.values()]
        self._entries.clear()
        return batches

    def due(self, now_s: float, allowed: frozenset[int] | None) -> StoredBatch | None:
        """The batch that has been due the longest. `allowed`: only these classes."""
        over = [
            (one.due_s, one.batch)
            for one in self._entries.values()
            if one.due_s is not None and one.due_s <= now_s and (allowed is None or one.batch.class_index in allowed)
        ]
        return min(over, key=lambda entry: entry[0])[1] if over else None

    def on_sent(self, identity: int) -> None:
        if identity in self._entries:
            self._entries[identity].due_s = None

    def next_due_in(self, now_s: float) -> float | None:
        times = [one.due_s - now_s for one in self._entries.values() if one.due_s is not None]
        return max(0.0, min(times)) if times else None
