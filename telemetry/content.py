"""The records of a batch as columns, and back. `telemetry.columns` reads the same layout with numpy.

The content of a batch is one msgpack map:

    "t" device time, µs · "m" monotonic time, µs · "u" uncertainty, ms · "k" kind     integers, one for each record
    "b" [boot names, integers: index of each record's boot]
    "p" positions: [latitude e7, longitude e7, altitude mm, speed mm/s, heading 0.01°, accuracy mm]
    "s" signals:   [paths, index of path, type (0 number, 1 text, 2 bool), floats, texts]
    "e" events:    [names, index of name, attributes]
    "c" canaries:  [ids]
    "r" raw:       [topics, index of topic, payloads]

Rows of a kind stand in the order of their records, but for signals: types and values are grouped by path, and keep
the order of their records within a path, so that like stands beside like. A kind that no record has is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from telemetry.bodies import KIND_OF, Body, Canary, Event, Kind, Position, Raw, Signal
from telemetry.errors import Malformed
from telemetry.packing import (
    pack_floats,
    pack_integers,
    pack_optional,
    unpack_floats,
    unpack_integers,
    unpack_optional,
)
from telemetry.record import Record

DEGREE_E7 = 10_000_000
MILLI = 1_000
CENTI = 100
NUMBER, TEXT, BOOL = 0, 1, 2

SECTION = {Kind.POSITION: "p", Kind.SIGNAL: "s", Kind.EVENT: "e", Kind.CANARY: "c", Kind.RAW: "r"}
"""The key of each kind's rows."""


def pack_records(records: Sequence[Record]) -> dict[str, Any]:
    """The content map of records, which must stand in ascending order of `seq`."""
    kinds = [KIND_OF[type(record.body)] for record in records]
    boots, boot_index = _dictionary([record.boot for record in records])
    content: dict[str, Any] = {
        "t": pack_integers([record.device_time_us for record in records]),
        "m": pack_integers([record.monotonic_us for record in records]),
        "u": pack_integers([record.uncertainty_ms for record in records]),
        "k": pack_integers(kinds),
        "b": [boots, pack_integers(boot_index)],
    }
    for kind in sorted(set(kinds)):
        rows = [record.body for record, its in zip(records, kinds, strict=True) if its is kind]
        content[SECTION[kind]] = _PACK[kind](rows)
    return content


def unpack_records(content: Any, seqs: Sequence[int]) -> tuple[Record, ...]:
    """The records of a content map. Raises Malformed."""
    try:
        return _unpacked(content, seqs)
    except (KeyError, IndexError, TypeError, ValueError, ValidationError, StopIteration) as error:
        raise Malformed(f"content is not what the format says: {error!r}") from error


def _unpacked(content: Any, seqs: Sequence[int]) -> tuple[Record, ...]:
    count = len(seqs)
    kinds = unpack_integers(content["k"], count)
    boots = content["b"][0]
    bodies: dict[int, Iterator[Body]] = {}
    for kind in set(kinds):
        bodies[kind] = iter(_UNPACK[Kind(kind)](content[SECTION[Kind(kind)]], kinds.count(kind)))
    columns = zip(
        seqs,
        unpack_integers(content["t"], count),
        unpack_integers(content["m"], count),
        unpack_integers(content["b"][1], count),
        unpack_integers(content["u"], count),
        kinds,
        strict=True,
    )
    return tuple(
        Record(seq, time, next(bodies[kind]), monotonic, boots[_index(boot)], uncertainty)
        for seq, time, monotonic, boot, uncertainty, kind in columns
    )


def _dictionary(names: Sequence[str]) -> tuple[list[str], list[int]]:
    index_of: dict[str, int] = {}
    indices = [index_of.setdefault(name, len(index_of)) for name in names]
    return list(index_of), indices


def _index(index: int) -> int:
    if index < 0:
        raise Malformed(f"index {index} into a dictionary")
    return index


def _scaled(values: Sequence[float | None], factor: int) -> list[Any] | None:
    return pack_optional([None if value is None else round(value * factor) for value in values])


def _unscaled(column: Any, count: int, factor: int) -> list[float | None]:
    return [None if value is None else value / factor for value in unpack_optional(column, count)]


