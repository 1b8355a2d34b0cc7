"""The executor's side of the ingest: messages become files of the records table, and a short word of what is in them.

The files belong to no table yet. The driver reads what each part says, and commits them or has them filtered.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.ingest.decoding import Batches, Decoded, Disbelieved, TopicTenants, decode_messages
from cloud_jobs.ingest.deduplication import StreamPart
from cloud_jobs.ingest.quarantine import QuarantineFile, malformed_rows, write_quarantine
from cloud_jobs.ingest.sensible_time import USUAL, SensibleTime
from cloud_jobs.lake.coverage import Coverage, DeviceStream, Statement
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import Lake
from waybill.identity.sealing import Unsealer

PART_COLUMNS = pa.schema([pa.field("part", pa.binary(), nullable=False)])
"""A part on its way from an executor to the driver: one row each."""


class WrittenPart(NamedTuple):
    """Messages that one task took together: the files of their records, and what they say of each device stream.

    `streams`: for each the coverage that they state and the number of records that they hold. `quarantined`: the files
    of those that are no batch, `malformed`: how many of the `messages` these are. `statements`: see StreamPart.
    `disbelieved`: statements that are not believed, by region. `unreadable`, `mute`: see Decoded.
    """

    files: tuple[DataFile, ...]
    streams: dict[DeviceStream, tuple[Coverage, int]]
    quarantined: tuple[QuarantineFile, ...]
    malformed: int
    messages: int
    statements: dict[DeviceStream, tuple[Statement, ...]]
    disbelieved: dict[str, Disbelieved]
    unreadable: Counter[str]
    mute: frozenset[str]

    def stream_parts(self, part: int) -> Iterator[StreamPart]:
        """What is decided on, with the number of this part in its micro-batch."""
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
    """A function for `mapInArrow`: from messages to parts (schema PART_COLUMNS), whose files are in the lake.

    `sealing_keys`: the folder of private keys, as the executor sees it; read by each task, so that a new key counts at
    once. `tenants`: whose messages each topic may have. The function raises SealingKeyError.
    """

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        unsealer = Unsealer.of_folder(sealing_keys)
        for decoded in decode_messages(batches, sensible, now, unsealer, tenants or {}):
            part = write_part(lake, decoded, ingest_number, now)
            # what executors of this job write is read by its driver alone
            yield pa.RecordBatch.from_pylist([{"part": pickle.dumps(part)}], schema=PART_COLUMNS)

    return write


def write_part(lake: Lake, decoded: Decoded, ingest_number: int, now: datetime) -> WrittenPart:
    """Writes what is in messages that were decoded together: the records, and the messages that are malformed."""
    written: list[DataFile] = []
    if decoded.rows is not None:
        written = write_data_files(lake.files("records"), _stamped(decoded.rows, ingest_number, now), now)
    quarantined = _quarantined(lake, decoded, ingest_number, now)
    counts = len(decoded.malformed), decoded.messages
    return WrittenPart(
        tuple(written),
        decoded.streams,
        tuple(quarantined),
        *counts,
        decoded.statements,
        decoded.disbelieved,
        decoded.unreadable,
        decoded.mute,
    )


def _quarantined(lake: Lake, decoded: Decoded, ingest_number: int, now: datetime) -> list[QuarantineFile]:
    malformed = malformed_rows(decoded.malformed, now)
    return write_quarantine(lake.files("quarantine"), malformed, ingest_number, now) if malformed else []


def read_parts(rows: pa.Table) -> list[WrittenPart]:
    """The parts in rows of PART_COLUMNS."""
    return [pickle.loads(part) for part in rows["part"].to_pylist()]  # noqa: S301 - written by `write_parts`


def _stamped(rows: pa.Table, ingest_number: int, now: datetime) -> pa.Table:
    stamp = pa.repeat(pa.scalar(now, RECORDS.field("ingested_at").type), rows.num_rows)
    number = pa.array(np.full(rows.num_rows, ingest_number))
    return rows.append_column("ingested_at", stamp).append_column("ingest_number", number)
