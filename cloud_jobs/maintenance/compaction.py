"""Compaction: which files of a table are merged, and the commit that replaces them.

Delta's own checks let two commits remove the same file. Every replacement therefore commits as one writer, `REWRITE`,
upon the replacement before it. Commits that only add files, as those of the ingest, do not conflict with it. If another
run replaced one of the files first, the replacement is given up, so that no row is lost or doubled.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import pairwise
from math import log
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.data_files import (
    PIECE_BYTES,
    DataFile,
    in_pieces,
    is_text,
    new_path,
    parquet_options,
    sorted_rows,
    statistics,
    text_lengths,
    write_row_groups,
)
from cloud_jobs.lake.location import sync_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, newest_number, next_number
from cloud_jobs.maintenance.sweeping import TableFile, partition_values, table_files

# Rows of sorted files, merged in key order with bounded memory.

Key = tuple[Any, ...]
_BYTES_OF_ROW: Final = 1000
"""Memory of one row while it is read, sorted and written, including all copies but not its long texts."""
_COPIES: Final = 4
"""Copies of a text that are in memory meanwhile."""


def merged_rows(files: FileSystem, paths: Sequence[str], table: str, at_most: int) -> Iterator[pa.Table]:
    """All rows of files of a table, without the partition column, in about `at_most` bytes of memory.

    Each yielded piece follows the one before it in the table's order, as far as each file is sorted.
    """
    order, each = TABLES[table].order, at_most // len(paths)
    sources = [_pieces(files, path, table, each) for path in paths]
    heads = [next(source, None) for source in sources]
    while there := [head for head in heads if head is not None]:
        # no file has a row up to this key that is not in its head
        bound = min(_key_at(head, order, head.num_rows - 1) for head in there)
        taken = []
        for at, head in enumerate(heads):
            if head is not None:
                count = bisect_right(range(head.num_rows), bound, key=partial(_key_at, head, order))
                taken.append(head.slice(0, count))
                heads[at] = head.slice(count) if count < head.num_rows else next(sources[at], None)
        yield pa.concat_tables(taken)


def _pieces(files: FileSystem, path: str, table: str, at_most: int) -> Iterator[pa.Table]:
    layout = TABLES[table]
    # many equal texts are held once until they are cut into pieces
    texts = [field.name for field in layout.in_file if is_text(field.type) and field.name not in layout.order]
    with files.open_input_file(path) as opened:
        file = pq.ParquetFile(opened, read_dictionary=texts)
        there, metadata = set(file.schema_arrow.names), file.metadata
        stored = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
        rows = max(1, at_most // (_BYTES_OF_ROW + stored // max(1, metadata.num_rows)))
        columns = [name for name in layout.in_file.names if name in there]
        for batch in file.iter_batches(batch_size=rows, columns=columns, use_threads=False):
            for piece in in_pieces(pa.Table.from_batches([batch]), rows, at_most // _COPIES):
                # a table that another library appended to may be unsorted
                yield sorted_rows(_conformed(piece, layout.in_file), table)


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    # another writer may have left other types of text, or a column that came later
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _key_at(rows: pa.Table, order: Sequence[str], at: int) -> Key:
    return tuple(rows[name][at].as_py() for name in order)


# Files of a day to merge. Pure.

MERGED_FILES: Final = 8
"""Files of about one size that are merged into one."""
_AT_ONCE: Final = 64
"""The most files of one merge on a recent day, so that it commits soon."""
_SMALLEST: Final = 1 << 16
_LATE_SHARE: Final = 8
"""A day is sorted again when late rows are this share of it."""
_FULL_FILES: Final = 32
_FILES: Final = 256
"""The bounds of one merge on a past day, in files of full size and in files, so that it ends within minutes."""


class FileLimits(NamedTuple):
    """The approximate bytes of a file, and of memory for a merge."""

    size: int
    memory: int

    def is_full(self, file: TableFile) -> bool:
        """Whether a merge would not make the file bigger."""
        return 4 * file.size >= self.size


def growing_merges(files: Sequence[TableFile], limits: FileLimits) -> list[tuple[TableFile, ...]]:
    """The merges that are due on a recent day; no file is in two of them."""
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
    """The merges that are due on a past day, until it is sorted; no file is in two of them.

    A large day takes several rounds of bounded merges.
    """
    chosen = _unsettled(files, limits, order)
    if len(chosen) <= _FILES and _size(chosen) <= _FULL_FILES * limits.size:
        return [chosen] if chosen else []
    clusters = _clusters(chosen, order) if overlap(chosen, order) else [chosen]
    parts = [part for cluster in clusters for part in _parts(cluster, limits, order)]
    return [part for part in parts if overlap(part, order) or _is_many(part, limits)]


def _unsettled(files: Sequence[TableFile], limits: FileLimits, order: Sequence[str]) -> tuple[TableFile, ...]:
    """The files that have to be sorted together."""
    if not overlap(files, order):
        return tuple(files) if _is_many(files, limits) else ()
    # the largest file of a small day is its sorted one
    full = [file for file in files if limits.is_full(file)] or [max(files, key=lambda file: file.rows)]
    late = [file for file in files if file not in full]
    if overlap(full, order) or _rows(late) * _LATE_SHARE >= _rows(full):
        return tuple(files)
    return tuple(late) if len(late) > 1 else ()


def _clusters(files: Sequence[TableFile], order: Sequence[str]) -> list[list[TableFile]]:
    """Groups of files; the keys of one group do not overlap with those of another."""
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
    """Groups of at least two files in the order of their keys, each small enough for one merge."""
    held: list[TableFile] = []
    for file, _ in _downward(files, order):
        if len(held) > 1 and (len(held) == _FILES or _size(held) + file.size > _FULL_FILES * limits.size):
            yield tuple(held)
            held = []
        held.append(file)
    if len(held) > 1:
        yield tuple(held)


def _is_many(files: Sequence[TableFile], limits: FileLimits) -> bool:
    """Whether the rows would fit into far fewer files."""
    needed = -(-_size(files) // limits.size)
    return len(files) > (2 * needed if needed > 1 else 1)


def overlap(files: Sequence[TableFile], order: Sequence[str]) -> bool:
    """Whether two files may share a range of keys, beyond what the bounds at their ends say."""
    if any(order[0] not in file.low or order[0] not in file.high for file in files):
        return len(files) > 1
    ordered = [ends for _, ends in _downward(files, order)]
    return any(_is_after(one[1], other[0]) for other, one in pairwise(ordered))


def _downward(files: Sequence[TableFile], order: Sequence[str]) -> list[tuple[TableFile, tuple[Key, Key]]]:
    """Files with their lowest and highest keys, the highest first."""
    # by the highest key: the bounds of a file with several devices say little about its ends
    with_ends = [(file, _key_ends(file.low, file.high, order)) for file in files]
    return sorted(with_ends, key=lambda one: (one[1][1], one[1][0]), reverse=True)


def _key_ends(low: Mapping[str, Any], high: Mapping[str, Any], order: Sequence[str]) -> tuple[Key, Key]:
    """The prefixes of the lowest and the highest key that the bounds of the columns give."""
    shared = 0
    for name in order:
        if name not in low or name not in high:
            break
        shared += 1
        if low[name] != high[name]:
            break
    return tuple(low[name] for name in order[:shared]), tuple(high[name] for name in order[:shared])


def _is_after(one: Key, other: Key) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] > other[:shared]


def _level(file: TableFile) -> int:
    return max(0, int(log(max(file.size, 1) / _SMALLEST, MERGED_FILES)))


def _rows(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)


def _size(files: Sequence[TableFile]) -> int:
    return sum(file.size for file in files)


# Files of one day, written in sorted chunks up to the target size.


class SortedFiles:
    """Writes sorted rows of one table and one day, without the partition column, into files of about `size` bytes."""

    def __init__(self, files: FileSystem, table: str, day: date | None, now: datetime, size: float) -> None:
        self._files, self._table, self._day = files, table, day
        self._written_ms = int(now.timestamp() * 1000)
        self._size = size
        self._path = ""
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._stats: dict[str, Any] = {}
        self._buffer: list[pa.Table] = []
        self.written: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Adds rows whose keys are not below those added before."""
        self._buffer.append(rows)
        held = sum(part.num_rows for part in self._buffer)
        texts = sum(int(text_lengths(part).sum()) for part in self._buffer)
        # half of a piece, so that no tiny row group is left over
        if held >= TABLES[self._table].rows_in_group or texts >= PIECE_BYTES // 2:
            self._flush()

    def _flush(self) -> None:
        rows = pa.concat_tables(self._buffer).combine_chunks() if self._buffer else None
        self._buffer = []
        if not rows:
            return
        rows = sorted_rows(rows, self._table)
        if self._writer is None:
            self._path = new_path(self._files, self._table, self._day)
            self._sink = self._files.open_output_stream(self._path)
            schema = TABLES[self._table].in_file
            self._writer = pq.ParquetWriter(self._sink, schema, **parquet_options(self._table))
        write_row_groups(self._writer, self._table, rows)
        stats = statistics(self._table, rows, self._day)
        if self._table == "records":
            # an erasure of positions skips files that have none
            stats["nullCount"]["latitude"] = rows["latitude"].null_count
        self._stats = united(self._stats, stats) if self._stats else stats
        if self._sink.tell() >= self._size:
            self._end_file()

    def close(self) -> list[DataFile]:
        self._flush()
        if self._writer is not None:
            self._end_file()
        return self.written

    def _end_file(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._sink.close()
        sync_files(self._files, [self._path])
        size = self._files.get_file_info(self._path).size
        self.written.append(DataFile(self._path, size, self._day, json.dumps(self._stats), self._written_ms))
        self._writer, self._stats = None, {}


def united(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    nulls = one["nullCount"]
    return {
        "numRecords": one["numRecords"] + other["numRecords"],
        "minValues": _each(min, one["minValues"], other["minValues"]),
        "maxValues": _each(max, one["maxValues"], other["maxValues"]),
        "nullCount": {name: count + other["nullCount"][name] for name, count in nulls.items()},
    }


def _each(choose: Any, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    # a piece may have no bounds of a column; times are texts that sort like times
    both = one.keys() & other.keys()
    return one | other | {name: choose(one[name], other[name]) for name in both}


REWRITE: Final = "rewrite"
"""The writer of all replacements of files."""
_TRIES: Final = 20

Keep = Callable[[pa.Table], pa.ChunkedArray]
"""Returns which rows to keep."""


class MaintenancePoint(StrEnum):
    """Points between the writes of a run, at which tests kill it."""

    DECLARED = "declared"
    FILES_WRITTEN = "files written"
    REPLACED = "replaced"
    ERASED = "erased"
    SWEPT = "swept"


@dataclass(frozen=True)
class Rewriter:
    """Replaces files of the lake's tables.

    `now` is the time of day, `reached` is called at each MaintenancePoint, `stopped` ends the work early.
    """

    lake: Lake
    limits: FileLimits
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    reached: Callable[[MaintenancePoint], None] = lambda _: None
    stopped: Callable[[], bool] = lambda: False

    def rewrite(self, table: str, files: Sequence[TableFile], keep: Keep | None = None) -> bool:
        """Replaces files of one day by sorted files with the rows to keep; without `keep`, with all rows.

        Returns False, and changes nothing, if another commit removed one of the files first. Raises CommitFailed,
        LakeError.
        """
        began = self.now()
        written, dropped = self._write(table, files, keep, began)
        self.reached(MaintenancePoint.FILES_WRITTEN)
        if self._is_late(began):
            self._delete(table, written)
            # not merely left: the next run would do no better
            raise LakeError(
                f"merging {len(files)} files of {table} took longer than {MAX_ATTEMPT_S:g} s, so they stay"
                " unchanged: this machine is too slow for a merge of this size"
            )
        done = self._replace(table, files, written, began, data_change=bool(dropped))
        if done:
            self.reached(MaintenancePoint.REPLACED)
        return done

    def _write(
        self, table: str, files: Sequence[TableFile], keep: Keep | None, now: datetime
    ) -> tuple[list[DataFile], int]:
        folder, paths = self.lake.files(table), [file.path for file in files]
        read = dropped = 0
        # files of about equal size, so that none is a small rest
        size = _size(files) / max(1, round(_size(files) / self.limits.size))
        writer = SortedFiles(folder, table, files[0].day, now, size)
        for rows in merged_rows(folder, paths, table, self.limits.memory):
            kept = rows if keep is None else rows.filter(keep(rows))
            read += rows.num_rows
            dropped += rows.num_rows - kept.num_rows
            writer.add(kept)
        written = writer.close()
        # checked in production: rows lost here would be lost for good
        if read != _rows(files) or sum(file.rows for file in written) != read - dropped:
            raise LakeError(f"{read} rows of {table} were read of {_rows(files)} in {paths}: none is replaced")
        return written, dropped

    def _replace(
        self,
        table: str,
        removed: Sequence[TableFile],
        added: Sequence[DataFile],
        began: datetime,
        *,
        data_change: bool,
    ) -> bool:
        """Removes and adds files in one commit; False, without a change, if a file is no longer in the table."""
        layout, opened = TABLES[table], self.lake.open(table)
        values = partition_values(table, removed[0])
        failure: Exception | None = None
        for _ in range(_TRIES):
            there = {file.path for file in table_files(opened, table)}
            if failure is not None and added and there.issuperset(file.path for file in added):
                # the commit was made and only its response was lost
                return True
            # files of an attempt that lasted too long may have been swept up
            if not there.issuperset(file.path for file in removed) or self._is_late(began):
                if failure is None:
                    self._delete(table, added)
                # else a commit may name them; files without a commit are swept later
                return False
            number, now_ms = next_number(newest_number(opened, REWRITE)), int(self.now().timestamp() * 1000)
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(file.path, data_change, now_ms, file.size, values) for file in removed
            ]
            actions += [replace(file.add_action(), data_change=data_change) for file in added]
            properties = CommitProperties(app_transactions=[Transaction(REWRITE, number)])
            try:
                opened.create_write_transaction(
                    actions, "append", layout.schema, [*layout.partition_by], commit_properties=properties
                )
            except (DeltaError, OSError, ValueError) as error:
                # another writer was first, or the response was lost: the table tells
                failure, opened = error, self.lake.open(table)
                if newest_number(opened, REWRITE) == number:
                    return True
            else:
                return True
        raise CommitFailed(table, str(failure)) from failure

    def _delete(self, table: str, written: Sequence[DataFile]) -> None:
        for file in written:
            self.lake.files(table).delete_file(file.path)

    def _is_late(self, began: datetime) -> bool:
        return self.now() - began > timedelta(seconds=MAX_ATTEMPT_S)
