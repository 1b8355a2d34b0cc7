"""The executor's side: messages in Arrow batches are opened, and become rows of the records table. Pure, on Arrow.

Messages come with the columns `value, properties, publish_time, topic, message_id, malformed` of the `pulsar` source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_jobs.ingest.deduplication import MessageRef
from cloud_jobs.lake.schemas import RECORDS, without
from telemetry import IntervalSet, Kind, WireError
from telemetry.columns import RecordColumns, decode_columns

RECORD_COLUMNS = without(RECORDS, "ingested_at", "batch_id")
"""The records table without what the driver adds: when and by which micro-batch a record was let in."""

HEADER_COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("head", pa.int64()),
        pa.field("bounds", pa.list_(pa.int64())),
        pa.field("lost", pa.list_(pa.int64())),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("malformed", pa.string()),
        pa.field("fingerprint", pa.string()),
    ]
)
"""What a message says of itself beside `device` and `epoch`, or why it is malformed."""

DECODED = pa.schema([*RECORD_COLUMNS, *HEADER_COLUMNS])
"""Opened messages: for each one row with its header and no `seq` (a malformed one's bytes in `payload`), and one row
for each of its records, of whose header columns only `topic` and `message_id` are there."""

_KIND_NAMES = np.array(["", *(kind.name.lower() for kind in Kind)], dtype=object)
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = 0, 47_482
"""1970-01-01 and 2100-01-01 in days: outside, a clock is wrong and the partition is null."""
_ROWS_AT_ONCE = 50_000
_MESSAGES_AT_ONCE = 2_000
_BYTES_AT_ONCE = 32 << 20
"""What is opened together: little may unpack to much, and an Arrow column of texts holds 2 GiB."""
_RANGE_BYTES = 256
"""What a range or a tombstone of a header takes while its row is made."""

Batches = Iterable[pa.RecordBatch]


def decode_messages(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Messages, opened and checked to the last record (schema OPENED)."""
    for batch in batches:
        gathered: list[tuple[dict[str, Any], RecordColumns]] = []
        headers: list[dict[str, Any]] = []
        count = size = 0
        for message in batch.to_pylist():
            headers.append(_decode_message(message, gathered))
            if gathered and gathered[-1][0] is message:
                count += len(gathered[-1][1].seq)
                size += gathered[-1][1].size
            size += _RANGE_BYTES * (len(headers[-1].get("bounds", ())) + len(headers[-1].get("reasons", ())))
            if count >= _ROWS_AT_ONCE or len(headers) >= _MESSAGES_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield _to_batch(headers, gathered)
                gathered, headers, count, size = [], [], 0, 0
        if headers:
            yield _to_batch(headers, gathered)


def _decode_message(message: dict[str, Any], gathered: list[tuple[dict[str, Any], RecordColumns]]) -> dict[str, Any]:
    """The header row of a message; its records are added to those gathered."""
    value = message["value"] or b""
    row = {"topic": message["topic"], "message_id": message["message_id"]}
    if message["malformed"] is not None:
        # Messages with the same value can be malformed in different ways.
        return row | _malformed(f"message: {message['malformed']}", value, message["malformed"].encode())
    try:
        columns = decode_columns(value)
    except WireError as error:
        return row | _malformed(f"{error.reason}: {error}", value)
    header = columns.header
    if len(columns.seq):
        gathered.append((message, columns))
    return row | {
        "device": header.device,
        "epoch": header.epoch,
        "head": header.head,
        "bounds": [bound for bounds in header.record_seqs.ranges for bound in bounds],
        "lost": [bound for tombstone in header.tombstones for bound in tombstone[:2]],
        "reasons": [tombstone.reason for tombstone in header.tombstones],
    }


def _malformed(reason: str, value: bytes, more: bytes = b"") -> dict[str, Any]:
    return {"malformed": reason, "fingerprint": hashlib.sha256(value + more).hexdigest(), "payload": value}


def _to_batch(headers: list[dict[str, Any]], gathered: list[tuple[dict[str, Any], RecordColumns]]) -> pa.RecordBatch:
    parts = [pa.RecordBatch.from_pylist(headers, schema=DECODED)]
    if gathered:
        parts.append(_record_rows(gathered))
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _record_rows(gathered: list[tuple[dict[str, Any], RecordColumns]]) -> pa.RecordBatch:
    counts = np.array([len(columns.seq) for _, columns in gathered])
    arrays: dict[str, pa.Array] = {}
    for name, values in _message_columns(gathered).items():
        arrays[name] = pa.array(values, DECODED.field(name).type).take(np.repeat(np.arange(len(counts)), counts))
    joined = {name: np.concatenate([getattr(columns, name) for _, columns in gathered]) for name in _TABLE_COLUMN_OF}
    joined["kind"] = _KIND_NAMES[joined["kind"]]
    for name, joint in joined.items():
        column = _TABLE_COLUMN_OF[name]
        # NaN stands for what a record does not have: null in the table
        arrays[column] = pa.array(joint, RECORD_COLUMNS.field(column).type, from_pandas=True)
    days = joined["device_time_us"] // _DAY_US
    known = (days >= _FIRST_DAY) & (days < _LAST_DAY)
    arrays["device_date"] = pa.array(days.astype(np.int32), pa.int32(), mask=~known).cast(pa.date32())
    total = int(counts.sum())
    return pa.RecordBatch.from_arrays(
        [arrays[field.name] if field.name in arrays else pa.nulls(total, field.type) for field in DECODED],
        schema=DECODED,
    )


_TABLE_COLUMN_OF = {
    "seq": "seq",
    "kind": "kind",
    "device_time_us": "device_time",
    "latitude": "latitude",
    "longitude": "longitude",
    "altitude_m": "altitude_m",
    "speed_mps": "speed_mps",
    "heading_deg": "heading_deg",
    "accuracy_m": "accuracy_m",
    "name": "name",
    "number": "number",
    "text": "text",
    "payload": "payload",
    "uncertainty_ms": "time_uncertainty_ms",
    "monotonic_us": "monotonic_us",
    "boot": "boot",
}
"""The arrays of `telemetry.columns.RecordColumns`, and the columns of the table that they fill."""


def _message_columns(gathered: list[tuple[dict[str, Any], RecordColumns]]) -> dict[str, list[Any]]:
    """What all records of a message share, one value a message."""
    properties = [dict(message["properties"] or ()) for message, _ in gathered]
    return {
        "tenant": [one.get("tenant") for one in properties],
        "region": [one.get("region") for one in properties],
        "device": [columns.header.device for _, columns in gathered],
        "epoch": [columns.header.epoch for _, columns in gathered],
        "received_at": [message["publish_time"] for message, _ in gathered],
        "topic": [message["topic"] for message, _ in gathered],
        "message_id": [message["message_id"] for message, _ in gathered],
    }


def selected_records(wanted: Mapping[MessageRef, IntervalSet]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A function from opened messages to the rows of their `wanted` records (schema ROWS)."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keep = _wanted_rows(batch, wanted)
            if keep.any():
                yield batch.select(RECORD_COLUMNS.names).filter(pa.array(keep)).cast(RECORD_COLUMNS)

    return read


def _wanted_rows(batch: pa.RecordBatch, wanted: Mapping[MessageRef, IntervalSet]) -> NDArray[np.bool_]:
    """Which rows are records that are wanted. Rows of one message stand together, in ascending order of `seq`."""
    keep = np.zeros(batch.num_rows, dtype=bool)
    seqs = batch["seq"].fill_null(0).to_numpy(zero_copy_only=False)
    ids = batch["message_id"].dictionary_encode()
    topics = batch["topic"].dictionary_encode()
    message = np.stack([topics.indices.to_numpy(), ids.indices.to_numpy(), seqs == 0])
    opens = np.flatnonzero(np.any(np.diff(message, axis=1, prepend=-2), axis=0))
    for start, end in pairwise([*opens.tolist(), batch.num_rows]):
        if seqs[start] == 0:
            continue
        place = MessageRef(topics.dictionary[message[0, start]].as_py(), ids.dictionary[message[1, start]].as_py())
        for first, last in wanted.get(place, IntervalSet()).ranges:
            low, high = np.searchsorted(seqs[start:end], (first, last + 1))
            keep[start + low : start + high] = True
    return keep
