"""Messages of a partition, in order, and the Arrow columns made from them.

A producer may set every field of a message to anything, and a broker checks none. What a column cannot hold becomes a
reason and the bytes instead of an exception.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cloud_jobs.pulsar_source.options import ALL_COLUMNS, origin_cluster
from cloud_jobs.pulsar_source.position import WHOLE_ENTRY, LedgerPosition
from geo.replication.topic_naming import split_partition

# Messages of the native client: ids, positions, copies, and entries that no client can read.

_BATCH_SIZE_FIELD = 6


def position_of(message_id: Any) -> LedgerPosition:
    """The position of a message from the client's id (batch -1 when it was sent alone)."""
    return LedgerPosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def id_of(position: LedgerPosition) -> Any:
    """The client's id of the last message that a position includes."""
    batch = -1 if position.batch == WHOLE_ENTRY else position.batch
    return pulsar.MessageId(-1, position.ledger, position.entry, batch)


def batch_size_of(message_id: Any) -> int:
    """How many messages the entry of this id has; 1 when it was sent alone.

    The client keeps that number in the id but shows it only in its serialised form (protobuf, field 6, a varint).
    """
    number, fields = 0, _varints(message_id.serialize())
    for tag, value in fields:
        if tag >> 3 == _BATCH_SIZE_FIELD:
            number = value
    return max(1, number)


def _varints(serialized: bytes) -> Iterator[tuple[int, int]]:
    """(tag, value) of the leading varint fields of a protobuf message."""
    numbers: list[int] = []
    number = shift = 0
    for byte in serialized:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
            if len(numbers) % 2 == 1 and numbers[-1] & 7 != 0:
                break  # not a varint: nothing that we look for comes after it
    yield from zip(numbers[::2], numbers[1::2], strict=False)


_Text = TypeVar("_Text")


@dataclass(frozen=True, slots=True)
class CopiedMessage:
    """The parts of a native message that columns and look ahead need; a text that is not UTF-8 raises as in the
    original.
    """

    serialized_id: bytes
    value: bytes
    null: bool
    key: str | UnicodeDecodeError
    message_properties: dict[str, str] | UnicodeDecodeError
    published_ms: int
    event_ms: int
    producer: str | UnicodeDecodeError
    encrypted: bool

    @classmethod
    def of(cls, native: Any, *, with_content: bool) -> "CopiedMessage | CopiedId":
        """A copy of a native message; without content only its position."""
        if not with_content:
            return CopiedId(native.message_id().serialize())
        return cls(
            native.message_id().serialize(),
            native.data(),
            native.has_null_value(),
            _text_or_error(native.partition_key),
            _text_or_error(native.properties),
            native.publish_timestamp(),
            native.event_timestamp(),
            _text_or_error(native.producer_name),
            native.encryption_context() is not None,
        )

    def message_id(self) -> Any:  # the native client's names, here and below
        return pulsar.MessageId.deserialize(self.serialized_id)

    def data(self) -> bytes:
        return self.value

    def has_null_value(self) -> bool:
        return self.null

    def partition_key(self) -> str:
        return _text_or_raise(self.key)

    def properties(self) -> dict[str, str]:
        return _text_or_raise(self.message_properties)

    def publish_timestamp(self) -> int:
        return self.published_ms

    def event_timestamp(self) -> int:
        return self.event_ms

    def producer_name(self) -> str:
        return _text_or_raise(self.producer)

    def encryption_context(self) -> object | None:
        return self.encrypted or None


@dataclass(frozen=True, slots=True)
class CopiedId:
    """The part of a native message that the look ahead needs."""

    serialized_id: bytes

    def message_id(self) -> Any:  # the native client's name
        return pulsar.MessageId.deserialize(self.serialized_id)


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """Stands for an entry that crashes every client: nothing of it is known."""

    position: LedgerPosition
    reason: str

    def message_id(self) -> Any:  # the native client's names, here and below
        return id_of(self.position)

    def data(self) -> bytes:
        return b""

    def has_null_value(self) -> bool:
        return True

    def partition_key(self) -> str:
        return ""

    def properties(self) -> dict[str, str]:
        return {}

    def publish_timestamp(self) -> int:
        return 0

    def event_timestamp(self) -> int:
        return 0

    def producer_name(self) -> str:
        return ""

    def encryption_context(self) -> object | None:
        return None


