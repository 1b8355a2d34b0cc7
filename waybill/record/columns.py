"""Batches as numpy columns, without a Python loop over the records. Needs numpy.

`waybill.record.layout` reads and checks the content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waybill.record.errors import Malformed
from waybill.record.layout import (
    BOOL,
    CENTI,
    DEGREE_E7,
    MILLI,
    NUMBER,
    TEXT,
    Canaries,
    DictionaryColumn,
    Events,
    FloatColumn,
    OptionalColumn,
    Positions,
    Raws,
    Signals,
)
from waybill.record.packing import MAX_INT64, MIN_INT64, IntegerColumn, is_surely_within
from waybill.record.record import Header, Kind
from waybill.record.wire import open_frame

IntegerArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
ObjectArray = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The records of one batch, in ascending order of `seq`; every array has one entry for each record.

    Where a kind has no such value, floats are NaN and objects None. `name`: signal path, event name, canary id or raw
    topic; `text`: a signal's text or bool ("true", "false"), an event's attributes, or why a record is raw; `payload`:
    raw bytes. `mapping`: None for a record without one. `size`: bytes and characters of all of it, or slightly more.
    Units are those of `Record` and `Position`.
    """

    header: Header
    seq: IntegerArray
    kind: IntegerArray
    device_time_us: IntegerArray
    monotonic_us: IntegerArray
    uncertainty_ms: IntegerArray
    boot: ObjectArray
    mapping: ObjectArray
    latitude: FloatArray
    longitude: FloatArray
    altitude_m: FloatArray
    speed_mps: FloatArray
    heading_deg: FloatArray
    accuracy_m: FloatArray
    name: ObjectArray
    number: FloatArray
    text: ObjectArray
    payload: ObjectArray
    size: int = 0


def decode_columns(data: bytes) -> RecordColumns:
    """Raises WireError, exactly where `record.decode` does."""
    header, content = open_frame(data, ArrayIntegerColumn)
    seq = _numbers_in(header.record_seqs.ranges)
    columns = _Rows(len(seq))
    if content is None:
        return RecordColumns(header, seq, seq, seq, seq, seq, *(_objects([]), _objects([])), **columns.filled())
    kind = _array(content.kind)
    for number, rows in content.rows.items():
        here = slice(None) if len(content.rows) == 1 else np.flatnonzero(kind == number)
        _PLACE[number](columns, rows, here)
    return RecordColumns(
        header=header,
        seq=seq,
        kind=kind,
        device_time_us=_array(content.device_time_us),
        monotonic_us=_array(content.monotonic_us),
        uncertainty_ms=_array(content.uncertainty_ms),
        boot=_texts_of(content.boot),
        mapping=np.empty(len(seq), dtype=object) if content.mapping is None else _mappings_of(content.mapping),
        size=content.size,
        **columns.filled(),
    )


class ArrayIntegerColumn(IntegerColumn):
    _array: IntegerArray | None = None

    def array(self) -> IntegerArray:
        """The integers, cached; only valid if `check` accepts them."""
        if self._array is None:
            self._array = self._summed()
        return self._array

    def extremes(self) -> tuple[int, int]:
        """Raises Malformed where a value leaves 64 bits."""
        values = self.array()
        if self.width and not is_surely_within(self.base, self.width, self.count, MIN_INT64, MAX_INT64):
            # numpy wraps around in silence: where a sum leaves 64 bits it goes against its difference.
            ascends = values[1:] >= values[:-1]
            if (ascends != (self._differences() >= 0)).any():
                raise Malformed("a column of integers leaves 64 bits")
        return int(np.minimum.reduce(values)), int(np.maximum.reduce(values))

    def _joined(self) -> list[int]:
        made: list[int] = self.array().tolist()
        return made

    def _summed(self) -> IntegerArray:
        values = np.empty(self.count, dtype=np.int64)
        if self.width == 0 or self.count < 2:
            values.fill(self.base)
            return values
        values[0] = self.base
        values[1:] = self._differences()
        np.add.accumulate(values, out=values)
        return values

    def _differences(self) -> NDArray[Any]:
        if self.width == 1:
            return np.frombuffer(self.planes, np.int8)
        joined = np.ascontiguousarray(np.frombuffer(self.planes, np.uint8).reshape(self.width, self.count - 1).T)
        return joined.view(f"<i{self.width}").ravel()


