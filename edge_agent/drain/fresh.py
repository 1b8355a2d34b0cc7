"""Live data: blocks that were committed a moment ago, kept in memory so that sending them reads no disk."""

from __future__ import annotations

from collections import deque

from edge_agent.store.block import Block

LANE_BYTES = 1 << 20
LANE_BLOCKS = 512


class FreshLane:
    """Bounded, by class. What does not fit or grows old is given back: it is on disk and becomes backlog."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._lanes: dict[int, deque[tuple[float, Block]]] = {}
        self._size = 0
        self.ids: set[int] = set()

    def add(self, now_s: float, block: Block) -> None:
        """A block was committed."""
        self._lanes.setdefault(block.class_index, deque()).append((now_s, block))
        self._size += block.size
        self.ids.add(block.id)

    def outgrown(self, now_s: float) -> list[Block]:
        """Takes out the blocks that are live no more or too many; the lowest class and its oldest go first."""
        released: list[Block] = []
        for lane in self._lanes.values():
            while lane and lane[0][0] + self._fresh_s <= now_s:
                released.append(self._take(lane)[1])
        for index in sorted(self._lanes, reverse=True):
            lane = self._lanes[index]
            while lane and (self._size > LANE_BYTES or len(self.ids) > LANE_BLOCKS):
                released.append(self._take(lane)[1])
        return released

    def peek(self, classes: frozenset[int] | None = None) -> tuple[float, Block] | None:
        """The next block and when it came: of the first class that has one, its oldest. `classes`: only these."""
        for index in sorted(self._lanes):
            if self._lanes[index] and (classes is None or index in classes):
                return self._lanes[index][0]
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int) -> list[Block]:
        """The next blocks of a class that fit one batch; at least one."""
        lane = self._lanes[class_index]
        taken = [self._take(lane)[1]]
        records, size = taken[0].records, taken[0].size
        while lane and lane[0][1].epoch == taken[0].epoch:
            after = lane[0][1]
            if records + after.records > most_records or size + after.size > most_bytes:
                break
            taken.append(self._take(lane)[1])
            records, size = records + taken[-1].records, size + taken[-1].size
        return taken

    def clear(self) -> list[Block]:
        """Takes out everything."""
        return [self._take(lane)[1] for lane in self._lanes.values() for _ in range(len(lane))]

    def _take(self, lane: deque[tuple[float, Block]]) -> tuple[float, Block]:
        entry = lane.popleft()
        self._size -= entry[1].size
        self.ids.discard(entry[1].id)
        return entry
