"""The frame of a batch: magic, version, lengths, checksum, header, compressed content.

    offset  bytes
         0  2      magic "WB"
         2  1      version, 1
         3  1      compression of the content: 0 none, 1 zlib
         4  4      CRC-32 of everything else in the frame, big-endian
         8  4      length of the header, big-endian
        12  4      length of the content as it travels, big-endian
        16  …      header: msgpack [device, epoch, head, ranges, tombstones]
         …  …      content: msgpack map (`telemetry.content`)

`ranges` is a flat msgpack array of steps: from 0 to the first number, on to the last of that range, on to the first of
the next, and so forth; `tombstones` is an array of [first, last, reason].
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Any

import msgpack

from telemetry.content import pack_records, unpack_records
from telemetry.errors import (
    ChecksumMismatch,
    DishonestRanges,
    Malformed,
    NotABatch,
    Truncated,
    UnknownVersion,
)
from telemetry.intervals import IntervalSet
from telemetry.record import DEVICE_PATTERN, Batch, Header, Tombstone

VERSION = 1
MAX_RECORDS = 65_536
MAX_CONTENT_BYTES = 64 << 20
"""A content that unpacks to more than this is refused before it is unpacked."""
MAX_NUMBER = (1 << 63) - 1

_MAGIC = b"WB"
_PREFIX = struct.Struct(">2sBBIII")
_PLAIN, _ZLIB = 0, 1
_LEVEL = 6


def encode(batch: Batch) -> bytes:
    """A batch as it travels. Raises DishonestRanges where `decode` would."""
    seqs = [record.seq for record in batch.records]
    if any(after <= before for before, after in pairwise(seqs)):
        raise DishonestRanges("records do not stand in ascending order of seq")
    header = batch.header
    _check(header, len(seqs))
    packed_header = msgpack.packb(
        [
            header.device,
            header.epoch,
            header.head,
            _steps(header.ranges),
            [list(t) for t in header.tombstones],
        ]
    )
    content = msgpack.packb(pack_records(batch.records)) if batch.records else b""
    squeezed = zlib.compress(content, _LEVEL)
    compression, travelling = (_ZLIB, squeezed) if len(squeezed) < len(content) else (_PLAIN, content)
    lengths = (len(packed_header), len(travelling))
    checksum = _checksum(compression, *lengths, packed_header + travelling)
    packed: bytes = _PREFIX.pack(_MAGIC, VERSION, compression, checksum, *lengths) + packed_header + travelling
    return packed


def read_header(data: bytes) -> Header:
    """What a batch says of itself, its checksum and ranges verified, its records not unpacked. Raises WireError."""
    return _parse(data)[0]


def decode(data: bytes) -> Batch:
    """The whole batch. Raises WireError."""
    header, content = open_frame(data)
    records = unpack_records(content, list(header.ranges)) if header.ranges else ()
    return Batch(header.device, header.epoch, header.head, records, header.tombstones)


def open_frame(data: bytes) -> tuple[Header, Any]:
    """The header and the unpacked content map of a batch; None for a batch of tombstones only. Raises WireError."""
    header, compression, travelling = _parse(data)
    if not header.ranges:
        if travelling:
            raise DishonestRanges("a batch without ranges carries content")
        return header, None
    content = _inflate(travelling) if compression == _ZLIB else travelling
    try:
        return header, msgpack.unpackb(content, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"content is no msgpack: {error}") from error


def _parse(data: bytes) -> tuple[Header, int, bytes]:
    if data[:2] != _MAGIC[: len(data)] or not data:
        raise NotABatch(f"{len(data)} bytes that do not begin with {_MAGIC!r}")
    if len(data) >= 3 and data[2] != VERSION:
        raise UnknownVersion(data[2])
    if len(data) < _PREFIX.size:
        raise Truncated(expected=_PREFIX.size, got=len(data))
    _, _, compression, stated, header_length, content_length = _PREFIX.unpack_from(data)
    length = _PREFIX.size + header_length + content_length
    if len(data) < length:
        raise Truncated(expected=length, got=len(data))
    if len(data) > length:
        raise Malformed(f"{len(data) - length} bytes follow the end of the batch")
    computed = _checksum(compression, header_length, content_length, data[_PREFIX.size :])
    if computed != stated:
        raise ChecksumMismatch(stated=stated, computed=computed)
    if compression not in {_PLAIN, _ZLIB}:
        raise Malformed(f"compression {compression} is not known")
    end = _PREFIX.size + header_length
    return _read_header(data[_PREFIX.size : end]), compression, data[end:]


def _checksum(compression: int, header_length: int, content_length: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(struct.pack(">BBII", VERSION, compression, header_length, content_length)))


def _read_header(packed: bytes) -> Header:
    try:
        device, epoch, head, steps, tombstones = msgpack.unpackb(packed, raw=False)
        header = Header(device, epoch, head, _from_steps(steps), tuple(Tombstone(*parts) for parts in tombstones))
        well_typed = isinstance(device, str) and all(isinstance(t.reason, str) for t in header.tombstones)
        numbers = [epoch, head, *chain.from_iterable((t.first, t.last) for t in header.tombstones)]
        well_typed = well_typed and all(type(number) is int for number in numbers)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"header is not what the format says: {error}") from error
    if not well_typed:
        raise Malformed("header has values of the wrong type")
    _check(header, header.ranges.count)
    return header


def _check(header: Header, records: int) -> None:
    """Refuses a header whose statements cannot all be true."""
    if not DEVICE_PATTERN.fullmatch(header.device):
        raise Malformed(f"device {header.device[:80]!r} is no name of a device")
    if not 0 <= header.epoch <= MAX_NUMBER or not 0 <= header.head <= MAX_NUMBER:
        raise Malformed(f"epoch {header.epoch} or head {header.head} is outside 0 to 2**63-1")
    if records > MAX_RECORDS:
        raise DishonestRanges(f"{records} records in a batch, {MAX_RECORDS} are allowed")
    lost = IntervalSet()
    for tombstone in header.tombstones:
        if not tombstone.first <= tombstone.last:
            raise DishonestRanges(f"tombstone {tombstone.first}–{tombstone.last} ends before it begins")
        one = IntervalSet([tombstone[:2]])
        if lost & one:
            raise DishonestRanges(f"tombstones overlap at {(lost & one).first}")
        lost |= one
    if overlap := header.ranges & lost:
        raise DishonestRanges(f"{overlap.first} is both delivered and declared lost")
    _check_bounds(header, header.ranges | lost)


def _check_bounds(header: Header, accounted: IntervalSet) -> None:
    if not accounted:
        raise DishonestRanges("a batch that accounts for nothing")
    first, last = accounted.ranges[0][0], accounted.ranges[-1][1]
    if first < 1 or last > header.head:
        raise DishonestRanges(f"accounts for {first}–{last} outside 1 to its head, {header.head}")


def _steps(ranges: IntervalSet) -> list[int]:
    bounds = list(chain.from_iterable(ranges.ranges))
    return [after - before for before, after in pairwise([0, *bounds])]


def _from_steps(steps: Iterable[int]) -> IntervalSet:
    """The ranges that steps lead through; they must ascend and stay apart, as `_steps` writes them."""
    bounds: list[int] = []
    at = 0
    for position, step in enumerate(steps):
        if type(step) is not int:
            raise Malformed(f"step {step!r} of the ranges is no integer")
        if step < (position % 2 == 0) + (position > 0 and position % 2 == 0):
            raise DishonestRanges(f"ranges do not ascend at step {position}")
        at += step
        bounds.append(at)
    if len(bounds) % 2:
        raise DishonestRanges("the last range has no end")
    return IntervalSet(zip(bounds[::2], bounds[1::2], strict=True))


def _inflate(squeezed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(squeezed, MAX_CONTENT_BYTES)
    except zlib.error as error:
        raise Malformed(f"content does not unpack: {error}") from error
    if not inflater.eof:
        raise Malformed(f"content does not end, or unpacks to more than {MAX_CONTENT_BYTES} bytes")
    return content
