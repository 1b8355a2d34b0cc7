"""Batches that the region refuses: each is retried by itself, after ever longer delays, and then dead-lettered.

    in flight ──refused, or skipped while later ones are acknowledged──▶ retrying ──backoff is over──▶ in flight
                                                                               │
                                                                               │ refused too often
                                                                               ├─ several records ─▶ halves, retrying
                                                                               └─ one record ─▶ dead letter

Nothing is dead-lettered because of a region that takes nothing: only if it acknowledged something else meanwhile. Pure:
handed the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.store.stored_batch import StoredBatch

MAX_BACKOFF_S = 3600.0
MAX_RETRY_ENTRIES = 4096
"""Beyond so many refused batches nothing new is sent, whatever else is acknowledged."""


@dataclass(slots=True)
class RetryEntry:
    """A batch that was refused `refusals` times, first when sent at `first_s`. `due_s`: next try, None in flight."""

    batch: StoredBatch
    reason: str
    first_s: float
    refusals: int = 0
    due_s: float | None = None


class RetryQueue:
    """The batches that were refused and are not dead-lettered. `few`: so many at once may all be bad."""

    def __init__(self, most: int, pause_s: float, few: int) -> None:
        self._most = most
        self._pause_s = pause_s
        self._few = few
        self._entries: dict[int, RetryEntry] = {}
        self._acknowledged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, identity: int) -> bool:
        return identity in self._entries

    @property
    def region_refuses_all(self) -> bool:
        """Whether so much is refused, and nothing else taken, that it lies with the region and not with the batches."""
        if len(self._entries) < self._few:
            return False
        # A dict keeps the order in which they were first refused.
        first = next(iter(self._entries.values()))
        return len(self._entries) >= MAX_RETRY_ENTRIES or self._acknowledged_s < first.first_s

    def on_refused(self, now_s: float, batch: StoredBatch, reason: str, sent_s: float) -> bool:
        """A batch was refused once more; True when it was refused often enough to be dead-lettered."""
        entry = self._entries.setdefault(batch.id, RetryEntry(batch, reason, sent_s))
        entry.refusals += 1
        entry.reason = reason
        # The shift is bounded: a float times a power of two beyond its range raises OverflowError.
        entry.due_s = now_s + min(MAX_BACKOFF_S, self._pause_s * (1 << min(entry.refusals - 1, 30)))
        return entry.refusals >= self._most and self._acknowledged_s >= entry.first_s

    def add_half(self, now_s: float, batch: StoredBatch, reason: str, first_s: float) -> None:
        """A half of a batch that was refused too often: it has one try."""
        self._entries[batch.id] = RetryEntry(batch, reason, first_s, self._most - 1, now_s + self._pause_s)

    def first_s(self, identity: int) -> float:
        """When a batch was sent that was then refused for the first time."""
        return self._entries[identity].first_s

    def retry_now(self, identity: int) -> None:
        """A batch on its way was neither taken nor refused: it is due at once."""
        self._entries[identity].due_s = 0.0

    def on_acked(self, sent_s: float) -> None:
        """The region took something that was sent at this time."""
        self._acknowledged_s = max(sent_s, self._acknowledged_s)

    def is_passed_over(self, sent_s: float) -> bool:
        """Whether something was taken that was sent later."""
        return self._acknowledged_s > sent_s

    def remove(self, identity: int) -> None:
        """A batch is safe, dead-lettered or gone."""
        self._entries.pop(identity, None)

    def take_all(self) -> list[StoredBatch]:
        """Forgets all of them; which there were."""
        batches = [one.batch for one in self._entries.values()]
        self._entries.clear()
        return batches

    def due(self, now_s: float, allowed: frozenset[int] | None) -> StoredBatch | None:
        """The batch whose pause is over for the longest time. `allowed`: only these classes."""
        over = [
            (one.due_s, one.batch)
            for one in self._entries.values()
            if one.due_s is not None and one.due_s <= now_s and (allowed is None or one.batch.class_index in allowed)
        ]
        return min(over, key=lambda entry: entry[0])[1] if over else None

    def on_sent(self, identity: int) -> None:
        """A batch is on its way again."""
        if identity in self._entries:
            self._entries[identity].due_s = None

    def next_due_in(self, now_s: float) -> float | None:
        """Seconds until the next pause is over."""
        times = [one.due_s - now_s for one in self._entries.values() if one.due_s is not None]
        return max(0.0, min(times)) if times else None