def _text_or_error(read: Callable[[], _Text]) -> _Text | UnicodeDecodeError:
    try:
        return read()
    except UnicodeDecodeError as error:
        return error


def _text_or_raise(text: _Text | UnicodeDecodeError) -> _Text:
    if isinstance(text, UnicodeDecodeError):
        raise text
    return text


LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: Python and Spark's text form of a timestamp know none after it."""

ENCRYPTED = "value is encrypted"

_MAX_BYTES = 256
"""Most bytes of a field that a reason shows."""


class MalformedFields:
    """The reasons by row, for rows with malformed fields."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def note(self, row: int, reason: str) -> None:
        known = self.reasons.get(row)
        self.reasons[row] = f"{known}; {reason}" if known else reason

    def read_texts(
        self, field: str, read: Callable[[Sequence[Any]], list[Any]], messages: Sequence[Any], row: int
    ) -> list[Any]:
        """The results of `read` for the messages from `row` on; None and a reason for text that is not UTF-8."""
        try:
            return read(messages)
        except UnicodeDecodeError:
            return [self._text(field, read, message, row + index) for index, message in enumerate(messages)]

    def _text(self, field: str, read: Callable[[Sequence[Any]], list[Any]], message: Any, row: int) -> Any:
        try:
            return read([message])[0]
        except UnicodeDecodeError as error:
            self.note(row, f"{field} not UTF-8: {_shown(error.object)}")
            return None

    def check_times(self, field: str, times_ms: list[int], row: int) -> list[int]:
        """The times that fit a timestamp; 0 (none) and a reason for others."""
        if not times_ms or (min(times_ms) >= 0 and max(times_ms) <= LAST_MS):
            return times_ms
        for index, time_ms in enumerate(times_ms):
            if not 0 <= time_ms <= LAST_MS:
                self.note_time(row + index, field, time_ms)
        return [time_ms if 0 <= time_ms <= LAST_MS else 0 for time_ms in times_ms]

    def note_time(self, row: int, field: str, time_ms: int) -> None:
        self.note(row, f"{field} not a time of the years 1970 to 9999: {time_ms} ms")


def _shown(data: bytes) -> str:
    return data[:_MAX_BYTES].hex() + (f"... ({len(data)} bytes)" if len(data) > _MAX_BYTES else "")


_log = structlog.get_logger(__name__)
_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {
    "value": ("binary", pa.binary()),
    "key": ("string", pa.string()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "publish_time": ("timestamp", _TIME),
    "event_time": ("timestamp", _TIME),
    "topic": ("string", pa.string()),
    "message_id": ("string", pa.string()),
    "cluster": ("string", pa.string()),
    "malformed": ("string", pa.string()),
}
assert tuple(_TYPES) == ALL_COLUMNS

_MAX_ORIGINS = 1000
"""Names of producers that are kept with their cluster: they are the producers' own choice."""


def spark_schema(names: Sequence[str] = ALL_COLUMNS) -> str:
    return ", ".join(f"{name} {_TYPES[name][0]}" for name in names)


def arrow_schema(names: Sequence[str] = ALL_COLUMNS) -> pa.Schema:
    """Columns as an Arrow schema; Spark requires that it equals the declared one."""
    return pa.schema([(name, _TYPES[name][1]) for name in names])


@dataclass(slots=True)
class EntryRuns:
    """Runs of messages from one entry: they share everything that the broker and the batch gave them."""

    lengths: list[int] = field(default_factory=list)
    ledgers: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    first_batch_indexes: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    published_ms: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)


