"""Content that its reader surely takes, recognised at a third of the cost; most batches that a gateway judges are such.

`record.layout` stays the only judge. What is not recognised here says nothing: it is read there. Whole messages are
unpacked at once, which a bound on their size makes safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from waybill.record.bodies import Kind
from waybill.record.errors import Malformed
from waybill.record.layout import (
    ACCURACY,
    ALTITUDE,
    BOOL,
    BOOT,
    DEVICE_TIME,
    HEADING,
    LATITUDE,
    LONGITUDE,
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
)
from waybill.record.packing import EXACT, IntegerColumn, check_finite, is_scale, is_surely_within, joined_planes

SHORT_BYTES = 64 << 10
"""Longer content is not looked at here: taken apart at once, it could fill the memory."""
_BEFORE_ROWS = ("t", "m", "u", "k", "b")
_KINDS = (int(min(Kind)), int(max(Kind)))
_KIND_OF = {SECTION[kind]: int(kind) for kind in Kind}
_PLACE, _MOTION = (LATITUDE, LONGITUDE), (ALTITUDE, SPEED, HEADING, ACCURACY)


def is_surely_readable(data: bytes, count: int) -> bool:
    """Whether `read_content` takes these bytes as `count` records, at least one. False: it may, or may not."""
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
        and _are_rows(members[5:], kinds, count)
    )


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
    """Whether it is a column of integers within these bounds. May raise Malformed where it is not."""
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
