"""Keeps the buffer within its quotas, its age and its file system."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import structlog

from edge_agent.clock.age import SET_CLOCK_MS, AgeClock
from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.store.buffer import Buffer
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.evict import Row, drop_block, oldest_rows, thin_block
from edge_agent.store.relief import Relief, Usage, next_relief

log = structlog.get_logger("edge_agent.store")

ROWS_AT_ONCE = 64
_NEXT_STAMP = (
    "SELECT wall_ms FROM blocks WHERE id >= ? AND class = ? AND records > 0 AND wall_ms >= ? ORDER BY id LIMIT 1"
)
MOST_STEPS = 100
AGE_CLOCK = "age_clock_s"
"""A tally: the time by which age was last judged."""


def free_space(buffer: Buffer) -> int:
    """Bytes that the buffer can still grow by: on the file system and inside its own file."""
    system = os.statvfs(buffer.path.parent)
    return system.f_bavail * system.f_frsize + buffer.free_pages_bytes()


class Keeper:
    """Thins and drops, and leaves tombstones. `space`: the bytes that a buffer can still grow by."""

    def __init__(
        self,
        buffer: Buffer,
        settings: BufferSettings,
        classes: Sequence[ClassSettings],
        space: Callable[[Buffer], int] = free_space,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer = buffer
        self._settings = settings
        self._classes = classes
        self._space = space
        self._now_s = now_s
        self.dropped_at_s: float | None = None
        """When records were last dropped for want of space, on the clock `now_s`."""
        self._age_clock = AgeClock(buffer.tally(AGE_CLOCK) * 1000)

    def tidy(self) -> int:
        """Brings the buffer back within its bounds; the steps it took. Raises StoreError."""
        for step in range(MOST_STEPS):
            usage = self._usage()
            if usage.free < self._settings.free_space_floor_bytes and self._buffer.forget_damaged():
                continue
            relief = next_relief(self._settings, self._classes, usage)
            if relief is None:
                return step
            if self._take(relief) == 0:
                log.warning("nothing more can be given up", action=relief.action, class_index=relief.class_index)
                return step
        return MOST_STEPS

    def expire(self, wall_ms: int, monotonic_ms: int) -> int:
        """Drops what is too old by a clock that does not jump; the number of batches. Raises StoreError."""
        now_ms = self._age_clock.look(wall_ms, monotonic_ms)
        self._buffer.tally(AGE_CLOCK, now_ms // 1000 - self._buffer.tally(AGE_CLOCK), lazily=True)
        dropped = 0
        for index in range(len(self._classes)):
            age_s = min(self._classes[index].max_age_s or self._settings.max_age_s, self._settings.max_age_s)
            dropped += self._expire_class(index, int(now_ms - age_s * 1000))
        return dropped

    def _usage(self) -> Usage:
        depth = self._buffer.depth()
        sizes = {index: one.size for index, one in depth.items() if one.records > 0}
        tombstones = sum(one.size for one in depth.values() if one.records == 0)
        thinnable = frozenset(index for index in sizes if self._keep_one_in(index) > 1 and self._unthinned(index))
        return Usage(sizes, tombstones, thinnable, self._space(self._buffer))

    def _keep_one_in(self, index: int) -> int:
        return self._classes[index].thin_keep_one_in if index < len(self._classes) else 1

    def _unthinned(self, index: int) -> bool:
        return bool(self._buffer.read_after(self._buffer.tally(_thinned_through(index)), index, 1))

    def _take(self, relief: Relief) -> int:
        freed = 0

        def change(connection: Connection, changes: Changes) -> None:
            nonlocal freed
            after = self._buffer.tally(_thinned_through(relief.class_index)) if relief.action == "thin" else 0
            for row in oldest_rows(connection, relief.class_index, after, ROWS_AT_ONCE):
                if freed >= relief.size:
                    break
                freed += self._give_up(connection, relief, row, changes)

        self._buffer.edit(change)
        if relief.action == "drop" and freed:
            self.dropped_at_s = self._now_s()
        log.warning("gave up records", action=relief.action, class_index=relief.class_index, bytes=freed)
        return freed

    def _give_up(self, connection: Connection, relief: Relief, row: Row, changes: Changes) -> int:
        if relief.action == "drop":
            return drop_block(connection, row, self._buffer.owner_of(row.id), relief.reason, changes)
        name = _thinned_through(relief.class_index)
        changes.counted[name] += row.id - self._buffer.tally(name) - changes.counted[name]
        # Thinning that frees nothing is progress too: the cursor moves on.
        return max(1, thin_block(connection, row, self._keep_one_in(relief.class_index), changes))

    def _expire_class(self, index: int, before_ms: int) -> int:
        dropped = 0

        def change(connection: Connection, changes: Changes) -> None:
            nonlocal dropped
            for row in oldest_rows(connection, index, 0, ROWS_AT_ONCE):
                if _known_by_ms(connection.execute(_NEXT_STAMP, (row.id, index, SET_CLOCK_MS)).fetchone()) >= before_ms:
                    break
                drop_block(connection, row, self._buffer.owner_of(row.id), "age", changes)
                dropped += 1

        if _known_by_ms(self._buffer.query_one(_NEXT_STAMP, (0, index, SET_CLOCK_MS))) < before_ms:
            self._buffer.edit(change)
        return dropped


def _known_by_ms(row: tuple[int] | None) -> float:
    """A block is at least as old as the first one from it on that a set clock stamped; none: nothing is known."""
    return row[0] if row else float("inf")


def _thinned_through(index: int) -> str:
    return f"thinned_through_{index}"
