"""Keeps the buffer within its quotas, its age and its file system: what is given up leaves a tombstone in its place."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog

from edge_agent.clocks import SET_CLOCK_MS, AgeClock
from edge_agent.config import BufferSettings, ClassSettings
from edge_agent.errors import StoreDamaged
from edge_agent.store.batch_rows import (
    BatchOwner,
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
from waybill.record import (
    Batch,
    Body,
    Header,
    IntervalSet,
    Position,
    Raw,
    Signal,
    Tombstone,
    WireError,
    encode,
    read_header,
)

# What to drop when space or age runs out, step by step. Pure: handed totals.


@dataclass(frozen=True, slots=True)
class EvictionStep:
    """`downsample` or `drop` the oldest of a class until `size` bytes are free. `reason`: of the tombstones."""

    action: Literal["downsample", "drop"]
    class_index: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What there is.

    `sizes`: bytes of each class that has records. `tombstones`: bytes of the classes that have none left.
    `downsampleable`: classes that have more to downsample. `free`: bytes that the buffer can still grow by.
    """

    sizes: Mapping[int, int]
    tombstones: int
    downsampleable: frozenset[int]
    free: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.sizes.values()) + self.tombstones


def next_eviction_step(
    buffer: BufferSettings, classes: Sequence[ClassSettings], usage: StorageUsage
) -> EvictionStep | None:
    """The next step, or None when all is within its bounds."""
    return (
        _own_quota(buffer, classes, usage)
        or _drop_for_floor(buffer, usage)
        or _whole_quota(buffer, usage)
        or _downsample_early(buffer, usage)
    )


def _own_quota(buffer: BufferSettings, classes: Sequence[ClassSettings], usage: StorageUsage) -> EvictionStep | None:
    for index, policy in enumerate(classes):
        size = usage.sizes.get(index, 0)
        if policy.max_bytes is None or size == 0:
            continue
        if index in usage.downsampleable and size > buffer.downsample_above * policy.max_bytes:
            return EvictionStep(
                "downsample", index, int(size - buffer.downsample_above * policy.max_bytes), "downsampled"
            )
        if size > policy.max_bytes:
            return EvictionStep("drop", index, size - policy.max_bytes, "quota")
    return None


