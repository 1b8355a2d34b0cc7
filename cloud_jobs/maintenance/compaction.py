"""Files of a table are merged: which ones, in which key ranges, and in one commit that replaces them.

Delta's own checks let two commits remove the same file. So every replacement is a commit of one writer, `REWRITE`, and
is made only upon the replacement that this writer knows. What only adds files, as the ingest does, is neither stopped
by it nor stops it. A replacement whose files another one took first is given up: no row is lost, and none is twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import chain, pairwise
from math import log
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.data_files import (
    DataFile,
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

# Sorted chunks that fit into memory: sampled keys split rows into ranges.

Key = tuple[Any, ...]
_BYTES_OF_ROW: Final = 1000
"""What a row takes in memory while it is read, sorted and written, all copies together, but for long texts."""
_COPIES: Final = 4
"""So often a text is in memory meanwhile."""
_FINENESS: Final = 8
"""The samples of all files together are exact to this part of a range."""
_MOST: Final = 4 << 30
"""What a range may take at most: an Arrow column of texts holds 2 GiB."""


class KeyRange(NamedTuple):
    """The keys from `low` on, and below `high`; None: without an end."""

    low: Key | None
    high: Key | None


class RowSource(NamedTuple):
    """Files with rows of one table: where they are, the columns that their readers want, and the columns of the key."""

    files: FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema
    order: tuple[str, ...]

    def ranges(self, at_most: int) -> list[KeyRange]:
        """Ranges that part all keys, each with rows that take about the same memory, mostly no more than `at_most`."""
        at_most = min(at_most, _MOST)
        step = max(1, at_most // (_FINENESS * len(self.paths)))
        samples = sorted(chain.from_iterable(self._samples(path, step) for path in self.paths))
        total = sum(size for _, size in samples)
        parts = -(-total // at_most)
        # a little more ranges than needed: samples say only about how much lies between them
        cuts = _cuts(samples, total / (parts + -(-parts // _FINENESS))) if parts > 1 else []
        return [KeyRange(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]

    def read(self, keys: KeyRange) -> pa.Table:
        """The rows of a range, in no order."""
        found = [self.schema.empty_table()]
        for path in self.paths:
            found += self._read(path, keys)
        return pa.concat_tables(found).combine_chunks()

    def _read(self, path: str, keys: KeyRange) -> Iterator[pa.Table]:
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, read_dictionary=self._texts)
            there = set(file.schema_arrow.names)
            wanted = [name for name in self.schema.names if name in there]
            for group in range(file.num_row_groups):
                if _may_hold(file.metadata.row_group(group), self.order, keys):
                    rows = file.read_row_group(group, columns=wanted, use_threads=False)
                    inside = _inside(_conformed(rows, self._keys), self.order, keys)
                    yield _conformed(rows if inside is None else rows.filter(inside), self.schema)

    def _samples(self, path: str, step: int) -> Iterator[tuple[Key, int]]:
        """Each key at which about as much more memory is needed as a step, or a multiple of it, and how much."""
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, read_dictionary=self._texts)
            wanted = [*self.order, *(name for name in self._texts if name in file.schema_arrow.names)]
            held = 0
            for batch in file.iter_batches(batch_size=1 << 17, columns=wanted, use_threads=False):
                rows = pa.Table.from_batches([batch])
                ends = held + np.cumsum(_BYTES_OF_ROW + _COPIES * text_lengths(rows.drop_columns([*self.order])))
                steps = np.diff(ends // step, prepend=0)
                chosen = np.flatnonzero(steps)
                held = int(ends[-1] % step) if len(ends) else held
                columns = _conformed(rows.take(pa.array(chosen)), self._keys).to_pydict()
                yield from zip(zip(*columns.values(), strict=True), (steps[chosen] * step).tolist(), strict=True)

    @property
    def _texts(self) -> list[str]:
        return [field.name for field in self.schema if is_text(field.type) and field.name not in self.order]

    @property
    def _keys(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.order])


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    # another writer may have left other types of text, or a column that came later
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _cuts(samples: Iterable[tuple[Key, int]], size: float) -> list[Key]:
    """The keys at which ranges of about a size begin, but for the first one."""
    cuts: list[Key] = []
    held = 0
    for key, more in samples:
        if held >= size and cuts[-1:] != [key]:
            cuts.append(key)
            held = 0
        held += more
    return cuts


def _may_hold(group: Any, order: Sequence[str], keys: KeyRange) -> bool:
    low, high = _ends(group, order)
    # of keys that begin alike the shorter one says nothing of the rest
    too_low = keys.low is not None and high < keys.low[: len(high)]
    return not (too_low or (keys.high is not None and low > keys.high[: len(low)]))


def _ends(group: Any, order: Sequence[str]) -> tuple[Key, Key]:
    """Between which keys the rows of a row group lie, as far as its statistics of each column say."""
    columns = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    known = {name: one for name, one in columns.items() if one is not None and one.has_min_max}
    low, high = ({name: getattr(one, end) for name, one in known.items()} for end in ("min", "max"))
    return _key_ends(low, high, order)


def _key_ends(low: Mapping[str, Any], high: Mapping[str, Any], order: Sequence[str]) -> tuple[Key, Key]:
    """The beginnings of the lowest and the highest key, as far as the bounds of the columns say."""
    shared = 0
    for name in order:
        if name not in low or name not in high:
            break
        shared += 1
        if low[name] != high[name]:
            break
    return tuple(low[name] for name in order[:shared]), tuple(high[name] for name in order[:shared])


def _inside(rows: pa.Table, order: Sequence[str], keys: KeyRange) -> pa.ChunkedArray | None:
    """Which rows are of the range; None: all."""
    if keys.low is None and keys.high is None:
        return None
    inside = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
    if keys.low is not None:
        inside = pc.and_(inside, pc.invert(_below(rows, order, keys.low)))
    if keys.high is not None:
        inside = pc.and_(inside, _below(rows, order, keys.high))
    return inside


def _below(rows: pa.Table, order: Sequence[str], key: Key) -> Any:
    """Which rows have a key before this one."""
    column, bound = rows[order[0]], pa.scalar(key[0], rows.schema.field(order[0]).type)
    below = pc.less(column, bound)
    if len(order) == 1:
        return below
    return pc.or_(below, pc.and_(pc.equal(column, bound), _below(rows, order[1:], key[1:])))


# Files of a day to merge. Pure.

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


def _downward(files: Sequence[TableFile], order: Sequence[str]) -> list[tuple[TableFile, tuple[Key, Key]]]:
    """Files with the ends of their keys, the highest first."""
    # by the highest key: where devices change within a file that says less of its ends than a file of one device does
    with_ends = [(file, _key_ends(file.low, file.high, order)) for file in files]
    return sorted(with_ends, key=lambda one: (one[1][1], one[1][0]), reverse=True)


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
    """Writes a table's rows of one day, without the column of the partition. `size`: about the bytes of a file."""

    def __init__(self, files: FileSystem, table: str, day: date | None, now: datetime, size: float) -> None:
        self._files = files
        self._table = table
        self._day = day
        self._written_ms = int(now.timestamp() * 1000)
        self._size = size
        self._path = ""
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._stats: dict[str, Any] = {}
        self.written: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Adds a piece, in any order; each of its keys is after those of the pieces before it."""
        if not rows.num_rows:
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
            # of a file without positions the log says so: it is never searched for such
            stats["nullCount"]["latitude"] = rows["latitude"].null_count
        self._stats = united(self._stats, stats) if self._stats else stats
        if self._sink.tell() >= self._size:
            self.close()

    def close(self) -> None:
        """Ends the file that is open; the files are in `written` then."""
        if self._writer is None:
            return
        self._writer.close()
        self._sink.close()
        sync_files(self._files, [self._path])
        size = self._files.get_file_info(self._path).size
        self.written.append(DataFile(self._path, size, self._day, json.dumps(self._stats), self._written_ms))
        self._writer, self._stats = None, {}


def united(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The statistics of two pieces together."""
    nulls = one["nullCount"]
    return {
        "numRecords": one["numRecords"] + other["numRecords"],
        "minValues": _each(min, one["minValues"], other["minValues"]),
        "maxValues": _each(max, one["maxValues"], other["maxValues"]),
        "nullCount": {name: count + other["nullCount"][name] for name, count in nulls.items()},
    }


