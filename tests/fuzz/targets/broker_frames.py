"""What a Pulsar broker sends on a connection that looks at stored entries."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from cloud_jobs.pulsar_source.entries import Chunk
from cloud_jobs.pulsar_source.entry_store import EntryStream, encode, frame
from cloud_jobs.pulsar_source.options import SourceCluster, SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.fuzz.bounds import check_refusal

CLUSTER = SourceCluster(name="eu", service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:2")
FUZZED_BYTES = 4096
FIRST, LAST = LedgerPosition(5, 0), LedgerPosition(5, 9)


class BrokerConnection:
    """A connection whose broker has sent those bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO(self._data)

    def sendall(self, data: bytes) -> None:
        """Nobody reads it."""


def message(entry: int, metadata: bytes, payload: bytes = b"payload", *, checked: bool = True) -> bytes:
    command = encode({1: 9, 9: encode({1: 1, 2: encode({1: 5, 2: entry})})})
    rest = (b"\x0e\x01\0\0\0\0" if checked else b"") + len(metadata).to_bytes(4) + metadata + payload
    return (4 + len(command) + len(rest)).to_bytes(4) + len(command).to_bytes(4) + command + rest


def seeds() -> Iterable[bytes]:
    """A connection that is usual, and frames that are cut, of wrong lengths, or full of fields."""
    opened = frame(3, {1: b"Pulsar", 2: 15}) + frame(13, {1: 1})
    chunk = encode({1: b"p", 2: 7, 3: 1, 26: b"uuid", 27: 3, 29: 2})
    yield opened + message(3, encode({1: b"p", 11: 5})) + frame(18, {}) + message(9, chunk, checked=False)
    yield frame(14, {1: 1, 2: 3, 3: b"no such topic"})
    yield opened + message(3, chunk)[:-20]
    yield opened + b"\xff\xff\xff\xff\0\0\0\0"
    yield opened + b"\x7f\xff\xff\xff\0\0\0\x08" + bytes(8)
    yield opened + message(3, b"\x08\x01" * 30_000)
    yield opened + message(3, b"\xff" * 9 + b"\x01\x01")
    yield opened + frame(18, {}) * 3000


def judge(data: bytes) -> None:
    """Entries, or the errors that `sent_entries` makes one of; more of them than messages came never."""
    given: Any = BrokerConnection(data)
    stream = EntryStream(given, CLUSTER, "persistent://a/b/c-partition-0")
    entries = 0
    try:
        stream.open((b"", b""), FIRST)
        for _, head in stream.receive_entries(LAST):
            entries += 1
            Chunk.from_metadata(head.uuid, head.chunk, head.chunks)
    except (OSError, ValueError, SourceClusterUnreachable) as error:
        check_refusal(error)
    assert entries * 8 <= len(data)
