"""On executors: decodes messages into rows of the records table. Pure, on Arrow.

Messages have the columns `value, properties, publish_time, topic, message_id, malformed` of the `pulsar` source.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import Coverage, DeviceStream, Statement
from cloud_jobs.lake.schemas import RECORDS, without
from cloud_jobs.lake.values import content_bytes
from waybill.identity.errors import Unsealable
from waybill.identity.sealing import Unsealer, is_sealed
from waybill.record import DEVICE_PATTERN, MAX_DEVICE_TIME_US, NO_FAULTS, Header, IntervalSet, Kind, WireError
from waybill.record.columns import RecordColumns, decode_columns

# Device times close enough to the receive time to be usable. Pure.

_DAY_US: Final = 86_400_000_000
_FIRST_DAY, _LAST_DAY = 0, 47_482
"""1970-01-01 and 2100-01-01 in days: outside, a clock is wrong whatever the settings say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensibleTime:
    """The accepted range of device times around the time of receipt; others are far off."""

    max_age_days: int = 400
    max_ahead_days: int = 1

    def days(self, device_time_us: NDArray[np.int64], received_us: NDArray[np.int64]) -> pa.Array:
        """The UTC day (date32) of each device time, null if it is far off. Both in microseconds since 1970."""
        days = device_time_us // _DAY_US
        known = (days >= _FIRST_DAY) & (days < _LAST_DAY)
        known &= device_time_us >= received_us - self.max_age_days * _DAY_US
        known &= device_time_us <= received_us + self.max_ahead_days * _DAY_US
        return pa.array(days.astype(np.int32), pa.int32(), mask=~known).cast(pa.date32())


USUAL: Final = SensibleTime()


RECORD_COLUMNS = without(RECORDS, "ingested_at", "ingest_number")
"""The records table without the columns that the commit of the ingest adds."""

_KIND_NAMES = pa.array(["", *(kind.name.lower() for kind in Kind)])
_ROWS_AT_ONCE = 500_000
_MESSAGES_AT_ONCE = 50_000
_BYTES_AT_ONCE = 64 << 20
"""The bytes that are decoded together: compressed messages may grow, and an Arrow column of texts holds 2 GiB."""
_NAME_SHOWN = 100
_RANGE_BYTES = 256
"""The memory of a range or a tombstone of a header."""
_STATEMENTS = 32
"""The most statements of a stream that are kept together; some in between are left out."""
_CLOCKS_DIFFER_US = 300_000_000
"""So far may the clock of a region be ahead of the centre's. A device states by its clock less the grace of its intake,
300 s as a rule: so what it states is of the past, were it by the same clock."""

_NO_KEYS = Unsealer()

Batches = Iterable[pa.RecordBatch]
TopicTenants = Mapping[str, str | None]
"""The only tenant of a topic; None or a missing topic: any tenant."""
_OF_ANY: TopicTenants = {}


@dataclass(slots=True)
class DecodedMessages:
    """Messages that were decoded together.

    `rows`: their records with the columns of RECORD_COLUMNS, mostly sorted by stream and seq, some columns as
    dictionaries; None without records. `streams`: the coverage that the batches of each stream state, and the number of
    their records. `malformed`: messages that are not a consistent batch, as `topic`, `message_id`, `malformed` (why),
    `fingerprint` and `payload`. `statements`: the accepted statements of each stream; `streams` has the latest of them.
    `disbelieved`: the number of ignored statements by region. `unreadable`: by tenant and device, the number of
    messages that the agent should have been able to read.
    """

    rows: pa.Table | None
    streams: dict[DeviceStream, tuple[Coverage, int]]
    malformed: list[dict[str, Any]]
    messages: int
    statements: dict[DeviceStream, tuple[Statement, ...]] = field(default_factory=dict)
    disbelieved: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)


class _Message(NamedTuple):
    """A consistent batch with records, and the properties of its message."""

    columns: RecordColumns
    properties: dict[str, str]
    publish_us: int | None


@dataclass(slots=True)
class _Gathered:
    """What is decoded so far, with its approximate size."""

    messages: list[_Message] = field(default_factory=list)
    headers: dict[DeviceStream, list[Header]] = field(default_factory=dict)
    statements: dict[DeviceStream, list[Statement]] = field(default_factory=dict)
    malformed: list[dict[str, Any]] = field(default_factory=list)
    disbelieved: Counter[str] = field(default_factory=Counter)
    count: int = 0
    rows: int = 0
    size: int = 0

    @property
    def is_enough(self) -> bool:
        return self.rows >= _ROWS_AT_ONCE or self.count >= _MESSAGES_AT_ONCE or self.size >= _BYTES_AT_ONCE


