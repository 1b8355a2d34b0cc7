"""A producer that speaks Pulsar's binary protocol itself: it can send what no client library lets through."""

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from tests.cloud_jobs.pulsar_source.world import LiveCluster
from waybill.pulsar.pulsar_client import PulsarToken, access_tls_context

Fields = list[tuple[int, int | bytes]]
"""A protobuf message as (number of the field, varint or bytes)."""

_CONNECT, _CONNECTED, _PRODUCER, _SEND, _SEND_RECEIPT, _PRODUCER_SUCCESS, _PING = 2, 3, 5, 6, 7, 17, 18
_TIMEOUT_S = 20


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def message(fields: Fields) -> bytes:
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def metadata(**fields: int | bytes) -> Fields:
    """The metadata of a message, with what every message has; `properties` is one encoded pair."""
    common: Mapping[str, int | bytes] = {
        "producer_name": b"hostile",
        "sequence_id": 1,
        "publish_time": 1_767_603_422_000,
    }
    known = {**common, **fields}
    return [(_METADATA[name], value) for name, value in known.items()]


def pair(key: bytes, value: bytes) -> bytes:
    return message([(1, key), (2, value)])


_METADATA = {
    "producer_name": 1,
    "sequence_id": 2,
    "publish_time": 3,
    "properties": 4,
    "partition_key": 6,
    "compression": 8,
    "uncompressed_size": 9,
    "num_messages_in_batch": 11,
    "event_time": 12,
    "encryption_keys": 13,
    "encryption_algo": 14,
    "encryption_param": 15,
    "schema_version": 16,
    "partition_key_b64_encoded": 17,
    "ordering_key": 18,
    "deliver_at_time": 19,
    "marker_type": 20,
    "txnid_least_bits": 22,
    "txnid_most_bits": 23,
    "null_value": 25,
    "uuid": 26,
    "num_chunks_from_msg": 27,
    "total_chunk_msg_size": 28,
    "chunk_id": 29,
}


class RawProducer:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sequence = 0

    def send(self, entry: Fields, payload: bytes = b"x", messages: int = 1) -> None:
        """One entry with this metadata; returns when it is persisted."""
        head = message(entry)
        body = struct.pack(">I", len(head)) + head + payload
        self._sequence += 1
        self._command(_SEND, [(1, 1), (2, self._sequence), (3, messages)], body)
        self._expect(_SEND_RECEIPT)

    def open(self, topic: str, token: str = "") -> None:
        shown: Fields = [(5, b"token"), (3, token.encode())] if token else []
        self._command(_CONNECT, [(1, b"raw"), (4, 19), *shown])
        self._expect(_CONNECTED)
        self._command(_PRODUCER, [(1, topic.encode()), (2, 1), (3, 1)])
        self._expect(_PRODUCER_SUCCESS)

    def _command(self, kind: int, fields: Fields, body: bytes = b"") -> None:
        command = message([(1, kind), (kind, message(fields))])
        frame = struct.pack(">I", len(command)) + command + body
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)

    def _expect(self, kind: int) -> bytes:
        while True:
            (length,) = struct.unpack(">I", self._exactly(4))
            frame = self._exactly(length)
            # The command begins with its kind: field 1, a varint.
            if frame[4:6] == bytes([8, kind]):
                return frame[4 : 4 + int.from_bytes(frame[:4])]
            assert frame[4:6] == bytes([8, _PING]), f"the broker answered {frame!r}"

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data


@contextmanager
def raw_producer(place: LiveCluster, topic: str) -> Iterator[RawProducer]:
    """A raw producer of a topic that the broker of this cluster's address serves already."""
    url, token = urlsplit(place.service_url), PulsarToken(place.access)
    with ExitStack() as opened:
        plain = opened.enter_context(socket.create_connection((url.hostname, url.port), timeout=_TIMEOUT_S))
        connection = plain
        if url.scheme == "pulsar+ssl":
            context = access_tls_context(place.access)
            connection = opened.enter_context(context.wrap_socket(plain, server_hostname=url.hostname))
        producer = RawProducer(connection)
        producer.open(topic, token() if token else "")
        yield producer
