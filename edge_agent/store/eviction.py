"""Giving records up, inside the caller's transaction: each leaves a tombstone where it was."""

from __future__ import annotations

from typing import NamedTuple

from edge_agent.drain.merge import joined
from edge_agent.errors import StoreDamaged
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.downsampling import downsampled
from edge_agent.store.prune import clear_batch, remove_dead_letter_mark, replace_batch, stored_batch
from edge_agent.store.stored_batch import batch_row_id, first_of, ordinal_of
from telemetry import Batch, Header, IntervalSet, Tombstone, WireError, encode, read_header

RUN_LENGTHS = (1, 2, 4, 8, 16, 32)
REFUSED = "refused"
"""Why records are lost that nobody wanted, whatever they had to make room for."""
MAX_KEPT_SHARE = 0.75
"""Downsampling must make a batch smaller by a quarter at least."""


class Row(NamedTuple):
    """A stored batch as eviction sees it."""

    id: int
    last: int
    class_index: int
    records: int
    lost: int
    size: int


class BatchOwner(NamedTuple):
    """Whose batch it is: for a batch that has to be written anew though it cannot be read."""

    device: str
    epoch: int
    head: int


_ROW = "id, last, class, records, lost, size"


def row_of(connection: Connection, identity: int) -> Row | None:
    """The row of a batch that still waits."""
    found = connection.execute(f"SELECT {_ROW} FROM batches WHERE id = ? AND batch IS NOT NULL", (identity,)).fetchone()  # noqa: S608
    return Row(*found) if found else None


def oldest_rows(connection: Connection, class_index: int, after: int, limit: int) -> list[Row]:
    """The oldest batches of a class that hold records, beyond an id."""
    rows = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE id > ? AND class = ? AND records > 0 ORDER BY id LIMIT ?",  # noqa: S608
        (after, class_index, limit),
    ).fetchall()
    return [Row(*row) for row in rows]


def drop_batch(connection: Connection, row: Row, owner: BatchOwner, reason: str, changes: Changes) -> int:
    """Puts a tombstone in the place of a batch's records, joined with the one before it, if any; the bytes freed."""
    if connection.execute("SELECT 1 FROM dead_letter_batches WHERE id = ?", (row.id,)).fetchone():
        reason = REFUSED
        remove_dead_letter_mark(connection, row.id)
    declared = _declared(connection, row, owner, reason)
    batch = Batch(owner.device, owner.epoch, max(owner.head, row.last), (), declared)
    records, size = replace_batch(connection, row.id, batch)
    changes.count_removed(row.class_index, row.records - records, row.size - size)
    changes.counts[f"lost_{reason}"] += row.records
    freed = row.size - size
    before = _tombstones_before(connection, row.id)
    if before and before.last + 1 == first_of(row.id) and ordinal_of(before.id) == ordinal_of(row.id):
        freed += _join(connection, before, Row(row.id, row.last, row.class_index, 0, row.last, size), owner, changes)
    return freed


def downsample_batch(connection: Connection, row: Row, keep_one_in: int, changes: Changes) -> int:
    """Leaves some of a batch's records out, as evenly as pays; the bytes that are free by it, 0 if nothing pays."""
    batch = stored_batch(connection, row.id)
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
    found = connection.execute(
        f"SELECT {_ROW} FROM batches WHERE id < ? AND id > ? AND batch IS NOT NULL ORDER BY id DESC LIMIT 1",  # noqa: S608
        (identity, batch_row_id(ordinal_of(identity), 0)),
    ).fetchone()
    return Row(*found) if found and found[3] == 0 else None


def _join(connection: Connection, left: Row, right: Row, owner: BatchOwner, changes: Changes) -> int:
    try:
        both = stored_batch(connection, left.id).tombstones + stored_batch(connection, right.id).tombstones
    except StoreDamaged:
        return 0
    batch = Batch(owner.device, owner.epoch, max(owner.head, right.last), (), joined(both))
    _, size = replace_batch(connection, left.id, batch)
    connection.execute("UPDATE batches SET last = ? WHERE id = ?", (right.last, left.id))
    clear_batch(connection, right.id, right.last, changes)
    changes.count_removed(left.class_index, 0, left.size - size)
    changes.count_removed(right.class_index, 0, right.size)
    return left.size + right.size - size
