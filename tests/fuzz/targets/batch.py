"""Batches: judged, decoded to records, to columns and to Arrow alike, and written again.

The input is not the frame, of which a checksum lets no mutation through, but what stands in it: a byte that says how
(0 plain, 1 zlib, others: the rest is the frame as it is), two bytes for the length of the header, header and content.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgpack

from cloud_jobs.ingest.decoding import RECORD_COLUMNS, decode_messages
from tests.cloud_jobs.ingest.test_decoding import messages
from tests.telemetry.test_columns import assert_same
from tests.telemetry.test_stored_examples import BURIED, EVERY_KIND, HEARTBEAT, ONE_MINUTE
from tests.telemetry.test_wire import framed
from waybill.record import Batch, Header, WireError, decode, encode, validate
from waybill.record.columns import decode_columns
from waybill.record.content import pack_records

MAX_COMPARED = 300
"""Records of a batch that is compared row by row."""


def parts(batch: Batch, compression: int) -> bytes:
    """The input that stands for a batch."""
    whole = encode(batch)
    length = int.from_bytes(whole[8:12], "big")
    content = msgpack.packb(pack_records(batch.records)) if batch.records else b""
    return bytes([compression]) + length.to_bytes(2, "big") + whole[16 : 16 + length] + content


def seeds() -> Iterable[bytes]:
    """Stored examples, and bombs."""
    for batch in (EVERY_KIND, ONE_MINUTE, BURIED, HEARTBEAT):
        yield parts(batch, 0)
        yield parts(batch, 1)
        yield b"\xff" + encode(batch)
    header = msgpack.packb(["d", 1, 1 << 20, 0, [1, 0], []])
    length = len(header).to_bytes(2, "big")
    yield b"\x00" + length + header + b"\x85\xa1t\x93\x00\x00\xc4\x00" + b"\x90" * 300
    yield b"\x00" + length + header + b"\xdc\xff\xff" * 300
    many = msgpack.packb(["d", 1, 1 << 20, 0, [], [[number, number, "q"] for number in range(1, 3000, 2)]])
    yield b"\x00" + len(many).to_bytes(2, "big") + many


def frame_of(data: bytes) -> bytes:
    """The frame that an input stands for, with a right checksum."""
    if data[:1] not in (b"\x00", b"\x01"):
        return data[1:]
    end = 3 + int.from_bytes(data[1:3], "big")
    content = data[end:]
    return framed(data[3:end], zlib.compress(content, 1) if data[0] else content, data[0])


def bounded(data: bytes) -> Header | None:
    """The judging of the frame; None if it is refused."""
    try:
        return validate(frame_of(data))
    except WireError:
        return None


def judge(data: bytes) -> None:
    """See `tests.fuzz`."""
    frame = frame_of(data)
    header, columns_header = bounded(data), _columns_header(frame)
    assert header == columns_header, "the gateway and the centre agree"
    if header is not None and header.record_seqs.count <= MAX_COMPARED:
        batch = decode(frame)
        assert_same(decode_columns(frame), batch)
        assert decode(encode(batch)) == batch
        _check_arrow(frame, header)


def _columns_header(frame: bytes) -> Header | None:
    try:
        return decode_columns(frame).header
    except WireError:
        return None


def _check_arrow(frame: bytes, header: Header) -> None:
    (decoded,) = decode_messages([messages(frame)])
    assert decoded.malformed == []
    (said, records), *_ = decoded.streams.values()
    assert (said.received, said.head, records) == (header.record_seqs, header.head, header.record_seqs.count)
    if decoded.rows is not None:
        rows = decoded.rows.cast(RECORD_COLUMNS)
        assert rows["seq"].to_pylist() == list(header.record_seqs)
        rows.to_pylist()