def decode_messages(
    batches: Batches,
    sensible: SensibleTime = USUAL,
    now: datetime | None = None,
    unsealer: Unsealer = _NO_KEYS,
    tenants: TopicTenants = _OF_ANY,
) -> Iterator[DecodedMessages]:
    """Decodes and checks messages: all of a task together, unless they are too many.

    A record whose device time is not `sensible` gets no day. `now`: the centre's clock; later statements are cut to it,
    and those of a region far ahead are ignored. None: all are accepted. Sealed messages that `unsealer` cannot open are
    malformed, as are messages of another tenant on a topic of `tenants`.
    """
    now_us = MAX_DEVICE_TIME_US if now is None else round(now.timestamp() * 1_000_000)
    gathered = _Gathered()
    for batch in batches:
        published = batch["publish_time"].cast(pa.int64()).to_pylist()
        rest = batch.select(["value", "properties", "topic", "message_id", "malformed"])
        for message, publish_us in zip(rest.to_pylist(), published, strict=True):
            _gather(
                gathered,
                message,
                publish_us,
                now_us=now_us,
                unsealer=unsealer,
                only_tenant=tenants.get(message["topic"]),
            )
            if gathered.is_enough:
                yield _decoded(gathered, sensible)
                gathered = _Gathered()
    if gathered.count:
        yield _decoded(gathered, sensible)


def _gather(
    gathered: _Gathered,
    message: dict[str, Any],
    publish_us: int | None,
    *,
    now_us: int,
    unsealer: Unsealer,
    only_tenant: str | None,
) -> None:
    value = message["value"] or b""
    properties = dict(message["properties"] or ())
    gathered.count += 1
    if message["malformed"] is not None:
        # Messages with the same value can be malformed in different ways.
        _gather_malformed(gathered, message, f"message: {message['malformed']}", message["malformed"].encode())
        return
    # Before a key is used: an invalid tenant must not choose the key.
    fault = next(_name_faults(properties, only_tenant), None)
    if fault is not None:
        _gather_malformed(gathered, message, fault, fault.encode())
        return
    try:
        if is_sealed(value):
            value = unsealer.unseal(value, properties["tenant"], properties["region"])
        columns = decode_columns(value)
    except Unsealable as error:
        _gather_malformed(gathered, message, f"sealed: {error}")
        return
    except WireError as error:
        _gather_malformed(gathered, message, f"{error.reason}: {error}")
        return
    header = columns.header
    stream = DeviceStream(properties["tenant"], header.device, header.epoch)
    gathered.headers.setdefault(stream, []).append(header)
    if header.stated_us and publish_us is not None and publish_us > 0:
        if publish_us <= now_us + _CLOCKS_DIFFER_US:
            # whatever the device's clock says, it cannot know what comes after the publication
            stated = Statement(min(header.stated_us, publish_us, now_us), header.head)
            gathered.statements.setdefault(stream, []).append(stated)
        else:
            gathered.disbelieved[properties["region"]] += 1
    gathered.size += columns.size + _RANGE_BYTES * (len(header.record_seqs.ranges) + len(header.tombstones))
    if len(columns.seq):
        gathered.rows += len(columns.seq)
        gathered.messages.append(_Message(columns, properties, publish_us))


def _name_faults(properties: dict[str, str], only_tenant: str | None) -> Iterator[str]:
    """Why the tenant or region of a message is invalid. Such records would block a bill for good."""
    for name in ("tenant", "region"):
        value = properties.get(name)
        if value is None or not DEVICE_PATTERN.fullmatch(value):
            said = "none" if value is None else repr(value[:_NAME_SHOWN])
            yield f"{name}: the message's property {name} is {said}, which is not the name of a {name}"
    if only_tenant is not None and properties.get("tenant") != only_tenant:
        yield f"tenant: a message of {properties.get('tenant', '')[:_NAME_SHOWN]!r} on the topic of {only_tenant!r}"


def _gather_malformed(gathered: _Gathered, message: dict[str, Any], reason: str, more: bytes = b"") -> None:
    value = message["value"] or b""
    gathered.size += len(value) + len(reason)
    gathered.malformed.append(
        {
            "topic": message["topic"],
            "message_id": message["message_id"],
            "malformed": reason,
            "fingerprint": hashlib.sha256(value + more).hexdigest(),
            "payload": value,
        }
    )


