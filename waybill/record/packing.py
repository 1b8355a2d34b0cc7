"""Compact columns of numbers: differences in the narrowest width, with separate byte planes.

A column on the wire is a msgpack array:

- integers: `[base, width, planes]`. The first value is `base`; each next one adds a signed little-endian difference of
  `width` bytes (0, 1, 2, 4 or 8; 0: all values equal `base`). `planes` has every difference's lowest byte first, then
  every second byte and so on: similar neighbours compress better, and numpy needs one transposition.
- floats: `[scale, integers]` if every value is exactly a decimal with `scale` digits after the point, else
  `[-1, planes]` of the IEEE 754 doubles.
- optional integers: nil if all are absent, else `[presence, integers]`. `presence` is nil if all are present, else one
  byte (0 or 1) for each row; the integers are those of the present rows.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Any

from waybill.record.errors import Malformed

# Not "l": how many bytes it has depends on the platform.
_CODES = ((1, "b", 1 << 7), (2, "h", 1 << 15), (4, "i", 1 << 31), (8, "q", 1 << 63))
_CODE_OF_WIDTH = {width: code for width, code, _ in _CODES}
_WIDTHS = frozenset((0, *_CODE_OF_WIDTH))
_MAX_SCALE = 6
EXACT = 1 << 53
"""Whole numbers below it are exact in a double."""
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1


class IntegerColumn:
    """A column of `count` integers as on the wire; most columns need no look at each value."""

    __slots__ = ("_values", "base", "count", "planes", "width")

    def __init__(self, base: Any, width: Any, planes: Any, count: int) -> None:
        """Raises Malformed unless base, width and length fit each other."""
        # Not isinstance: true of msgpack would pass for 1.
        if type(base) is not int or not MIN_INT64 <= base <= MAX_INT64 or type(width) is not int:
            raise Malformed(f"a column of integers with base {base!r:.60} and width {width!r:.60}")
        if width not in _WIDTHS or type(planes) is not bytes or len(planes) != max(count - 1, 0) * width:
            raise Malformed(f"a column of {count} integers of width {width} has other bytes than that")
        self.base = base
        self.width = width
        self.planes = planes
        self.count = count
        self._values: Sequence[int] | None = None

    def values(self) -> Sequence[int]:
        """The integers, cached."""
        if self._values is None:
            self._values = self._joined()
        return self._values

    def check(self, low: int, high: int, what: str) -> None:
        """Raises Malformed unless every value is from `low` to `high`."""
        if self.count and not is_surely_within(self.base, self.width, self.count, low, high):
            _check_extremes(*self.extremes(), low, high, what)

    def extremes(self) -> tuple[int, int]:
        """The least and the greatest value of a column that is not empty."""
        values = self.values()
        return min(values), max(values)

    def _joined(self) -> list[int]:
        if self.width == 0:
            return [self.base] * self.count
        return list(accumulate(joined_planes(self.planes, _CODE_OF_WIDTH[self.width], self.width), initial=self.base))


def is_surely_within(base: int, width: int, count: int, low: int, high: int) -> bool:
    """Whether even the largest differences of this width stay within the bounds."""
    # A signed difference of this width goes at most 2**(8 * width - 1) to either side.
    reach = (count - 1) << (8 * width - 1) if width else 0
    return low + reach <= base <= high - reach


def _check_extremes(least: int, most: int, low: int, high: int, what: str) -> None:
    if least < low or most > high:
        raise Malformed(f"{what} is outside {low} to {high}")


def pack_integers(values: Sequence[int]) -> list[Any]:
    """Raises Malformed for neighbouring differences that do not fit 64 bits."""
    if not values:
        return [0, 0, b""]
    differences = list(map(sub, values[1:], values))
    low, high = min(differences, default=0), max(differences, default=0)
    if low == high == 0:
        return [values[0], 0, b""]
    for width, code, limit in _CODES:
        if -limit <= low and high < limit:
            return [values[0], width, _planes(array(code, differences), width)]
    raise Malformed(f"neighbouring values differ by more than 64 bits hold: {low}, {high}")


def pack_within(values: Sequence[int], low: int, high: int, what: str) -> list[Any]:
    """A column of integers with the checks of its reader. Raises Malformed."""
    column = pack_integers(values)
    base, width, _ = column
    # A column of equal floats or bools gets through the arithmetic above.
    if type(base) is not int:
        raise Malformed(f"{what} is not a valid integer: {base!r:.60}")
    if values and not is_surely_within(base, width, len(values), low, high):
        _check_extremes(min(values), max(values), low, high, what)
    return column


def pack_floats(values: Sequence[float]) -> list[Any]:
    """A column of exact floats: decimals if possible, else doubles. Raises Malformed if one is not finite."""
    largest = max(map(abs, values), default=0.0)
    for scale in range(_MAX_SCALE + 1):
        factor = 10**scale
        # Not `>=`: NaN ends the search too, and is refused below.
        if not largest * factor < EXACT - 1:
            break
        scaled = [round(value * factor) for value in values]
        # Divided as its reader divides: a decimal is what comes back as the same double.
        if all(whole / factor == value for whole, value in zip(scaled, values, strict=True)):
            return [scale, pack_integers(scaled)]
    check_finite(values)
    return [-1, _planes(array("d", values), 8)]


def check_finite(values: Iterable[float]) -> None:
    """Raises Malformed unless all are finite."""
    if not all(map(math.isfinite, values)):
        raise Malformed("a number that is not finite")


def pack_optional(values: Sequence[float | None], factor: int, low: int, high: int, what: str) -> list[Any] | None:
    """A column of numbers times `factor`, rounded, some absent, with the checks of its reader. Raises Malformed."""
    present = [round(value * factor) for value in values if value is not None]
    if not present:
        return None
    presence = None if len(present) == len(values) else bytes(value is not None for value in values)
    return [presence, pack_within(present, low, high, what)]


def is_scale(scale: Any) -> bool:
    """Whether it is the scale of a column of floats: -1 for doubles, else digits after the point."""
    return type(scale) is int and -1 <= scale <= _MAX_SCALE


def _planes(values: array[Any], width: int) -> bytes:
    if sys.byteorder == "big":
        # The wire is little-endian, an array has the byte order of its machine.
        values.byteswap()
    packed = values.tobytes()
    return b"".join(packed[plane::width] for plane in range(width))


def joined_planes(planes: bytes, code: str, width: int) -> array[Any]:
    """The numbers of byte planes; `code`: that of their array."""
    values: array[Any] = array(code)
    if width == 1:
        values.frombytes(planes)
        return values
    count = len(planes) // width
    packed = bytearray(len(planes))
    for plane in range(width):
        packed[plane::width] = planes[plane * count : (plane + 1) * count]
    values.frombytes(packed)
    if sys.byteorder == "big":
        values.byteswap()
    return values
