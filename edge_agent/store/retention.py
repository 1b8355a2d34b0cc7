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
from edge_agent.store.eviction import Row, downsample_batch, drop_batch, oldest_rows
from edge_agent.store.eviction_policy import EvictionStep, StorageUsage, next_eviction_step

log = structlog.get_logger("edge_agent.store")

ROWS_AT_ONCE = 64
_NEXT_STAMP = (
    "SELECT wall_ms FROM batches WHERE id >= ? AND class = ? AND records > 0 AND wall_ms >= ? ORDER BY id LIMIT 1"
)
MAX_STEPS = 100
AGE_CLOCK = "age_clock_s"
"""A counter: the time by which age was last judged."""


def free_space(buffer: Buffer) -> int:
    """Bytes that the buffer can still grow by: on the file system and inside its own file."""
    system = os.statvfs(buffer.path.parent)
    return system.f_bavail * system.f_frsize + buffer.free_pages_bytes()


class BufferRetention:
    """Downsamples and drops, and leaves tombstones. `space`: the bytes that a buffer can still grow by."""

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
        self._age_clock = AgeClock(buffer.counter(AGE_CLOCK) * 1000)

    def enforce(self) -> int:
        """Brings the buffer back within its bounds; the steps it took. Raises StoreError."""
        for step in range(MAX_STEPS):
            usage = self._usage()
            if usage.free < self._settings.free_space_floor_bytes and self._buffer.delete_damaged():
                continue
            eviction = next_eviction_step(self._settings, self._classes, usage)
            if eviction is None:
                return step
            if self._evict(eviction) == 0:
                log.warning("nothing more can be evicted", action=eviction.action, class_index=eviction.class_index)
                return step
        return MAX_STEPS

    def expire(self, wall_ms: int, monotonic_ms: int) -> int:
        """Drops what is too old by a clock that does not jump; the number of batches. Raises StoreError."""
        now_ms = self._age_clock.advance(wall_ms, monotonic_ms)
        self._buffer.count(AGE_CLOCK, now_ms // 1000 - self._buffer.counter(AGE_CLOCK), lazily=True)
        dropped = 0
        for index in range(len(self._classes)):
            age_s = min(self._classes[index].max_age_s or self._settings.max_age_s, self._settings.max_age_s)
            dropped += self._expire_class(index, int(now_ms - age_s * 1000))
        return dropped

    def _usage(self) -> StorageUsage:
        depth = self._buffer.depth()
        sizes = {index: one.size for index, one in depth.items() if one.records > 0}
        tombstones = sum(one.size for one in depth.values() if one.records == 0)
        thinnable = frozenset(
            index for index in sizes if self._keep_one_in(index) > 1 and self._has_more_to_downsample(index)
        )
        return StorageUsage(sizes, tombstones, thinnable, self._space(self._buffer))

    def _keep_one_in(self, index: int) -> int:
        return self._classes[index].downsample_keep_one_in if index < len(self._classes) else 1

    def _has_more_to_downsample(self, index: int) -> bool:
        return bool(self._buffer.read_after(self._buffer.counter(_downsampled_through(index)), index, 1))

    def _evict(self, eviction: EvictionStep) -> int:
        freed = 0

        def change(connection: Connection, changes: Changes) -> None:
            nonlocal freed
            after = (
                self._buffer.counter(_downsampled_through(eviction.class_index))
                if eviction.action == "downsample"
                else 0
            )
            for row in oldest_rows(connection, eviction.class_index, after, ROWS_AT_ONCE):
                if freed >= eviction.size:
                    break
                freed += self._evict_row(connection, eviction, row, changes)

        self._buffer.edit(change)
        if eviction.action == "drop" and freed:
            self.dropped_at_s = self._now_s()
        log.warning("evicted records", action=eviction.action, class_index=eviction.class_index, bytes=freed)
        return freed

    def _evict_row(self, connection: Connection, eviction: EvictionStep, row: Row, changes: Changes) -> int:
        if eviction.action == "drop":
            return drop_batch(connection, row, self._buffer.owner_of(row.id), eviction.reason, changes)
        name = _downsampled_through(eviction.class_index)
        changes.counts[name] += row.id - self._buffer.counter(name) - changes.counts[name]
        # Downsampling that frees nothing is progress too: the cursor moves on.
        return max(1, downsample_batch(connection, row, self._keep_one_in(eviction.class_index), changes))

    def _expire_class(self, index: int, before_ms: int) -> int:
        dropped = 0

        def change(connection: Connection, changes: Changes) -> None:
            nonlocal dropped
            for row in oldest_rows(connection, index, 0, ROWS_AT_ONCE):
                if _known_by_ms(connection.execute(_NEXT_STAMP, (row.id, index, SET_CLOCK_MS)).fetchone()) >= before_ms:
                    break
                drop_batch(connection, row, self._buffer.owner_of(row.id), "age", changes)
                dropped += 1

        if _known_by_ms(self._buffer.query_one(_NEXT_STAMP, (0, index, SET_CLOCK_MS))) < before_ms:
            self._buffer.edit(change)
        return dropped


def _known_by_ms(row: tuple[int] | None) -> float:
    """A batch is at least as old as the first one from it on that a set clock stamped; none: nothing is known."""
    return row[0] if row else float("inf")


def _downsampled_through(index: int) -> str:
    return f"downsampled_through_{index}"
