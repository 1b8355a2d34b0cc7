"""Taking acknowledged records out of the buffer, inside the caller's transaction."""

from __future__ import annotations

from typing import Any

from edge_agent.errors import StoreDamaged
from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.stored_batch import batch_row_id, first_of
from telemetry import Batch, IntervalSet, WireError, decode, encode


def prune_range(connection: Connection, ordinal: int, first: int, last: int, changes: Changes) -> None:
    """Clears the batches that the range covers and trims those that it covers in part."""
    for identity, row_last, class_index, records, lost, size in _overlapping(connection, ordinal, first, last):
        if first <= first_of(identity) and row_last <= last:
            clear_batch(connection, identity, row_last, changes)
            changes.count_removed(class_index, records, size)
            changes.acknowledged += records + lost
        else:
            _trim(connection, identity, class_index, IntervalSet([(first, last)]), changes)


def _overlapping(connection: Connection, ordinal: int, first: int, last: int) -> list[Any]:
    before = connection.execute(
        "SELECT id, last FROM batches WHERE id <= ? AND id >= ? AND batch IS NOT NULL ORDER BY id DESC LIMIT 1",
        (batch_row_id(ordinal, first), batch_row_id(ordinal, 0)),
    ).fetchone()
    low = before[0] if before and before[1] >= first else batch_row_id(ordinal, first)
    return connection.execute(
        "SELECT id, last, class, records, lost, size FROM batches"
        " WHERE id BETWEEN ? AND ? AND batch IS NOT NULL ORDER BY id",
        (low, batch_row_id(ordinal, last)),
    ).fetchall()


def clear_batch(connection: Connection, identity: int, last: int, changes: Changes) -> None:
    """Takes the batch out of a row (id, last); the row still remembers its arrivals."""
    connection.execute("UPDATE batches SET batch = NULL, records = 0, lost = 0, size = 0 WHERE id = ?", (identity,))
    remove_dead_letter_mark(connection, identity)
    changes.acked_rows.append((identity, last))


def remove_dead_letter_mark(connection: Connection, identity: int) -> None:
    """A dead-lettered batch is gone, or another one now."""
    connection.execute("DELETE FROM dead_letter_batches WHERE id = ?", (identity,))


def _trim(connection: Connection, identity: int, class_index: int, acknowledged: IntervalSet, changes: Changes) -> None:
    batch = stored_batch(connection, identity)
    last, *before = connection.execute("SELECT last, records, size FROM batches WHERE id = ?", (identity,)).fetchone()
    changes.acknowledged += (batch.header.seqs & acknowledged).count
    missing = without(batch, acknowledged)
    if missing is None:
        clear_batch(connection, identity, last, changes)
        changes.count_removed(class_index, *before)
    else:
        records, size = replace_batch(connection, identity, missing)
        changes.count_removed(class_index, before[0] - records, before[1] - size)


def stored_batch(connection: Connection, identity: int) -> Batch:
    """The decoded batch of a row. Raises StoreDamaged."""
    (data,) = connection.execute("SELECT batch FROM batches WHERE id = ?", (identity,)).fetchone()
    try:
        return decode(data)
    except WireError as error:
        raise StoreDamaged(f"batch {identity}: {error}") from error


def replace_batch(connection: Connection, identity: int, batch: Batch) -> tuple[int, int]:
    """Replaces a stored batch; its (records, size)."""
    data = encode(batch)
    records, lost = len(batch.records), batch.header.lost_seqs.count
    connection.execute(
        "UPDATE batches SET batch = ?, records = ?, lost = ?, size = ? WHERE id = ?",
        (data, records, lost, len(data), identity),
    )
    return records, len(data)


def without(batch: Batch, seqs: IntervalSet) -> Batch | None:
    """The batch without these record ids; None when nothing is left."""
    records = tuple(record for record in batch.records if record.seq not in seqs)
    tombstones = tuple(
        tombstone._replace(first=first, last=last)
        for tombstone in batch.tombstones
        for first, last in (IntervalSet([tombstone[:2]]) - seqs).ranges
    )
    if not records and not tombstones:
        return None
    return Batch(batch.device, batch.epoch, batch.head, records, tombstones)
