"""The executor's side: messages in Arrow batches become headers, or rows of the records table. Pure functions on Arrow.

Messages come with the columns `value, properties, publish_time, topic, message_id` of the `pulsar` source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cloud_jobs.ingest.admission import Place
from telemetry import IntervalSet, Kind, WireError, read_header
from telemetry.columns import Columns, decode_columns

_UTC = pa.timestamp("us", tz="UTC")
_RANGE = pa.list_(pa.int64())

HEADERS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("device", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("head", pa.int64()),
        pa.field("bounds", _RANGE),
        pa.field("lost", _RANGE),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("refused", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
"""One row a message: its header, or why it is refused, with its bytes."""

ROWS = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("region", pa.string()),
        pa.field("device", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("device_time", _UTC),
        pa.field("received_at", _UTC),
        pa.field("latitude", pa.float64()),
        pa.field("longitude", pa.float64()),
        pa.field("altitude_m", pa.float64()),
        pa.field("speed_mps", pa.float64()),
        pa.field("heading_deg", pa.float64()),
        pa.field("accuracy_m", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("time_uncertainty_ms", pa.int32()),
        pa.field("monotonic_us", pa.int64()),
        pa.field("boot", pa.string()),
        pa.field("device_date", pa.date32()),
    ]
)
"""The records table without what the driver adds: when and by which micro-batch a record was let in."""

_KIND_NAMES = np.array(["", *(kind.name.lower() for kind in Kind)], dtype=object)
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = 0, 47_482
"""1970-01-01 and 2100-01-01 in days: outside, a clock is wrong and the partition is null."""
_ROWS_AT_ONCE = 50_000


def headers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The headers of messages, in their order (schema HEADERS)."""
    for batch in batches:
        rows = [
            _header_row(value, topic, message_id)
            for value, topic, message_id in zip(
                batch["value"].to_pylist(), batch["topic"].to_pylist(), batch["message_id"].to_pylist(), strict=True
            )
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=HEADERS)


def _header_row(value: bytes | None, topic: str, message_id: str) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": topic, "message_id": message_id}
    try:
        header = read_header(value or b"")
    except WireError as error:
        payload = value or b""
        digest = hashlib.sha256(payload).hexdigest()
        return row | {"refused": f"{error.reason}: {error}", "fingerprint": digest, "payload": payload}
    return row | {
        "device": header.device,
        "epoch": header.epoch,
        "head": header.head,
        "bounds": [bound for bounds in header.ranges.ranges for bound in bounds],
        "lost": [bound for tombstone in header.tombstones for bound in tombstone[:2]],
        "reasons": [tombstone.reason for tombstone in header.tombstones],
    }


def records(wanted: Mapping[Place, IntervalSet]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function from messages to the rows of their `wanted` records (schema ROWS); other messages are not opened."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            for message in batch.to_pylist():
                names = wanted.get(Place(message["topic"], message["message_id"]))
                if names:
                    gathered.append(_rows(message, names))
                    count += names.count
                if count >= _ROWS_AT_ONCE:
                    yield _joined(gathered)
                    gathered, count = [], 0
        if gathered:
            yield _joined(gathered)

    return read


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts, schema=ROWS).combine_chunks().to_batches()[0]


def _rows(message: dict[str, Any], names: IntervalSet) -> pa.RecordBatch:
    columns = decode_columns(message["value"])
    keep = _members(columns.seq, names)
    properties = dict(message["properties"] or ())
    count = int(keep.sum())
    fixed = {
        "tenant": (properties.get("tenant"), pa.string()),
        "region": (properties.get("region"), pa.string()),
        "device": (columns.header.device, pa.string()),
        "epoch": (columns.header.epoch, pa.int64()),
        "received_at": (message["publish_time"], _UTC),
    }
    arrays = {name: pa.repeat(pa.scalar(value, kind), count) for name, (value, kind) in fixed.items()}
    arrays |= {name: pa.array(values[keep], ROWS.field(name).type) for name, values in _plain(columns).items()}
    arrays |= {
        name: pa.array(getattr(columns, name)[keep], ROWS.field(name).type, from_pandas=True)
        for name in ROWS.names
        if name not in arrays and name != "device_date"
    }
    days = columns.device_time_us[keep] // _DAY_US
    known = (days >= _FIRST_DAY) & (days < _LAST_DAY)
    arrays["device_date"] = pa.array(days.astype(np.int32), pa.int32(), mask=~known).cast(pa.date32())
    return pa.RecordBatch.from_arrays([arrays[name] for name in ROWS.names], schema=ROWS)


def _plain(columns: Columns) -> dict[str, Any]:
    """The columns that every record has."""
    return {
        "seq": columns.seq,
        "kind": _KIND_NAMES[columns.kind],
        "device_time": columns.device_time_us,
        "time_uncertainty_ms": columns.uncertainty_ms,
        "monotonic_us": columns.monotonic_us,
    }


def _members(seq: Any, names: IntervalSet) -> Any:
    """Which of ascending numbers are in the set, as a mask."""
    keep = np.zeros(len(seq), dtype=bool)
    for first, last in names.ranges:
        keep[np.searchsorted(seq, first) : np.searchsorted(seq, last, side="right")] = True
    return keep
