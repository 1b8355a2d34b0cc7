"""The only reader of a batch's content: everything that does not follow the format is refused here.

Records (`record.content`) and numpy columns (`record.columns`) are made from its result without further checks, so both
accept the same batches. Content is read piece by piece: the bound of each array is checked before it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgpack

from waybill.record.errors import Malformed, TooLarge
from waybill.record.packing import EXACT, MAX_INT64, IntegerColumn, check_finite, is_scale, joined_planes
from waybill.record.record import (
    MAX_BOOT_CHARACTERS,
    MAX_DEVICE_TIME_US,
    MAX_MAPPING_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_RAW_BYTES,
    MAX_RAW_REASON_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    MAX_TOPIC_CHARACTERS,
    MAX_UNCERTAINTY_MS,
    MIN_DEVICE_TIME_US,
    Kind,
)

MAX_CONTENT_BYTES = 8 << 20
"""Larger unpacked content is refused before it is unpacked."""
DEGREE_E7 = 10_000_000
MILLI = 1_000
CENTI = 100
NUMBER, TEXT, BOOL = 0, 1, 2

SECTION = {Kind.POSITION: "p", Kind.SIGNAL: "s", Kind.EVENT: "e", Kind.CANARY: "c", Kind.RAW: "r"}
"""The key of each kind's rows."""

DEVICE_TIME = (MIN_DEVICE_TIME_US, MAX_DEVICE_TIME_US, "a device time")
MONOTONIC = (0, MAX_INT64, "a monotonic time")
UNCERTAINTY = (0, MAX_UNCERTAINTY_MS, "an uncertainty")
LATITUDE = (-90 * DEGREE_E7, 90 * DEGREE_E7, "a latitude")
LONGITUDE = (-180 * DEGREE_E7, 180 * DEGREE_E7, "a longitude")
ALTITUDE = (-100_000 * MILLI, 1_000_000 * MILLI, "an altitude")
SPEED = (0, 100_000 * MILLI, "a speed")
HEADING = (0, 360 * CENTI, "a heading")
ACCURACY = (0, 10_000_000 * MILLI, "an accuracy")
"""The least and greatest value of each column of integers on the wire, and its name in errors."""
BOOT = (0, MAX_BOOT_CHARACTERS)
MAPPING = (0, MAX_MAPPING_CHARACTERS)
NAME = (1, MAX_NAME_CHARACTERS)
TOPIC = (0, MAX_TOPIC_CHARACTERS)
RAW_REASON = (0, MAX_RAW_REASON_CHARACTERS)
TEXT_LENGTH = (0, MAX_TEXT_CHARACTERS)
PAYLOAD = (0, MAX_RAW_BYTES)
"""The least and greatest length of each text or payload, for reader and writer."""

Column = Callable[[Any, Any, Any, int], IntegerColumn]


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """Integers to be divided by 10**scale, or doubles in byte planes if `scale` is -1."""

    scale: int
    integers: IntegerColumn | None
    planes: bytes


@dataclass(frozen=True, slots=True)
class OptionalColumn:
    """A column with absent values. `presence`: a byte for each row; None: all are there."""

    presence: bytes | None
    integers: IntegerColumn


