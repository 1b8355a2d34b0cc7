"""On executors: writes decoded messages to files, and describes each file set as a part.

The files belong to no table until the driver commits them or has them filtered.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, Fenced
from cloud_jobs.ingest.decoding import (
    USUAL,
    Batches,
    DecodedMessages,
    SensibleTime,
    TopicTenants,
    decode_messages,
)
from cloud_jobs.lake.coverage import Coverage, DeviceStream, Statement
from cloud_jobs.lake.data_files import DataFile, StoredFiles, stored_values, write_data_files
from cloud_jobs.lake.schemas import CONTENT, QUARANTINE, RECORDS
from cloud_jobs.lake.tables import QUARANTINED, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, number_of
from waybill.identity.sealing import Unsealer
from waybill.record import IntervalSet

# Quarantine: undecodable messages, and records whose id is stored with other content.

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Run(Protocol):
    """Runs a function over parts, in this process or on executors."""

    def __call__(self, work: Callable[[_Item], _Made], items: Sequence[_Item], /) -> Sequence[_Made]:
        """What the function makes of each."""


RECORD_ID = ("tenant", "device", "epoch", "seq")
_TRIES: Final = 20


class QuarantineFile(NamedTuple):
    """An uncommitted file of the quarantine, and the fingerprints of its rows to add."""

    file: DataFile
    fingerprints: pa.Array


def conflict_rows(records: pa.Table, now: datetime) -> list[dict[str, Any]]:
    return [_conflict_row(record, now) for record in records.select([*RECORD_ID, *CONTENT]).to_pylist()]


def _conflict_row(record: dict[str, Any], now: datetime) -> dict[str, Any]:
    content = {name: record[name] for name in CONTENT if record[name] is not None}
    detail = json.dumps(content, default=_text, ensure_ascii=False)
    text = "|".join([*(str(record[name]) for name in RECORD_ID), detail])
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    record_id = {name: record[name] for name in RECORD_ID}
    return {"cause": "conflict", "fingerprint": fingerprint, "detail": detail, "quarantined_at": now, **record_id}


def _text(value: datetime | bytes) -> str:
    return value.isoformat() if isinstance(value, datetime) else value.hex()


def write_quarantine(
    files: FileSystem, rows: Sequence[dict[str, Any]], ingest_number: int, now: datetime
) -> list[QuarantineFile]:
    """Writes rows, each fingerprint once, into a file of the quarantine.

    `ingest_number`: that of the attempt; the commit may renumber them.
    """
    once = {row["fingerprint"]: row | {"commit_number": ingest_number} for row in rows}
    return _written(files, pa.Table.from_pylist([*once.values()], schema=QUARANTINE), now)


def commit_quarantine(
    lake: Lake, written: Sequence[QuarantineFile], run: Run, ingest_number: int, now: datetime
) -> None:
    """Adds rows with new fingerprints, so a repeated micro-batch adds nothing.

    `ingest_number`: the number in the files. The commit number always increases, so an attempt that was overtaken
    rewrites its files. `run`: reads files of which only some rows are new. Raises CommitFailed, LakeError.
    """
    if not written:
        return
    files = lake.files("quarantine")
    for _ in range(_TRIES):
        opened = lake.open("quarantine")
        previous = newest_number(opened, QUARANTINED)
        missing = _missing(files, opened, written)
        if not missing:
            return
        commit_number = max(ingest_number, counter_of(previous) + 1)
        whole = [one for one in missing if len(one.fingerprints) == one.file.rows and commit_number == ingest_number]
        others = [one for one in missing if one not in whole]
        filtered = chain.from_iterable(run(_filter(files, commit_number, now), others)) if others else ()
        added = [one.file for one in [*whole, *filtered]]
        try:
            commit_files(
                opened, "quarantine", added, writer=QUARANTINED, previous=previous, number=number_of(commit_number)
            )
        except Fenced as error:
            # a second ingest is starting and quarantined rows at the same time
            failure = error
        else:
            return
    raise CommitFailed("quarantine", str(failure)) from failure


def _missing(files: FileSystem, opened: DeltaTable, written: Sequence[QuarantineFile]) -> list[QuarantineFile]:
    """The files with rows that the table lacks, with the fingerprints of these rows."""
    asked = pa.chunked_array([one.fingerprints for one in written]).unique().sort()
    digests, known = asked.to_pylist(), set[str]()
    # one range for each, because random digests span the whole table
    single = [(digest, digest) for digest in digests]
    for path in StoredFiles.of(opened, "quarantine").within("fingerprint", single).paths:
        for there in stored_values(files, "quarantine", path, "fingerprint", digests):
            known.update(there.filter(pc.is_in(there, asked)).to_pylist())
    found = []
    for one in written:
        new = [each for each in one.fingerprints.to_pylist() if each not in known]
        known.update(new)
        if new:
            found.append(one._replace(fingerprints=pa.array(new, pa.string())))
    return found


def _filter(files: FileSystem, commit_number: int, now: datetime) -> Callable[[QuarantineFile], list[QuarantineFile]]:
    def filtered(one: QuarantineFile) -> list[QuarantineFile]:
        rows = pq.read_table(one.file.path, filesystem=files, partitioning=None).cast(QUARANTINE)
        kept = rows.filter(pc.is_in(rows["fingerprint"], one.fingerprints))
        numbers = pa.repeat(pa.scalar(commit_number, pa.int64()), kept.num_rows)
        at = QUARANTINE.get_field_index("commit_number")
        return _written(files, kept.set_column(at, QUARANTINE.field(at), numbers), now)

    return filtered


def _written(files: FileSystem, rows: pa.Table, now: datetime) -> list[QuarantineFile]:
    written = write_data_files(files, rows, now, table="quarantine")
    return [QuarantineFile(file, rows["fingerprint"].combine_chunks()) for file in written]


# New records of a micro-batch, by their ids. Pure.


class StreamPart(NamedTuple):
    """What the messages of one part state of one device stream.

    `records`: their number with repetitions; `said.received` has each once. `statements`: those that may be the latest
    whose head is covered; `said` has the latest.
    """

    part: int
    stream: DeviceStream
    said: Coverage
    records: int
    statements: tuple[Statement, ...] = ()


Known = Callable[[DeviceStream], Coverage | None]
"""The coverage of a device stream; None if nothing of it was received."""


@dataclass(slots=True)
class DeduplicationResult:
    """The decision on a micro-batch.

    `kept`: for each part with duplicates, the seqs to keep by stream. `coverage`: the new coverage of the touched
    streams; `delta`: what is new in it.
    """

    accepted_count: int = 0
    duplicate_count: int = 0
    kept: dict[int, dict[DeviceStream, IntervalSet]] = field(default_factory=dict)
    coverage: dict[DeviceStream, Coverage] = field(default_factory=dict)
    delta: dict[DeviceStream, Coverage] = field(default_factory=dict)


def deduplicate(known: Known, parts: Iterable[StreamPart]) -> DeduplicationResult:
    """Decides which records of a micro-batch are new, in the order of its parts.

    The accepted ids are the union of all ids without the known ones. The order decides which copy is accepted.
    `complete_until_us` is computed after the last part.
    """
    decision = DeduplicationResult()
    statements: dict[DeviceStream, list[Statement]] = {}
    for part, stream, said, records, stated in parts:
        # an earlier part of this micro-batch counts already
        before = decision.coverage.get(stream) or known(stream) or Coverage()
        fresh = said.received - before.received
        accepted = fresh.count
        assert accepted <= records, "every id that a part names is a record in it"
        if accepted < records:
            decision.kept.setdefault(part, {})[stream] = fresh
        decision.accepted_count += accepted
        decision.duplicate_count += records - accepted
        added = Coverage(fresh, said.tombstones, said.head, said.stated_us, said.stated_head)
        after = before | added
        assert after.received.count == before.received.count + accepted, "nothing is counted twice"
        decision.coverage[stream] = after
        if after != before:
            decision.delta[stream] = decision.delta.get(stream, Coverage()) | added
        if stated:
            statements.setdefault(stream, []).extend(stated)
    for stream, coverage in decision.coverage.items():
        completed = coverage.completed(statements.get(stream, ()))
        if completed is not coverage:
            until_us = completed.complete_until_us
            decision.coverage[stream] = completed
            decision.delta[stream] = replace(decision.delta.get(stream, Coverage()), complete_until_us=until_us)
    return decision


PART_COLUMNS = pa.schema([pa.field("part", pa.binary(), nullable=False)])
"""A part, sent from an executor to the driver, one row each."""


class WrittenPart(NamedTuple):
    """Messages that one task decoded together: the files of their records, and what they state.

    `streams`: the stated coverage and the number of records of each. `quarantined`: files with the `malformed`
    messages. `statements`: see StreamPart. `disbelieved`, `unreadable`: see DecodedMessages.
    """

    files: tuple[DataFile, ...]
    streams: dict[DeviceStream, tuple[Coverage, int]]
    quarantined: tuple[QuarantineFile, ...]
    malformed: int
    messages: int
    statements: dict[DeviceStream, tuple[Statement, ...]]
    disbelieved: Counter[str]
    unreadable: Counter[str]

    def stream_parts(self, part: int) -> Iterator[StreamPart]:
        """The input of `deduplicate`. `part`: the number of this part in its micro-batch."""
        for stream, (said, records) in self.streams.items():
            yield StreamPart(part, stream, said, records, self.statements.get(stream, ()))


def write_parts(
    lake: Lake,
    ingest_number: int,
    now: datetime,
    sensible: SensibleTime = USUAL,
    sealing_keys: Path | None = None,
    *,
    tenants: TopicTenants | None = None,
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` from messages to parts (schema PART_COLUMNS), whose files are in the lake.

    `sealing_keys`: the folder of private keys on the executor; each task reads it again. `tenants`: the tenant of each
    topic. The function raises SealingKeyError.
    """

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        unsealer = Unsealer.of_folder(sealing_keys)
        for decoded in decode_messages(batches, sensible, now, unsealer, tenants or {}):
            part = write_part(lake, decoded, ingest_number, now)
            # what executors of this job write is read by its driver alone
            yield pa.RecordBatch.from_pylist([{"part": pickle.dumps(part)}], schema=PART_COLUMNS)

    return write


