"""Taking acknowledged names out of the buffer, inside the caller's transaction."""

from __future__ import annotations

from typing import Any

from edge_agent.errors import StoreDamaged
from edge_agent.store.block import block_id, first_of
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from telemetry import Batch, IntervalSet, WireError, decode, encode


def settle_range(connection: Connection, ordinal: int, first: int, last: int, changes: Changes) -> None:
    """Empties the blocks that the range covers and trims those it covers in part."""
    for identity, row_last, class_index, records, lost, size in _overlapping(connection, ordinal, first, last):
        if first <= first_of(identity) and row_last <= last:
            empty_block(connection, identity, row_last, changes)
            changes.add(class_index, records, size)
            changes.acknowledged += records + lost
        else:
            _trim(connection, identity, class_index, IntervalSet([(first, last)]), changes)


def _overlapping(connection: Connection, ordinal: int, first: int, last: int) -> list[Any]:
    before = connection.execute(
        "SELECT id, last FROM blocks WHERE id <= ? AND id >= ? AND batch IS NOT NULL ORDER BY id DESC LIMIT 1",
        (block_id(ordinal, first), block_id(ordinal, 0)),
    ).fetchone()
    low = before[0] if before and before[1] >= first else block_id(ordinal, first)
    return connection.execute(
        "SELECT id, last, class, records, lost, size FROM blocks"
        " WHERE id BETWEEN ? AND ? AND batch IS NOT NULL ORDER BY id",
        (low, block_id(ordinal, last)),
    ).fetchall()


def empty_block(connection: Connection, identity: int, last: int, changes: Changes) -> None:
    """Takes the batch out of a row (id, last); the row still remembers its arrivals."""
    connection.execute("UPDATE blocks SET batch = NULL, records = 0, lost = 0, size = 0 WHERE id = ?", (identity,))
    no_longer_aside(connection, identity)
    changes.hollow.append((identity, last))


def no_longer_aside(connection: Connection, identity: int) -> None:
    """A block that was set aside is gone, or another one now."""
    connection.execute("DELETE FROM aside WHERE id = ?", (identity,))


def _trim(connection: Connection, identity: int, class_index: int, acknowledged: IntervalSet, changes: Changes) -> None:
    batch = stored_batch(connection, identity)
    last, *before = connection.execute("SELECT last, records, size FROM blocks WHERE id = ?", (identity,)).fetchone()
    changes.acknowledged += (batch.header.accounted & acknowledged).count
    missing = without(batch, acknowledged)
    if missing is None:
        empty_block(connection, identity, last, changes)
        changes.add(class_index, *before)
    else:
        records, size = replace_batch(connection, identity, missing)
        changes.add(class_index, before[0] - records, before[1] - size)


def stored_batch(connection: Connection, identity: int) -> Batch:
    """The batch of a block. Raises StoreDamaged."""
    (data,) = connection.execute("SELECT batch FROM blocks WHERE id = ?", (identity,)).fetchone()
    try:
        return decode(data)
    except WireError as error:
        raise StoreDamaged(f"block {identity}: {error}") from error


def replace_batch(connection: Connection, identity: int, batch: Batch) -> tuple[int, int]:
    """Puts another batch in the place of a block's; its (records, size)."""
    data = encode(batch)
    records, lost = len(batch.records), batch.header.declared.count
    connection.execute(
        "UPDATE blocks SET batch = ?, records = ?, lost = ?, size = ? WHERE id = ?",
        (data, records, lost, len(data), identity),
    )
    return records, len(data)


def without(batch: Batch, names: IntervalSet) -> Batch | None:
    """The batch without these names; None when nothing is left."""
    records = tuple(record for record in batch.records if record.seq not in names)
    tombstones = tuple(
        tombstone._replace(first=first, last=last)
        for tombstone in batch.tombstones
        for first, last in (IntervalSet([tombstone[:2]]) - names).ranges
    )
    if not records and not tombstones:
        return None
    return Batch(batch.device, batch.epoch, batch.head, records, tombstones)
