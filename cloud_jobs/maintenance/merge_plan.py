"""Which files of a day are merged. Pure.

A day that still grows is merged by size: enough files of about one size become one of the next, so each row is written
again only as often as there are sizes. A day that is past is sorted once, whole, into files that do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Any, Final, NamedTuple

from cloud_jobs.maintenance.table_files import TableFile

Key = tuple[Any, ...]
MERGED_FILES: Final = 8
"""So many files of one size become one."""
_AT_ONCE: Final = 64
"""The most files of a day that grows that one merge takes: its commit comes soon."""
_SMALLEST: Final = 1 << 16
_LATE_SHARE: Final = 8
"""A sorted day is sorted again when what came late is this part of it."""


class FileLimits(NamedTuple):
    """About how many bytes a file becomes, and how many rows a merge holds in memory."""

    size: int
    rows: int

    def is_full(self, file: TableFile) -> bool:
        """Whether to merge a file with others would give no bigger one."""
        return 4 * file.size >= self.size


def growing_merges(files: Sequence[TableFile], limits: FileLimits) -> list[tuple[TableFile, ...]]:
    """The merges that are due among files of a day that grows; no file is in two of them."""
    levels: dict[int, list[TableFile]] = {}
    for file in files:
        if not limits.is_full(file):
            levels.setdefault(_level(file), []).append(file)
    return [
        tuple(level[at : at + _AT_ONCE])
        for level in levels.values()
        for at in range(0, len(level), _AT_ONCE)
        if len(level) - at >= MERGED_FILES
    ]


def settled_merge(files: Sequence[TableFile], limits: FileLimits, order: Sequence[str]) -> tuple[TableFile, ...]:
    """The files of a day that is past that are merged now; none when the day is sorted. `order`: by what."""
    if not overlap(files, order):
        needed = _needed(files, limits)
        return tuple(files) if len(files) > (2 * needed if needed > 1 else 1) else ()
    # a small day has no full file, and was sorted all the same: into its largest
    full = [file for file in files if limits.is_full(file)] or [max(files, key=lambda file: file.rows)]
    late = [file for file in files if file not in full]
    if overlap(full, order) or _rows(late) * _LATE_SHARE >= _rows(full):
        return tuple(files)
    return tuple(late) if len(late) > 1 else ()


def overlap(files: Sequence[TableFile], order: Sequence[str]) -> bool:
    """Whether two of the files may hold rows of one range of keys, more than what begins like the key at their ends."""
    if any(order[0] not in file.low or order[0] not in file.high for file in files):
        return len(files) > 1
    # by the highest key: where devices change within a file that says less of its ends than a file of one device does
    ordered = sorted((_ends(file, order) for file in files), key=lambda ends: (ends[1], ends[0]))
    return any(_is_after(one[1], other[0]) for one, other in pairwise(ordered))


def _ends(file: TableFile, order: Sequence[str]) -> tuple[Key, Key]:
    """The beginnings of a file's lowest and highest key, as far as the bounds of its columns say."""
    low: list[Any] = []
    high: list[Any] = []
    for name in order:
        if name not in file.low or name not in file.high:
            break
        low.append(file.low[name])
        high.append(file.high[name])
        if low[-1] != high[-1]:
            break
    return tuple(low), tuple(high)


def _is_after(one: Key, other: Key) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] > other[:shared]


def _needed(files: Sequence[TableFile], limits: FileLimits) -> int:
    """How many files the rows need that are as big as they may be."""
    return -(-sum(file.size for file in files) // limits.size)


def _level(file: TableFile) -> int:
    return max(0, int(log(max(file.size, 1) / _SMALLEST, MERGED_FILES)))


def _rows(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)
