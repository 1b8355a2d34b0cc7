"""Files of a table are replaced by others in one commit, beside whatever else is committed.

Delta's own checks let two commits remove the same file. So every replacement is a commit of one writer, `REWRITE`, and
is made only upon the replacement that this writer knows. What only adds files, as the ingest does, is neither stopped
by it nor stops it. A replacement whose files another one took first is given up: no row is lost, and none is twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.data_files import DataFile
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, newest_number, next_number
from cloud_jobs.maintenance.key_ranges import RowSource
from cloud_jobs.maintenance.merge_plan import FileLimits
from cloud_jobs.maintenance.sorted_files import SortedFiles
from cloud_jobs.maintenance.table_files import TableFile, partition_values, table_files

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
