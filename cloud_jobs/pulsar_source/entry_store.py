"""Asks a cluster for the stored entries of a topic partition: through the admin REST one by one, or the broker for all.

The client library silently drops chunks without a beginning and entries that do not decompress. The admin REST shows an
entry's metadata, except for compressed chunks and long properties. So this module reads Pulsar's own protocol for the
metadata alone: it keeps no payload and acknowledges nothing.

A protobuf message is a mapping of field number -> value, the last one of a repeated field; that is enough here. Bad
bytes raise ValueError.
"""

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.entries import Chunk, EntryStore, LeftS, StoredEntry
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster, SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import LedgerPosition
from waybill.pulsar.pulsar_client import PulsarToken, access_tls_context

Value = int | bytes

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_FIELDS = 1024
"""Numbers of fields from here on are passed over: Pulsar has none, and a producer could fill the memory with them."""
_BATCH, _UUID, _CHUNKS, _CHUNK = 11, 26, 27, 29


class EntryMetadata(NamedTuple):
    """The metadata of an entry that is needed; 0 or "" where the producer set nothing."""

    messages: int
    uuid: str
    chunk: int
    chunks: int


def encode(fields: Mapping[int, Value]) -> bytes:
    """Field number -> value, as protobuf."""
    parts = []
    for number, value in fields.items():
        if isinstance(value, int):
            parts.append(_varint(number << 3 | _VARINT) + _varint(value))
        else:
            parts.append(_varint(number << 3 | _BYTES) + _varint(len(value)) + value)
    return b"".join(parts)


def decode(data: bytes) -> dict[int, Value]:
    """The reverse of `encode`."""
    fields: dict[int, Value] = {}
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, offset = _read_varint(data, offset)
            if number < _FIELDS:
                fields[number] = value
            continue
        length = {_FIXED_64: 8, _FIXED_32: 4}.get(kind)
        if kind == _BYTES:
            length, offset = _read_varint(data, offset)
        if length is None or offset + length > len(data):
            raise ValueError(f"no protobuf at byte {offset}")
        if number < _FIELDS:
            fields[number] = data[offset : offset + length]
        offset += length
    return fields


def numbers(fields: Mapping[int, Value], *wanted: int) -> list[int]:
    """The values of integer fields; ValueError when one is missing or has another type."""
    values = [fields.get(number) for number in wanted]
    if not all(isinstance(value, int) for value in values):
        raise ValueError(f"fields {wanted} are not all numbers: {values}")
    return [value for value in values if isinstance(value, int)]