def write_part(lake: Lake, decoded: DecodedMessages, ingest_number: int, now: datetime) -> WrittenPart:
    """Writes the records and the malformed messages of messages that were decoded together."""
    written, quarantined = list[DataFile](), list[QuarantineFile]()
    if decoded.rows is not None:
        written = write_data_files(lake.files("records"), _stamped(decoded.rows, ingest_number, now), now)
    if decoded.malformed:
        rows = [
            {
                "cause": "malformed",
                "fingerprint": row["fingerprint"],
                "detail": row["malformed"],
                "payload": row["payload"],
                "topic": row["topic"],
                "message_id": row["message_id"],
                "quarantined_at": now,
            }
            for row in decoded.malformed
        ]
        quarantined = write_quarantine(lake.files("quarantine"), rows, ingest_number, now)
    return WrittenPart(
        tuple(written),
        decoded.streams,
        tuple(quarantined),
        len(decoded.malformed),
        decoded.messages,
        decoded.statements,
        decoded.disbelieved,
        decoded.unreadable,
    )


def read_parts(rows: pa.Table) -> list[WrittenPart]:
    return [pickle.loads(part) for part in rows["part"].to_pylist()]  # noqa: S301 - written by `write_parts`


def _stamped(rows: pa.Table, ingest_number: int, now: datetime) -> pa.Table:
    stamp = pa.repeat(pa.scalar(now, RECORDS.field("ingested_at").type), rows.num_rows)
    number = pa.array(np.full(rows.num_rows, ingest_number))
    return rows.append_column("ingested_at", stamp).append_column("ingest_number", number)
