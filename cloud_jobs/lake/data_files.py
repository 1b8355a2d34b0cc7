"""Data files of a table: writing them, and finding those that can hold requested rows."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.lake.coverage import in_order
from cloud_jobs.lake.location import ensure_folder, sync_files
from cloud_jobs.lake.schemas import PIECE_ROWS, RECORDS, TABLES, TableSchema

# Rows in chunks of bounded memory. Pure, on Arrow.

PIECE_BYTES: Final = 32 << 20
"""The most bytes of text in a piece; a single row may have more."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values have a variable length: text or bytes, also in a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def text_lengths(rows: pa.Table) -> NDArray[np.int64]:
    """The bytes of all texts of each row, decoded."""
    lengths = np.zeros(rows.num_rows, np.int64)
    for column in _texts(rows):
        if column.null_count == len(column):
            continue
        at = 0
        for chunk in column.chunks:
            lengths[at : at + len(chunk)] += _lengths(chunk)
            at += len(chunk)
    return lengths


def in_pieces(rows: pa.Table, max_rows: int = PIECE_ROWS, max_bytes: int = PIECE_BYTES) -> Iterator[pa.Table]:
    """Cuts rows into consecutive pieces of at most `max_rows` rows and `max_bytes` bytes of text."""
    for first in range(0, rows.num_rows, max_rows):
        some = rows.slice(first, max_rows)
        if sum(map(_at_most, _texts(some))) <= max_bytes:
            yield some
            continue
        ends, at = np.cumsum(text_lengths(some)), 0
        while at < some.num_rows:
            before = ends[at - 1] if at else 0
            until = max(at + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            yield some.slice(at, until - at)
            at = until


def _texts(rows: pa.Table) -> list[pa.ChunkedArray]:
    return [column for column in rows.columns if is_text(column.type)]


def _at_most(column: pa.ChunkedArray) -> int:
    """An upper bound of the bytes of a column, without a look at each value."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return sum(len(chunk) * (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) for chunk in column.chunks)


def _lengths(chunk: pa.Array) -> NDArray[np.int64]:
    if not pa.types.is_dictionary(chunk.type):
        return _filled(pc.binary_length(chunk))
    return _filled(pc.binary_length(chunk.dictionary).take(chunk.indices))


def _filled(lengths: pa.Array) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy().astype(np.int64)
    return filled


# Parquet files written by executors: sorted, one per day, with Delta statistics.

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ASCENDING: Final = ("seq", "device_time", "monotonic_us")


class DataFile(NamedTuple):
    """A written file: path in the table's folder, bytes, day, and its statistics as Delta's JSON."""

    path: str
    size: int
    day: date | None
    stats: str
    written_ms: int

    def add_action(self) -> AddAction:
        folder, _, _ = self.path.rpartition("/")
        column = folder.partition("=")[0]
        day = {column: None if self.day is None else self.day.isoformat()} if folder else {}
        return AddAction(self.path, self.size, day, self.written_ms, True, self.stats)

    @property
    def rows(self) -> int:
        return int(json.loads(self.stats)["numRecords"])


def write_data_files(files: FileSystem, rows: pa.Table, now: datetime, *, table: str = "records") -> list[DataFile]:
    """Writes rows into the folder of their table, sorted, one file for each day. The files are durable then."""
    layout = TABLES[table]
    if not rows.num_rows:
        return []
    rows = sorted_rows(rows, table)
    written = [_write(files, table, of_day, day, now) for day, of_day in _by_day(rows, layout)]
    sync_files(files, [file.path for file in written])
    return written


def sorted_rows(rows: pa.Table, table: str) -> pa.Table:
    return in_order(rows) if table == "records" else rows.sort_by([(name, "ascending") for name in TABLES[table].order])


def read_data_file(files: FileSystem, file: DataFile) -> pa.Table:
    rows = pq.read_table(file.path, filesystem=files, partitioning=None).cast(TABLES["records"].in_file)
    day = pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows)
    return rows.append_column("device_date", day).select(RECORDS.names).cast(RECORDS)


def day_of(path: str) -> date | None:
    value = path.partition("/")[0].partition("=")[2]
    return None if value == _NULL else date.fromisoformat(value)


def _by_day(rows: pa.Table, layout: TableSchema) -> Iterator[tuple[date | None, pa.Table]]:
    if not layout.partition_by:
        yield None, rows
        return
    column = rows[layout.partition_by[0]]
    days = column.unique()
    for day in days:
        is_there = pc.is_null(column) if not day.is_valid else pc.equal(column, day)
        yield day.as_py(), rows if len(days) == 1 else rows.filter(is_there)


def new_path(files: FileSystem, table: str, day: date | None) -> str:
    """A unique path for a file of a day; creates its folder."""
    # Spark may run a task twice, even at once
    path = f"part-{uuid4().hex}.parquet"
    layout = TABLES[table]
    if layout.partition_by:
        folder = f"{layout.partition_by[0]}={_NULL if day is None else day.isoformat()}"
        path = f"{folder}/{path}"
        ensure_folder(files, folder)
    return path


def parquet_options(table: str) -> dict[str, Any]:
    layout = TABLES[table]
    ascending = [name for name in _ASCENDING if name in layout.schema.names]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in layout.in_file.names if name not in ascending],
        "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
        # readers need not see which columns were dictionaries
        "store_schema": False,
    }


def write_row_groups(writer: pq.ParquetWriter, table: str, rows: pa.Table) -> None:
    """Writes rows in bounded row groups, the least that a reader of one device has to open."""
    at_most = TABLES[table].rows_in_group
    for piece in in_pieces(rows, at_most):
        writer.write_table(piece, row_group_size=at_most)


def statistics(table: str, rows: pa.Table, day: date | None) -> dict[str, Any]:
    """Delta's statistics of rows of one day: their number, and bounds of the table's bounded columns."""
    layout = TABLES[table]
    # a far-off device time may be beyond what Delta's readers can parse
    far_off = bool(layout.partition_by) and day is None
    return _stats(rows, [name for name in layout.bounded if not (far_off and name == "device_time")])


def _write(files: FileSystem, table: str, rows: pa.Table, day: date | None, now: datetime) -> DataFile:
    path = new_path(files, table, day)
    in_file = rows.drop_columns([*TABLES[table].partition_by])
    with pq.ParquetWriter(path, in_file.schema, filesystem=files, **parquet_options(table)) as writer:
        write_row_groups(writer, table, in_file)
    size = files.get_file_info(path).size
    return DataFile(path, size, day, json.dumps(statistics(table, rows, day)), _ms(now))


def _stats(rows: pa.Table, bounded: Sequence[str]) -> dict[str, Any]:
    lowest, highest, nulls = {}, {}, {}
    for name in bounded:
        column = rows[name]
        nulls[name] = column.null_count
        if column.null_count < len(column):
            low, high = _extremes(column)
            lowest[name] = _text(low)
            # Delta has milliseconds, so bounds are rounded outwards
            highest[name] = _text(high + timedelta(milliseconds=1) if isinstance(high, datetime) else high)
    return {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if pa.types.is_dictionary(column.type):
        column = pc.unique(column.combine_chunks()).cast(column.type.value_type)
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value.isoformat() if isinstance(value, date) else value


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


Range = tuple[Any, Any]
"""The lowest and the highest wanted value, both included; None: no limit."""


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files of one version of a table with the bounds of their columns, in any order."""

    table: str
    actions: pa.Table

    @classmethod
    def of(cls, opened: DeltaTable, table: str) -> StoredFiles:
        return cls(table, pa.table(opened.get_add_actions(flatten=True)))

    def between(self, column: str, low: Any = None, high: Any = None) -> StoredFiles:
        """Files that may hold a value in a closed interval. A file without bounds may hold any."""
        kind = TABLES[self.table].schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        found = self.actions
        if low is not None and f"max.{column}" in found.column_names:
            found = found.filter(_or_null(pc.greater_equal(found[f"max.{column}"], pa.scalar(low, kind))))
        if high is not None and f"min.{column}" in found.column_names:
            found = found.filter(_or_null(pc.less_equal(found[f"min.{column}"], pa.scalar(high, kind))))
        return StoredFiles(self.table, found)

    def within(self, column: str, ranges: Sequence[tuple[Any, Any]]) -> StoredFiles:
        """Files that may hold a value of disjoint, ascending ranges. A file without bounds may hold any."""
        if f"min.{column}" not in self.actions.column_names:
            return self
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]

        def may_hold(low: Any, high: Any) -> bool:
            if low is None or high is None:
                return True
            at = bisect_left(highs, low)
            return at < len(lows) and bool(lows[at] <= high)

        kind = TABLES[self.table].schema.field(column).type
        bounds = (self.actions[f"{end}.{column}"].cast(kind).to_pylist() for end in ("min", "max"))
        keep = [may_hold(*limits) for limits in zip(*bounds, strict=True)]
        return StoredFiles(self.table, self.actions.filter(pa.array(keep, pa.bool_())))

    def of_days(self, first: date | None = None, last: date | None = None) -> StoredFiles:
        """Files with a day, from the first to the last, both included."""
        column = self._days()
        keep = pc.is_valid(column)
        if first is not None:
            keep = pc.and_kleene(keep, pc.greater_equal(column, pa.scalar(first)))
        if last is not None:
            keep = pc.and_kleene(keep, pc.less_equal(column, pa.scalar(last)))
        return StoredFiles(self.table, self.actions.filter(keep))

    def without_day(self) -> StoredFiles:
        """Files without a day: records with a far-off device time."""
        return StoredFiles(self.table, self.actions.filter(pc.is_null(self._days())))

    def on_days(self, days: Collection[date]) -> StoredFiles:
        return StoredFiles(self.table, self.actions.filter(pc.is_in(self._days(), pa.array(sorted(days), pa.date32()))))

    def meeting(self, ranges: Mapping[str, Range]) -> StoredFiles:
        found = self
        for name, (low, high) in ranges.items():
            found = found.between(name, low, high)
        return found

    def rows(self, files: FileSystem, columns: Sequence[str], ranges: Mapping[str, Range]) -> Iterator[pa.Table]:
        """Rows within all ranges, in pieces; other files are not opened."""
        for path in self.meeting(ranges).paths:
            yield from stored_rows(files, self.table, path, columns, ranges)

    @property
    def paths(self) -> list[str]:
        return [*self.actions["path"].to_pylist()]

    @property
    def row_counts(self) -> list[int]:
        return [*self.actions["num_records"].to_pylist()]

    def bounds(self, column: str) -> list[Range]:
        """The lowest and highest value of a column in each file; None if unknown."""
        return [*zip(*(self.actions[f"{end}.{column}"].to_pylist() for end in ("min", "max")), strict=True)]

    def __len__(self) -> int:
        return int(self.actions.num_rows)

    def _days(self) -> pa.ChunkedArray:
        return self.actions[f"partition.{TABLES[self.table].partition_by[0]}"]


