"""The rows of the buffer, an encoded batch of one class in each: what they are, and how a transaction changes them.

A row's id is the ordinal of its epoch, then its first sequence number. So rows sort by the order in which their records
got their ids, and a range of record ids is a range of row ids. A row that is not whole any more is written anew; one
whose batch is gone remembers its arrivals until it is expired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from edge_agent.errors import StoreDamaged
from edge_agent.store.arrivals import Arrival, unpack_arrivals
from edge_agent.store.connection import Connection
from waybill.record import Batch, IntervalSet, Tombstone, WireError, decode, encode

# SQLite's row ids have 63 bits: 17 trillion records of a life, and 19 bits for the number of lives.
SEQ_BITS = 44
SEQ_MASK = (1 << SEQ_BITS) - 1


def batch_row_id(ordinal: int, first: int) -> int:
    """The id of the batch of the epoch with this ordinal whose records begin at `first`."""
    return ordinal << SEQ_BITS | first


def ordinal_of(identity: int) -> int:
    """The ordinal of the epoch of a batch."""
    return identity >> SEQ_BITS


def first_of(identity: int) -> int:
    """The first sequence number of a batch."""
    return identity & SEQ_MASK


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A stored batch. `size`: bytes of its encoded form. `wall_ms`: when it was committed, by the device's clock."""

    id: int
    epoch: int
    last: int
    class_index: int
    records: int
    size: int
    wall_ms: int
    data: bytes = b""

    @property
    def first(self) -> int:
        """The first sequence number that it covers."""
        return first_of(self.id)


class BatchOwner(NamedTuple):
    """Whose a batch is, for one that has to be written anew though it cannot be read."""

    device: str
    epoch: int
    head: int


@dataclass(slots=True)
class TransactionTotals:
    """What a transaction did to the totals, applied once it is known to be stored.

    Rows are (id, last). `removed`: records and bytes that left each class; negative when something came.
    """

    acked_rows: list[tuple[int, int]] = field(default_factory=list)
    expired: list[tuple[int, int]] = field(default_factory=list)
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def count_removed(self, class_index: int, records: int, size: int) -> None:
        """Records and bytes of a class went."""
        before = self.removed.get(class_index, (0, 0))
        self.removed[class_index] = (before[0] + records, before[1] + size)


class AckedSeqs:
    """Record ids that are safe elsewhere and wait to be pruned, by epoch."""

    def __init__(self) -> None:
        self._seqs: dict[int, IntervalSet] = {}

    def __bool__(self) -> bool:
        return bool(self._seqs)

    def add(self, epoch: int, seqs: IntervalSet) -> None:
        """These are safe."""
        self._seqs[epoch] = self._seqs.get(epoch, IntervalSet()) | seqs

    def cover(self, batch: StoredBatch) -> bool:
        """Whether all of a batch is safe."""
        seqs = self._seqs.get(batch.epoch)
        return seqs is not None and seqs.covers(IntervalSet([(batch.first, batch.last)]))

    def prune(self, connection: Connection, epochs: Mapping[int, int], changes: TransactionTotals) -> None:
        """Takes them out of the rows. `epochs`: by ordinal; of any other nothing is stored."""
        for ordinal, epoch in epochs.items():
            for first, last in self._seqs[epoch].ranges if epoch in self._seqs else ():
                prune_range(connection, ordinal, first, last, changes)

    def clear(self) -> None:
        """They are pruned."""
        self._seqs.clear()


def prune_range(connection: Connection, ordinal: int, first: int, last: int, changes: TransactionTotals) -> None:
    """Clears the batches that an acknowledged range covers and trims those that it covers in part."""
    for identity, row_last, class_index, records, lost, size in _overlapping(connection, ordinal, first, last):
        if first <= first_of(identity) and row_last <= last:
            clear_batch(connection, identity, row_last, changes)
            changes.count_removed(class_index, records, size)
            changes.counts["acknowledged"] += records + lost
        else:
            _trim(connection, identity, class_index, IntervalSet([(first, last)]), changes)


def _overlapping(connection: Connection, ordinal: int, first: int, last: int) -> list[Any]:
    # A batch that begins before the range may reach into it.
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


def _trim(
    connection: Connection, identity: int, class_index: int, acknowledged: IntervalSet, changes: TransactionTotals
) -> None:
    batch = read_batch(connection, identity)
    last, *before = connection.execute("SELECT last, records, size FROM batches WHERE id = ?", (identity,)).fetchone()
    # Of what it still holds: an id that is acknowledged twice counts once.
    changes.counts["acknowledged"] += (batch.header.seqs & acknowledged).count
    missing = without(batch, acknowledged)
    if missing is None:
        clear_batch(connection, identity, last, changes)
        changes.count_removed(class_index, *before)
    else:
        records, size = replace_batch(connection, identity, missing)
        changes.count_removed(class_index, before[0] - records, before[1] - size)