class _Rows:
    """The columns that only some kinds fill."""

    __slots__ = (
        "accuracy_m",
        "altitude_m",
        "heading_deg",
        "latitude",
        "longitude",
        "name",
        "number",
        "payload",
        "speed_mps",
        "text",
    )

    def __init__(self, count: int) -> None:
        for field in ("name", "text", "payload"):
            setattr(self, field, np.empty(count, dtype=object))  # of None
        floats = [field for field in self.__slots__ if not hasattr(self, field)]
        for field, column in zip(floats, np.full((len(floats), count), np.nan), strict=True):
            setattr(self, field, column)

    def filled(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__slots__}


def _numbers_in(ranges: Iterable[tuple[int, int]]) -> IntegerArray:
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in ranges]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _array(column: IntegerColumn) -> IntegerArray:
    assert isinstance(column, ArrayIntegerColumn)
    return column.array()


def _floats_of(column: FloatColumn) -> FloatArray:
    if column.integers is not None:
        # A quotient, as in `waybill.record.content`: times 1e-7 would often be the neighbouring double.
        return _array(column.integers) / float(10**column.scale)
    planes = np.frombuffer(column.planes, np.uint8)
    return np.ascontiguousarray(planes.reshape(8, len(planes) // 8).T).view("<f8").ravel()


def _unscaled(column: OptionalColumn | None, factor: int) -> FloatArray | float:
    if column is None:
        return np.nan
    values = _array(column.integers) / float(factor)
    if column.presence is None:
        return values
    spread = np.full(len(column.presence), np.nan)
    spread[np.frombuffer(column.presence, np.bool_)] = values
    return spread


def _texts_of(dictionary: DictionaryColumn) -> ObjectArray:
    return _objects(dictionary.names)[_array(dictionary.index)]


def _mappings_of(dictionary: DictionaryColumn) -> ObjectArray:
    return _objects([name or None for name in dictionary.names])[_array(dictionary.index)]


def _objects(values: list[Any]) -> ObjectArray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _place_positions(columns: Any, rows: Positions, here: Any) -> None:
    columns.latitude[here] = _array(rows.latitude) / float(DEGREE_E7)
    columns.longitude[here] = _array(rows.longitude) / float(DEGREE_E7)
    columns.altitude_m[here] = _unscaled(rows.altitude, MILLI)
    columns.speed_mps[here] = _unscaled(rows.speed, MILLI)
    columns.heading_deg[here] = _unscaled(rows.heading, CENTI)
    columns.accuracy_m[here] = _unscaled(rows.accuracy, MILLI)


def _place_signals(columns: Any, rows: Signals, here: Any) -> None:
    indices, types = _array(rows.path.index), _array(rows.types)
    columns.name[here] = _texts_of(rows.path)
    numbers = np.full(len(types), np.nan)
    numbers[types != TEXT] = _floats_of(rows.numbers)
    words = np.full(len(types), None, dtype=object)
    words[types == TEXT] = _objects(rows.texts)
    words[types == BOOL] = np.where(numbers[types == BOOL] != 0, "true", "false")
    # Stable: values of a path keep the order of their records.
    by_path = np.argsort(indices, kind="stable")
    grouped = by_path if isinstance(here, slice) else here[by_path]
    columns.number[grouped] = np.where(types == NUMBER, numbers, np.nan)
    columns.text[grouped] = words


def _place_events(columns: Any, rows: Events, here: Any) -> None:
    columns.name[here] = _texts_of(rows.name)
    columns.text[here] = _objects(rows.attributes)


def _place_canaries(columns: Any, rows: Canaries, here: Any) -> None:
    columns.name[here] = _objects(rows.ids)


def _place_raw(columns: Any, rows: Raws, here: Any) -> None:
    columns.name[here] = _texts_of(rows.topic)
    columns.payload[here] = _objects(rows.payloads)
    columns.text[here] = _texts_of(rows.reason)


_PLACE: dict[Kind, Callable[[Any, Any, Any], None]] = {
    Kind.POSITION: _place_positions,
    Kind.SIGNAL: _place_signals,
    Kind.EVENT: _place_events,
    Kind.CANARY: _place_canaries,
    Kind.RAW: _place_raw,
}
