"""Rows of any table become sorted files of one day, described as Delta has it."""

from __future__ import annotations

import json
from datetime import date, datetime

import pyarrow as pa
from pyarrow.fs import FileSystem

from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES


def write_sorted(files: FileSystem, table: str, rows: pa.Table, day: date | None, now: datetime) -> list[DataFile]:
    """Writes rows of one day, without the column of the partition, in the table's order."""
    schema, dated = TABLES[table].schema, rows
    for name in TABLES[table].partition_by:
        dated = rows.append_column(name, pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows))
    written = write_data_files(files, dated.select(schema.names), now, table=table)
    # of a file without positions the log says so: it is never searched for such
    return [_with_nulls(file, rows, "latitude") for file in written] if table == "records" else written


def _with_nulls(file: DataFile, rows: pa.Table, column: str) -> DataFile:
    stats = json.loads(file.stats)
    stats["nullCount"][column] = rows[column].null_count
    return file._replace(stats=json.dumps(stats))
