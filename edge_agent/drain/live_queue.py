"""Live data: batches that were committed a moment ago, kept in memory so that sending them reads no disk."""

from __future__ import annotations

from collections import deque

from edge_agent.store.stored_batch import StoredBatch

QUEUE_BYTES = 1 << 20
QUEUE_BATCHES = 512


class LiveQueue:
    """Bounded, by class. What does not fit or grows old is given back: it is on disk and becomes backlog."""

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
