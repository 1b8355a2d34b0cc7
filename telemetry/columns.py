"""Batches as numpy columns, for a centre that reads many: no reading is touched one by one. Needs numpy.

The layout is that of `telemetry.content`, which explains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.bodies import Kind
from telemetry.content import BOOL, CENTI, DEGREE_E7, MILLI, NUMBER, SECTION, TEXT
from telemetry.errors import Malformed
from telemetry.packing import float_parts, integer_parts, optional_parts
from telemetry.record import Header
from telemetry.wire import open_frame

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Columns:
    """The records of one batch, in ascending order of `seq`; every array has one entry for each record.

    Where a kind has no such value, floats are NaN and objects None. `name`: signal path, event name, canary id or
    raw topic; `text`: a signal's text or bool ("true", "false"), an event's attributes; `payload`: raw bytes.
    Units are those of `telemetry.Record` and `telemetry.Position`.
    """

    header: Header
    seq: Integers
    kind: Integers
    device_time_us: Integers
    monotonic_us: Integers
    uncertainty_ms: Integers
    boot: Objects
    latitude: Floats
    longitude: Floats
    altitude_m: Floats
    speed_mps: Floats
    heading_deg: Floats
    accuracy_m: Floats
    name: Objects
    number: Floats
    text: Objects
    payload: Objects


def decode_columns(data: bytes) -> Columns:
    """The records of a batch as columns. Raises WireError, exactly where `telemetry.decode` does."""
    header, content = open_frame(data)
    try:
        return _columns(header, content)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Malformed(f"content is not what the format says: {error!r}") from error


def _columns(header: Header, content: Any) -> Columns:
    seq = _numbers_in(header.ranges.ranges)
    count = len(seq)
    kind = _integers(content["k"], count) if count else seq
    columns = _Rows(count)
    for number in np.unique(kind):
        rows = np.flatnonzero(kind == number)
        _PLACE[Kind(int(number))](columns, content[SECTION[Kind(int(number))]], rows)
    return Columns(
        header=header,
        seq=seq,
        kind=kind,
        device_time_us=_integers(content["t"], count) if count else seq,
        monotonic_us=_integers(content["m"], count) if count else seq,
        uncertainty_ms=_integers(content["u"], count) if count else seq,
        boot=_named(content["b"][0], _integers(content["b"][1], count)) if count else _objects([], 0),
        **{field: getattr(columns, field) for field in _Rows.__slots__},
    )


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
        for field in self.__slots__:
            objects = field in {"name", "text", "payload"}
            setattr(self, field, np.full(count, None, dtype=object) if objects else np.full(count, np.nan))


def _numbers_in(ranges: Iterable[tuple[int, int]]) -> Integers:
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in ranges]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _integers(column: Any, count: int) -> Integers:
    base, width, planes = integer_parts(column, count)
    values = np.full(count, base, dtype=np.int64)
    if width and count > 1:
        joined = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(width, count - 1).T)
        values[1:] += np.cumsum(joined.view(f"<i{width}").ravel(), dtype=np.int64)
    return values


def _floats(column: Any, count: int) -> Floats:
    scale, content = float_parts(column, count)
    if scale >= 0:
        return _integers(content, count) / float(10**scale)
    joined = np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(8, count).T)
    return joined.view("<f8").ravel()


def _optional(column: Any, count: int, factor: int) -> Floats:
    values = np.full(count, np.nan)
    if column is None:
        return values
    presence, content = optional_parts(column, count)
    there = np.ones(count, bool) if presence is None else np.frombuffer(presence, np.bool_)
    values[there] = _integers(content, int(there.sum())) / float(factor)
    return values


def _named(names: Any, indices: Integers) -> Objects:
    if len(indices) and indices.min() < 0:
        raise Malformed("a negative index into a dictionary")
    return _objects(names, len(names))[indices]


def _objects(values: Any, count: int, kind: type = str) -> Objects:
    if len(values) != count or any(type(value) is not kind for value in values):
        raise Malformed(f"{count} values of type {kind.__name__} are announced and others are there")
    made = np.empty(count, dtype=object)
    made[:] = values
    return made


def _place_positions(columns: Any, section: Any, rows: Integers) -> None:
    latitudes, longitudes, altitudes, speeds, headings, accuracies = section
    count = len(rows)
    columns.latitude[rows] = _integers(latitudes, count) / float(DEGREE_E7)
    columns.longitude[rows] = _integers(longitudes, count) / float(DEGREE_E7)
    if not ((abs(columns.latitude[rows]) <= 90).all() and (abs(columns.longitude[rows]) <= 180).all()):
        raise Malformed("a position that is not on Earth")
    columns.altitude_m[rows] = _optional(altitudes, count, MILLI)
    columns.speed_mps[rows] = _optional(speeds, count, MILLI)
    columns.heading_deg[rows] = _optional(headings, count, CENTI)
    columns.accuracy_m[rows] = _optional(accuracies, count, MILLI)


def _place_signals(columns: Any, section: Any, rows: Integers) -> None:
    paths, index_column, type_column, number_column, texts = section
    count = len(rows)
    indices = _integers(index_column, count)
    columns.name[rows] = _named(paths, indices)
    grouped = rows[np.argsort(indices, kind="stable")]
    types = _integers(type_column, count)
    if not np.isin(types, (NUMBER, TEXT, BOOL)).all():
        raise Malformed("a signal of a type that is not known")
    numbers = np.full(count, np.nan)
    numbers[types != TEXT] = _floats(number_column, count - len(texts))
    words = np.full(count, None, dtype=object)
    words[types == TEXT] = _objects(texts, len(texts))
    words[types == BOOL] = np.where(numbers[types == BOOL] != 0, "true", "false")
    columns.number[grouped] = np.where(types == NUMBER, numbers, np.nan)
    columns.text[grouped] = words


def _place_events(columns: Any, section: Any, rows: Integers) -> None:
    names, index_column, attributes = section
    columns.name[rows] = _named(names, _integers(index_column, len(rows)))
    columns.text[rows] = _objects(attributes, len(rows))


def _place_canaries(columns: Any, section: Any, rows: Integers) -> None:
    (ids,) = section
    columns.name[rows] = _objects(ids, len(rows))


def _place_raw(columns: Any, section: Any, rows: Integers) -> None:
    topics, index_column, payloads = section
    columns.name[rows] = _named(topics, _integers(index_column, len(rows)))
    columns.payload[rows] = _objects(payloads, len(rows), bytes)


_PLACE = {
    Kind.POSITION: _place_positions,
    Kind.SIGNAL: _place_signals,
    Kind.EVENT: _place_events,
    Kind.CANARY: _place_canaries,
    Kind.RAW: _place_raw,
}
