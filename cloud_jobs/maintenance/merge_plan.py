"""Which files of a day are merged. Pure.

A day that still grows is merged by size: enough files of about one size become one of the next, so each row is written
again only as often as there are sizes. A day that is past is sorted once, whole, into files that do not overlap; one
that is too large for it in parts, until no files overlap any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_FULL_FILES: Final = 32
_FILES: Final = 256
"""The most that one merge of a day that is past takes, as so many files of full size, and of files: it ends in minutes,
and its commit comes soon."""


class FileLimits(NamedTuple):
    """About how many bytes a file becomes, and how many bytes of memory a merge takes."""

    size: int
    memory: int

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


def settled_merges(files: Sequence[TableFile], limits: FileLimits, order: Sequence[str]) -> list[tuple[TableFile, ...]]:
    """The merges that are due on a day that is past; none when the day is sorted. `order`: by what.

    No file is in two of them. Of a large day they are steps: what they make may be due again.
    """
    chosen = _unsettled(files, limits, order)
    if len(chosen) <= _FILES and _size(chosen) <= _FULL_FILES * limits.size:
        return [chosen] if chosen else []
    clusters = _clusters(chosen, order) if overlap(chosen, order) else [chosen]
    parts = [part for cluster in clusters for part in _parts(cluster, limits, order)]
    return [part for part in parts if overlap(part, order) or _is_many(part, limits)]


def _unsettled(files: Sequence[TableFile], limits: FileLimits, order: Sequence[str]) -> tuple[TableFile, ...]:
    """The files that are to be sorted together."""
    if not overlap(files, order):
        return tuple(files) if _is_many(files, limits) else ()
    # a small day has no full file, and was sorted all the same: into its largest
    full = [file for file in files if limits.is_full(file)] or [max(files, key=lambda file: file.rows)]
    late = [file for file in files if file not in full]
    if overlap(full, order) or _rows(late) * _LATE_SHARE >= _rows(full):
        return tuple(files)
    return tuple(late) if len(late) > 1 else ()


def _clusters(files: Sequence[TableFile], order: Sequence[str]) -> list[list[TableFile]]:
    """Files parted where none before overlaps with any after."""
    found: list[list[TableFile]] = []
    lowest: Key = ()
    for file, (low, high) in _downward(files, order):
        if found and _is_after(high, lowest):
            found[-1].append(file)
            lowest = min(lowest, low)
        else:
            found.append([file])
            lowest = low
    return found


def _parts(files: Sequence[TableFile], limits: FileLimits, order: Sequence[str]) -> Iterator[tuple[TableFile, ...]]:
    """Files parted in the order of their keys, at least two together, so that each part can be merged at once."""
    held: list[TableFile] = []
    for file, _ in _downward(files, order):
        if len(held) > 1 and (len(held) == _FILES or _size(held) + file.size > _FULL_FILES * limits.size):
            yield tuple(held)
            held = []
        held.append(file)
    if len(held) > 1:
        yield tuple(held)


def _is_many(files: Sequence[TableFile], limits: FileLimits) -> bool:
    """Whether the rows need far fewer files."""
    needed = -(-_size(files) // limits.size)
    return len(files) > (2 * needed if needed > 1 else 1)


def overlap(files: Sequence[TableFile], order: Sequence[str]) -> bool:
    """Whether two of the files may hold rows of one range of keys, more than what begins like the key at their ends."""
    if any(order[0] not in file.low or order[0] not in file.high for file in files):
        return len(files) > 1
    ordered = [ends for _, ends in _downward(files, order)]
    return any(_is_after(one[1], other[0]) for other, one in pairwise(ordered))


def may_share(one: TableFile, other: TableFile, order: Sequence[str]) -> bool:
    """Whether two files may hold rows of one key, by their bounds."""
    (low, high), (other_low, other_high) = _ends(one, order), _ends(other, order)
    return not (_is_after(low, other_high) or _is_after(other_low, high))


def _downward(files: Sequence[TableFile], order: Sequence[str]) -> list[tuple[TableFile, tuple[Key, Key]]]:
    """Files with the ends of their keys, the highest first."""
    # by the highest key: where devices change within a file that says less of its ends than a file of one device does
    with_ends = [(file, _ends(file, order)) for file in files]
    return sorted(with_ends, key=lambda one: (one[1][1], one[1][0]), reverse=True)


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


def _level(file: TableFile) -> int:
    return max(0, int(log(max(file.size, 1) / _SMALLEST, MERGED_FILES)))


def _rows(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)


def _size(files: Sequence[TableFile]) -> int:
    return sum(file.size for file in files)
