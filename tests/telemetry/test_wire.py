"""A batch comes back as it was, or is refused with the reason."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import (
    MAX_CONTENT_BYTES,
    Batch,
    Canary,
    ChecksumMismatch,
    InconsistentRanges,
    IntervalSet,
    Malformed,
    NotABatch,
    Position,
    Record,
    Tombstone,
    TooLarge,
    Truncated,
    UnknownVersion,
    WireError,
    decode,
    encode,
    new_epoch,
    read_header,
)
from tests.strategies import batches

ONE = Batch("eu-0001", 7, 12, (Record(3, 1_000, Canary(id="a")), Record(5, 2_000, Canary(id="b"))))


def framed(header: Any, content: bytes = b"", compression: int = 0) -> bytes:
    """A frame with a right checksum around a header and content that no encoder here writes."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    lengths = struct.pack(">II", len(packed), len(content))
    checksum = zlib.crc32(packed + content, zlib.crc32(bytes([1, compression]) + lengths))
    return b"WB" + bytes([1, compression]) + struct.pack(">I", checksum) + lengths + packed + content


@given(batches())
def test_a_batch_comes_back_as_it_was(batch: Batch) -> None:
    data = encode(batch)
    assert decode(data) == batch
    assert read_header(data) == batch.header
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


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_typed_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


@given(st.binary(max_size=80))
def test_arbitrary_content_under_a_right_checksum_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        decode(framed(["eu-0001", 7, 12, [1, 1], []], content))


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


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        (["eu-0001", 7, 12, [3, 0, 0, 0], []], InconsistentRanges, "do not ascend"),
        (["eu-0001", 7, 12, [3, -1], []], InconsistentRanges, "do not ascend"),
        (["eu-0001", 7, 12, [3], []], InconsistentRanges, "no end"),
        (["eu-0001", 7, 4, [3, 2], []], InconsistentRanges, "outside 1 to its head"),
        (["eu-0001", 7, 12, [0, 2], []], InconsistentRanges, "do not ascend"),
        (["eu-0001", 7, 12, [], []], InconsistentRanges, "accounts for nothing"),
        (["eu-0001", 7, 12, [3, 2], [[5, 6, "quota"]]], InconsistentRanges, "both delivered and declared"),
        (["eu-0001", 7, 12, [], [[5, 6, "quota"], [6, 7, "age"]]], InconsistentRanges, "overlap at 6"),
        (["eu-0001", 7, 12, [], [[6, 5, "quota"]]], InconsistentRanges, "ends before"),
        (["eu-0001", 7, 1 << 40, [1, 1 << 30], []], TooLarge, "are allowed"),
        (["../etc", 7, 12, [1, 1], []], Malformed, "not a valid device name"),
        (["eu-0001", -1, 12, [1, 1], []], Malformed, "outside 0 to"),
        (["eu-0001", "x", 12, [1, 1], []], Malformed, "wrong type"),
        (["eu-0001", 7, 12, ["x", 1], []], Malformed, "not a valid integer"),
        (["eu-0001", 7, 12], Malformed, "header"),
        (b"\xc1", Malformed, "header"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(header: Any, error: type[WireError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_header(framed(header))


def test_a_batch_with_more_or_fewer_records_than_ranges_is_refused() -> None:
    _, _, content = ONE.header, None, encode(ONE)
    length = struct.unpack(">I", content[8:12])[0]
    for steps in ([3, 0], [3, 0, 2, 1]):
        lying = framed(["eu-0001", 7, 12, steps, []], content[16 + length :], content[3])
        assert read_header(lying)
        with pytest.raises(Malformed):
            decode(lying)


def test_a_content_that_unpacks_to_too_much_is_refused() -> None:
    bomb = zlib.compress(bytes(MAX_CONTENT_BYTES + 1), 9)
    with pytest.raises(TooLarge, match="unpacks to more"):
        decode(framed(["eu-0001", 7, 12, [1, 0], []], bomb, 1))


def test_records_out_of_order_are_not_encoded() -> None:
    with pytest.raises(InconsistentRanges, match="ascending"):
        encode(Batch("eu-0001", 7, 12, ONE.records[::-1]))


def test_a_batch_of_tombstones_only_travels() -> None:
    batch = Batch("eu-0001", 7, 12, (), (Tombstone(1, 12, "quota"),))
    assert decode(encode(batch)) == batch
    assert batch.header.seqs == IntervalSet([(1, 12)])


def test_coordinates_are_carried_to_a_ten_millionth_of_a_degree() -> None:
    batch = Batch("d", 1, 1, (Record(1, 0, Position(latitude=53.444_510_04, longitude=-2.925_172_96)),))
    assert decode(encode(batch)).records[0].body == Position(latitude=53.444_51, longitude=-2.925_173)


def test_an_epoch_sorts_by_its_creation_and_fits_64_bits() -> None:
    early, late = new_epoch(1_767_603_422_000, 0x7FFF), new_epoch(1_767_603_422_001, 0)
    assert early < late < 1 << 63
    assert new_epoch((1 << 48) - 1, 0x7FFF) == (1 << 63) - 1
