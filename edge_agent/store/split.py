"""Keeping what the other side refuses apart from what it may take, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable

from edge_agent.store.changes import Changes
from edge_agent.store.connection import Connection
from edge_agent.store.prune import replace_batch, stored_batch, without
from edge_agent.store.stored_batch import batch_row_id, first_of, ordinal_of
from telemetry import Batch, IntervalSet, encode


def split_or_dead_letter(connection: Connection, changes: Changes, identities: Iterable[int], reason: str) -> list[int]:
    """Halves batches of several records and dead-letters those of one; the halves' row ids. Raises StoreDamaged."""
    halves: list[int] = []
    for identity in identities:
        row = connection.execute(
            "SELECT records FROM batches WHERE id = ? AND batch IS NOT NULL", (identity,)
        ).fetchone()
        if row is None:
            continue
        if row[0] > 1:
            halves += [identity, _halved(connection, changes, identity)]
        else:
            connection.execute("INSERT OR REPLACE INTO dead_letter_batches VALUES (?, ?)", (identity, reason))
            changes.counts["dead_letter"] += 1
    return halves


def _halved(connection: Connection, changes: Changes, identity: int) -> int:
    """Moves the second half of a batch's records to a row of its own; its id. The first keeps all arrivals."""
    batch = stored_batch(connection, identity)
    last, class_index, size = connection.execute(
        "SELECT last, class, size FROM batches WHERE id = ?", (identity,)
    ).fetchone()
    middle = batch.records[len(batch.records) // 2].seq
    former, latter = (
        _part(batch, IntervalSet([bounds])) for bounds in ((middle, last), (first_of(identity), middle - 1))
    )
    _, former_size = replace_batch(connection, identity, former)
    connection.execute("UPDATE batches SET last = ? WHERE id = ?", (middle - 1, identity))
    data, second = encode(latter), batch_row_id(ordinal_of(identity), middle)
    connection.execute(
        "INSERT INTO batches (id, last, class, records, lost, size, wall_ms, boot, sent, batch)"
        " SELECT ?, ?, class, ?, ?, ?, wall_ms, boot, sent, ? FROM batches WHERE id = ?",
        (second, last, len(latter.records), latter.header.lost_seqs.count, len(data), data, identity),
    )
    changes.count_removed(class_index, 0, size - former_size - len(data))
    return second


def _part(batch: Batch, other: IntervalSet) -> Batch:
    part = without(batch, other)
    assert part is not None, "either half has a record"
    return part
