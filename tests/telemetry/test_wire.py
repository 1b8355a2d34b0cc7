"""A batch comes back as it was, or is refused with the reason."""

import struct
import zlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import batches
from waybill.record import (
    MAX_CONTENT_BYTES,
    MAX_DEVICE_TIME_US,
    Batch,
    Canary,
    ChecksumMismatch,
    InconsistentRanges,
    Malformed,
    NotABatch,
    Position,
    Record,
    TooLarge,
    Truncated,
    UnknownVersion,
    WireError,
    decode,
    encode,
    read_header,
    validate,
    with_statement,
)

ONE = Batch("eu-0001", 7, 12, (Record(3, 1_000, Canary(id="a")), Record(5, 2_000, Canary(id="b"))))


def framed(header: Any, content: bytes = b"", compression: int = 0) -> bytes:
    """A frame with a right checksum around a header and content that no encoder here writes."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    lengths = struct.pack(">II", len(packed), len(content))
    checksum = zlib.crc32(packed + content, zlib.crc32(bytes([2, compression]) + lengths))
    return b"WB" + bytes([2, compression]) + struct.pack(">I", checksum) + lengths + packed + content


@given(batches())
def test_a_batch_comes_back_as_it_was(batch: Batch) -> None:
    data = encode(batch)
    assert decode(data) == batch
    assert read_header(data) == validate(data) == batch.header
    assert encode(decode(data)) == data


@given(batches(), st.data())
def test_every_truncation_is_refused(batch: Batch, data: st.DataObject) -> None:
    whole = encode(batch)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises((Truncated, NotABatch)):
        read_header(whole[:cut])


@given(batches(), st.data())
def test_every_single_flipped_bit_is_refused(batch: Batch, data: st.DataObject) -> None:
    whole = bytearray(encode(batch))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        decode(bytes(whole))


def test_the_error_says_which() -> None:
    whole = encode(ONE)
    with pytest.raises(UnknownVersion, match="version 9"):
        decode(whole[:2] + b"\x09" + whole[3:])
    with pytest.raises(Truncated, match=f"{len(whole)} bytes ends after {len(whole) - 1}"):
        decode(whole[:-1])
    with pytest.raises(ChecksumMismatch):
        decode(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Malformed, match="3 bytes follow"):
        decode(whole + b"abc")
    with pytest.raises(NotABatch):
        decode(b'{"json": true}')
    with pytest.raises(NotABatch):
        decode(b"")


def test_a_batch_with_more_or_fewer_records_than_ranges_is_refused() -> None:
    _, _, content = ONE.header, None, encode(ONE)
    length = struct.unpack(">I", content[8:12])[0]
    for steps in ([3, 0], [3, 0, 2, 1]):
        lying = framed(["eu-0001", 7, 12, 0, steps, []], content[16 + length :], content[3])
        assert read_header(lying)
        with pytest.raises(Malformed):
            decode(lying)


def test_a_content_that_unpacks_to_too_much_is_refused() -> None:
    bomb = zlib.compress(bytes(MAX_CONTENT_BYTES + 1), 9)
    with pytest.raises(TooLarge, match="unpacks to more"):
        decode(framed(["eu-0001", 7, 12, 0, [1, 0], []], bomb, 1))


def test_what_accounts_for_nothing_and_states_nothing_is_neither_written_nor_read() -> None:
    with pytest.raises(InconsistentRanges, match="states nothing"):
        encode(Batch("eu-0001", 7, 12))
    with pytest.raises(InconsistentRanges, match="states nothing"):
        validate(framed(["eu-0001", 7, 12, 0, [], []]))
    with pytest.raises(InconsistentRanges, match="carries content"):
        validate(framed(["eu-0001", 7, 12, 1, [], []], b"x"))


@given(batches(), st.integers(0, 9), st.integers(1, MAX_DEVICE_TIME_US))
def test_a_statement_is_put_on_an_encoded_batch_and_nothing_else_changes(
    batch: Batch, more: int, stated_us: int
) -> None:
    data = with_statement(encode(batch), batch.head + more, stated_us)
    assert data == encode(replace(batch, head=batch.head + more, stated_us=stated_us))


def test_coordinates_are_carried_to_a_ten_millionth_of_a_degree() -> None:
    batch = Batch("d", 1, 1, (Record(1, 0, Position(latitude=53.444_510_04, longitude=-2.925_172_96)),))
    assert decode(encode(batch)).records[0].body == Position(latitude=53.444_51, longitude=-2.925_173)
