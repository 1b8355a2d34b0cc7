"""The data files that a version of a table consists of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.lake.schemas import TABLES


class TableFile(NamedTuple):
    """A data file as the log has it. `low`, `high`: bounds of columns; `nulls`: how many of its values are null."""

    path: str
    size: int
    rows: int
    day: date | None
    low: dict[str, Any]
    high: dict[str, Any]
    nulls: dict[str, int]


def table_files(opened: DeltaTable, table: str) -> list[TableFile]:
    """The files of the version that is opened."""
    actions = pa.table(opened.get_add_actions(flatten=True))
    partitions = TABLES[table].partition_by
    return [_table_file(row, partitions) for batch in actions.to_batches(1000) for row in batch.to_pylist()]


def partition_values(table: str, file: TableFile) -> dict[str, str | None]:
    """Where a file stands, as Delta writes it."""
    return {name: None if file.day is None else file.day.isoformat() for name in TABLES[table].partition_by}


def by_day(files: list[TableFile]) -> Iterator[tuple[date | None, list[TableFile]]]:
    """The files of each day, the newest day first; those without a day last."""
    days: dict[date | None, list[TableFile]] = {}
    for file in files:
        days.setdefault(file.day, []).append(file)
    for day in sorted(days, key=lambda one: one or date.min, reverse=True):
        yield day, days[day]


def _table_file(row: dict[str, Any], partitions: tuple[str, ...]) -> TableFile:
    def those(prefix: str) -> dict[str, Any]:
        found = ((name.removeprefix(prefix), value) for name, value in row.items() if name.startswith(prefix))
        return {name: value for name, value in found if value is not None}

    day = row.get(f"partition.{partitions[0]}") if partitions else None
    rows = row["num_records"]
    size = row["size_bytes"]
    return TableFile(
        row["path"], size, -1 if rows is None else rows, day, those("min."), those("max."), those("null_count.")
    )