def delete_expired(connection: Connection, rows: Iterable[tuple[int, int]], changes: TransactionTotals) -> None:
    """Deletes acknowledged rows whose messages cannot be delivered again any more."""
    for row in rows:
        connection.execute("DELETE FROM batches WHERE id = ? AND batch IS NULL", (row[0],))
        changes.expired.append(row)


def split_or_dead_letter(
    connection: Connection, changes: TransactionTotals, identities: Iterable[int], reason: str
) -> list[int]:
    """Halves batches of several records and dead-letters those of one; the halves' row ids. Raises StoreDamaged.

    So what the other side refuses comes apart from what it may take.
    """
    halves: list[int] = []
    for identity in identities:
        row = connection.execute(
            "SELECT records FROM batches WHERE id = ? AND batch IS NOT NULL", (identity,)
        ).fetchone()
        # Acknowledged since it was sent; this transaction has just pruned it.
        if row is None:
            continue
        if row[0] > 1:
            halves += [identity, _halved(connection, changes, identity)]
        else:
            connection.execute("INSERT OR REPLACE INTO dead_letter_batches VALUES (?, ?)", (identity, reason))
            changes.counts["batches_dead_lettered"] += 1
    return halves


def _halved(connection: Connection, changes: TransactionTotals, identity: int) -> int:
    """Moves the second half of a batch's records to a row of its own; its id. The first keeps all arrivals."""
    batch = read_batch(connection, identity)
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
        # `sent` too: this half went out with the whole, so no clock correction may touch it either.
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


def insert_batch(connection: Connection, batch: StoredBatch, boot: str, arrivals: bytes | None) -> None:
    """Stores a new batch."""
    connection.execute(
        "INSERT INTO batches (id, last, class, records, size, wall_ms, boot, arrivals, batch)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(batch.id, batch.last, batch.class_index, batch.records, batch.size, batch.wall_ms),
            *(boot, arrivals, batch.data),
        ),
    )


def stored_arrivals(connection: Connection, most: int) -> Iterator[Arrival]:
    """The last arrivals that the rows remember, at least `most` of them if there are, the oldest first."""
    newest_first: list[list[Arrival]] = []
    count, below = 0, (1 << 63) - 1
    while count < most:
        # Row by row from the newest: the table may hold a million rows, and the last few have what is asked for.
        row = connection.execute(
            "SELECT id, arrivals FROM batches WHERE id < ? AND arrivals IS NOT NULL ORDER BY id DESC LIMIT 1", (below,)
        ).fetchone()
        if row is None:
            break
        below = row[0]
        newest_first.append(unpack_arrivals(row[1]))
        count += len(newest_first[-1])
    return (arrival for arrivals in reversed(newest_first) for arrival in arrivals)


def insert_tombstones(connection: Connection, ordinal: int, empty: Batch, lost: IntervalSet, reason: str) -> None:
    """Declares ids lost that no row has, a row for each range. `empty`: whose they are."""
    for first, last in lost.ranges:
        data = encode(replace(empty, tombstones=(Tombstone(first, last, reason),)))
        connection.execute(
            "INSERT OR REPLACE INTO batches (id, last, class, records, lost, size, wall_ms, boot, batch)"
            " VALUES (?, ?, 0, 0, ?, ?, 0, '', ?)",
            (batch_row_id(ordinal, first), last, last - first + 1, len(data), data),
        )


def read_batch(connection: Connection, identity: int) -> Batch:
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


def clear_batch(connection: Connection, identity: int, last: int, changes: TransactionTotals) -> None:
    """Takes the batch out of a row (id, last); the row still remembers its arrivals."""
    connection.execute("UPDATE batches SET batch = NULL, records = 0, lost = 0, size = 0 WHERE id = ?", (identity,))
    remove_dead_letter_mark(connection, identity)
    changes.acked_rows.append((identity, last))


def remove_dead_letter_mark(connection: Connection, identity: int) -> None:
    """A dead-lettered batch is gone, or another one now."""
    connection.execute("DELETE FROM dead_letter_batches WHERE id = ?", (identity,))


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


def merge_tombstones(tombstones: Iterable[Tombstone]) -> tuple[Tombstone, ...]:
    """Tombstones in ascending order; neighbours with the same reason become one."""
    together: list[Tombstone] = []
    for tombstone in sorted(tombstones):
        before = together[-1] if together else None
        if before and before.reason == tombstone.reason and before.last + 1 == tombstone.first:
            together[-1] = before._replace(last=tombstone.last)
        else:
            together.append(tombstone)
    return tuple(together)