def stored_rows(
    files: FileSystem, table: str, path: str, columns: Sequence[str], ranges: Mapping[str, Range]
) -> Iterator[pa.Table]:
    """The rows of a file within all `ranges`, one row group after the other, with the types of the table.

    A null is in no range. A column that the file lacks is null.
    """
    asked = [*dict.fromkeys((*columns, *ranges))]
    with pq.ParquetFile(path, filesystem=files) as file:
        there = [name for name in asked if name in file.schema_arrow.names]
        for number in row_groups(file.metadata, ranges):
            rows = _within(_typed(file.read_row_group(number, columns=there), table, path, asked), ranges)
            if rows.num_rows:
                yield rows.select([*columns])


def read_stored(
    files: FileSystem, table: str, path: str, columns: Sequence[str], ranges: Mapping[str, Range]
) -> pa.Table:
    schema = pa.schema([pa.field(name, TABLES[table].schema.field(name).type) for name in columns])
    return pa.concat_tables([schema.empty_table(), *stored_rows(files, table, path, columns, ranges)])


def _typed(rows: pa.Table, table: str, path: str, columns: Sequence[str]) -> pa.Table:
    layout, arrays = TABLES[table], []
    for name in columns:
        kind = layout.schema.field(name).type
        if name in rows.column_names:
            # another writer may have written string_view, which Arrow cannot compare
            arrays.append(rows[name].cast(kind))
        else:
            value = day_of(path) if name in layout.partition_by else None
            arrays.append(pa.chunked_array([pa.repeat(pa.scalar(value, kind), rows.num_rows)]))
    return pa.table(arrays, names=[*columns])