def _each(choose: Any, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    # a column that is null throughout a piece has no bounds there; moments are texts that sort as they do
    both = one.keys() & other.keys()
    return one | other | {name: choose(one[name], other[name]) for name in both}


REWRITE: Final = "rewrite"
"""The name under which replacements of a table's files are numbered."""
_TRIES: Final = 20

Keep = Callable[[pa.Table], pa.ChunkedArray]
"""Which of some rows stay."""


class MaintenancePoint(StrEnum):
    """Between which writes of a maintenance run the process may die."""

    DECLARED = "declared"
    FILES_WRITTEN = "files written"
    REPLACED = "replaced"
    ERASED = "erased"
    SWEPT = "swept"


@dataclass(frozen=True)
class Rewriter:
    """Replaces files of the tables of a lake.

    `now` is the time of day, `reached` is called at each crash point, `stopped` says whether no more is to be begun.
    """

    lake: Lake
    limits: FileLimits
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    reached: Callable[[MaintenancePoint], None] = lambda _: None
    stopped: Callable[[], bool] = lambda: False

    def rewrite(
        self,
        table: str,
        files: Sequence[TableFile],
        keep: Keep | None = None,
    ) -> RewriteResult:
        """Puts sorted files in the place of files of one day, with the rows that stay. Raises CommitFailed, LakeError.

        Without `keep` all rows stay. If none goes although `keep` is given, nothing is written.
        """
        began = self.now()
        written, dropped = self._write(table, files, keep, began)
        self.reached(MaintenancePoint.FILES_WRITTEN)
        if self._is_late(began):
            self._delete(table, written)
            # not merely left: the next run would do no better
            raise LakeError(
                f"{len(files)} files of {table} took longer than {MAX_ATTEMPT_S:g} s to be merged, so they stay as they"
                " are: this machine is too slow for so much at once"
            )
        if keep is not None and not dropped:
            self._delete(table, written)
            return RewriteResult(False, 0, 0)
        done = self._replace(table, files, written, began, data_change=bool(dropped))
        if done:
            self.reached(MaintenancePoint.REPLACED)
        return RewriteResult(done, len(written) if done else 0, dropped)

    def _write(
        self,
        table: str,
        files: Sequence[TableFile],
        keep: Keep | None,
        now: datetime,
    ) -> tuple[list[DataFile], int]:
        layout = TABLES[table]
        folder: FileSystem = self.lake.files(table)
        source = RowSource(folder, tuple(file.path for file in files), layout.in_file, layout.order)
        read = dropped = 0
        size = sum(file.size for file in files)
        # all of about one size, so that none is a small rest
        writer = SortedFiles(folder, table, files[0].day, now, size / max(1, round(size / self.limits.size)))
        for keys in source.ranges(self.limits.memory):
            rows = source.read(keys)
            read += rows.num_rows
            if keep is not None:
                kept = rows.filter(keep(rows))
                dropped += rows.num_rows - kept.num_rows
                rows = kept
            writer.add(rows)
        writer.close()
        written = writer.written
        # checked in every installation: what is wrong here would be lost for good
        if read != _rows(files) or sum(file.rows for file in written) != read - dropped:
            raise LakeError(f"{read} rows of {table} were read of {_rows(files)} in {source.paths}: none is replaced")
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
        """One commit that removes and adds files; False, and nothing was done, if one is no longer in the table."""
        needed = {file.path for file in removed}
        layout = TABLES[table]
        opened = self.lake.open(table)
        failure: Exception | None = None
        for _ in range(_TRIES):
            there = {file.path for file in table_files(opened, table)}
            if failure is not None and added and there.issuperset(file.path for file in added):
                # made after all, and the answer was lost, whatever was committed since
                return True
            # files of an attempt that lasted too long may have been swept up
            if not there.issuperset(needed) or self._is_late(began):
                if failure is None:
                    self._delete(table, added)
                # else a commit may name them, and was replaced again: what no commit names is swept later
                return False
            number = next_number(newest_number(opened, REWRITE))
            now = self.now()
            values = partition_values(table, removed[0])
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(file.path, data_change, int(now.timestamp() * 1000), file.size, values) for file in removed
            ]
            actions += [replace(file.add_action(), data_change=data_change) for file in added]
            properties = CommitProperties(app_transactions=[Transaction(REWRITE, number)])
            try:
                opened.create_write_transaction(
                    actions, "append", layout.schema, [*layout.partition_by], commit_properties=properties
                )
            except (DeltaError, OSError, ValueError) as error:
                # overtaken, or made and the answer lost: the table knows
                failure = error
                opened = self.lake.open(table)
                if newest_number(opened, REWRITE) == number:
                    return True
            else:
                return True
        raise CommitFailed(table, str(failure)) from failure

    def _delete(self, table: str, written: Sequence[DataFile]) -> None:
        """Deletes files that no commit names, nor will one."""
        for file in written:
            self.lake.files(table).delete_file(file.path)

    def _is_late(self, began: datetime) -> bool:
        return self.now() - began > timedelta(seconds=MAX_ATTEMPT_S)


class RewriteResult(NamedTuple):
    """Whether files were replaced, by how many, and how many rows went."""

    done: bool
    files: int
    dropped: int
