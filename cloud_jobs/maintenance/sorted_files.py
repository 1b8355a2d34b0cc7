"""Files of one day that grow by pieces of sorted rows: as big as asked for, whatever fits into memory at a time."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from cloud_jobs.lake.data_files import (
    DataFile,
    new_path,
    parquet_options,
    sorted_rows,
    statistics,
    write_row_groups,
)
from cloud_jobs.lake.on_disk import sync_files
from cloud_jobs.lake.schemas import TABLES


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
