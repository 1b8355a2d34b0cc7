"""The records of a batch as columns, and back. `waybill.record.layout` reads and checks them.

The content of a batch is one msgpack map:

    "t" device time, µs · "m" monotonic time, µs · "u" uncertainty, ms · "k" kind     integers, one for each record
    "b" [boot names, integers: index of each record's boot]
    "a" [mappings, integers: index of each record's mapping]; left out if no record has a mapping
    "p" positions: [latitude e7, longitude e7, altitude mm, speed mm/s, heading 0.01°, accuracy mm]
    "s" signals:   [paths, index of path, type (0 number, 1 text, 2 bool), floats, texts]
    "e" events:    [names, index of name, attributes]
    "c" canaries:  [ids]
    "r" raw:       [topics, index of topic, payloads, reasons, index of reason]

Rows of a kind have the order of their records. Types and values of signals are grouped by path, in the order of their
records within a path, because similar neighbours compress better. A kind without records is left out. The members have
this order, and there are no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from waybill.record.layout import (
    ACCURACY,
    ALTITUDE,
    BOOL,
    BOOT,
    CENTI,
    DEGREE_E7,
    DEVICE_TIME,
    HEADING,
    LATITUDE,
    LONGITUDE,
    MAPPING,
    MILLI,
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
    Canaries,
    Content,
    DictionaryColumn,
    Events,
    FloatColumn,
    OptionalColumn,
    Positions,
    Raws,
    Signals,
    characters,
    check_list,
    check_mappings,
)
from waybill.record.packing import joined_planes, pack_floats, pack_integers, pack_optional, pack_within
from waybill.record.record import KIND_OF, Body, Canary, Event, Kind, Position, Raw, Record, Signal


def pack_records(records: Sequence[Record]) -> dict[str, Any]:
    """The content map of at least one record, ascending by `seq`. Raises WireError for records that no reader
    accepts.
    """
    kinds = [KIND_OF[type(record.body)] for record in records]
    boots, _, boot_index = _dictionary([record.boot for record in records], *BOOT)
    content: dict[str, Any] = {
        "t": pack_within([record.device_time_us for record in records], *DEVICE_TIME),
        "m": pack_within([record.monotonic_us for record in records], *MONOTONIC),
        "u": pack_within([record.uncertainty_ms for record in records], *UNCERTAINTY),
        "k": pack_integers(kinds),
        "b": [boots, boot_index],
    }
    mapping_of = [record.mapping for record in records]
    if any(mapping_of):
        mappings, _, mapping_index = _dictionary(mapping_of, *MAPPING)
        check_mappings(mappings)
        content["a"] = [mappings, mapping_index]
    rows: dict[Kind, list[Body]] = {kind: [] for kind in sorted(set(kinds))}
    for record, kind in zip(records, kinds, strict=True):
        rows[kind].append(record.body)
    for kind, bodies in rows.items():
        content[SECTION[kind]] = _PACK[kind](bodies)
    return content


def unpack_records(content: Content, seqs: Iterable[int]) -> tuple[Record, ...]:
    mappings = () if content.mapping is None else (_texts_of(content.mapping),)
    records = tuple(
        map(
            Record,
            seqs,
            content.device_time_us.values(),
            _bodies(content),
            content.monotonic_us.values(),
            _texts_of(content.boot),
            content.uncertainty_ms.values(),
            *mappings,
        )
    )
    assert len(records) == content.kind.count
    return records


def _bodies(content: Content) -> Sequence[Body]:
    bodies = {int(kind): _UNPACK[kind](rows) for kind, rows in content.rows.items()}
    if len(bodies) == 1:
        return bodies.popitem()[1]
    following = {kind: iter(of_kind).__next__ for kind, of_kind in bodies.items()}
    return [following[kind]() for kind in content.kind.values()]


def _dictionary(rows: Sequence[str], shortest: int, longest: int) -> tuple[list[str], list[int], list[Any]]:
    """The names of a dictionary, the index of each row, and its column."""
    index_of: dict[str, int] = {}
    indices = [index_of.setdefault(name, len(index_of)) for name in rows]
    names = list(index_of)
    check_list(names, str, shortest, longest)
    packed = pack_integers(indices)
    characters(names, len(indices), lambda: indices)
    return names, indices, packed


def _checked(values: list[Any], kind: type, shortest: int, longest: int) -> list[Any]:
    check_list(values, kind, shortest, longest)
    return values


def _texts_of(dictionary: DictionaryColumn) -> list[str]:
    return [*map(dictionary.names.__getitem__, dictionary.index.values())]


def _unscaled(column: OptionalColumn | None, count: int, factor: int) -> list[float | None]:
    if column is None:
        return [None] * count
    # A quotient is the double nearest to the decimal; times 1e-7 is often its neighbour.
    values = [value / factor for value in column.integers.values()]
    if column.presence is None:
        return list(values)
    present = iter(values)
    return [next(present) if there else None for there in column.presence]


def _floats_of(column: FloatColumn) -> list[float]:
    if column.integers is None:
        return list(joined_planes(column.planes, "d", 8))
    return [whole / 10**column.scale for whole in column.integers.values()]


def _pack_positions(rows: Sequence[Position]) -> list[Any]:
    return [
        pack_within([round(row.latitude * DEGREE_E7) for row in rows], *LATITUDE),
        pack_within([round(row.longitude * DEGREE_E7) for row in rows], *LONGITUDE),
        pack_optional([row.altitude_m for row in rows], MILLI, *ALTITUDE),
        pack_optional([row.speed_mps for row in rows], MILLI, *SPEED),
        pack_optional([row.heading_deg for row in rows], CENTI, *HEADING),
        pack_optional([row.accuracy_m for row in rows], MILLI, *ACCURACY),
    ]


def _unpack_positions(rows: Positions) -> list[Position]:
    count = rows.latitude.count
    columns = zip(
        rows.latitude.values(),
        rows.longitude.values(),
        _unscaled(rows.altitude, count, MILLI),
        _unscaled(rows.speed, count, MILLI),
        _unscaled(rows.heading, count, CENTI),
        _unscaled(rows.accuracy, count, MILLI),
        strict=True,
    )
    return [
        Position(
            latitude=latitude / DEGREE_E7,
            longitude=longitude / DEGREE_E7,
            altitude_m=altitude,
            speed_mps=speed,
            heading_deg=heading,
            accuracy_m=accuracy,
        )
        for latitude, longitude, altitude, speed, heading, accuracy in columns
    ]


def _pack_signals(rows: Sequence[Signal]) -> list[Any]:
    paths, indices, index_column = _dictionary([row.path for row in rows], *NAME)
    # By path: neighbouring values of one signal differ little, and so take few bytes.
    order = sorted(range(len(rows)), key=indices.__getitem__)
    values = [rows[row].value for row in order]
    # bool first: it would be a number to float().
    types = [BOOL if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER for value in values]
    numbers = [float(value) for value in values if not isinstance(value, str)]
    texts = [value for value in values if isinstance(value, str)]
    check_list(texts, str, *TEXT_LENGTH)
    return [paths, index_column, pack_integers(types), pack_floats(numbers), texts]


def _unpack_signals(rows: Signals) -> list[Signal]:
    paths, index_of = rows.path.names, rows.path.index.values()
    numbers, words = iter(_floats_of(rows.numbers)), iter(rows.texts)
    # `sorted` is stable, so this is the order in which the writer grouped them.
    order = sorted(range(len(index_of)), key=index_of.__getitem__)
    signals: dict[int, Signal] = {}
    for row, kind in zip(order, rows.types.values(), strict=True):
        value: bool | float | str = next(words) if kind == TEXT else next(numbers)
        signals[row] = Signal(path=paths[index_of[row]], value=bool(value) if kind == BOOL else value)
    return [signals[row] for row in range(len(order))]


def _pack_events(rows: Sequence[Event]) -> list[Any]:
    names, _, index = _dictionary([row.name for row in rows], *NAME)
    return [names, index, _checked([row.attributes for row in rows], str, *TEXT_LENGTH)]


def _unpack_events(rows: Events) -> list[Event]:
    columns = zip(_texts_of(rows.name), rows.attributes, strict=True)
    return [Event(name=name, attributes=attributes) for name, attributes in columns]


def _pack_canaries(rows: Sequence[Canary]) -> list[Any]:
    return [_checked([row.id for row in rows], str, *NAME)]


def _unpack_canaries(rows: Canaries) -> list[Canary]:
    return [Canary(id=identity) for identity in rows.ids]


def _pack_raw(rows: Sequence[Raw]) -> list[Any]:
    topics, _, index = _dictionary([row.topic for row in rows], *TOPIC)
    reasons, _, reason_index = _dictionary([row.reason for row in rows], *RAW_REASON)
    return [topics, index, _checked([row.payload for row in rows], bytes, *PAYLOAD), reasons, reason_index]


def _unpack_raw(rows: Raws) -> list[Raw]:
    columns = zip(_texts_of(rows.topic), rows.payloads, _texts_of(rows.reason), strict=True)
    return [Raw(topic=topic, payload=payload, reason=reason) for topic, payload, reason in columns]


_PACK: dict[Kind, Callable[[Any], list[Any]]] = {
    Kind.POSITION: _pack_positions,
    Kind.SIGNAL: _pack_signals,
    Kind.EVENT: _pack_events,
    Kind.CANARY: _pack_canaries,
    Kind.RAW: _pack_raw,
}
_UNPACK: dict[Kind, Callable[[Any], Sequence[Body]]] = {
    Kind.POSITION: _unpack_positions,
    Kind.SIGNAL: _unpack_signals,
    Kind.EVENT: _unpack_events,
    Kind.CANARY: _unpack_canaries,
    Kind.RAW: _unpack_raw,
}