def frame(kind: int, fields: Mapping[int, Value]) -> bytes:
    """A Pulsar command with its length prefixes."""
    command = encode({1: kind, kind: encode(fields)})
    return (len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command


def entry_metadata(metadata: bytes) -> EntryMetadata:
    fields = decode(metadata)

    def integer(number: int) -> int | None:
        value = fields.get(number)
        # An int32 that is negative is sent as 64 bits.
        return None if not isinstance(value, int) else value - (1 << 64 if value >> 63 else 0)

    uuid = fields.get(_UUID)
    text = uuid.decode(errors="replace") if isinstance(uuid, bytes) else ""
    return EntryMetadata(integer(_BATCH) or 1, text, integer(_CHUNK) or 0, integer(_CHUNKS) or 0)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, offset + index + 1
    raise ValueError(f"no number at byte {offset}")


_CONNECT, _CONNECTED, _SUBSCRIBE, _MESSAGE, _FLOW, _SUCCESS, _PING, _PONG = 2, 3, 4, 9, 11, 13, 18, 19
_PROTOCOL_VERSION = 15
_PERMITS = 5000
_MAX_FRAME_BYTES = 256 << 20
_MAX_HEAD_BYTES = 1 << 20
_MAX_METADATA_BYTES = 8 << 20
"""A message of Pulsar has 5 MiB with its properties, where nothing else is set."""
_CHECKSUM_MAGIC, _CHECKSUM_BYTES = b"\x0e\x01", 6
_READ_BYTES = 256 << 10
_IDLE_TIMEOUT_S = 2.0
"""Silence after which nothing more is expected: what is asked for is stored already."""


class EntryStream:
    """One connection, as a reader that begins at an entry. Raises SourceClusterUnreachable, also for bad bytes."""

    def __init__(self, connection: socket.socket, cluster: SourceCluster, partition: str) -> None:
        self._socket = connection
        self._stream = connection.makefile("rb", buffering=_READ_BYTES)
        self._cluster = cluster
        self._partition = partition

    def close(self) -> None:
        self._stream.close()

    def open(self, access: tuple[bytes, bytes], first: LedgerPosition) -> None:
        """Authenticates (name of the method, its data) and subscribes without a durable cursor."""
        method, data = access
        known = {5: method, 3: data} if method else {}
        self._send(_CONNECT, {1: b"waybill", 4: _PROTOCOL_VERSION, **known})
        self._expect(_CONNECTED)
        message_id = encode({1: first.ledger, 2: first.entry})
        topic, name = self._partition.encode(), uuid4().hex.encode()
        # Exclusive (3), not durable (8), from that entry on (9); no topic is created by looking (15).
        self._send(_SUBSCRIBE, {1: topic, 2: name, 3: 0, 4: 1, 5: 1, 8: 0, 9: message_id, 15: 0})
        self._expect(_SUCCESS)
        self._send(_FLOW, {1: 1, 2: _PERMITS})

    def receive_entries(self, last: LedgerPosition) -> Iterator[tuple[LedgerPosition, EntryMetadata]]:
        """The entries up to `last` or the first one behind it; ends when nothing comes for some seconds."""
        taken = 0
        while True:
            try:
                kind, fields, metadata = self._receive()
            except TimeoutError:
                return
            if kind != _MESSAGE:
                continue
            ledger, entry = numbers(decode(_bytes(fields, 2)), 1, 2)
            head = entry_metadata(metadata)
            yield LedgerPosition(ledger, entry), head
            if (ledger, entry) >= last[:2]:
                return
            taken += max(1, head.messages)
            # Permits count messages, not entries; asked for by halves, so that the broker never waits for more.
            if taken >= _PERMITS // 2:
                self._send(_FLOW, {1: 1, 2: taken})
                taken = 0

    def _send(self, kind: int, fields: dict[int, Value]) -> None:
        self._socket.sendall(frame(kind, fields))

    def _expect(self, kind: int) -> None:
        while True:
            came, fields, _ = self._receive()
            if came == kind:
                return
            if came not in {_PING, _PONG}:
                detail = f"command {came} instead of {kind}: {fields}"
                raise SourceClusterUnreachable(self._cluster.name, f"looking at {self._partition}", detail)

    def _receive(self) -> tuple[int, dict[int, Value], bytes]:
        """The next command: its kind, its fields, and the metadata after it, if any."""
        size, command = (int.from_bytes(self._read_exactly(4)) for _ in range(2))
        left = size - 4 - command
        if command > _MAX_HEAD_BYTES or not 0 <= left <= _MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes with a command of {command}")
        fields = decode(self._read_exactly(command))
        (kind,) = numbers(fields, 1)
        metadata = self._read_metadata(left) if left else b""
        if kind == _PING:
            # A broker closes a connection that does not answer its ping.
            self._send(_PONG, {})
        return kind, decode(_bytes(fields, kind)), metadata

    def _read_metadata(self, left: int) -> bytes:
        start = self._read_exactly(4)
        skipped = 4
        if start[:2] == _CHECKSUM_MAGIC:
            start = start[_CHECKSUM_BYTES:] + self._read_exactly(_CHECKSUM_BYTES)
            skipped += _CHECKSUM_BYTES
        length = int.from_bytes(start[-4:])
        if skipped + length > left or length > _MAX_METADATA_BYTES:
            raise ValueError(f"{length} bytes of metadata in an entry of {left}")
        metadata = self._read_exactly(length)
        self._skip(left - skipped - length)
        return metadata

    def _read_exactly(self, length: int) -> bytes:
        data: bytes = self._stream.read(length)
        if len(data) < length:
            raise ConnectionError("the broker closed the connection")
        return data

    def _skip(self, length: int) -> None:
        while length:
            length -= len(self._read_exactly(min(_READ_BYTES, length)))


def sent_entries(
    admin: SourceAdmin,
    options: PulsarOptions,
    partition: str,
    span: tuple[LedgerPosition, LedgerPosition],
    left_s: Callable[[], float],
) -> Iterator[tuple[LedgerPosition, EntryMetadata]]:
    """The entries of a span (first, last) that a broker sends a consumer, in order; may begin slightly earlier.

    Ends early when nothing more comes or no time is left. Raises SourceClusterUnreachable.
    """
    cluster, (first, last) = admin.cluster, span
    try:
        with (
            _connection(admin.broker_of(partition), options) as connection,
            closing(EntryStream(connection, cluster, partition)) as sent,
        ):
            sent.open(_credentials(options), first)
            connection.settimeout(_IDLE_TIMEOUT_S)
            for found in sent.receive_entries(last):
                yield found
                if left_s() <= 0:
                    return
    except (OSError, ValueError) as error:
        raise SourceClusterUnreachable(cluster.name, f"looking at the entries of {partition}", repr(error)) from error


@contextmanager
def _connection(address: str, options: PulsarOptions) -> Iterator[socket.socket]:
    url = urlsplit(address)
    with socket.create_connection((url.hostname, url.port), timeout=options.call_timeout_s()) as plain:
        if url.scheme != "pulsar+ssl":
            yield plain
            return
        context: ssl.SSLContext = access_tls_context(options)
        with context.wrap_socket(plain, server_hostname=url.hostname) as wrapped:
            yield wrapped


def _credentials(options: PulsarOptions) -> tuple[bytes, bytes]:
    if token := PulsarToken(options):
        return b"token", token().encode()
    return (b"tls", b"") if options.tls_certificate else (b"", b"")


def _bytes(fields: dict[int, Value], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is a number")
    return value


_MAX_KNOWN = 100_000


class AdminEntryStore:
    """An `EntryStore` over the admin REST and the broker; connects at the first question. Raises as `SourceAdmin`."""

    def __init__(self, cluster: SourceCluster, options: PulsarOptions, partition: str) -> None:
        self._admin = SourceAdmin(cluster, options, options.call_timeout_s())
        self._options = options
        self._partition = partition
        self._known: dict[tuple[int, int], StoredEntry] = {}

    def close(self) -> None:
        self._admin.close()

    def entry(self, position: LedgerPosition) -> StoredEntry | None:
        known = self._known.get(position[:2])
        if known is not None:
            return known
        headers = self._admin.entry_headers(self._partition, position)
        if headers is None:
            return None
        entry = StoredEntry.from_headers(headers)
        if entry.readable and not (entry.in_open_transaction and not entry.marker) and len(self._known) < _MAX_KNOWN:
            self._known[position[:2]] = entry  # it stays what it is
        return entry

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, left_s: LeftS
    ) -> Iterator[tuple[LedgerPosition, StoredEntry]]:
        for position, head in sent_entries(self._admin, self._options, self._partition, (first, last), left_s):
            yield position, StoredEntry(chunk=Chunk.from_metadata(head.uuid, head.chunk, head.chunks))


def open_entry_store(
    cluster: SourceCluster, options: PulsarOptions, partition: str
) -> AbstractContextManager[EntryStore]:
    return closing(AdminEntryStore(cluster, options, partition))
