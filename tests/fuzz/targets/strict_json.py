"""JSON: read as the standard library reads it, or refused; what is read fits msgpack."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable

import msgpack

from waybill.record import InvalidJson, parse_json


def seeds() -> Iterable[bytes]:
    """Messages of a vehicle, and texts at the edges."""
    yield b'{"time": 1767614400000, "latitude": 53.5530418, "longitude": -9.9877018, "speed_mps": 19.4}'
    yield rb'{"time": "2026-01-05T12:00:00Z", "path": "a", "value": "\ud83d\ude00 \n \\ \" \/"}'
    yield b'[null, true, false, -0, 0.5e-7, 1E308, 9223372036854775807, {"a": {"b": [[]]}}]'
    yield b"[" * 16 + b"]" * 16
    yield '"ä€😀"'.encode()


def judge(data: bytes) -> None:
    """See `tests.fuzz`."""
    with contextlib.suppress(InvalidJson):
        value = parse_json(data, max_bytes=64 << 10)
        assert value == json.loads(data)
        assert msgpack.unpackb(msgpack.packb(value)) == value
