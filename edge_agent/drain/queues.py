"""What waits to be sent: live data in memory, the backlog on disk, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from edge_agent.store.batch_rows import StoredBatch

QUEUE_BYTES = 1 << 20
QUEUE_BATCHES = 512
READ_AHEAD = 32
MEMORY_BYTES = 1 << 20
"""What was sent longer ago than this counts half, and so on: an old imbalance is not made up for."""


class LiveQueue:
    """Batches that were committed a moment ago, so that sending them reads no disk. Bounded, by class.

    What does not fit or grows old is given back: it is on disk and becomes backlog.
    """

    def __init__(self, live_s: float) -> None:
        self._live_s = live_s
        self._queues: dict[int, deque[tuple[float, StoredBatch]]] = {}
        self._size = 0
        self.ids: set[int] = set()

    def add(self, now_s: float, batch: StoredBatch) -> None:
        """A batch was committed."""
        self._queues.setdefault(batch.class_index, deque()).append((now_s, batch))
        self._size += batch.size
        self.ids.add(batch.id)

    def take_overflow(self, now_s: float) -> list[StoredBatch]:
        """Takes out the batches that are live no more or too many; the lowest class and its oldest go first."""
        released: list[StoredBatch] = []
        for queue in self._queues.values():
            while queue and queue[0][0] + self._live_s <= now_s:
                released.append(self._take(queue)[1])
        for index in sorted(self._queues, reverse=True):
            queue = self._queues[index]
            while queue and (self._size > QUEUE_BYTES or len(self.ids) > QUEUE_BATCHES):
                released.append(self._take(queue)[1])
        return released

    def peek(self, classes: frozenset[int] | None = None) -> tuple[float, StoredBatch] | None:
        """The next batch and when it came: of the first class that has one, its oldest. `classes`: only these."""
        for index in sorted(self._queues):
            if self._queues[index] and (classes is None or index in classes):
                return self._queues[index][0]
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int) -> list[StoredBatch]:
        """The next batches of a class that fit one batch; at least one."""
        queue = self._queues[class_index]
        taken = [self._take(queue)[1]]
        records, size = taken[0].records, taken[0].size
        # A batch on the wire is of one epoch.
        while queue and queue[0][1].epoch == taken[0].epoch:
            after = queue[0][1]
            if records + after.records > most_records or size + after.size > most_bytes:
                break
            taken.append(self._take(queue)[1])
            records, size = records + taken[-1].records, size + taken[-1].size
        return taken

    def take_all(self) -> list[StoredBatch]:
        """Takes out everything."""
        return [self._take(queue)[1] for queue in self._queues.values() for _ in range(len(queue))]

    def _take(self, queue: deque[tuple[float, StoredBatch]]) -> tuple[float, StoredBatch]:
        entry = queue.popleft()
        self._size -= entry[1].size
        self.ids.discard(entry[1].id)
        return entry


class BatchReader(Protocol):
    """The part of the buffer that is read here."""

    def read_after(self, identity: int, class_index: int, limit: int) -> list[StoredBatch]:
        """The next batches of a class, without their data."""


class Backlog:
    """What waits on disk, streamed class by class in the order of its ids; memory does not grow with it.

    A cursor for each class. `is_taken`: whether a batch is on its way, safe, or kept by somebody else for now.
    """

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
        """Batches may have been committed that were not handed over: look at the disk again."""
        self._caught_up.clear()

    def release(self, batches: Iterable[StoredBatch]) -> None:
        """Batches that nobody looks after any more: they are found again."""
        for index, identity in _first_ids(batches).items():
            self._ensure(index)
            first = self._ahead[index][0].id if self._ahead[index] else self._cursors[index] + 1
            # A cursor only goes back: what lies ahead of it is found anyway.
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
                batch = self._advance(index)
                if batch is not None:
                    return batch
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int, merge_below: int) -> list[StoredBatch]:
        """The next batches of a class that make one batch; only small ones are put together. At least one is there."""
        batch = self._advance(class_index)
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
            batch = self._advance(class_index)
        return taken

    @staticmethod
    def _joins(batch: StoredBatch, before: StoredBatch, merge_below: int) -> bool:
        return batch.epoch == before.epoch and batch.records < merge_below

    def _advance(self, index: int) -> StoredBatch | None:
        """Moves the cursor of a class behind what is taken; the next batch that is not."""
        ahead = self._ahead[index]
        # Without this mark an idle drain would read the disk in every round.
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


class FairShare:
    """Divides bytes between live data and the backlog while both wait."""

    def __init__(self, backlog_share: float) -> None:
        self._share = backlog_share
        self._all = 0.0
        self._backlog = 0.0

    def choose_backlog(self, *, live_waits: bool, backlog_waits: bool) -> bool:
        """Whether the next bytes belong to the backlog. Where only one of them waits, it begins anew."""
        if live_waits and backlog_waits:
            # At a share of 1 the backlog's bytes are never below it.
            return self._backlog < self._share * self._all or self._share >= 1
        self._all = self._backlog = 0.0
        return backlog_waits

    def on_sent(self, size: int, *, backlog: bool) -> None:
        """Bytes were sent."""
        self._all += size
        self._backlog += size if backlog else 0
        if self._all > MEMORY_BYTES:
            self._all, self._backlog = self._all / 2, self._backlog / 2


def _first_ids(batches: Iterable[StoredBatch]) -> dict[int, int]:
    """The lowest id of each class among batches."""
    lowest: dict[int, int] = {}
    for batch in batches:
        lowest[batch.class_index] = min(batch.id, lowest.get(batch.class_index, batch.id))
    return lowest
