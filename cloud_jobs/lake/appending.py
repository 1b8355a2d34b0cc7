"""Appends that several processes may make to one table, each row once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import uniform
from typing import Any, Final

import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from cloud_jobs.errors import CommitConflict, CommitFailed, LakeError
from cloud_jobs.lake.data_files import DataFile
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import (
    COMMITTED,
    TRIES,
    check_there,
    check_writer,
    commit_upon,
    newest_number,
    next_moment_us,
    reload,
    stated,
)
from waybill.daemon.durable_file import create_durably

# Exactly-once appends to a small table by several processes.

Row = dict[str, Any]
Missing = Callable[[pa.Table], list[Row]]
"""Gets the asked columns of a table and returns the rows to add; it is called again for each attempt."""
MAX_ATTEMPTS: Final = 40
"""One of several writers wins each time, so this many can begin at the same moment."""
MAX_FAILURES: Final = 3
"""Attempts that may fail for another reason than another writer."""
_MAX_PAUSE_S: Final = 0.2


def append_missing(
    lake: Lake, table: str, columns: list[str], missing: Missing, *, pause: Callable[[float], object] = time.sleep
) -> list[Row]:
    """Appends the rows that `missing` returns in one commit, and returns them; without rows no commit is made.

    Raises CommitConflict if others won MAX_ATTEMPTS times; LakeError for a table that cannot be read, or could not be
    written MAX_FAILURES times; StoreUnavailable.
    """
    failures = 0
    for _ in range(MAX_ATTEMPTS):
        opened = lake.open(table)
        try:
            rows = missing(lake.rows(table, columns, opened=opened))
            if not rows:
                return []
            write_deltalake(
                opened,
                pa.Table.from_pylist(rows, schema=TABLES[table].schema),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(table, opened.version() + 1)]),
            )
        except CommitFailedError:
            # so that two writers do not collide repeatedly
            pause(uniform(0, _MAX_PAUSE_S))
        except (DeltaError, OSError) as error:
            failures += 1
            if failures == MAX_FAILURES:
                lost = lake.location.unavailable(error)
                what = f"table {table!r} of the lake {lake.location} cannot be written: {error_text(error)}"
                raise lost or LakeError(what) from error
            # if only the response was lost, nothing is missing at the next attempt
            pause(uniform(0, _MAX_PAUSE_S))
        else:
            return rows
    raise CommitConflict(table)


_CHECKPOINT_EVERY: Final = 50
"""The most commits after a checkpoint that a reader opens."""
_log = structlog.get_logger("lake")


class AppendedTable:
    """A table that one writer keeps open and appends to. `writer`: the name under which its commits are numbered.

    In a folder it writes commits itself: with a known previous commit that takes 4 ms instead of 30.
    Opening it raises LakeError, StoreUnavailable.
    """

    def __init__(self, lake: Lake, table: str, writer: str) -> None:
        self._lake, self._table, self._writer = lake, table, writer
        self._opened = lake.open(table)
        folder = lake.location.folder
        self._commits = None if folder is None else folder / table / "_delta_log"
        self._version = 0
        self._number: int | None = None
        self._committed_us: int | None = None
        self._read_state()

    @property
    def number(self) -> int | None:
        """The number of the writer's newest commit."""
        return self._number

    @property
    def version(self) -> int:
        return self._version

    def opened(self) -> DeltaTable:
        """The table at that version or a later one. Raises CommitFailed."""
        if self._opened.version() < self._version:
            reload(self._opened, self._table)
        return self._opened

    def commit(self, files: Sequence[DataFile], number: int) -> None:
        """Adds files in one commit, the writer's `number`; it is durable when this returns.

        Raises Fenced if another process writes as this writer, and CommitFailed if nothing was written or the result is
        unknown.
        """
        moment_us = next_moment_us(self._committed_us)
        numbers, before = {self._writer: number, COMMITTED: moment_us}, self._version
        if self._commits is None:
            commit_upon(self._opened, self._table, files, writer=self._writer, previous=self._number, numbers=numbers)
            self._version = int(self._opened.version())
            if self._version > before + 1:
                # another process may have written as this writer in between
                check_writer(self._opened, self._writer, number)
        else:
            check_there(self._opened, self._table, files)
            try:
                self._version = self._create_commit(self._commits, commit_text(files, numbers))
            except OSError as error:
                raise CommitFailed(self._table, f"it is unknown whether it was made: {error}") from error
        self._number, self._committed_us = number, moment_us
        if self._commits is not None and self._version % _CHECKPOINT_EVERY == 0:
            self._checkpoint()

    def _create_commit(self, commits: Path, text: bytes) -> int:
        for _ in range(TRIES):
            # the log may have been shortened while this process stood still
            if _commit_path(commits, self._version).exists() and create_durably(
                _commit_path(commits, self._version + 1), text
            ):
                return self._version + 1
            # another commit, such as a merge, was first
            previous = self._number
            try:
                self._opened = self._lake.open(self._table)
            except (LakeError, DeltaError) as error:
                raise CommitFailed(self._table, f"nothing was written: {error}") from error
            check_writer(self._opened, self._writer, previous)
            self._read_state()
        raise CommitFailed(self._table, f"others were faster {TRIES} times")

    def _read_state(self) -> None:
        self._version = int(self._opened.version())
        self._number = newest_number(self._opened, self._writer)
        self._committed_us = stated(self._opened, COMMITTED)

    def _checkpoint(self) -> None:
        try:
            self.opened().create_checkpoint()
        except (CommitFailed, DeltaError, OSError) as error:
            # the commit is made; the next checkpoint has it too
            _log.warning("no checkpoint", table=self._table, error=str(error))


def _commit_path(commits: Path, version: int) -> Path:
    return commits / f"{version:020}.json"


def commit_text(files: Sequence[DataFile], numbers: Mapping[str, int]) -> bytes:
    """A commit in Delta's format, one action on each line. `numbers`: application transactions."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}, "isBlindAppend": True}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [{"txn": {"appId": name, "version": version}} for name, version in numbers.items()]
    actions += [{"add": _add(file)} for file in files]
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def _add(file: DataFile) -> dict[str, Any]:
    action = file.add_action()
    return {
        "path": action.path,
        "partitionValues": action.partition_values,
        "size": action.size,
        "modificationTime": action.modification_time,
        "dataChange": action.data_change,
        "stats": action.stats,
    }
