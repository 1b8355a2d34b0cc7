"""The frame of a batch: magic, version, lengths, checksum, header, compressed content.

    offset  bytes
         0  2      magic "WB"
         2  1      version, 2
         3  1      compression of the content: 0 none, 1 zlib
         4  4      CRC-32 of everything else in the frame, big-endian
         8  4      length of the header, big-endian
        12  4      length of the content on the wire, big-endian
        16  …      header: msgpack [device, epoch, head, stated, ranges, tombstones]
         …  …      content: msgpack map (`waybill.record.content`)

`ranges` is a flat msgpack array of steps: from 0 to the first number, to the last of that range, to the first of the
next, and so on. `tombstones` is an array of [first, last, reason]. `stated` is the device time up to which the head
holds, 0 for none. A batch without ranges and tombstones is a heartbeat, which must have a statement. The bounds below
are checked before any part of a batch is built.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from operator import le
from typing import Any

import msgpack

from waybill.record.content import pack_records, unpack_records
from waybill.record.errors import (
    ChecksumMismatch,
    InconsistentRanges,
    Malformed,
    NotABatch,
    TooLarge,
    Truncated,
    UnknownVersion,
)
from waybill.record.intervals import IntervalSet
from waybill.record.layout import (
    ACCURACY,
    ALTITUDE,
    BOOL,
    BOOT,
    DEVICE_TIME,
    HEADING,
    LATITUDE,
    LONGITUDE,
    MAPPING,
    MAX_CONTENT_BYTES,
    MONOTONIC,
    NAME,
    NUMBER,
    PAYLOAD,
    RAW_REASON,
    SECTION,
    SPEED,
    TEXT,
    TEXT_LENGTH,
    TOPIC,
    UNCERTAINTY,
    Column,
    Content,
    check_mappings,
    read_content,
)
from waybill.record.packing import EXACT, IntegerColumn, check_finite, is_scale, is_surely_within, joined_planes
from waybill.record.record import (
    DEVICE_PATTERN,
    MAX_DEVICE_TIME_US,
    MAX_REASON_CHARACTERS,
    Batch,
    Header,
    Kind,
    Tombstone,
)

# Canonical content, recognised at a third of the cost; most batches at a gateway have it.

SHORT_BYTES = 64 << 10
"""Longer content is not unpacked at once: it could fill the memory."""
_BEFORE_ROWS = ("t", "m", "u", "k", "b")
_KINDS = (int(min(Kind)), int(max(Kind)))
_KIND_OF = {SECTION[kind]: int(kind) for kind in Kind}
_PLACE, _MOTION = (LATITUDE, LONGITUDE), (ALTITUDE, SPEED, HEADING, ACCURACY)


def is_surely_readable(data: bytes, count: int) -> bool:
    """Whether `read_content` accepts these bytes as `count` records, at least one. False: unknown."""
    if len(data) > SHORT_BYTES:
        return False
    try:
        # Pairs, and of a type of their own: a key may stand twice, and no map may pass for an array.
        return _are_members(msgpack.unpackb(data, raw=False, object_pairs_hook=tuple), count)
    except (ValueError, TypeError, Malformed, msgpack.UnpackException):
        return False


def _are_members(members: Any, count: int) -> bool:
    if type(members) is not tuple:
        return False
    (t, time), (m, monotonic), (u, uncertainty), (k, kinds), (b, boots) = members[:5]
    return (
        (t, m, u, k, b) == _BEFORE_ROWS
        and _is_column(time, count, *DEVICE_TIME)
        and _is_column(monotonic, count, *MONOTONIC)
        and _is_column(uncertainty, count, *UNCERTAINTY)
        and _is_column(kinds, count, *_KINDS)
        and type(boots) is list
        and len(boots) == 2
        and _is_dictionary(boots[0], boots[1], count, *BOOT)
        and _are_rows(_behind_mappings(members[5:], count), kinds, count)
    )


def _behind_mappings(members: Any, count: int) -> Any:
    """The members behind the mappings, which may be absent. Raises Malformed instead of False."""
    if not members or members[0][0] != "a":
        return members
    names, index = members[0][1]
    if not _is_dictionary(names, index, count, *MAPPING):
        raise Malformed("the mappings")
    check_mappings(names)
    return members[1:]


def _are_rows(sections: Any, kinds: Any, count: int) -> bool:
    if not kinds[1]:
        ((key, rows),) = sections
        return _KIND_OF.get(key) == kinds[0] and type(rows) is list and _JUDGE[kinds[0]](rows, count)
    numbers = bytes(_values(kinds, count))
    expected = sorted(set(numbers))
    if [_KIND_OF.get(key) for key, _ in sections] != expected:
        return False
    return all(
        type(rows) is list and _JUDGE[number](rows, numbers.count(number))
        for number, (_, rows) in zip(expected, sections, strict=True)
    )


def _are_positions(rows: list[Any], count: int) -> bool:
    return (
        len(rows) == 6
        and all(_is_column(column, count, *bounds) for column, bounds in zip(rows[:2], _PLACE, strict=True))
        and all(_is_optional(column, count, *bounds) for column, bounds in zip(rows[2:], _MOTION, strict=True))
    )


def _are_signals(rows: list[Any], count: int) -> bool:
    paths, index, types, numbers, texts = rows
    if not (_is_dictionary(paths, index, count, *NAME) and _is_column(types, count, NUMBER, BOOL)):
        return False
    words = _values(types, count).count(TEXT)
    return _are_floats(numbers, count - words) and _is_list(texts, str, words, *TEXT_LENGTH)


def _are_events(rows: list[Any], count: int) -> bool:
    names, index, attributes = rows
    return _is_dictionary(names, index, count, *NAME) and _is_list(attributes, str, count, *TEXT_LENGTH)


def _are_canaries(rows: list[Any], count: int) -> bool:
    return len(rows) == 1 and _is_list(rows[0], str, count, *NAME)


def _are_raws(rows: list[Any], count: int) -> bool:
    topics, index, payloads, reasons, reason_index = rows
    return (
        _is_dictionary(topics, index, count, *TOPIC)
        and _is_list(payloads, bytes, count, *PAYLOAD)
        and _is_dictionary(reasons, reason_index, count, *RAW_REASON)
    )


_JUDGE: dict[int, Callable[[list[Any], int], bool]] = {
    Kind.POSITION: _are_positions,
    Kind.SIGNAL: _are_signals,
    Kind.EVENT: _are_events,
    Kind.CANARY: _are_canaries,
    Kind.RAW: _are_raws,
}


def _is_column(column: Any, count: int, low: int, high: int, _: str = "") -> bool:
    """Whether it is a column of integers within these bounds. May raise Malformed instead of False."""
    if type(column) is not list or len(column) != 3:
        return False
    base, width, planes = column
    if type(base) is not int or type(width) is not int or type(planes) is not bytes:
        return False
    if width == 0:
        return not planes and low <= base <= high
    if width not in (1, 2, 4, 8) or len(planes) != (count - 1) * width:
        return False
    if not is_surely_within(base, width, count, low, high):
        IntegerColumn(base, width, planes, count).check(low, high, "a number")
    return True


def _values(column: Any, count: int) -> Sequence[int]:
    base, width, planes = column
    return IntegerColumn(base, width, planes, count).values()


def _is_optional(column: Any, count: int, low: int, high: int, _: str) -> bool:
    if column is None:
        return True
    if type(column) is not list or len(column) != 2:
        return False
    presence, integers = column
    if presence is None:
        return _is_column(integers, count, low, high)
    # Of no value there is no column: its reader says what holds then.
    present = presence.count(1) if type(presence) is bytes and len(presence) == count else 0
    return present > 0 and not presence.strip(b"\0\1") and _is_column(integers, present, low, high)


def _is_dictionary(names: Any, index: Any, count: int, shortest: int, longest: int) -> bool:
    if type(names) is not list or not 1 <= len(names) <= count:
        return False
    return (
        _is_list(names, str, len(names), shortest, longest)
        and _is_column(index, count, 0, len(names) - 1)
        and count * max(map(len, names)) <= MAX_CONTENT_BYTES
    )


def _is_list(values: Any, kind: type[str] | type[bytes], count: int, shortest: int, longest: int) -> bool:
    if type(values) is not list or len(values) != count:
        return False
    if count == 1:
        (only,) = values
        return type(only) is kind and shortest <= len(only) <= longest
    if not values:
        return True
    lengths = list(map(len, values))
    return set(map(type, values)) == {kind} and min(lengths) >= shortest and max(lengths) <= longest


def _are_floats(column: Any, count: int) -> bool:
    if type(column) is not list or len(column) != 2:
        return False
    scale, values = column
    if not is_scale(scale) or not count:
        return False
    if scale >= 0:
        return _is_column(values, count, 1 - EXACT, EXACT - 1)
    if type(values) is not bytes or len(values) != 8 * count:
        return False
    check_finite(joined_planes(values, "d", 8))
    return True


VERSION = 2
MAX_RECORDS = 16_384
MAX_TOMBSTONES = MAX_RECORDS
MAX_HEADER_BYTES = 1 << 20
MAX_NUMBER = (1 << 63) - 1

_MAGIC = b"WB"
_PREFIX = struct.Struct(">2sBBIII")
_PLAIN, _ZLIB = 0, 1
_LEVEL = 6
_LEAST_SAVED = 16
"""Content is compressed if that saves more than one byte in this many."""
_HEADER_FIELDS = 6
_SHORT_HEADER_BYTES = 1 << 10


def encode(batch: Batch) -> bytes:
    """The bytes of a batch. Raises WireError where `decode` would."""
    seqs = [record.seq for record in batch.records]
    if any(map(le, seqs[1:], seqs)):
        raise InconsistentRanges("records do not stand in ascending order of seq")
    header = batch.header
    _check(header, len(seqs))
    packed_header = _packed_header(header)
    content = _packed_content(batch) if batch.records else b""
    squeezed = zlib.compress(content, _LEVEL)
    # Every reader unpacks it: for a few bytes in a hundred, as of pictures or random numbers, that is too dear.
    is_worth_it = len(squeezed) < len(content) - len(content) // _LEAST_SAVED
    compression, travelling = (_ZLIB, squeezed) if is_worth_it else (_PLAIN, content)
    return _frame(packed_header, compression, travelling)


def with_statement(data: bytes, head: int, stated_us: int) -> bytes:
    """An encoded batch with another head and statement; its content stays. Raises WireError."""
    header, compression, travelling = _parse(data)
    stated = replace(header, head=head, stated_us=stated_us)
    _check(stated, stated.record_seqs.count)
    return _frame(_packed_header(stated), compression, travelling)


def read_header(data: bytes) -> Header:
    """The header, with checksum and ranges verified; records are not unpacked. Raises WireError."""
    return _parse(data)[0]


def validate(data: bytes, device: str | None = None) -> Header:
    """The header of a fully checked batch. Raises WireError where `decode` and `decode_columns` do.

    `device`: of a batch of another device only the header is checked.
    """
    header, compression, travelling = _parse(data)
    if device is not None and header.device != device:
        return header
    content = _content(header, compression, travelling)
    count = header.record_seqs.count
    if content is not None and not is_surely_readable(content, count):
        read_content(content, count)
    return header


def decode(data: bytes) -> Batch:
    """Raises WireError."""
    header, content = open_frame(data)
    records = unpack_records(content, header.record_seqs) if content else ()
    return Batch(header.device, header.epoch, header.head, records, header.tombstones, header.stated_us)


def open_frame(data: bytes, column: Column = IntegerColumn) -> tuple[Header, Content | None]:
    """The header and the checked content of a batch; None for one without records. Raises WireError."""
    header, compression, travelling = _parse(data)
    content = _content(header, compression, travelling)
    return header, None if content is None else read_content(content, header.record_seqs.count, column)


def _content(header: Header, compression: int, travelling: bytes) -> bytes | None:
    """The unpacked, unchecked content of a batch; None for one without records."""
    if not header.record_seqs:
        if travelling:
            raise InconsistentRanges("a batch without ranges carries content")
        return None
    return _inflate(travelling) if compression == _ZLIB else travelling


def _frame(packed_header: bytes, compression: int, travelling: bytes) -> bytes:
    lengths = (len(packed_header), len(travelling))
    checksum = _checksum(compression, *lengths, packed_header + travelling)
    packed: bytes = _PREFIX.pack(_MAGIC, VERSION, compression, checksum, *lengths) + packed_header + travelling
    return packed


def _packed_header(header: Header) -> bytes:
    tombstones = [list(tombstone) for tombstone in header.tombstones]
    fields = [header.device, header.epoch, header.head, header.stated_us, _steps(header.record_seqs), tombstones]
    packed: bytes = msgpack.packb(fields)
    if len(packed) > MAX_HEADER_BYTES:
        raise TooLarge(f"a header of {len(packed)} bytes, {MAX_HEADER_BYTES} are allowed")
    return packed


def _packed_content(batch: Batch) -> bytes:
    try:
        content: bytes = msgpack.packb(pack_records(batch.records))
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"records that cannot be written: {error!r:.300}") from error
    if len(content) > MAX_CONTENT_BYTES:
        raise TooLarge(f"content of {len(content)} bytes, {MAX_CONTENT_BYTES} are allowed")
    return content


def _parse(data: bytes) -> tuple[Header, int, bytes]:
    # A single byte that may be the first of the magic is a batch cut short.
    if data[:2] != _MAGIC[: len(data)] or not data:
        raise NotABatch(f"{len(data)} bytes that do not begin with {_MAGIC!r}")
    # Before all else that another version may have changed.
    if len(data) >= 3 and data[2] != VERSION:
        raise UnknownVersion(data[2])
    if len(data) < _PREFIX.size:
        raise Truncated(expected=_PREFIX.size, got=len(data))
    _, _, compression, stated, header_length, content_length = _PREFIX.unpack_from(data)
    if header_length > MAX_HEADER_BYTES or content_length > MAX_CONTENT_BYTES:
        raise TooLarge(f"a header of {header_length} bytes and content of {content_length} are more than is allowed")
    length = _PREFIX.size + header_length + content_length
    if len(data) < length:
        raise Truncated(expected=length, got=len(data))
    if len(data) > length:
        raise Malformed(f"{len(data) - length} bytes follow the end of the batch")
    computed = _checksum(compression, header_length, content_length, data[_PREFIX.size :])
    if computed != stated:
        raise ChecksumMismatch(stated=stated, computed=computed)
    # Behind the checksum: of a byte that changed on the way it says nothing.
    if compression not in {_PLAIN, _ZLIB}:
        raise Malformed(f"compression {compression} is not known")
    end = _PREFIX.size + header_length
    return _read_header(data[_PREFIX.size : end]), compression, data[end:]


def _checksum(compression: int, header_length: int, content_length: int, rest: bytes) -> int:
    # The fields before it are in it, too: a length that changed would cut at another place.
    return zlib.crc32(rest, zlib.crc32(struct.pack(">BBII", VERSION, compression, header_length, content_length)))


def _read_header(packed: bytes) -> Header:
    try:
        fields = _short_fields(packed) if len(packed) <= _SHORT_HEADER_BYTES else _long_fields(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"header is not what the format says: {error}") from error
    device, epoch, head, stated_us, steps, tombstones = fields
    header = Header(device, epoch, head, _from_steps(steps), tombstones, stated_us)
    _check(header, header.record_seqs.count)
    return header


def _short_fields(packed: bytes) -> tuple[Any, ...]:
    """The fields, unpacked at once: so few bytes cannot hold too much."""
    # Of a type of its own, so that no map passes for an array.
    fields = msgpack.unpackb(packed, raw=False, object_pairs_hook=tuple)
    if type(fields) is not list or len(fields) != _HEADER_FIELDS or not type(fields[4]) is type(fields[5]) is list:
        raise Malformed("a header is not a valid [device, epoch, head, stated, ranges, tombstones]")
    if any(type(tombstone) is not list or len(tombstone) != 3 for tombstone in fields[5]):
        raise Malformed("a tombstone is not a valid [first, last, reason]")
    return *fields[:5], tuple(Tombstone(*tombstone) for tombstone in fields[5])


def _long_fields(packed: bytes) -> tuple[Any, ...]:
    # 0: no array is made but those that are opened below, each within its bound.
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=MAX_HEADER_BYTES, max_array_len=0, max_map_len=0)
    unpacker.feed(packed)
    if unpacker.read_array_header() != _HEADER_FIELDS:
        raise Malformed("a header is not a valid [device, epoch, head, stated, ranges, tombstones]")
    scalars = [unpacker.unpack() for _ in range(4)]
    steps = [unpacker.unpack() for _ in range(_length(unpacker, 2 * MAX_RECORDS, "steps"))]
    tombstones = tuple(_read_tombstone(unpacker) for _ in range(_length(unpacker, MAX_TOMBSTONES, "tombstones")))
    if unpacker.tell() != len(packed):
        raise Malformed(f"{len(packed) - unpacker.tell()} bytes follow the header")
    return *scalars, steps, tombstones


def _length(unpacker: msgpack.Unpacker, most: int, what: str) -> int:
    length: int = unpacker.read_array_header()
    if length > most:
        raise TooLarge(f"{length} {what} in a header, {most} are allowed")
    return length


def _read_tombstone(unpacker: msgpack.Unpacker) -> Tombstone:
    if unpacker.read_array_header() != 3:
        raise Malformed("a tombstone is not a valid [first, last, reason]")
    return Tombstone(unpacker.unpack(), unpacker.unpack(), unpacker.unpack())


def _check(header: Header, records: int) -> None:
    """Refuses a header that contradicts itself, or that is too large or of other types."""
    if type(header.device) is not str or not DEVICE_PATTERN.fullmatch(header.device):
        raise Malformed(f"device {header.device!r:.80} is not a valid device name")
    for name, number in (("epoch", header.epoch), ("head", header.head), ("stated", header.stated_us)):
        if type(number) is not int:
            raise Malformed(f"{name} is of the wrong type")
        if not 0 <= number <= MAX_NUMBER:
            raise Malformed(f"{name} {number} is outside 0 to 2**63-1")
    if header.stated_us > MAX_DEVICE_TIME_US:
        raise Malformed(f"stated {header.stated_us} is beyond the year 9999")
    if records > MAX_RECORDS:
        raise TooLarge(f"{records} records in a batch, {MAX_RECORDS} are allowed")
    if not header.tombstones:
        _check_bounds(header, header.record_seqs.ranges)
        return
    lost = _checked_tombstones(header.tombstones)
    if overlap := header.record_seqs & lost:
        raise InconsistentRanges(f"{overlap.first} is both delivered and declared lost")
    _check_bounds(header, header.seqs.ranges)


def _checked_tombstones(tombstones: tuple[Tombstone, ...]) -> IntervalSet:
    """All numbers that they declare lost."""
    if len(tombstones) > MAX_TOMBSTONES:
        raise TooLarge(f"{len(tombstones)} tombstones in a batch, {MAX_TOMBSTONES} are allowed")
    for first, last, reason in tombstones:
        if type(first) is not int or type(last) is not int or type(reason) is not str:
            raise Malformed("a tombstone has values of the wrong type")
        if first > last:
            raise InconsistentRanges(f"tombstone {first}–{last} ends before it begins")
        if len(reason) > MAX_REASON_CHARACTERS:
            raise TooLarge(f"a tombstone's reason of {len(reason)} characters, {MAX_REASON_CHARACTERS} are allowed")
    ascending = sorted((first, last) for first, last, _ in tombstones)
    for before, after in pairwise(ascending):
        if after[0] <= before[1]:
            raise InconsistentRanges(f"tombstones overlap at {after[0]}")
    return IntervalSet(ascending)


def _check_bounds(header: Header, covered: tuple[tuple[int, int], ...]) -> None:
    if not covered:
        if not header.stated_us:
            raise InconsistentRanges("a batch that accounts for nothing and states nothing")
        return
    first, last = covered[0][0], covered[-1][1]
    if first < 1 or last > header.head:
        raise InconsistentRanges(f"accounts for {first}–{last} outside 1 to its head, {header.head}")


def _steps(ranges: IntervalSet) -> list[int]:
    # Differences: below 128 msgpack takes one byte, and sequence numbers grow for years.
    bounds = list(chain.from_iterable(ranges.ranges))
    return [after - before for before, after in pairwise([0, *bounds])]


def _from_steps(steps: Sequence[Any]) -> IntervalSet:
    """The ranges of steps, which must ascend and stay apart."""
    if len(steps) == 2 and type(steps[0]) is type(steps[1]) is int and steps[0] >= 1 and steps[1] >= 0:
        return IntervalSet.of_ascending(((steps[0], steps[0] + steps[1]),))  # nearly every batch has one range
    bounds: list[int] = []
    at = 0
    for position, step in enumerate(steps):
        if type(step) is not int:
            raise Malformed(f"step {step!r:.60} of the ranges is not a valid integer")
        # A range begins at 1 at the earliest, and at least 2 behind the last: nearer they would be one.
        if step < (position % 2 == 0) + (position > 0 and position % 2 == 0):
            raise InconsistentRanges(f"ranges do not ascend at step {position}")
        at += step
        bounds.append(at)
    if len(bounds) % 2:
        raise InconsistentRanges("the last range has no end")
    return IntervalSet.of_ascending(zip(bounds[::2], bounds[1::2], strict=True))


def _inflate(squeezed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # Bounded: 8 MB of zlib can hold 8 GB of zeros.
        content = inflater.decompress(squeezed, MAX_CONTENT_BYTES)
    except zlib.error as error:
        raise Malformed(f"content does not unpack: {error}") from error
    if inflater.unconsumed_tail:
        raise TooLarge(f"content unpacks to more than {MAX_CONTENT_BYTES} bytes")
    # zlib raises nothing where its bytes end too early.
    if not inflater.eof:
        raise Malformed("content does not end")
    if inflater.unused_data:
        raise Malformed(f"{len(inflater.unused_data)} bytes follow the content")
    return content
