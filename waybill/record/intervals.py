"""Sets of sequence numbers as ranges: their size depends on the number of gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

Range = tuple[int, int]


class IntervalSet:
    """An immutable set of integers, stored as inclusive, ascending ranges that neither touch nor overlap.

    Union is idempotent, commutative and associative, so coverage may be merged in any order and any number of times.
    All operations take time linear in the number of ranges; `in` is logarithmic.
    """

    __slots__ = ("_ranges",)

    _ranges: tuple[Range, ...]

    def __init__(self, ranges: Iterable[tuple[int, int] | list[int]] = ()) -> None:
        """`ranges`: inclusive (first, last) pairs in any order, overlapping or not.

        Raises ValueError for a pair whose last is before its first.
        """
        self._ranges = _normalised(ranges) if ranges else ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> IntervalSet:
        return cls((number, number) for number in numbers)

    @classmethod
    def of_ascending(cls, ranges: Iterable[Range]) -> IntervalSet:
        """The set of ranges that are known to be ascending and apart; this is not checked."""
        made = cls.__new__(cls)
        made._ranges = tuple(ranges)  # noqa: SLF001 - a second constructor of the same class
        return made

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The inclusive ranges, ascending, with at least one missing number between two of them."""
        return self._ranges

    @property
    def count(self) -> int:
        # Nearly every set that a gateway meets is one range.
        if len(self._ranges) == 1:
            return self._ranges[0][1] - self._ranges[0][0] + 1
        return sum(last - first + 1 for first, last in self._ranges)

    @property
    def first(self) -> int | None:
        return self._ranges[0][0] if self._ranges else None

    @property
    def last(self) -> int | None:
        return self._ranges[-1][1] if self._ranges else None

    def __or__(self, other: IntervalSet) -> IntervalSet:
        if not other._ranges:
            return self
        if not self._ranges:
            return other
        last, first = self._ranges[-1], other._ranges[0]
        # What grows mostly grows at its end.
        if first[0] > last[1] + 1:
            return IntervalSet.of_ascending((*self._ranges, *other._ranges))
        if first[0] == last[1] + 1:
            return IntervalSet.of_ascending((*self._ranges[:-1], (last[0], first[1]), *other._ranges[1:]))
        return IntervalSet((*self._ranges, *other._ranges))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet.of_ascending(_subtract(self._ranges, other._ranges))

    def __and__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet.of_ascending(_intersect(self._ranges, other._ranges))

    def gaps(self, first: int, last: int) -> IntervalSet:
        """The numbers from `first` to `last`, inclusive, that are not in the set."""
        return IntervalSet([(first, last)] if first <= last else []) - self

    def covers(self, other: IntervalSet) -> bool:
        return not (other - self)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._ranges, number, key=lambda bounds: bounds[0]) - 1
        return at >= 0 and number <= self._ranges[at][1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable([range(first, last + 1) for first, last in self._ranges])

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __repr__(self) -> str:
        inside = ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in self._ranges)
        return f"IntervalSet({inside})"


def _normalised(ranges: Iterable[tuple[int, int] | list[int]]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for first, last in sorted((first, last) for first, last in ranges):
        if last < first:
            raise ValueError(f"range {first}–{last} ends before it begins")
        # Neighbours become one: equal sets have equal ranges, and so equal hashes.
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _subtract(minuend: tuple[Range, ...], subtrahend: tuple[Range, ...]) -> Iterator[Range]:
    at = 0
    for first, last in minuend:
        while at < len(subtrahend) and subtrahend[at][1] < first:
            at += 1
        # `at` stays: a subtracted range may reach into the next one, too.
        start, probe = first, at
        while probe < len(subtrahend) and subtrahend[probe][0] <= last:
            if subtrahend[probe][0] > start:
                yield start, subtrahend[probe][0] - 1
            start = max(start, subtrahend[probe][1] + 1)
            probe += 1
        if start <= last:
            yield start, last


def _intersect(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            yield first, last
        # The one that ends first meets nothing further of the other side.
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
