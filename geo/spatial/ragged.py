"""Arrays of unequal rows, held flat: vectorised code uses them in place of nested loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_MOST: Final = (1 << 63) - 1
Points: TypeAlias = tuple[Floats, Floats]  # longitudes (or u), latitudes (or v)
Pairs: TypeAlias = tuple[Ints, Ints]


def expand(starts: NDArray[np.integer], counts: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Rows `starts[i] .. starts[i] + counts[i]` laid end to end: (the row of each item, the item's index)."""
    counts = counts.astype(np.int64, copy=False)
    row = np.repeat(np.arange(len(counts)), counts)
    shift = starts - (np.cumsum(counts) - counts)
    return row, np.arange(len(row)) + np.repeat(shift, counts)


def blocks(counts: NDArray[np.integer], most: int) -> Iterator[slice]:
    """Neighbouring rows with about `most` items together; a row with more is a block by itself."""
    total, begin = np.cumsum(counts), 0
    while begin < len(counts):
        done = int(total[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(total, done + most, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


def run_starts(*keys: NDArray[np.generic]) -> Bools:
    """True at each row that differs from the row before it in any of `keys`; the first row is True."""
    first = np.ones(len(keys[0]), dtype=np.bool_)
    if len(first) > 1:
        first[1:] = False
        for key in keys:
            first[1:] |= key[1:] != key[:-1]
    return first


def lexical(*keys: Ints) -> Ints:
    """The order of rows by their keys, the first key first; equal rows keep their order.

    Like `numpy.lexsort`, but several times faster where one number can stand for all keys.
    """
    count = len(keys[0])
    packed, values = np.zeros(count, dtype=np.int64), 1
    for key in (*keys, np.arange(count)) if count else ():
        low, size = int(key.min()), int(key.max()) - int(key.min()) + 1
        values *= size
        # A number of Python, which does not overflow before it is compared.
        if values > _MOST:
            return np.lexsort(keys[::-1])
        packed = packed * size + (key - low)
    return np.argsort(packed)


def offsets(counts: NDArray[np.integer]) -> Ints:
    """Limits of rows with these counts: `offsets[i] .. offsets[i + 1]`."""
    limits = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=limits[1:])
    return limits


def distinct(values: Ints) -> Ints:
    """The distinct values, ascending; `numpy.unique` hashes, which is many times slower on millions."""
    values = np.sort(values)
    return values[run_starts(values)] if len(values) else values


def among(values: Ints, ascending: Ints) -> Bools:
    """Which values occur in `ascending`, whose values are not negative; faster than `numpy.isin`."""
    at = np.searchsorted(ascending, values)
    return np.asarray(np.append(ascending, -1)[at] == values, dtype=np.bool_)


def stacked(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The columns (slots) of parts of one class, each column concatenated over the parts."""
    return tuple(np.concatenate([getattr(part, name) for part in parts]) for name in type(parts[0]).__slots__)


def joined_pairs(parts: Iterable[Pairs]) -> Pairs:
    none = np.zeros(0, dtype=np.int64)
    one, other = (np.concatenate(column) for column in zip((none, none), *parts, strict=True))
    return one, other


def distinct_pairs(one: Ints, other: Ints) -> Pairs:
    """The distinct pairs of two columns, ascending."""
    order = lexical(one, other)
    one, other = one[order], other[order]
    first = run_starts(one, other)
    return one[first], other[first]
