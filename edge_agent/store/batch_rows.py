"""The rows of the buffer, each with an encoded batch of one class, and how a transaction changes them.

A row's id is the ordinal of its epoch and the first sequence number. Rows sort in the order of record ids, so a range
of record ids is a range of rows. A row that changes is written anew. A row without its batch keeps its arrivals until
they expire.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog

from edge_agent.errors import StoreDamaged
from edge_agent.store.connection import Connection
from waybill.record import (
    MAX_CONTENT_BYTES,
    MAX_DEVICE_TIME_US,
    MAX_RAW_BYTES,
    Batch,
    Body,
    IntervalSet,
    Raw,
    Record,
    Tombstone,
    WireError,
    decode,
    encode,
)

# Distinguishes a redelivered message from a new one with equal content.

# A message id has 16 bits. Digests of 8 bytes do not collide among the remembered ones.
_ENTRY = Struct(">H8s")
_DIGEST_BYTES = 8
SET_CLOCK_US = 1_577_836_800_000_000
"""2020-01-01: an earlier device time comes from a clock that was not set, and may repeat after the next start."""


class Arrival(NamedTuple):
    """The broker's message id and a digest of topic and payload."""

    mid: int
    digest: bytes


def arrival_of(mid: int, topic: str, payload: bytes) -> Arrival:
    # No topic holds a NUL (MQTT 5, 1.5.4), so no two messages make the same bytes.
    return Arrival(mid, blake2b(b"%b\0%b" % (topic.encode(), payload), digest_size=_DIGEST_BYTES).digest())


def pack_arrivals(arrivals: Iterable[Arrival]) -> bytes:
    """Arrivals in 10 bytes each."""
    return b"".join([_ENTRY.pack(*arrival) for arrival in arrivals])


