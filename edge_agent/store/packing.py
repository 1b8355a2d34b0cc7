"""From what waits to what is stored: batches that can be read again, and dead letters for what no batch can carry.

A batch that cannot be written is halved until the records that spoil it stand alone. Such a record is carried as the
raw message that it came as; if even that cannot be written, the message is a dead letter, and all others are stored.
A dead letter is kept with its bytes for whoever has to find out why, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from edge_agent.store.arrivals import Arrival
from edge_agent.store.batch_rows import BatchOwner, StoredBatch, TransactionTotals, batch_row_id
from edge_agent.store.connection import Connection
from waybill.record import MAX_CONTENT_BYTES, Batch, Body, Raw, Record, encode

log = structlog.get_logger("edge_agent.store")

BATCH_CONTENT_BYTES = MAX_CONTENT_BYTES // 2
"""A batch's records unpack to about so much at most; `encode` refuses what a decoder would, and then it is halved."""
_EXPANSION, _FIXED_BYTES = 4, 512
"""A record unpacks to at most so many times its message (`\\u00e9` for two bytes, `1e15` written out), and so much."""
MAX_DEAD_LETTERS = 256
MAX_DEAD_LETTER_BYTES = 4 << 20
"""Of all payloads together; the oldest go first."""
MAX_KEPT_BYTES = 1 << 20
"""Of one payload; `bytes` says how long it was."""


_NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class PendingRecord(NamedTuple):
    """A record before its commit gives it an id.

    `topic`, `payload`: what it came as, should its body not be writable. `continues`: it is of the same message as the
    record before it, which is committed with it. `counts`: counters that grow by so much when it is stored.
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


class DeadLetter(NamedTuple):
    """A message that no record can carry, with the class of the error that said so."""

    topic: str
    payload: bytes
    reason: str


@dataclass(slots=True)
class PackedCommit:
    """The batches of a commit, and what could not be carried."""

    batches: list[StoredBatch] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    unencodable: int = 0


def packed(waiting: Sequence[PendingRecord], owner: BatchOwner, ordinal: int, wall_ms: int) -> PackedCommit:
    """Gives records ids behind the owner's head: a batch for each class in its order, more where one is too large."""
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
    """Encoded batches behind `seq`, each with the number of its records."""
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
    if not isinstance(record.body, Raw):
        commit.unencodable += 1
        log.warning("a record that cannot be written is carried raw", topic=record.topic, reason=reason)
        # Not validated: `encode` judges it, and what it refuses is a dead letter.
        raw = Raw.model_construct(topic=record.topic, payload=record.payload, reason="unencodable")
        yield from _encoded([record._replace(body=raw)], owner, seq, commit)
        return
    log.error("dead letter", topic=record.topic, bytes=len(record.payload), reason=reason)
    commit.dead_letters.append(DeadLetter(record.topic, record.payload, reason))


def _batch(pending: Sequence[PendingRecord], owner: BatchOwner, seq: int) -> bytes:
    records = tuple(
        Record(number, one.device_time_us, one.body, one.monotonic_us, one.boot, one.uncertainty_ms)
        for number, one in enumerate(pending, seq + 1)
    )
    return encode(Batch(owner.device, owner.epoch, seq + len(pending), records))


def add_dead_letters(
    connection: Connection, letters: Iterable[DeadLetter], wall_ms: int, changes: TransactionTotals
) -> None:
    """Stores and counts dead letters, and drops the oldest beyond the bounds. Inside the caller's transaction."""
    added = 0
    for letter in letters:
        # `sqlite3` raises for a lone surrogate, and the whole commit would fail.
        topic = letter.topic.encode("utf-8", "backslashreplace").decode("utf-8")
        row = (wall_ms, topic, len(letter.payload), letter.payload[:MAX_KEPT_BYTES], letter.reason)
        connection.execute(
            "INSERT INTO dead_letters (wall_ms, topic, bytes, payload, reason) VALUES (?, ?, ?, ?, ?)", row
        )
        added += 1
    if not added:
        return
    changes.counts["messages_dead_lettered"] += added
    (before,) = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
    connection.execute(
        "DELETE FROM dead_letters WHERE id NOT IN (SELECT id FROM (SELECT id, count(*) OVER newest AS place,"
        " sum(length(payload)) OVER newest AS size FROM dead_letters WINDOW newest AS (ORDER BY id DESC))"
        " WHERE place <= ? AND size <= ?)",
        (MAX_DEAD_LETTERS, MAX_DEAD_LETTER_BYTES),
    )
    (after,) = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
    changes.counts["dead_letter_messages_dropped"] += before - after