def _pack_positions(rows: Sequence[Position]) -> list[Any]:
    return [
        pack_integers([round(row.latitude * DEGREE_E7) for row in rows]),
        pack_integers([round(row.longitude * DEGREE_E7) for row in rows]),
        _scaled([row.altitude_m for row in rows], MILLI),
        _scaled([row.speed_mps for row in rows], MILLI),
        _scaled([row.heading_deg for row in rows], CENTI),
        _scaled([row.accuracy_m for row in rows], MILLI),
    ]


def _unpack_positions(section: Any, count: int) -> Iterator[Position]:
    latitudes, longitudes, altitudes, speeds, headings, accuracies = section
    columns = zip(
        unpack_integers(latitudes, count),
        unpack_integers(longitudes, count),
        _unscaled(altitudes, count, MILLI),
        _unscaled(speeds, count, MILLI),
        _unscaled(headings, count, CENTI),
        _unscaled(accuracies, count, MILLI),
        strict=True,
    )
    for latitude, longitude, altitude, speed, heading, accuracy in columns:
        yield Position(
            latitude=latitude / DEGREE_E7,
            longitude=longitude / DEGREE_E7,
            altitude_m=altitude,
            speed_mps=speed,
            heading_deg=heading,
            accuracy_m=accuracy,
        )


def _pack_signals(rows: Sequence[Signal]) -> list[Any]:
    paths, indices = _dictionary([row.path for row in rows])
    order = sorted(range(len(rows)), key=indices.__getitem__)
    values = [rows[row].value for row in order]
    types = [BOOL if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER for value in values]
    numbers = [float(value) for value in values if not isinstance(value, str)]
    texts = [value for value in values if isinstance(value, str)]
    return [paths, pack_integers(indices), pack_integers(types), pack_floats(numbers), texts]


def _unpack_signals(section: Any, count: int) -> list[Signal]:
    paths, index_column, type_column, number_column, texts = section
    indices = unpack_integers(index_column, count)
    types = unpack_integers(type_column, count)
    numbers = iter(unpack_floats(number_column, count - len(texts)))
    words = iter(texts)
    order = sorted(range(count), key=indices.__getitem__)
    rows: list[Signal | None] = [None] * count
    for row, kind in zip(order, types, strict=True):
        value: bool | float | str = next(words) if kind == TEXT else next(numbers)
        rows[row] = Signal(path=paths[_index(indices[row])], value=bool(value) if kind == BOOL else value)
    return [row for row in rows if row is not None]


def _pack_events(rows: Sequence[Event]) -> list[Any]:
    names, indices = _dictionary([row.name for row in rows])
    return [names, pack_integers(indices), [row.attributes for row in rows]]


def _unpack_events(section: Any, count: int) -> Iterator[Event]:
    names, index_column, attributes = section
    for index, text in zip(unpack_integers(index_column, count), attributes, strict=True):
        yield Event(name=names[_index(index)], attributes=text)


def _pack_canaries(rows: Sequence[Canary]) -> list[Any]:
    return [[row.id for row in rows]]


def _unpack_canaries(section: Any, count: int) -> Iterator[Canary]:
    (ids,) = section
    if len(ids) != count:
        raise Malformed(f"{len(ids)} ids for {count} canaries")
    return (Canary(id=identity) for identity in ids)


def _pack_raw(rows: Sequence[Raw]) -> list[Any]:
    topics, indices = _dictionary([row.topic for row in rows])
    return [topics, pack_integers(indices), [row.payload for row in rows]]


def _unpack_raw(section: Any, count: int) -> Iterator[Raw]:
    topics, index_column, payloads = section
    for index, payload in zip(unpack_integers(index_column, count), payloads, strict=True):
        yield Raw(topic=topics[_index(index)], payload=payload)


_PACK: dict[Kind, Callable[[Any], list[Any]]] = {
    Kind.POSITION: _pack_positions,
    Kind.SIGNAL: _pack_signals,
    Kind.EVENT: _pack_events,
    Kind.CANARY: _pack_canaries,
    Kind.RAW: _pack_raw,
}
_UNPACK: dict[Kind, Callable[[Any, int], Any]] = {
    Kind.POSITION: _unpack_positions,
    Kind.SIGNAL: _unpack_signals,
    Kind.EVENT: _unpack_events,
    Kind.CANARY: _unpack_canaries,
    Kind.RAW: _unpack_raw,
}
