"""Parquet files of the lake's tables, written by executors: sorted, one for each day, and described as Delta has it.

A file belongs to the table from the commit that names it. One that no commit names is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem

from cloud_jobs.lake.location import ensure_folder
from cloud_jobs.lake.on_disk import sync_files
from cloud_jobs.lake.row_sizes import in_pieces
from cloud_jobs.lake.schemas import RECORDS, TABLES, TableSchema
from cloud_jobs.lake.stream_order import in_order

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ASCENDING: Final = ("seq", "device_time", "monotonic_us")


class DataFile(NamedTuple):
    """A file that was written: its path in the table's folder, its bytes, its day and, as Delta's JSON, its content."""

    path: str
    size: int
    day: date | None
    stats: str
    written_ms: int

    def add_action(self) -> AddAction:
        """What a commit says of it."""
        folder, _, _ = self.path.rpartition("/")
        column = folder.partition("=")[0]
        day = {column: None if self.day is None else self.day.isoformat()} if folder else {}
        return AddAction(self.path, self.size, day, self.written_ms, True, self.stats)

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return int(json.loads(self.stats)["numRecords"])

    def bounds(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The lowest and the highest value of the columns that have bounds."""
        stats = json.loads(self.stats)
        return stats["minValues"], stats["maxValues"]


def write_data_files(files: FileSystem, rows: pa.Table, now: datetime, *, table: str = "records") -> list[DataFile]:
    """Writes rows, with the columns of a table, into its folder; one file for each day that the table is parted by.

    In each the rows are in the table's order; of equal ones the first that came is first. They are on disk when this
    returns.
    """
    layout = TABLES[table]
    if not rows.num_rows:
        return []
    rows = sorted_rows(rows, table)
    written = [_write(files, table, of_day, day, now) for day, of_day in _by_day(rows, layout)]
    sync_files(files, [file.path for file in written])
    return written


def sorted_rows(rows: pa.Table, table: str) -> pa.Table:
    """Rows in the order of their table."""
    return in_order(rows) if table == "records" else rows.sort_by([(name, "ascending") for name in TABLES[table].order])


def read_data_file(files: FileSystem, file: DataFile) -> pa.Table:
    """The records of a file, with the columns of RECORDS, in their order."""
    rows = pq.read_table(file.path, filesystem=files, partitioning=None).cast(TABLES["records"].in_file)
    day = pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows)
    return rows.append_column("device_date", day).select(RECORDS.names).cast(RECORDS)


def day_of(path: str) -> date | None:
    """The day of a file of a table that is parted by days, by its path."""
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
    """A path for a file of a day, whose folder is there. Whoever asks gets one of its own."""
    # also a task that Spark runs again, or twice at once
    path = f"part-{uuid4().hex}.parquet"
    layout = TABLES[table]
    if layout.partition_by:
        folder = f"{layout.partition_by[0]}={_NULL if day is None else day.isoformat()}"
        path = f"{folder}/{path}"
        ensure_folder(files, folder)
    return path


def parquet_options(table: str) -> dict[str, Any]:
    """How the files of a table are encoded: options of `pyarrow.parquet.ParquetWriter`."""
    layout = TABLES[table]
    ascending = [name for name in _ASCENDING if name in layout.schema.names]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in layout.in_file.names if name not in ascending],
        "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
        # the rows may come with dictionaries in Arrow, which are nothing that a reader has to have
        "store_schema": False,
    }


def write_row_groups(writer: pq.ParquetWriter, table: str, rows: pa.Table) -> None:
    """Writes rows in groups that a reader can hold: of one device it opens as much of a file at least."""
    at_most = TABLES[table].rows_in_group
    for piece in in_pieces(rows, at_most):
        writer.write_table(piece, row_group_size=at_most)


def statistics(table: str, rows: pa.Table, day: date | None) -> dict[str, Any]:
    """What Delta's log says of rows of one day: their number, and bounds of the table's bounded columns."""
    layout = TABLES[table]
    # a clock far off may be beyond what Delta's readers can parse
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
            # Delta has milliseconds: rounded away from the rows
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
