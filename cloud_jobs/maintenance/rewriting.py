"""Files of a table are replaced by others in one commit, beside whatever else is committed.

Delta's own checks let two commits remove the same file. So every replacement is a commit of one writer, `REWRITE`, and
is made only upon the replacement that this writer knows. What only adds files, as the ingest does, is neither stopped
by it nor stops it. A replacement whose files another one took first is given up: no row is lost, and none is twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
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
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, newest_number, next_number
from cloud_jobs.maintenance.key_ranges import RowSource
from cloud_jobs.maintenance.merge_plan import FileLimits
from cloud_jobs.maintenance.table_files import TableFile, partition_values, table_files

# Files of one day that grow by pieces of sorted rows: as big as asked for, whatever fits into memory at a time.


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
        *,
        beside: Sequence[TableFile] = (),
    ) -> RewriteResult:
        """Puts sorted files in the place of files of one day, with the rows that stay. Raises CommitFailed, LakeError.

        Without `keep` all rows stay. If none goes although `keep` is given, nothing is written. `beside`: files for
        whose sake rows go, and that `keep` reads; if one of them is no longer in the table nothing is replaced.
        """
        began = self.now()
        written, dropped = self._write(table, files, keep, began, beside)
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
        done = self._replace(table, files, written, began, beside, data_change=bool(dropped))
        if done:
            self.reached(MaintenancePoint.REPLACED)
        return RewriteResult(done, len(written) if done else 0, dropped)

    def _write(
        self,
        table: str,
        files: Sequence[TableFile],
        keep: Keep | None,
        now: datetime,
        beside: Sequence[TableFile],
    ) -> tuple[list[DataFile], int]:
        layout = TABLES[table]
        folder: FileSystem = self.lake.files(table)
        source = RowSource(folder, tuple(file.path for file in files), layout.in_file, layout.order)
        read = dropped = 0
        size = sum(file.size for file in files)
        # all of about one size, so that none is a small rest
        writer = SortedFiles(folder, table, files[0].day, now, size / max(1, round(size / self.limits.size)))
        # what is read beside has to fit, too
        all_read = source._replace(paths=(*source.paths, *(file.path for file in beside)))
        for keys in all_read.ranges(self.limits.memory):
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
        beside: Sequence[TableFile],
        *,
        data_change: bool,
    ) -> bool:
        """One commit that removes and adds files; False, and nothing was done, if one is no longer in the table."""
        needed = {file.path for file in (*removed, *beside)}
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


def _rows(files: Sequence[TableFile]) -> int:
    return sum(file.rows for file in files)
