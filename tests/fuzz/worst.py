"""The most expensive inputs of 64 kB that are known, for each parser of the wire."""

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from tests.fuzz.bounds import MAX_BYTES
from tests.telemetry.test_wire import framed
from waybill.record import MAX_CONTENT_BYTES, MAX_RECORDS, decode_ack, parse_json, validate
from waybill.record.ack import MAX_ACK_RANGES
from waybill.record.columns import decode_columns

FULL = ["d", 1, 1 << 40, 0, [1, MAX_RECORDS - 1], []]


def _zlibbed(header: Any, content: bytes) -> bytes:
    return framed(header, zlib.compress(content, 9), 1)


def _integers(width: int) -> list[Any]:
    """A column that goes up and down by one, of the width and as many values as there may be."""
    pairs, odd = divmod(MAX_RECORDS - 1, 2)
    lowest, others = b"\1\xff" * pairs + b"\1" * odd, b"\0\xff" * pairs + b"\0" * odd
    return [0, width, lowest + others * (width - 1)]


def _dense(kind: int, section: list[Any], width: int = 8) -> bytes:
    """A batch of as many records as there may be, of columns that must be looked at value by value."""
    column, key = _integers(width), "psecr"[kind - 1]
    content = {
        "t": column,
        "m": column,
        "u": column,
        "k": [kind, 0, b""],
        "b": [["a", "b"], _integers(1)],
        key: section,
    }
    return _zlibbed(FULL, msgpack.packb(content))


def batches() -> Iterator[tuple[str, bytes]]:
    one = ["d", 1, 1 << 40, 0, [1, 0], []]
    start = b"\x86\xa1t\x93\x00\x00\xc4\x00"
    yield "zlib of zeros, as large as is unpacked", _zlibbed(one, bytes(MAX_CONTENT_BYTES))
    yield "zlib of zeros, larger", _zlibbed(one, bytes(60 << 20))[:MAX_BYTES]
    yield "zlib of empty arrays", _zlibbed(one, start + b"\x90" * (MAX_CONTENT_BYTES - 9))
    yield "zlib of empty maps", _zlibbed(one, start + b"\x80" * (MAX_CONTENT_BYTES - 9))
    yield "zlib of nested arrays that announce much", _zlibbed(one, start + b"\xa1m\x93" + b"\xdc\xff\xff" * 2_000_000)
    column, presence = _integers(8), [b"\1" * MAX_RECORDS, _integers(8)]
    yield "positions, every column 8 bytes wide", _dense(1, [column, column, presence, presence, presence, presence])
    narrow = _integers(1)
    yield "positions, every column a byte wide", _dense(1, [narrow, narrow, *[[b"\1" * MAX_RECORDS, narrow]] * 4], 1)
    doubles = b"\1" * (8 * MAX_RECORDS)
    yield "signals of doubles, two paths", _dense(2, [["a", "b"], narrow, [0, 0, b""], [-1, doubles], []])
    texts = ["x" * 200] * MAX_RECORDS
    yield "signals of texts", _dense(2, [["a", "b"], narrow, [1, 0, b""], [0, [0, 0, b""]], texts])
    yield "events of texts", _dense(3, [["a", "b"], narrow, texts])
    yield "canaries", _dense(4, [texts])
    payload = [bytes(400)] * MAX_RECORDS
    yield "raw payloads", _dense(5, [["a", "b"], narrow, payload, ["a", "b"], narrow])
    raw = {"t": [0, 0, b""], "m": [0, 0, b""], "u": [0, 0, b""], "k": [5, 0, b""], "b": [[""], [0, 0, b""]]}
    large = raw | {"r": [["a"], [0, 0, b""], [bytes(1 << 20)] * 7, [""], [0, 0, b""]]}
    yield "7 payloads of a MiB", _zlibbed(["d", 1, 7, 0, [1, 6], []], msgpack.packb(large))
    for name, wide in (("one after the other", 1), ("far apart", 3)):
        tombstones = [[number, number, ""] for number in range(1, 15_500 * wide, wide)]
        frame = framed(["d", 1, 1 << 40, 0, [], tombstones])
        while len(frame) > MAX_BYTES:
            tombstones = tombstones[: len(tombstones) * MAX_BYTES // len(frame) - 50]
            frame = framed(["d", 1, 1 << 40, 0, [], tombstones])
        yield f"tombstones, {name}", frame
    yield "a header of nested arrays", framed(b"\x96" + b"\x91" * (MAX_BYTES - 20))
    yield "a header of empty arrays", framed(b"\x96" + b"\x90" * (MAX_BYTES - 20))
    yield "as many ranges as records", framed(["d", 1, 1 << 40, 0, [1, 0] + [2, 0] * (MAX_RECORDS - 1), []], b"\x80")


def acks() -> Iterator[tuple[str, bytes]]:
    ranges = [[number, number] for number in range(1, 2 * MAX_ACK_RANGES, 2)]
    yield "as many ranges as are allowed", msgpack.packb({"epoch": 1, "ranges": ranges})
    random.Random(1).shuffle(ranges)
    yield "ranges in no order", msgpack.packb({"epoch": 1, "ranges": ranges, "refused_ranges": ranges[:2]})
    yield "unknown members of empty arrays", b"\x81\xa1x\xdc\xff\x00" + b"\x90" * 0xFF00
    yield "nested arrays", b"\x81\xa1x" + b"\x91" * (MAX_BYTES - 10)
    yield "ranges of empty arrays", b"\x81\xa6ranges\xdc\x20\x00" + b"\x90" * 8192


def texts() -> Iterator[tuple[str, bytes]]:
    yield "brackets", b"[" * MAX_BYTES
    yield "empty arrays", b"[" + b"[]," * 9_000 + b"1]"
    yield "objects", b"[" + b'{"":[]},' * 4_900 + b"1]"
    yield "one object", b"{" + b",".join(b'"%d":1' % number for number in range(4_900)) + b"}"
    yield "a number of 64 kB", b"[0." + b"1" * (MAX_BYTES - 4) + b"]"
    yield "escapes", b'"' + rb"\ud83d\ude00" * (MAX_BYTES // 12 - 1) + b'"'
    yield "quotes", b'"\\"' * (MAX_BYTES // 3)


PARSERS: tuple[tuple[str, Callable[[bytes], object], Callable[[], Iterator[tuple[str, bytes]]]], ...] = (
    ("batch, judged", validate, batches),
    ("batch, columns", decode_columns, batches),
    ("acknowledgement", decode_ack, acks),
    ("JSON", lambda data: parse_json(data, max_bytes=MAX_BYTES), texts),
)