@dataclass(frozen=True, slots=True)
class DictionaryColumn:
    """A column of texts: each row has an index into `names`."""

    names: list[str]
    index: IntegerColumn


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions in the units of the wire; None: no row has the value."""

    latitude: IntegerColumn
    longitude: IntegerColumn
    altitude: OptionalColumn | None
    speed: OptionalColumn | None
    heading: OptionalColumn | None
    accuracy: OptionalColumn | None


@dataclass(frozen=True, slots=True)
class Signals:
    """Types, numbers and texts are grouped by path."""

    path: DictionaryColumn
    types: IntegerColumn
    numbers: FloatColumn
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Events:
    name: DictionaryColumn
    attributes: list[str]


@dataclass(frozen=True, slots=True)
class Canaries:
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Raws:
    topic: DictionaryColumn
    payloads: list[bytes]
    reason: DictionaryColumn


Rows = Positions | Signals | Events | Canaries | Raws


@dataclass(frozen=True, slots=True)
class Content:
    """The columns of the records, in their order, and the rows of each kind. `mapping`: None if no record has one.

    `size`: the bytes that were read, and the characters of a table that has each row's texts in full.
    """

    device_time_us: IntegerColumn
    monotonic_us: IntegerColumn
    uncertainty_ms: IntegerColumn
    kind: IntegerColumn
    boot: DictionaryColumn
    mapping: DictionaryColumn | None
    rows: dict[Kind, Rows]
    size: int


def read_content(data: bytes, count: int, column: Column = IntegerColumn) -> Content:
    """The checked content of at least one record. `column` makes the integer columns. Raises Malformed."""
    reader = _Reader(data, column)
    try:
        content = reader.content(count)
    except (ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"content is not what the format says: {error!r:.300}") from error
    reader.end(len(data))
    return content


class _Reader:
    def __init__(self, data: bytes, column: Column) -> None:
        # 0: the unpacker makes no array and no map by itself, only what is opened here, where its bound is known.
        unpacker = msgpack.Unpacker(raw=False, max_buffer_size=MAX_CONTENT_BYTES, max_array_len=0, max_map_len=0)
        unpacker.feed(data)
        self._unpacker = unpacker
        self._tell = unpacker.tell
        self._map = unpacker.read_map_header
        self._array = unpacker.read_array_header
        self._next = unpacker.unpack
        self._column = column
        self._size = len(data)

    def end(self, length: int) -> None:
        if self._tell() != length:
            raise Malformed(f"{length - self._tell()} bytes follow the content")

    def content(self, count: int) -> Content:
        members = self._map()
        time = self._keyed("t", count, *DEVICE_TIME)
        monotonic = self._keyed("m", count, *MONOTONIC)
        uncertainty = self._keyed("u", count, *UNCERTAINTY)
        kind = self._keyed("k", count, min(Kind), max(Kind), "a kind")
        self._key("b")
        self._expect(2)
        boot = DictionaryColumn(*self._dictionary(count, *BOOT))
        rows_of = _rows_of(kind)
        fewest = 5 + len(rows_of)
        if not fewest <= members <= fewest + 1:
            raise Malformed(f"content of {members} members, {fewest} or {fewest + 1} are expected")
        mapping = self._mapping(count) if members > fewest else None
        rows: dict[Kind, Rows] = {}
        for number, its in rows_of.items():
            self._key(SECTION[number])
            rows[number] = _READ[number](self, its)
        return Content(time, monotonic, uncertainty, kind, boot, mapping, rows, self._size)

    def positions(self, count: int) -> Positions:
        self._expect(6)
        return Positions(
            self.integers(count, *LATITUDE),
            self.integers(count, *LONGITUDE),
            self._optional(count, *ALTITUDE),
            self._optional(count, *SPEED),
            self._optional(count, *HEADING),
            self._optional(count, *ACCURACY),
        )

    def signals(self, count: int) -> Signals:
        self._expect(5)
        path = DictionaryColumn(*self._dictionary(count, *NAME))
        types = self.integers(count, NUMBER, BOOL, "the type of a signal")
        texts = types.values().count(TEXT)
        return Signals(path, types, self._floats(count - texts), self._texts(texts, *TEXT_LENGTH))

    def events(self, count: int) -> Events:
        self._expect(3)
        name = DictionaryColumn(*self._dictionary(count, *NAME))
        return Events(name, self._texts(count, *TEXT_LENGTH))

    def canaries(self, count: int) -> Canaries:
        self._expect(1)
        return Canaries(self._texts(count, *NAME))

    def raws(self, count: int) -> Raws:
        self._expect(5)
        topic = DictionaryColumn(*self._dictionary(count, *TOPIC))
        payloads = self._list(count, count)
        check_list(payloads, bytes, *PAYLOAD)
        return Raws(topic, payloads, DictionaryColumn(*self._dictionary(count, *RAW_REASON)))

    def integers(self, count: int, low: int, high: int, what: str) -> IntegerColumn:
        if (parts := self._array()) != 3:
            raise Malformed(f"{what}: a column of {parts} parts, 3 are expected")
        column = self._column(self._next(), self._next(), self._next(), count)
        column.check(low, high, what)
        return column

    def _keyed(self, key: str, count: int, low: int, high: int, what: str) -> IntegerColumn:
        self._key(key)
        return self.integers(count, low, high, what)

    def _optional(self, count: int, low: int, high: int, what: str) -> OptionalColumn | None:
        try:  # a failed look for an array does not move on
            length = self._array()
        except ValueError:
            if self._next() is not None:
                raise Malformed(f"{what}: a column is neither nil nor [presence, integers]") from None
            return None
        if length != 2:
            raise Malformed(f"{what}: a column of {length} parts, 2 are expected")
        presence = self._next()
        if presence is None:
            return OptionalColumn(None, self.integers(count, low, high, what))
        # What strip leaves begins with a byte that is neither 0 nor 1.
        if type(presence) is not bytes or len(presence) != count or presence.strip(b"\0\1"):
            raise Malformed(f"{what}: presence is not one byte of 0 or 1 for each row")
        return OptionalColumn(presence, self.integers(presence.count(1), low, high, what))

    def _floats(self, count: int) -> FloatColumn:
        self._expect(2)
        scale = self._next()
        if not is_scale(scale):
            raise Malformed(f"a column of floats has the scale {scale!r:.60}")
        if scale >= 0:
            # From 2**53 on two decimals may be the same double.
            return FloatColumn(scale, self.integers(count, 1 - EXACT, EXACT - 1, "a decimal"), b"")
        planes = self._next()
        if type(planes) is not bytes or len(planes) != 8 * count:
            raise Malformed(f"a column of {count} doubles has other than {8 * count} bytes")
        # Every 8 bytes are a double, also NaN and infinity, which no record can have.
        check_finite(joined_planes(planes, "d", 8))
        return FloatColumn(scale, None, planes)

    def _dictionary(self, count: int, shortest: int, longest: int) -> tuple[list[str], IntegerColumn]:
        names = self._list(1, count)
        check_list(names, str, shortest, longest)
        index = self.integers(count, 0, len(names) - 1, "an index into a dictionary")
        self._size += characters(names, count, index.values)
        return names, index

    def _mapping(self, count: int) -> DictionaryColumn:
        self._key("a")
        self._expect(2)
        names, index = self._dictionary(count, *MAPPING)
        check_mappings(names)
        return DictionaryColumn(names, index)

    def _texts(self, count: int, shortest: int, longest: int) -> list[str]:
        texts = self._list(count, count)
        check_list(texts, str, shortest, longest)
        return texts

    def _list(self, fewest: int, most: int) -> list[Any]:
        length = self._array()
        if not fewest <= length <= most:
            raise Malformed(f"a list of {length} values, {fewest} to {most} are expected")
        values = list(islice(self._unpacker, length))
        # An unpacker that is iterated over ends in silence where its bytes end.
        if len(values) != length:
            raise Malformed("content ends within a list")
        return values

    def _key(self, key: str) -> None:
        found = self._next()
        if found != key:
            raise Malformed(f"content has {found!r:.60} where {key!r} is expected")

    def _expect(self, length: int) -> None:
        found = self._array()
        if found != length:
            raise Malformed(f"an array of {found} parts where {length} are expected")


def _rows_of(kind: IntegerColumn) -> dict[Kind, int]:
    """The number of rows of each kind, in the order of the kinds."""
    if kind.width == 0:
        return {Kind(kind.base): kind.count}
    # Kinds are below 256, and bytes.count looks at them without a loop of Python.
    kinds = bytes(kind.values())
    counts = {number: kinds.count(number) for number in Kind}
    return {number: count for number, count in counts.items() if count}


def characters(names: Sequence[str], count: int, index: Callable[[], Sequence[int]]) -> int:
    """The characters of a dictionary if each of `count` rows has its text in full, or slightly more. Raises
    TooLarge.
    """
    # A bound that needs no row; only where it is too high each row is looked at.
    size = count * max(map(len, names), default=0)
    if size > MAX_CONTENT_BYTES:
        size = sum(len(names[place]) for place in index())
    if size > MAX_CONTENT_BYTES:
        raise TooLarge(f"texts of {size} characters, row by row, {MAX_CONTENT_BYTES} are allowed")
    return size


def check_list(values: Collection[Any], kind: type, shortest: int, longest: int) -> None:
    """Raises Malformed unless all values have exactly this type and a length within the bounds."""
    if not values:
        return
    # Three passes in C instead of one loop in Python.
    if set(map(type, values)) != {kind}:
        raise Malformed(f"a value that is not a valid {kind.__name__} in a list of them")
    if max(map(len, values)) > longest or (shortest and min(map(len, values)) < shortest):
        raise Malformed(f"a value of other than {shortest} to {longest} characters or bytes")


def check_mappings(names: Sequence[str]) -> None:
    """Raises Malformed unless all are printable ASCII, and at least one is a mapping."""
    joined = "".join(names)
    # without a mapping the column is absent, so that each batch has one form
    if not joined or not joined.isascii() or not joined.isprintable():
        raise Malformed("names of mappings that are empty or not printable ASCII")


_READ: dict[Kind, Callable[[_Reader, int], Rows]] = {
    Kind.POSITION: _Reader.positions,
    Kind.SIGNAL: _Reader.signals,
    Kind.EVENT: _Reader.events,
    Kind.CANARY: _Reader.canaries,
    Kind.RAW: _Reader.raws,
}
