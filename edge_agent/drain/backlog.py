"""What waits on disk, streamed class by class in the order in which it was named; memory does not grow with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from edge_agent.drain.send_window import first_ids
from edge_agent.store.stored_batch import StoredBatch

READ_AHEAD = 32


class BatchReader(Protocol):
    """The part of the buffer that is read here."""

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        """The next batches of a class, without their data."""


class Backlog:
    """A cursor for each class. `is_taken`: whether a batch is on its way, safe, or kept by somebody else for now."""

    def __init__(self, stored: BatchReader, classes: Iterable[int], is_taken: Callable[[StoredBatch], bool]) -> None:
        self._stored = stored
        self._is_taken = is_taken
        self._cursors = dict.fromkeys(classes, 0)
        self._ahead: dict[int, deque[StoredBatch]] = {index: deque() for index in self._cursors}
        self._caught_up: set[int] = set()

    def on_committed(self, batch: StoredBatch) -> None:
        """A batch was committed that somebody else looks after: a cursor that has caught up stays so."""
        self._ensure(batch.class_index)
        if batch.class_index in self._caught_up:
            self._cursors[batch.class_index] = max(batch.id, self._cursors[batch.class_index])

    def on_missed(self) -> None:
        """Batches may have been committed that nobody was told of: look at the disk again."""
        self._caught_up.clear()

    def release(self, batches: Iterable[StoredBatch]) -> None:
        """Batches that nobody looks after any more: they are found again."""
        for index, identity in first_ids(batches).items():
            self._ensure(index)
            first = self._ahead[index][0].id if self._ahead[index] else self._cursors[index] + 1
            if identity < first:
                self._cursors[index] = identity - 1
                self._ahead[index].clear()
            self._caught_up.discard(index)

    def drop(self, identities: Iterable[int]) -> None:
        """Batches that are not what they were when they were read ahead."""
        gone = frozenset(identities)
        for index, ahead in self._ahead.items():
            self._ahead[index] = deque(batch for batch in ahead if batch.id not in gone)

    def rewind(self) -> None:
        """Begin again with the oldest."""
        for index in self._cursors:
            self._cursors[index] = 0
            self._ahead[index].clear()
        self._caught_up.clear()

    def peek(self, classes: frozenset[int] | None = None) -> StoredBatch | None:
        """The next batch: of the first class that has one, its oldest. `classes`: only these."""
        for index in sorted(self._cursors):
            if classes is None or index in classes:
                batch = self._next_of(index)
                if batch is not None:
                    return batch
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int, merge_below: int) -> list[StoredBatch]:
        """The next batches of a class that make one batch; only small ones are put together. At least one is there."""
        batch = self._next_of(class_index)
        assert batch is not None
        taken: list[StoredBatch] = []
        records = size = 0
        while batch is not None and (not taken or self._joins(batch, taken[-1], merge_below)):
            records, size = records + batch.records, size + batch.size
            if taken and (records > most_records or size > most_bytes):
                break
            taken.append(batch)
            self._ahead[class_index].popleft()
            if batch.records >= merge_below:
                break
            batch = self._next_of(class_index)
        return taken

    @staticmethod
    def _joins(batch: StoredBatch, before: StoredBatch, merge_below: int) -> bool:
        return batch.epoch == before.epoch and batch.records < merge_below

    def _next_of(self, index: int) -> StoredBatch | None:
        ahead = self._ahead[index]
        while index not in self._caught_up:
            while ahead and self._is_taken(ahead[0]):
                ahead.popleft()
            if ahead:
                return ahead[0]
            read = self._stored.read_after(self._cursors[index], index, READ_AHEAD)
            ahead.extend(read)
            if read:
                self._cursors[index] = read[-1].id
            else:
                self._caught_up.add(index)
        return None

    def _ensure(self, index: int) -> None:
        if index not in self._cursors:
            self._cursors[index] = 0
            self._ahead[index] = deque()
