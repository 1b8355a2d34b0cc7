"""What is not let in is kept beside the records, once, with the reason: messages that cannot be decoded, and records
that came again under their id with another content than the one in the table.

Executors write it into files, as they do with records: the driver learns their fingerprints alone, however large the
payloads are, and commits what the table lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, Fenced
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import CONTENT, QUARANTINE
from cloud_jobs.lake.stored_files import StoredFiles, stored_values
from cloud_jobs.lake.tables import QUARANTINED, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, number_of

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Run(Protocol):
    """How a function is run over parts: in this process, or by executors."""

    def __call__(self, work: Callable[[_Item], _Made], items: Sequence[_Item], /) -> Sequence[_Made]:
        """What the function makes of each."""


RECORD_ID = ("tenant", "device", "epoch", "seq")
_TRIES: Final = 20


class QuarantineFile(NamedTuple):
    """A file of the quarantine that no commit names yet, and the fingerprints of its rows that are wanted."""

    file: DataFile
    fingerprints: pa.Array


def malformed_rows(malformed: Sequence[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Rows for messages that are no consistent batch, from those of `decoding.Decoded`."""
    return [
        {
            "cause": "malformed",
            "fingerprint": row["fingerprint"],
            "detail": row["malformed"],
            "payload": row["payload"],
            "topic": row["topic"],
            "message_id": row["message_id"],
            "quarantined_at": now,
        }
        for row in malformed
    ]


def conflict_rows(records: pa.Table, now: datetime) -> list[dict[str, Any]]:
    """Rows for records whose ids are known with another content."""
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
    """Writes rows, each fingerprint once, into a file in the folder of the quarantine.

    `ingest_number`: that of the attempt, by which the rows are numbered unless its number is taken when they are
    committed.
    """
    once = {row["fingerprint"]: row | {"commit_number": ingest_number} for row in rows}
    return _written(files, pa.Table.from_pylist([*once.values()], schema=QUARANTINE), now)


def commit_quarantine(
    lake: Lake, written: Sequence[QuarantineFile], run: Run, ingest_number: int, now: datetime
) -> None:
    """Adds the rows whose fingerprint is not there yet: the replay of a micro-batch adds nothing.

    `ingest_number`: the number in the files. A later commit has a higher one, so an attempt that was overtaken writes
    its files again. Raises CommitFailed, LakeError. `run`: how the files are read that hold some such rows and others.
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
            # another ingest, which is beginning, found the same perhaps
            failure = error
        else:
            return
    raise CommitFailed("quarantine", str(failure)) from failure


def _missing(files: FileSystem, opened: DeltaTable, written: Sequence[QuarantineFile]) -> list[QuarantineFile]:
    """The files that hold rows which the table lacks, each row once, with the fingerprints of these."""
    asked = pa.chunked_array([one.fingerprints for one in written]).unique().sort()
    digests, known = asked.to_pylist(), set[str]()
    # one by one: they lie so far apart that what is between them is all the table
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
