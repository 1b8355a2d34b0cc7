"""Which files of a table can hold the rows that are asked for, by the bounds in Delta's log; and their rows.

Nothing but the files that are chosen is opened, and in these only the row groups that can hold such rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem

from cloud_jobs.errors import ClockError, LakeError
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake, day_of

# The time of day as the lake's own store has it: by it its files got their ages.

CLOCK: Final = "clock-"
"""How the names of the files begin that are written to learn the time."""
MAX_SKEW: Final = timedelta(minutes=5)
"""So far the clock of a machine may be from that of the store, either way."""


def store_time(lake: Lake) -> datetime:
    """The time that a file gets which is written now. Raises LakeError, also if there is no lake; StoreUnavailable."""
    lake.check("records")
    files, path = lake.location.files(), _path()
    try:
        with lake.location.errors_named():
            try:
                with files.open_output_stream(path) as file:
                    file.write(b"what time it is")
                written: datetime = files.get_file_info(path).mtime
            finally:
                with suppress(FileNotFoundError):
                    files.delete_file(path)
    except OSError as error:
        # a full disk, or no right to write
        raise LakeError(f"nothing can be written into the lake {lake.location}: {error_text(error)}") from error
    return written.astimezone(UTC)


def _path() -> str:
    return f"{CLOCK}{uuid4().hex}"


def check_clock(now: datetime, stored: datetime) -> None:
    """Raises ClockError if a machine's clock is not that of the store."""
    if abs(now - stored) > MAX_SKEW:
        raise ClockError(
            f"this machine's clock says {now.isoformat(timespec='seconds')}, that of the lake's store"
            f" {stored.isoformat(timespec='seconds')}: nothing is erased, merged, deleted or dated by a wrong clock"
        )


def checked_time(lake: Lake) -> datetime:
    """The time of this machine's clock, which is that of the store: what is dated by it stays so for ever.

    Raises ClockError, LakeError, StoreUnavailable.
    """
    now = datetime.now(UTC)
    check_clock(now, store_time(lake))
    return now


Range = tuple[Any, Any]
"""The lowest and the highest value that is asked for, both included; None: no limit."""


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files of one version of a table, with the bounds of their columns, in no order."""

    table: str
    actions: pa.Table

    @classmethod
    def of(cls, opened: DeltaTable, table: str) -> StoredFiles:
        """All files of the version that was opened."""
        return cls(table, pa.table(opened.get_add_actions(flatten=True)))

    def between(self, column: str, low: Any = None, high: Any = None) -> StoredFiles:
        """Those that may hold a value between the two, both included. A file without bounds may hold any."""
        kind = TABLES[self.table].schema.field(column).type
        found = self.actions
        if low is not None and f"max.{column}" in found.column_names:
            found = found.filter(_or_null(pc.greater_equal(found[f"max.{column}"], pa.scalar(low, kind))))
        if high is not None and f"min.{column}" in found.column_names:
            found = found.filter(_or_null(pc.less_equal(found[f"min.{column}"], pa.scalar(high, kind))))
        return StoredFiles(self.table, found)

    def within(self, column: str, ranges: Sequence[tuple[Any, Any]]) -> StoredFiles:
        """Those that may hold a value of one of some ranges, which are in order and apart. One without bounds may."""
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
        """Those of days that are known, and not before the first one or after the last one."""
        column = self._days()
        keep = pc.is_valid(column)
        if first is not None:
            keep = pc.and_kleene(keep, pc.greater_equal(column, pa.scalar(first)))
        if last is not None:
            keep = pc.and_kleene(keep, pc.less_equal(column, pa.scalar(last)))
        return StoredFiles(self.table, self.actions.filter(keep))

    def without_day(self) -> StoredFiles:
        """Those of no day: records of clocks far off."""
        return StoredFiles(self.table, self.actions.filter(pc.is_null(self._days())))

    def on_days(self, days: Collection[date]) -> StoredFiles:
        """Those of some days."""
        return StoredFiles(self.table, self.actions.filter(pc.is_in(self._days(), pa.array(sorted(days), pa.date32()))))

    @property
    def paths(self) -> list[str]:
        """Where each is in the table's folder."""
        return [*self.actions["path"].to_pylist()]

    @property
    def row_counts(self) -> list[int]:
        """How many rows each holds."""
        return [*self.actions["num_records"].to_pylist()]

    def bounds(self, column: str) -> list[Range]:
        """Of each the lowest and highest value of a column, None where they are not known."""
        return [*zip(*(self.actions[f"{end}.{column}"].to_pylist() for end in ("min", "max")), strict=True)]

    def __len__(self) -> int:
        return int(self.actions.num_rows)

    def _days(self) -> pa.ChunkedArray:
        return self.actions[f"partition.{TABLES[self.table].partition_by[0]}"]


def stored_rows(
    files: FileSystem, table: str, path: str, columns: Sequence[str], ranges: Mapping[str, Range]
) -> Iterator[pa.Table]:
    """The rows of a file whose columns are all within `ranges`, row group by row group, with the types of the table.

    A null is in no range. A column that the file does not have is null.
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
    """The rows that `stored_rows` has, together."""
    schema = pa.schema([pa.field(name, TABLES[table].schema.field(name).type) for name in columns])
    return pa.concat_tables([schema.empty_table(), *stored_rows(files, table, path, columns, ranges)])


def _typed(rows: pa.Table, table: str, path: str, columns: Sequence[str]) -> pa.Table:
    layout, arrays = TABLES[table], []
    for name in columns:
        kind = layout.schema.field(name).type
        if name in rows.column_names:
            # before any comparison: a compaction may have written string_view, for which Arrow has none
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
    # at once: each filter copies what it keeps
    return rows.filter(reduce(pc.and_, found)) if found else rows


def stored_values(files: FileSystem, table: str, path: str, column: str, values: Sequence[Any]) -> Iterator[pa.Array]:
    """The values of a column of a file, of those row groups that can hold one of `values`, which are in order."""
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
    """The row groups of a Parquet file that can hold such rows."""
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
