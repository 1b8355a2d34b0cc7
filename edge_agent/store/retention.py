"""Keeps the buffer within its quotas and its file system: dropped records leave a tombstone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.errors import StoreDamaged
from edge_agent.store.batch_rows import (
    BatchOwner,
    StoredBatch,
    TransactionTotals,
    batch_row_id,
    clear_batch,
    first_of,
    merge_tombstones,
    ordinal_of,
    read_batch,
    remove_dead_letter_mark,
    replace_batch,
)
from edge_agent.store.buffer import Buffer
from edge_agent.store.connection import Connection
from edge_agent.store.database import Depth
from waybill.record import (
    Batch,
    Header,
    IntervalSet,
    Tombstone,
    WireError,
    read_header,
)


class EvictionStep(NamedTuple):
    """Drop the oldest records of a class until `size` bytes are free. `reason`: for the tombstones."""

    class_index: int
    size: int
    reason: str


def next_eviction_step(
    buffer: BufferSettings, classes: Sequence[ClassSettings], depth: Mapping[int, Depth], free: int
) -> EvictionStep | None:
    """The next step, or None when all is within its bounds. `free`: bytes that the buffer can still grow by."""
    sizes = {index: one.size for index, one in depth.items() if one.records > 0}
    for index, policy in enumerate(classes):
        if policy.max_bytes is not None and sizes.get(index, 0) > policy.max_bytes:
            return EvictionStep(index, sizes[index] - policy.max_bytes, "quota")
    if not sizes:
        # Only tombstones are left. They are never dropped, because they declare the loss.
        return None
    # Classes stand in order of priority, so the highest index is the least important.
    last = max(sizes)
    if free < buffer.free_space_floor_bytes:
        return EvictionStep(last, buffer.free_space_floor_bytes - free, "space")
    excess = sum(one.size for one in depth.values()) - buffer.max_bytes
    return EvictionStep(last, excess, "quota") if excess > 0 else None


log = structlog.get_logger("edge_agent.store")

ROWS_AT_ONCE = 64
MAX_STEPS = 100
REFUSED = "refused"
"""The tombstone reason of dropped dead letters."""
_ROW = "id, last, class, records, size"


def free_space(buffer: Buffer) -> int:
    """Bytes by which the buffer can still grow: free on the file system and unused inside its file."""
    system = os.statvfs(buffer.path.parent)
    return system.f_bavail * system.f_frsize + buffer.database.free_pages_bytes()


class BufferRetention:
    """`space`: the bytes by which the buffer can still grow."""

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

    def enforce(self) -> int:
        """Brings the buffer back within its bounds; returns the number of steps. Raises StoreError."""
        for step in range(MAX_STEPS):
            free = self._space(self._buffer)
            # Before any record: everything readable was copied from those files.
            if free < self._settings.free_space_floor_bytes and self._buffer.delete_damaged():
                continue
            eviction = next_eviction_step(self._settings, self._classes, self._buffer.depth(), free)
            if eviction is None or self._evict(eviction) == 0:
                return step
        return MAX_STEPS

    def _evict(self, eviction: EvictionStep) -> int:
        freed = 0

        def change(connection: Connection, changes: TransactionTotals) -> None:
            nonlocal freed
            for row in oldest_rows(connection, eviction.class_index, ROWS_AT_ONCE):
                if freed >= eviction.size:
                    break
                freed += drop_batch(connection, row, self._buffer.database.owner_of(row.id), eviction.reason, changes)

        self._buffer.edit(change)
        if freed:
            self.dropped_at_s = self._now_s()
        log.warning("dropped records", reason=eviction.reason, class_index=eviction.class_index, bytes=freed)
        return freed


def _batch_of(row: tuple[int, int, int, int, int]) -> StoredBatch:
    identity, last, class_index, records, size = row
    return StoredBatch(identity, 0, last, class_index, records, size, 0)


def oldest_rows(connection: Connection, class_index: int, limit: int) -> list[StoredBatch]:
    rows = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE class = ? AND records > 0 ORDER BY id LIMIT ?",  # noqa: S608
        (class_index, limit),
    ).fetchall()
    return [_batch_of(row) for row in rows]


def drop_batch(
    connection: Connection, row: StoredBatch, owner: BatchOwner, reason: str, changes: TransactionTotals
) -> int:
    """Replaces a batch's records with a tombstone, merged with the one before it; returns the bytes freed."""
    if connection.execute("SELECT 1 FROM dead_letter_batches WHERE id = ?", (row.id,)).fetchone():
        reason = REFUSED
        remove_dead_letter_mark(connection, row.id)
    declared = _declared(connection, row, owner, reason)
    # The known head of an ended epoch may be too low, and a batch above its head is refused.
    batch = Batch(owner.device, owner.epoch, max(owner.head, row.last), (), declared)
    records, size = replace_batch(connection, row.id, batch)
    changes.count_removed(row.class_index, row.records - records, row.size - size)
    changes.counts[f"lost_{reason}"] += row.records
    freed = row.size - size
    before = _tombstones_before(connection, row.id)
    if before and before.last + 1 == first_of(row.id) and ordinal_of(before.id) == ordinal_of(row.id):
        freed += _join(connection, before, replace(row, records=0, size=size), owner, changes)
    return freed


def _declared(connection: Connection, row: StoredBatch, owner: BatchOwner, reason: str) -> tuple[Tombstone, ...]:
    (data,) = connection.execute("SELECT batch FROM batches WHERE id = ?", (row.id,)).fetchone()
    try:
        header = read_header(data)
    except WireError:
        whole = IntervalSet([(first_of(row.id), row.last)])
        header = Header(owner.device, owner.epoch, owner.head, whole)
    # One reason for all: several tombstones could need more space than the records.
    return tuple(Tombstone(first, last, reason) for first, last in header.seqs.ranges)


def _tombstones_before(connection: Connection, identity: int) -> StoredBatch | None:
    """The waiting batch before this one, if it holds only tombstones."""
    row = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE id < ? AND id > ? AND batch IS NOT NULL ORDER BY id DESC LIMIT 1",  # noqa: S608
        (identity, batch_row_id(ordinal_of(identity), 0)),
    ).fetchone()
    return _batch_of(row) if row and row[3] == 0 else None


def _join(
    connection: Connection, left: StoredBatch, right: StoredBatch, owner: BatchOwner, changes: TransactionTotals
) -> int:
    try:
        both = read_batch(connection, left.id).tombstones + read_batch(connection, right.id).tombstones
    except StoreDamaged:
        return 0
    batch = Batch(owner.device, owner.epoch, max(owner.head, right.last), (), merge_tombstones(both))
    _, size = replace_batch(connection, left.id, batch)
    connection.execute("UPDATE batches SET last = ? WHERE id = ?", (right.last, left.id))
    clear_batch(connection, right.id, right.last, changes)
    changes.count_removed(left.class_index, 0, left.size - size)
    changes.count_removed(right.class_index, 0, right.size)
    return left.size + right.size - size