def unpack_arrivals(packed: bytes) -> list[Arrival]:
    # iter_unpack raises for an odd length, and a damaged row must not prevent opening the buffer.
    return [Arrival(*entry) for entry in _ENTRY.iter_unpack(packed[: len(packed) // _ENTRY.size * _ENTRY.size])]


class RecentArrivals:
    """The last `size` committed arrivals.

    A broker may deliver again whatever is unacknowledged: at most its window of unacknowledged messages. That many
    arrivals show every redelivery (MQTT 5, 4.4 and 4.9).
    """

    def __init__(self, size: int, arrivals: Iterable[Arrival] = ()) -> None:
        self._size = size
        self._order: deque[Arrival] = deque()
        self._count: dict[Arrival, int] = {}
        self._newest: dict[int, bytes] = {}
        self.add(arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Adds arrivals, the oldest first, and forgets the oldest beyond the size."""
        for arrival in arrivals:
            self._order.append(arrival)
            self._count[arrival] = self._count.get(arrival, 0) + 1
            self._newest[arrival.mid] = arrival.digest
        while len(self._order) > self._size:
            # `_newest` keeps its entry: there are at most 65,535 message ids, and `_count` tells which are known.
            oldest = self._order.popleft()
            if self._count[oldest] == 1:
                del self._count[oldest]
            else:
                self._count[oldest] -= 1

    def __contains__(self, arrival: Arrival) -> bool:
        return arrival in self._count

    def is_newest_of_its_id(self, arrival: Arrival) -> bool:
        """Whether the arrival is known, and no other content came with its message id since."""
        return arrival in self._count and self._newest[arrival.mid] == arrival.digest

    def __len__(self) -> int:
        return len(self._order)

    def arrivals(self) -> tuple[Arrival, ...]:
        """All arrivals, the oldest first."""
        return tuple(self._order)


class RedeliveryMatcher:
    """Matches the first messages of a resumed session with the stored arrivals, in order."""

    def __init__(self, stored: Iterable[Arrival]) -> None:
        self._positions: dict[Arrival, list[int]] = {}
        self._times: dict[bytes, int] = {}
        for position, arrival in enumerate(stored):
            self._positions.setdefault(arrival, []).append(position)
            self._times[arrival.digest] = self._times.get(arrival.digest, 0) + 1
        self._at = -1

    def try_advance(self, arrival: Arrival) -> bool:
        """Whether the arrival was stored after the last match; the search continues behind it."""
        position = next((position for position in self._positions.get(arrival, ()) if position > self._at), None)
        if position is None:
            return False
        self._at = position
        return True

    def is_anchor(self, arrival: Arrival, device_time_us: int | None) -> bool:
        """Whether a matching message can only be the stored one."""
        timed = device_time_us is not None and device_time_us >= SET_CLOCK_US
        return timed and self._times.get(arrival.digest) == 1


# Batches from waiting records.

log = structlog.get_logger("edge_agent.store")

BATCH_CONTENT_BYTES = MAX_CONTENT_BYTES // 2
"""Approximate limit of a batch's unpacked records; a batch that `encode` refuses is halved."""
_EXPANSION, _FIXED_BYTES = 4, 512
"""A record unpacks to at most this many times its message (`\\u00e9` for two bytes, `1e15` written out), plus bytes."""
_MAX_TOPIC_CHARACTERS = 65_535
_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class PendingRecord(NamedTuple):
    """A record that has no id yet.

    `topic`, `payload`: the original message, in case the body cannot be encoded. `continues`: it belongs to the same
    message as the record before it. `counts`: counters that grow when it is stored. `mapping`: that of `Record`.
    """

    class_index: int
    body: Body
    device_time_us: int
    monotonic_us: int
    boot: str
    arrival: Arrival
    uncertainty_ms: int = 0
    topic: str = ""
    payload: bytes = b""
    continues: bool = False
    counts: Mapping[str, int] = _NO_COUNTS
    mapping: str = ""


@dataclass(slots=True)
class PackedCommit:
    """The batches of a commit. `unencodable`: how many records are carried raw because they cannot be written."""

    batches: list[StoredBatch] = field(default_factory=list)
    unencodable: int = 0


def pack_commit(waiting: Sequence[PendingRecord], owner: BatchOwner, ordinal: int, wall_ms: int) -> PackedCommit:
    """Gives records their ids above the owner's head; one batch for each class, or more if one is too large."""
    commit = PackedCommit()
    seq = owner.head
    # The sort is stable: within a class records get their ids in the order in which they came.
    for index, group in groupby(sorted(waiting, key=attrgetter("class_index")), key=attrgetter("class_index")):
        for pending in _chunks(group):
            for count, data in _encoded(pending, owner, seq, commit):
                identity = batch_row_id(ordinal, seq + 1)
                seq += count
                commit.batches.append(StoredBatch(identity, owner.epoch, seq, index, count, len(data), wall_ms, data))
    return commit


def _chunks(group: Iterator[PendingRecord]) -> Iterator[list[PendingRecord]]:
    chunk: list[PendingRecord] = []
    size = 0
    for record in group:
        bound = _EXPANSION * len(record.payload) + _FIXED_BYTES
        if size + bound > BATCH_CONTENT_BYTES and chunk:
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += bound
    yield chunk


def _encoded(
    pending: Sequence[PendingRecord], owner: BatchOwner, seq: int, commit: PackedCommit
) -> Iterator[tuple[int, bytes]]:
    """Encoded batches above `seq`, each with its number of records."""
    try:
        yield len(pending), _batch(pending, owner, seq)
        return
    except Exception as error:  # noqa: BLE001 - whatever one record raises, the others are stored
        reason = type(error).__name__
    if len(pending) > 1:
        middle = len(pending) // 2
        for part in (pending[:middle], pending[middle:]):
            for count, data in _encoded(part, owner, seq, commit):
                seq += count
                yield count, data
        return
    (record,) = pending
    commit.unencodable += 1
    log.warning("a record that cannot be written is carried raw", topic=record.topic, reason=reason)
    # With values that every batch can hold: otherwise this record would block all others for ever.
    topic = record.topic.encode("utf-8", "backslashreplace").decode("utf-8")[:_MAX_TOPIC_CHARACTERS]
    raw = Raw(topic=topic, payload=record.payload[:MAX_RAW_BYTES], reason="unencodable")
    time_us = min(max(record.device_time_us, 0), MAX_DEVICE_TIME_US)
    carried = record._replace(body=raw, device_time_us=time_us, monotonic_us=0, boot="", uncertainty_ms=0, mapping="")
    yield 1, _batch([carried], owner, seq)


def _batch(pending: Sequence[PendingRecord], owner: BatchOwner, seq: int) -> bytes:
    records = tuple(
        Record(number, one.device_time_us, one.body, one.monotonic_us, one.boot, one.uncertainty_ms, one.mapping)
        for number, one in enumerate(pending, seq + 1)
    )
    return encode(Batch(owner.device, owner.epoch, seq + len(pending), records))


# SQLite's row ids have 63 bits: 44 for the records of an epoch and 19 for the number of epochs.
SEQ_BITS = 44
SEQ_MASK = (1 << SEQ_BITS) - 1


def batch_row_id(ordinal: int, first: int) -> int:
    return ordinal << SEQ_BITS | first


def ordinal_of(identity: int) -> int:
    return identity >> SEQ_BITS


def first_of(identity: int) -> int:
    return identity & SEQ_MASK


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """`size`: bytes of the encoded form. `wall_ms`: commit time by the device's clock."""

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
        return first_of(self.id)


class BatchOwner(NamedTuple):
    """The identity of a batch that must be written anew although it cannot be read."""

    device: str
    epoch: int
    head: int


@dataclass(slots=True)
class TransactionTotals:
    """How a transaction changes the totals; applied once it is stored.

    Rows are (id, last). `removed`: records and bytes that left each class; negative if they were added.
    """

    acked_rows: list[tuple[int, int]] = field(default_factory=list)
    expired: list[tuple[int, int]] = field(default_factory=list)
    removed: dict[int, tuple[int, int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def count_removed(self, class_index: int, records: int, size: int) -> None:
        before = self.removed.get(class_index, (0, 0))
        self.removed[class_index] = (before[0] + records, before[1] + size)


def prune_range(connection: Connection, ordinal: int, first: int, last: int, changes: TransactionTotals) -> None:
    """Clears batches inside an acknowledged range and trims those that overlap it."""
    for identity, row_last, class_index, records, lost, size in _overlapping(connection, ordinal, first, last):
        if first <= first_of(identity) and row_last <= last:
            clear_batch(connection, identity, row_last, changes)
            changes.count_removed(class_index, records, size)
            changes.counts["acknowledged"] += records + lost
        else:
            _trim(connection, identity, class_index, IntervalSet([(first, last)]), changes)


def _overlapping(connection: Connection, ordinal: int, first: int, last: int) -> list[Any]:
    # A batch that starts before the range may reach into it.
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
    # Only ids that it still holds: an id that is acknowledged twice counts once.
    changes.counts["acknowledged"] += (batch.header.seqs & acknowledged).count
    missing = without(batch, acknowledged)
    if missing is None:
        clear_batch(connection, identity, last, changes)
        changes.count_removed(class_index, *before)
    else:
        records, size = replace_batch(connection, identity, missing)
        changes.count_removed(class_index, before[0] - records, before[1] - size)


def delete_expired(connection: Connection, rows: Iterable[tuple[int, int]], changes: TransactionTotals) -> None:
    """Deletes acknowledged rows whose messages cannot be delivered again."""
    for row in rows:
        connection.execute("DELETE FROM batches WHERE id = ? AND batch IS NULL", (row[0],))
        changes.expired.append(row)


def split_or_dead_letter(
    connection: Connection, changes: TransactionTotals, identities: Iterable[int], reason: str
) -> list[int]:
    """Halves batches of several records and dead-letters those of one; returns the halves' row ids. Raises
    StoreDamaged.
    """
    halves: list[int] = []
    for identity in identities:
        row = connection.execute(
            "SELECT records FROM batches WHERE id = ? AND batch IS NOT NULL", (identity,)
        ).fetchone()
        # Acknowledged meanwhile; this transaction has pruned it.
        if row is None:
            continue
        if row[0] > 1:
            halves += [identity, _halved(connection, changes, identity)]
        else:
            connection.execute("INSERT OR REPLACE INTO dead_letter_batches VALUES (?, ?)", (identity, reason))
            changes.counts["batches_dead_lettered"] += 1
    return halves


def _halved(connection: Connection, changes: TransactionTotals, identity: int) -> int:
    """Moves the second half of a batch to its own row; returns its id. The first half keeps all arrivals."""
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
        # `sent` too: this half was sent with the whole, so its times must not change.
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
    connection.execute(
        "INSERT INTO batches (id, last, class, records, size, wall_ms, boot, arrivals, batch)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(batch.id, batch.last, batch.class_index, batch.records, batch.size, batch.wall_ms),
            *(boot, arrivals, batch.data),
        ),
    )


def stored_arrivals(connection: Connection, most: int) -> Iterator[Arrival]:
    """The newest stored arrivals, at least `most` if there are, the oldest first."""
    newest_first: list[list[Arrival]] = []
    count, below = 0, (1 << 63) - 1
    while count < most:
        # Row by row from the newest: the table may have a million rows, and the last few suffice.
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
    """Declares ids lost that no row holds, one row for each range. `empty`: a batch with their owner."""
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
    """Replaces a stored batch; returns (records, size)."""
    data = encode(batch)
    records, lost = len(batch.records), batch.header.lost_seqs.count
    connection.execute(
        "UPDATE batches SET batch = ?, records = ?, lost = ?, size = ? WHERE id = ?",
        (data, records, lost, len(data), identity),
    )
    return records, len(data)


def clear_batch(connection: Connection, identity: int, last: int, changes: TransactionTotals) -> None:
    """Removes the batch from a row (id, last), which keeps its arrivals."""
    connection.execute("UPDATE batches SET batch = NULL, records = 0, lost = 0, size = 0 WHERE id = ?", (identity,))
    remove_dead_letter_mark(connection, identity)
    changes.acked_rows.append((identity, last))


def remove_dead_letter_mark(connection: Connection, identity: int) -> None:
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
    """Sorted tombstones; neighbours with the same reason become one."""
    together: list[Tombstone] = []
    for tombstone in sorted(tombstones):
        before = together[-1] if together else None
        if before and before.reason == tombstone.reason and before.last + 1 == tombstone.first:
            together[-1] = before._replace(last=tombstone.last)
        else:
            together.append(tombstone)
    return tuple(together)