def _drop_for_floor(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    if usage.free >= buffer.free_space_floor_bytes:
        return None
    return _last_class_first(usage, buffer.free_space_floor_bytes - usage.free, "space")


def _whole_quota(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    excess = usage.total - buffer.max_bytes
    return _last_class_first(usage, excess, "quota") if excess > 0 else None


def _downsample_early(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    excess = int(usage.total - buffer.downsample_above * buffer.max_bytes)
    return (
        EvictionStep("downsample", max(usage.downsampleable), excess, "downsampled")
        if excess > 0 and usage.downsampleable
        else None
    )


def _last_class_first(usage: StorageUsage, size: int, reason: str) -> EvictionStep | None:
    # Classes stand in order of priority, so the highest index is the least important.
    if usage.downsampleable:
        return EvictionStep("downsample", max(usage.downsampleable), size, "downsampled")
    # Tombstones are not given up: without them nobody would know of the loss.
    return EvictionStep("drop", max(usage.sizes), size, reason) if usage.sizes else None


log = structlog.get_logger("edge_agent.store")

ROWS_AT_ONCE = 64
_NEXT_STAMP = (
    "SELECT wall_ms FROM batches WHERE id >= ? AND class = ? AND records > 0 AND wall_ms >= ? ORDER BY id LIMIT 1"
)
MAX_STEPS = 100
AGE_CLOCK = "age_clock_s"
"""A counter: the time by which age was last judged."""
RUN_LENGTHS = (1, 2, 4, 8, 16, 32)
REFUSED = "refused"
"""Why records are lost that nobody wanted, whatever they had to make room for."""
MAX_KEPT_SHARE = 0.75
"""Downsampling must make a batch smaller by a quarter at least."""
_ROW = "id, last, class, records, lost, size"


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
        self._age_clock = AgeClock(buffer.counters.value(AGE_CLOCK) * 1000)

    def enforce(self) -> int:
        """Brings the buffer back within its bounds; the steps it took. Raises StoreError."""
        for step in range(MAX_STEPS):
            usage = self._usage()
            # Before any record: what can be read of those files was taken over.
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
        self._buffer.counters.add(AGE_CLOCK, now_ms // 1000 - self._buffer.counters.value(AGE_CLOCK), lazily=True)
        dropped = 0
        for index in range(len(self._classes)):
            age_s = min(self._classes[index].max_age_s or self._settings.max_age_s, self._settings.max_age_s)
            dropped += self._expire_class(index, int(now_ms - age_s * 1000))
        return dropped

    def _usage(self) -> StorageUsage:
        depth = self._buffer.depth()
        sizes = {index: one.size for index, one in depth.items() if one.records > 0}
        tombstones = sum(one.size for one in depth.values() if one.records == 0)
        downsampleable = frozenset(
            index for index in sizes if self._keep_one_in(index) > 1 and self._has_more_to_downsample(index)
        )
        return StorageUsage(sizes, tombstones, downsampleable, self._space(self._buffer))

    def _keep_one_in(self, index: int) -> int:
        return self._classes[index].downsample_keep_one_in if index < len(self._classes) else 1

    def _has_more_to_downsample(self, index: int) -> bool:
        return bool(self._buffer.read_after(self._buffer.counters.value(_downsampled_through(index)), index, 1))

    def _evict(self, eviction: EvictionStep) -> int:
        freed = 0

        def change(connection: Connection, changes: TransactionTotals) -> None:
            nonlocal freed
            after = (
                self._buffer.counters.value(_downsampled_through(eviction.class_index))
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

    def _evict_row(self, connection: Connection, eviction: EvictionStep, row: Row, changes: TransactionTotals) -> int:
        if eviction.action == "drop":
            return drop_batch(connection, row, self._buffer.owner_of(row.id), eviction.reason, changes)
        name = _downsampled_through(eviction.class_index)
        changes.counts[name] += row.id - self._buffer.counters.value(name) - changes.counts[name]
        # Downsampling that frees nothing is progress too: the cursor moves on.
        return max(1, downsample_batch(connection, row, self._keep_one_in(eviction.class_index), changes))

    def _expire_class(self, index: int, before_ms: int) -> int:
        dropped = 0

        def change(connection: Connection, changes: TransactionTotals) -> None:
            nonlocal dropped
            for row in oldest_rows(connection, index, 0, ROWS_AT_ONCE):
                if _known_by_ms(connection.execute(_NEXT_STAMP, (row.id, index, SET_CLOCK_MS)).fetchone()) >= before_ms:
                    break
                drop_batch(connection, row, self._buffer.owner_of(row.id), "age", changes)
                dropped += 1

        # Asked first: an edit also writes what was acknowledged and counted, and that each minute for each class.
        if _known_by_ms(self._buffer.query_one(_NEXT_STAMP, (0, index, SET_CLOCK_MS))) < before_ms:
            self._buffer.edit(change)
        return dropped


def _known_by_ms(row: tuple[int] | None) -> float:
    """A batch is at least as old as the first one from it on that a set clock stamped; none: nothing is known."""
    return row[0] if row else float("inf")


def _downsampled_through(index: int) -> str:
    return f"downsampled_through_{index}"


class Row(NamedTuple):
    """A stored batch as eviction sees it."""

    id: int
    last: int
    class_index: int
    records: int
    lost: int
    size: int


def oldest_rows(connection: Connection, class_index: int, after: int, limit: int) -> list[Row]:
    """The oldest batches of a class that hold records, beyond an id."""
    rows = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE id > ? AND class = ? AND records > 0 ORDER BY id LIMIT ?",  # noqa: S608
        (after, class_index, limit),
    ).fetchall()
    return [Row(*row) for row in rows]


def drop_batch(connection: Connection, row: Row, owner: BatchOwner, reason: str, changes: TransactionTotals) -> int:
    """Puts a tombstone in the place of a batch's records, joined with the one before it, if any; the bytes freed."""
    if connection.execute("SELECT 1 FROM dead_letter_batches WHERE id = ?", (row.id,)).fetchone():
        reason = REFUSED
        remove_dead_letter_mark(connection, row.id)
    declared = _declared(connection, row, owner, reason)
    # The head of an epoch that has ended may be known too low, and a batch beyond its head is refused.
    batch = Batch(owner.device, owner.epoch, max(owner.head, row.last), (), declared)
    records, size = replace_batch(connection, row.id, batch)
    changes.count_removed(row.class_index, row.records - records, row.size - size)
    changes.counts[f"lost_{reason}"] += row.records
    freed = row.size - size
    before = _tombstones_before(connection, row.id)
    if before and before.last + 1 == first_of(row.id) and ordinal_of(before.id) == ordinal_of(row.id):
        freed += _join(connection, before, Row(row.id, row.last, row.class_index, 0, row.last, size), owner, changes)
    return freed


def downsample_batch(connection: Connection, row: Row, keep_one_in: int, changes: TransactionTotals) -> int:
    """Leaves some of a batch's records out, as evenly as pays; the bytes that are free by it, 0 if nothing pays."""
    batch = read_batch(connection, row.id)
    tries = (downsampled(batch, keep_one_in, run) for run in RUN_LENGTHS)
    fewer = next((one for one in tries if len(encode(one)) <= row.size * MAX_KEPT_SHARE), None)
    if fewer is None:
        return 0
    records, size = replace_batch(connection, row.id, fewer)
    changes.count_removed(row.class_index, row.records - records, row.size - size)
    changes.counts["lost_downsampled"] += row.records - records
    return row.size - size


def _declared(connection: Connection, row: Row, owner: BatchOwner, reason: str) -> tuple[Tombstone, ...]:
    (data,) = connection.execute("SELECT batch FROM batches WHERE id = ?", (row.id,)).fetchone()
    try:
        header = read_header(data)
    except WireError:
        whole = IntervalSet([(first_of(row.id), row.last)])
        header = Header(owner.device, owner.epoch, owner.head, whole)
    # One reason for all of it: tombstones of several reasons would take more room than the records did.
    return tuple(Tombstone(first, last, reason) for first, last in header.seqs.ranges)


def _tombstones_before(connection: Connection, identity: int) -> Row | None:
    """The waiting batch before, if it holds only tombstones."""
    row = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE id < ? AND id > ? AND batch IS NOT NULL ORDER BY id DESC LIMIT 1",  # noqa: S608
        (identity, batch_row_id(ordinal_of(identity), 0)),
    ).fetchone()
    return Row(*row) if row and row[3] == 0 else None


def _join(connection: Connection, left: Row, right: Row, owner: BatchOwner, changes: TransactionTotals) -> int:
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


def downsampled(batch: Batch, keep_one_in: int, run: int = 1, reason: str = "downsampled") -> Batch:
    """The batch with one in `keep_one_in` of the records of each series; the others become tombstones.

    A series is what is measured again and again: positions, one signal, one raw topic. Events and canaries stay. The
    first record of a series stays, so that what came seldom is still there. Records are kept and left out in runs of
    `run` and its multiples: a tombstone costs some 20 bytes, more than a record, so short runs may save nothing.
    """
    seen: Counter[tuple[type[Body], str]] = Counter()
    kept, left_out = [], []
    for record in batch.records:
        series = _series(record.body)
        if series is None or seen[series] // run % keep_one_in == 0:
            kept.append(record)
        else:
            left_out.append(record.seq)
        if series is not None:
            seen[series] += 1
    lost = [Tombstone(first, last, reason) for first, last in IntervalSet.of(left_out).ranges]
    return Batch(batch.device, batch.epoch, batch.head, tuple(kept), merge_tombstones([*batch.tombstones, *lost]))


def _series(body: Body) -> tuple[type[Body], str] | None:
    if isinstance(body, Position):
        return Position, ""
    if isinstance(body, Signal):
        return Signal, body.path
    if isinstance(body, Raw):
        return Raw, body.topic
    return None
