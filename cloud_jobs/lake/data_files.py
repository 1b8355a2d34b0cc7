"""Parquet files of the records table, written by executors: sorted, one for each day, and described as Delta has it.

A file belongs to the table from the commit that names it. One that no commit names is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow.fs import FileSystem

from cloud_jobs.lake.schemas import RECORDS, without
from cloud_jobs.lake.stream_order import in_order

PARTITION: Final = "device_date"
FILE_SCHEMA = without(RECORDS, PARTITION)
"""What stands in a file: the value of the partition stands in its path, and in the log."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ORDER: Final = ("tenant", "device", "epoch", "seq")
_BOUNDED: Final = (*_ORDER, "device_time", "ingest_number")
"""The columns whose lowest and highest value the log has, so that a reader opens only the files it needs."""
_ASCENDING: Final = ("seq", "device_time", "monotonic_us")
_DICTIONARY_COLUMNS: Final = [name for name in FILE_SCHEMA.names if name not in _ASCENDING]
_ROW_GROUP: Final = 1 << 17
"""A reader of one device opens as much of a file at least."""


class DataFile(NamedTuple):
    """A file that was written: its path in the table's folder, its bytes, its day and, as Delta's JSON, its content."""

    path: str
    size: int
    day: date | None
    stats: str
    written_ms: int

    def add_action(self) -> AddAction:
        """What a commit says of it."""
        day = None if self.day is None else self.day.isoformat()
        return AddAction(self.path, self.size, {PARTITION: day}, self.written_ms, True, self.stats)

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return int(json.loads(self.stats)["numRecords"])

    def bounds(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The lowest and the highest value of the columns that have bounds."""
        stats = json.loads(self.stats)
        return stats["minValues"], stats["maxValues"]


def write_data_files(files: FileSystem, rows: pa.Table, now: datetime) -> list[DataFile]:
    """Writes rows, with the columns of RECORDS, into a table's folder; one file for each UTC day of device time.

    In each the rows are in the order of tenant, device, epoch and seq; of equal ones the first that came is first.
    """
    rows = in_order(rows)
    return [_write(files, of_day, day, now) for day, of_day in _by_day(rows)]


def read_data_file(files: FileSystem, file: DataFile) -> pa.Table:
    """The rows of a file, with the columns of RECORDS, in their order."""
    rows = pq.read_table(file.path, filesystem=files, partitioning=None).cast(FILE_SCHEMA)
    day = pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows)
    return rows.append_column(PARTITION, day).select(RECORDS.names).cast(RECORDS)


def day_of(path: str) -> date | None:
    """The day of a file of the table, by its path."""
    value = path.partition("/")[0].removeprefix(f"{PARTITION}=")
    return None if value == _NULL else date.fromisoformat(value)


def _by_day(rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    days = rows[PARTITION].unique()
    for day in days:
        is_there = pc.is_null(rows[PARTITION]) if not day.is_valid else pc.equal(rows[PARTITION], day)
        yield day.as_py(), rows if len(days) == 1 else rows.filter(is_there)


def _write(files: FileSystem, rows: pa.Table, day: date | None, now: datetime) -> DataFile:
    folder = f"{PARTITION}={_NULL if day is None else day.isoformat()}"
    # a task that Spark runs again, or twice at once, writes a file of its own
    path = f"{folder}/part-{uuid4().hex}.parquet"
    files.create_dir(folder, recursive=True)
    pq.write_table(
        rows.drop_columns([PARTITION]),
        path,
        filesystem=files,
        compression="zstd",
        compression_level=3,
        row_group_size=_ROW_GROUP,
        use_dictionary=_DICTIONARY_COLUMNS,
        column_encoding=dict.fromkeys(_ASCENDING, "DELTA_BINARY_PACKED"),
        # the rows may come with dictionaries in Arrow, which are nothing that a reader has to have
        store_schema=False,
    )
    size = files.get_file_info(path).size
    return DataFile(path, size, day, _stats(rows, _BOUNDED if day else _without_time()), _ms(now))


def _without_time() -> tuple[str, ...]:
    # a clock far off may be beyond what Delta's readers can parse
    return tuple(name for name in _BOUNDED if name != "device_time")


def _stats(rows: pa.Table, bounded: tuple[str, ...]) -> str:
    lowest, highest, nulls = {}, {}, {}
    for name in bounded:
        column = rows[name]
        nulls[name] = column.null_count
        if column.null_count < len(column):
            low, high = _extremes(column)
            lowest[name] = _text(low)
            # Delta has milliseconds: rounded away from the rows
            highest[name] = _text(high + timedelta(milliseconds=1) if isinstance(high, datetime) else high)
    return json.dumps({"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if pa.types.is_dictionary(column.type):
        column = pc.unique(column.combine_chunks()).cast(column.type.value_type)
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