def _within(rows: pa.Table, ranges: Mapping[str, Range]) -> pa.Table:
    found = []
    for name, (low, high) in ranges.items():
        kind = rows.schema.field(name).type
        if low is not None:
            found.append(pc.greater_equal(rows[name], pa.scalar(low, kind)))
        if high is not None:
            found.append(pc.less_equal(rows[name], pa.scalar(high, kind)))
    if not found:
        return rows
    return rows_where(rows, reduce(pc.and_, found).fill_null(False).to_numpy())


def rows_where(rows: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    """The rows for which the mask is true. Neighbours, as in a sorted file, are not copied."""
    at = np.flatnonzero(mask)
    if len(at) and at[-1] - at[0] + 1 == len(at):
        return rows.slice(int(at[0]), len(at))
    return rows.filter(pa.array(mask))


def stored_values(files: FileSystem, table: str, path: str, column: str, values: Sequence[Any]) -> Iterator[pa.Array]:
    """The values of a column in the row groups that can hold one of `values`, which are sorted."""
    kind = TABLES[table].schema.field(column).type
    with pq.ParquetFile(path, filesystem=files) as file:
        at = file.metadata.schema.to_arrow_schema().names.index(column)
        for number in range(file.metadata.num_row_groups):
            known = file.metadata.row_group(number).column(at).statistics
            if known is None or not known.has_min_max or _is_one_between(values, known.min, known.max):
                rows = file.read_row_group(number, columns=[column], use_threads=False)
                yield rows[column].cast(kind).combine_chunks()


def _is_one_between(values: Sequence[Any], low: Any, high: Any) -> bool:
    at = bisect_left(values, low)
    return at < len(values) and bool(values[at] <= high)


def row_groups(metadata: Any, ranges: Mapping[str, Range]) -> list[int]:
    """The row groups of a Parquet file that can hold rows within the ranges."""
    column_at = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    limits = [(column_at[name], limit) for name, limit in ranges.items() if name in column_at]
    return [
        number
        for number in range(metadata.num_row_groups)
        if all(_may_hold(metadata.row_group(number).column(at).statistics, limit) for at, limit in limits)
    ]


def _may_hold(statistics: Any, limit: Range) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = limit
    return not (low is not None and statistics.max < low) and not (high is not None and statistics.min > high)


def _or_null(condition: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(condition, True)