class MessageColumns:
    """Collects messages of one topic partition; `take` returns them as one Arrow batch.

    Written for speed: a call into the native client costs as much as receiving a message. What the messages of an entry
    share is read once per entry, and columns that are not wanted are not read.
    """

    def __init__(
        self, topic: str, cluster: str, known_clusters: frozenset[str], names: Sequence[str] = ALL_COLUMNS
    ) -> None:
        self._topic, partition = split_partition(topic)
        self._partition = str(partition)
        self._cluster = cluster
        self._known_clusters = known_clusters
        self._origins: dict[str, str] = {}
        self._schema = arrow_schema(names)
        self._wanted = frozenset(names)
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        """What is held of the messages' values, keys and properties: bytes and characters."""
        self._rows = 0
        self._malformed = MalformedFields()
        self._values: list[bytes | None] = []
        self._keys: list[str | None] = []
        self._properties = _Properties()
        self._event_ms: list[int] = []
        self._runs = EntryRuns()

    def __len__(self) -> int:
        return self._rows

    @property
    def runs(self) -> EntryRuns:
        """The runs added since the last `take`, in order."""
        return self._runs

    def extend(self, messages: Sequence[Any]) -> None:
        """Adds messages of the native client (`_pulsar.Message`), in the order of the topic."""
        wanted, row, malformed = self._wanted, self._rows, self._malformed
        self._rows += len(messages)
        if "value" in wanted:
            self._extend_values(messages)
        if "key" in wanted:
            keys = malformed.read_texts("key", _keys_of, messages, row)
            self.bytes += sum(map(len, filter(None, keys)))
            self._keys += keys
        if "properties" in wanted:
            properties = malformed.read_texts("properties", _properties_of, messages, row)
            self.bytes += self._properties.extend(properties)
        if "event_time" in wanted:
            times_ms = _each("event_timestamp", messages)
            self._event_ms += malformed.check_times("event_time", times_ms, row)
        start = 0
        while start < len(messages):
            start += self._append_run(messages, start, row + start)

    def _extend_values(self, messages: Sequence[Any]) -> None:
        values = _each("data", messages)
        self.bytes += sum(map(len, values))
        # A null value comes as an empty one: only then is it worth the second question.
        if all(values):
            self._values += values
        else:
            self._values += [
                None if message.has_null_value() else value for message, value in zip(messages, values, strict=True)
            ]

    def _append_run(self, messages: Sequence[Any], start: int, row: int) -> int:
        """Adds the run of one entry that begins at `start` with that row; returns its length."""
        first = messages[start]
        message_id = first.message_id()
        ledger, entry, batch = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        size = 1 if batch < 0 else batch_size_of(message_id)
        length = 1 if batch < 0 else min(size - batch, len(messages) - start)
        if length > 1:
            last = messages[start + length - 1].message_id()
            # In order, from one entry, and as many as their indexes span: then none between them is missing.
            if (last.ledger_id(), last.entry_id(), last.batch_index()) != (ledger, entry, batch + length - 1):
                length = 1
        runs = self._runs
        runs.lengths.append(length)
        runs.ledgers.append(ledger)
        runs.entries.append(entry)
        runs.first_batch_indexes.append(batch)
        runs.batch_sizes.append(size)
        runs.published_ms.append(first.publish_timestamp())
        runs.origins.append(self._origin(first))
        if not 0 < runs.published_ms[-1] <= LAST_MS:
            self._drop_publish_time(range(row, row + length), first)
        if length == 1 and "value" in self._wanted and first.encryption_context() is not None:
            # Nobody else can take an encrypted batch apart: it comes as one message.
            self._malformed.note(row, ENCRYPTED)
        return length

    def _drop_publish_time(self, rows: range, first: Any) -> None:
        time_ms, self._runs.published_ms[-1] = self._runs.published_ms[-1], 0
        if isinstance(first, UnreadableEntry):
            self._malformed.note(rows[0], first.reason)
        elif "publish_time" in self._wanted:
            for row in rows:
                self._malformed.note_time(row, "publish_time", time_ms)

    def take(self) -> pa.RecordBatch:
        """All messages since the last call, in order, as a batch of the wanted columns."""
        lengths = np.array(self._runs.lengths, np.int64)
        assert lengths.sum() == self._rows
        arrays = [self._build(name, lengths) for name in self._schema.names]
        if reasons := self._malformed.reasons:
            row, reason = next(iter(sorted(reasons.items())))
            place = self._message_ids(lengths)[row].as_py()
            _log.warning("malformed messages", count=len(reasons), topic=self._topic, first=place, reason=reason)
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _build(self, name: str, lengths: np.ndarray) -> pa.Array:  # noqa: PLR0911  # one line a column
        match name:
            case "value":
                return pa.array(self._values, pa.binary())
            case "key":
                return _null_where_empty(pa.array(self._keys, pa.string()))
            case "properties":
                return self._properties.build()
            case "publish_time":
                return _times(np.repeat(np.array(self._runs.published_ms, np.int64), lengths))
            case "event_time":
                return _times(np.array(self._event_ms, np.int64))
            case "topic":
                return pa.repeat(pa.scalar(self._topic, pa.string()), self._rows)
            case "message_id":
                return self._message_ids(lengths)
            case "malformed":
                reasons = self._malformed.reasons
                return (
                    pa.array(map(reasons.get, range(self._rows)), pa.string())
                    if reasons
                    else pa.nulls(self._rows, pa.string())
                )
            case _:
                return _repeat_runs(pa.array(self._runs.origins, pa.string()), lengths)

    def _message_ids(self, lengths: np.ndarray) -> pa.Array:
        runs = self._runs
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        batches = pa.array(
            np.repeat(np.array(runs.first_batch_indexes, np.int64), lengths) + np.arange(len(starts)) - starts
        )
        ledgers, entries = (pa.array(runs.ledgers).cast(pa.string()), pa.array(runs.entries).cast(pa.string()))
        of_entries = pc.binary_join_element_wise(ledgers, entries, self._partition, ":")
        ids = _repeat_runs(of_entries, lengths)
        in_batch = pc.binary_join_element_wise(ids, batches.cast(pa.string()), ":")
        return pc.if_else(pc.equal(batches, -1), ids, in_batch)

    def _origin(self, message: Any) -> str:
        try:
            producer = message.producer_name()
        except UnicodeDecodeError:
            return self._cluster  # no broker drew that name: it says nothing
        if producer not in self._origins:
            if len(self._origins) == _MAX_ORIGINS:
                self._origins.clear()
            self._origins[producer] = origin_cluster(producer, self._known_clusters, self._cluster)
        return self._origins[producer]


