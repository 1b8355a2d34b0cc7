"""Columns of numbers as few bytes: differences, in the narrowest width that holds them, byte planes apart.

A column on the wire is a msgpack array:

- integers: `[base, width, planes]`. The first value is `base`, each next one adds a signed little-endian difference of
  `width` bytes (0, 1, 2, 4 or 8; 0 means that all values equal `base`). `planes` holds first every difference's lowest
  byte, then every second byte and so on: neighbours look alike, which is what a compressor wants, and numpy puts them
  together again with one transposition.
- floats: `[scale, integers]` when every value is exactly a decimal with `scale` digits after the point, else
  `[-1, planes]` of the IEEE 754 doubles.
- optional integers: nil when all are absent, else `[presence, integers]`, `presence` being nil when all are present or
  one byte (0 or 1) for each row; the integers of the present rows only.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from telemetry.errors import Malformed

_CODES = ((1, "b", 1 << 7), (2, "h", 1 << 15), (4, "i", 1 << 31), (8, "q", 1 << 63))
_CODE_OF_WIDTH = {width: code for width, code, _ in _CODES}
_MAX_SCALE = 6
_EXACT = 1 << 53


def pack_integers(values: Sequence[int]) -> list[Any]:
    """A column of integers whose neighbouring differences fit 64 bits, signed."""
    if not values:
        return [0, 0, b""]
    differences = [after - before for before, after in pairwise(values)]
    low, high = min(differences, default=0), max(differences, default=0)
    if low == high == 0:
        return [values[0], 0, b""]
    for width, code, limit in _CODES:
        if -limit <= low and high < limit:
            return [values[0], width, _planes(array(code, differences), width)]
    raise ValueError(f"neighbouring values differ by more than 64 bits hold: {low}, {high}")


def unpack_integers(column: Any, count: int) -> list[int]:
    """The `count` integers of a column. Raises Malformed."""
    base, width, planes = integer_parts(column, count)
    if width == 0:
        return [base] * count
    return list(accumulate(_joined(planes, _CODE_OF_WIDTH[width], width), initial=base))


def integer_parts(column: Any, count: int) -> tuple[int, int, bytes]:
    """The checked parts of a column of `count` integers. Raises Malformed."""
    if not (isinstance(column, list) and len(column) == 3):
        raise Malformed("a column of integers is no [base, width, planes]")
    base, width, planes = column
    if not (isinstance(base, int) and isinstance(planes, bytes) and width in {0, *_CODE_OF_WIDTH}):
        raise Malformed(f"a column of integers with base {base!r} and width {width!r}")
    if len(planes) != max(count - 1, 0) * width:
        raise Malformed(f"a column of {count} integers of width {width} has {len(planes)} bytes")
    return base, width, planes


def pack_floats(values: Sequence[float]) -> list[Any]:
    """A column of finite floats, exact: decimals where the values are decimals, else doubles."""
    for scale in range(_MAX_SCALE + 1):
        factor = 10**scale
        scaled = [round(value * factor) for value in values]
        if all(
            whole / factor == value and -_EXACT < whole < _EXACT for whole, value in zip(scaled, values, strict=True)
        ):
            return [scale, pack_integers(scaled)]
    return [-1, _planes(array("d", values), 8)]


def unpack_floats(column: Any, count: int) -> list[float]:
    """The `count` floats of a column. Raises Malformed."""
    scale, content = float_parts(column, count)
    if scale < 0:
        return list(_joined(content, "d", 8))
    return [whole / 10**scale for whole in unpack_integers(content, count)]


def float_parts(column: Any, count: int) -> tuple[int, Any]:
    """The checked parts of a column of `count` floats. Raises Malformed."""
    if not (isinstance(column, list) and len(column) == 2 and column[0] in range(-1, _MAX_SCALE + 1)):
        raise Malformed("a column of floats is no [scale, content]")
    scale, content = column
    if scale < 0 and not (isinstance(content, bytes) and len(content) == 8 * count):
        raise Malformed(f"a column of {count} doubles has other than {8 * count} bytes")
    return scale, content


def pack_optional(values: Sequence[int | None]) -> list[Any] | None:
    """A column of integers of which some may be absent."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    presence = None if len(present) == len(values) else bytes(value is not None for value in values)
    return [presence, pack_integers(present)]


def unpack_optional(column: Any, count: int) -> list[int | None]:
    """The `count` integers of a column, None where absent. Raises Malformed."""
    if column is None:
        return [None] * count
    presence, content = optional_parts(column, count)
    if presence is None:
        return list(unpack_integers(content, count))
    present = iter(unpack_integers(content, sum(presence)))
    return [next(present) if there else None for there in presence]


def optional_parts(column: Any, count: int) -> tuple[bytes | None, Any]:
    """The checked presence and integers of an optional column that is not nil. Raises Malformed."""
    if not (isinstance(column, list) and len(column) == 2):
        raise Malformed("an optional column is no [presence, integers]")
    presence, content = column
    if presence is not None and not (
        isinstance(presence, bytes) and len(presence) == count and not presence.strip(b"\0\1")
    ):
        raise Malformed("the presence of an optional column is not one byte of 0 or 1 for each row")
    return presence, content


def _planes(values: array[Any], width: int) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    packed = values.tobytes()
    return b"".join(packed[plane::width] for plane in range(width))


def _joined(planes: bytes, code: str, width: int) -> array[Any]:
    count = len(planes) // width
    packed = bytearray(len(planes))
    for plane in range(width):
        packed[plane::width] = planes[plane * count : (plane + 1) * count]
    values: array[Any] = array(code)
    values.frombytes(bytes(packed))
    if sys.byteorder == "big":
        values.byteswap()
    return values