def _decoded(gathered: _Gathered, sensible: SensibleTime) -> DecodedMessages:
    rows = _record_rows(gathered.messages, sensible) if gathered.messages else None
    return DecodedMessages(
        rows=rows,
        unreadable=Counter() if rows is None else _unreadable(rows),
        streams={
            stream: _united(headers, gathered.statements.get(stream)) for stream, headers in gathered.headers.items()
        },
        malformed=gathered.malformed,
        messages=gathered.count,
        statements={stream: _kept(statements) for stream, statements in gathered.statements.items()},
        disbelieved=gathered.disbelieved,
    )


def _unreadable(rows: pa.Table) -> Counter[str]:
    is_raw = pc.equal(rows["kind"].combine_chunks().indices, int(Kind.RAW))
    raw = rows.select(["tenant", "device", "text"]).filter(is_raw)
    faults = raw.filter(pc.invert(pc.is_in(raw["text"], pa.array(sorted(NO_FAULTS), pa.string()))))
    devices = zip(faults["tenant"].to_pylist(), faults["device"].to_pylist(), strict=True)
    return Counter(f"{tenant}/{device}" for tenant, device in devices)


def _kept(statements: list[Statement]) -> tuple[Statement, ...]:
    """The statements that may be the latest whose head is covered, the latest first."""
    kept: list[Statement] = []
    for statement in sorted(statements, key=lambda one: (-one.stated_us, one.head)):
        if not kept or statement.head < kept[-1].head:
            kept.append(statement)
    # rounded up, so that the latest stays and no more than the bound
    return tuple(kept[:: -(-len(kept) // _STATEMENTS)])


def _united(headers: list[Header], statements: list[Statement] | None) -> tuple[Coverage, int]:
    """The coverage that batches of one stream state, and the number of their records, repetitions included."""
    received = IntervalSet([bounds for header in headers for bounds in header.record_seqs.ranges])
    latest = max(statements) if statements else Statement(0, 0)
    said = Coverage(received, (), max(header.head for header in headers), latest.stated_us, latest.head)
    # a device repeats its tombstones until they are acknowledged
    for tombstones in dict.fromkeys(header.tombstones for header in headers):
        said |= Coverage(tombstones=tombstones)
    return said, sum(header.record_seqs.count for header in headers)


def _record_rows(messages: list[_Message], sensible: SensibleTime) -> pa.Table:
    # in this order the rows are mostly sorted already
    messages = sorted(messages, key=_stream_and_first_seq)
    parts = [message.columns for message in messages]
    counts = np.array([len(columns.seq) for columns in parts])
    message_of = np.repeat(np.arange(len(counts)), counts)
    arrays: dict[str, pa.Array] = {}
    for name, values in {
        "tenant": [message.properties["tenant"] for message in messages],
        "region": [message.properties["region"] for message in messages],
        "device": [message.columns.header.device for message in messages],
    }.items():
        encoded = pa.array(values, pa.string()).dictionary_encode()
        arrays[name] = pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(message_of)), encoded.dictionary)
    arrays["epoch"] = pa.array(np.repeat([columns.header.epoch for columns in parts], counts))
    received = pa.array([message.publish_us for message in messages], pa.int64()).take(pa.array(message_of))
    arrays["received_at"] = received.cast(RECORD_COLUMNS.field("received_at").type)
    kind = np.concatenate([columns.kind for columns in parts]).astype(np.int8)
    arrays["kind"] = pa.DictionaryArray.from_arrays(pa.array(kind), _KIND_NAMES)
    for name, column in _TABLE_COLUMN_OF.items():
        joined = np.concatenate([getattr(columns, name) for columns in parts])
        # NaN stands for a missing value, which is null in the table
        arrays[column] = pa.array(joined, RECORD_COLUMNS.field(column).type, from_pandas=True)
        if name == "device_time_us":
            arrays["device_date"] = sensible.days(joined, received.fill_null(0).to_numpy())
    arrays["content_bytes"] = content_bytes(arrays)
    return pa.table({name: arrays[name] for name in RECORD_COLUMNS.names})


def _stream_and_first_seq(message: _Message) -> tuple[str, str, int, int]:
    header = message.columns.header
    return message.properties["tenant"], header.device, header.epoch, int(message.columns.seq[0])


_TABLE_COLUMN_OF = {
    "seq": "seq",
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
    "mapping": "mapping",
}
"""The arrays of `waybill.record.columns.RecordColumns`, and the table's columns that they fill."""