class _Properties:
    """Collects the properties of messages without keeping a dict per message: 10,000 of them leave the processor's
    cache.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._names: list[str] = []
        self._texts: list[str] = []

    def extend(self, properties: Sequence[dict[str, str] | None]) -> int:
        """Adds properties, None where they cannot be shown; returns their number of characters."""
        self._counts += [-1 if one is None else len(one) for one in properties]
        held = list(filter(None, properties))
        names, texts = list(chain.from_iterable(held)), list(chain.from_iterable(map(dict.values, held)))
        self._names += names
        self._texts += texts
        # To join them is faster than to ask each for its length.
        return len("".join(names)) + len("".join(texts))

    def build(self) -> pa.Array:
        counts = np.array(self._counts, np.int32)
        ends = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(np.maximum(counts, 0), out=ends[1:])
        mask = pa.array(counts < 0) if (counts < 0).any() else None
        return pa.MapArray.from_arrays(
            pa.array(ends), self._name_array(), pa.array(self._texts, pa.string()), mask=mask
        )

    def _name_array(self) -> pa.Array:
        first = self._names[: max(self._counts, default=0)]
        if first and self._names == first * (len(self._names) // len(first)):
            # What one producer sends mostly has the same names, in the same order: the client sorts them.
            return pa.array(first, pa.string()).take(pa.array(np.arange(len(self._names)) % len(first)))
        return pa.array(self._names, pa.string())


def _each(call: str, messages: Sequence[Any]) -> list[Any]:
    """Calls one method of each message; all have one class, and one look-up of the method is a fifth faster."""
    return list(map(getattr(type(messages[0]), call), messages)) if messages else []


def _keys_of(messages: Sequence[Any]) -> list[Any]:
    return _each("partition_key", messages)


def _properties_of(messages: Sequence[Any]) -> list[Any]:
    return _each("properties", messages)


def _null_where_empty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _times(times_ms: np.ndarray) -> pa.Array:
    """Milliseconds -> timestamps; 0 means none in the client."""
    return pa.array(times_ms, mask=times_ms == 0).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _repeat_runs(of_runs: pa.Array, lengths: np.ndarray) -> pa.Array:
    """One value per run -> one per message."""
    return of_runs.take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
