"""Appends that several processes may make to one table, each row once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import uniform
from typing import Any, Final, NoReturn

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
"""Of what a table has (the columns asked for) the rows that it lacks; called again at each attempt."""
MAX_ATTEMPTS: Final = 40
"""Of writers that meet one wins each time, so this many can begin at the same moment."""
MAX_FAILURES: Final = 3
"""So many attempts may fail for another reason than another writer."""
_MAX_PAUSE_S: Final = 0.2


def append_missing(
    lake: Lake, table: str, columns: list[str], missing: Missing, *, pause: Callable[[float], object] = time.sleep
) -> list[Row]:
    """Appends what `missing` says, in one commit, and returns it; with nothing missing no commit is made.

    Raises CommitConflict when others won MAX_ATTEMPTS times, and LakeError for a table that cannot be read, or that
    could not be written MAX_FAILURES times; StoreUnavailable.
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
            # so that two do not meet again and again
            pause(uniform(0, _MAX_PAUSE_S))
        except (DeltaError, OSError) as error:
            failures += 1
            if failures == MAX_FAILURES:
                lost = lake.location.unavailable(error)
                what = f"table {table!r} of the lake {lake.location} cannot be written: {error_text(error)}"
                raise lost or LakeError(what) from error
            # perhaps only the answer was lost: then nothing is missing any more
            pause(uniform(0, _MAX_PAUSE_S))
        else:
            return rows
    raise CommitConflict(table)


# Aborted closing runs, recorded in the log of `closings`, to which each run commits last.

_CHECKPOINT_EVERY: Final = 50
"""A reader opens as many commits at most."""
_log = structlog.get_logger("lake")


class AppendedTable:
    """A table as its one writer knows it. `writer`: the name under which its commits are numbered.

    Raises LakeError, StoreUnavailable when it is opened.
    """

    def __init__(self, lake: Lake, table: str, writer: str) -> None:
        self._lake, self._table, self._writer = lake, table, writer
        self._opened = lake.open(table)
        folder = lake.location.folder
        self._commits = None if folder is None else folder / table / "_delta_log"
        self._version: int
        self._number: int | None
        self._committed_us: int | None
        self._newest: bytes | None
        self._take_over()

    @property
    def number(self) -> int | None:
        """The number of the writer's newest commit."""
        return self._number

    @property
    def version(self) -> int:
        """The newest version that is known."""
        return self._version

    def opened(self) -> DeltaTable:
        """The table at that version or a later one. Raises CommitFailed."""
        if self._opened.version() < self._version:
            reload(self._opened, self._table)
        return self._opened

    def commit(self, files: Sequence[DataFile], number: int, *, now: datetime | None = None) -> None:
        """Adds files in one commit, which is the writer's `number`; it is durable when this returns.

        Raises Fenced if another process writes as this writer, and CommitFailed if nothing was written, or if that is
        not known.
        """
        if self._commits is None:
            self._commit_by_library(files, number, now)
        else:
            check_there(self._opened, self._table, files)
            try:
                self._commit_in(self._commits, files, number, now)
            except OSError as error:
                raise CommitFailed(self._table, f"it is unknown whether it was made: {error}") from error
            if self._version % _CHECKPOINT_EVERY == 0:
                self._checkpoint()

    def _commit_by_library(self, files: Sequence[DataFile], number: int, now: datetime | None) -> None:
        moment_us = next_moment_us(self._committed_us, now)
        numbers, before = {self._writer: number, COMMITTED: moment_us}, self._version
        commit_upon(self._opened, self._table, files, writer=self._writer, previous=self._number, numbers=numbers)
        self._version, self._number, self._committed_us = int(self._opened.version()), number, moment_us
        if self._version > before + 1:
            # what else was committed may be of another process: it must not count as known
            check_writer(self._opened, self._writer, number)

    def _commit_in(self, commits: Path, files: Sequence[DataFile], number: int, now: datetime | None) -> None:
        for _ in range(TRIES):
            if not self._is_known_there(commits):
                self._open_anew()
            moment_us, path = next_moment_us(self._committed_us, now), _commit_of(commits, self._version + 1)
            text = commit_text(files, {self._writer: number, COMMITTED: moment_us})
            if create_durably(path, text):
                break
            # another's commit, such as a merge
            previous = self._number
            reload(self._opened, self._table)
            check_writer(self._opened, self._writer, previous)
            self._take_over()
        else:
            raise CommitFailed(self._table, f"others were faster {TRIES} times")
        if not self._is_known_there(commits):
            self._take_back(path, text)
        self._version, self._number, self._committed_us = self._version + 1, number, moment_us
        self._newest = text

    def _is_known_there(self, commits: Path) -> bool:
        """Whether the newest commit that is known is in the log, and is that one."""
        return self._newest is not None and _content_of(_commit_of(commits, self._version)) == self._newest

    def _open_anew(self) -> None:
        """Goes on from what the table is where its log was cut, or replaced by another. Raises Fenced, CommitFailed."""
        try:
            opened = self._lake.open(self._table)
        except (LakeError, DeltaError) as error:
            raise CommitFailed(self._table, f"nothing was written: {error}") from error
        check_writer(opened, self._writer, self._number)
        self._opened = opened
        self._take_over()

    def _take_back(self, path: Path, text: bytes) -> NoReturn:
        """Deletes a commit in a place that was free as it was cut off the log, or is of another log. Raises."""
        # unless that log goes on with it: then the next start finds it made
        if _content_of(path) == text and not _content_of(_commit_of(path.parent, self._version + 2)):
            path.unlink(missing_ok=True)
        self._open_anew()
        raise CommitFailed(self._table, "the log was cut or replaced meanwhile; it is begun again from what is there")

    def _take_over(self) -> None:
        self._version = int(self._opened.version())
        self._number = newest_number(self._opened, self._writer)
        self._committed_us = stated(self._opened, COMMITTED)
        self._newest = None if self._commits is None else _content_of(_commit_of(self._commits, self._version))

    def _checkpoint(self) -> None:
        try:
            self.opened().create_checkpoint()
        except (CommitFailed, DeltaError, OSError) as error:
            # the commit is made; the next checkpoint has it too
            _log.warning("no checkpoint", table=self._table, error=str(error))


def _commit_of(commits: Path, version: int) -> Path:
    return commits / f"{version:020}.json"


def _content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def commit_text(files: Sequence[DataFile], numbers: Mapping[str, int]) -> bytes:
    """A commit that adds files, as Delta has it: an action on each line. `numbers`: what is stated from it on."""
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
