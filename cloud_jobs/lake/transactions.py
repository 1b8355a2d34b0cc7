"""Exactly-once commits by one of several writers, each upon the commit that the writer knows.

A writer numbers its commits, and Delta keeps the newest number with the table as an application transaction. A number
has a counter and random bits, so two attempts at one step never share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from secrets import randbits
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from cloud_jobs.errors import CommitFailed, Fenced
from cloud_jobs.lake.schemas import TABLES

if TYPE_CHECKING:
    from cloud_jobs.lake.data_files import DataFile

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS: Final = 32
_FAILURES: Final = (DeltaError, OSError, ValueError)
TRIES: Final = 5
"""Attempts of a commit against concurrent commits of others."""
COMMITTED: Final = "committed_us"
"""A table states the time of its newest commit under this name, in microseconds since 1970; it never decreases,
whatever the writers' clocks say."""
_REFUSALS: Final = 20
MAX_ATTEMPT_S: Final = 3600.0
"""A written file is committed within this time or never; unreferenced files are deleted much later."""
_MAX_COUNTER: Final = (1 << 31) - 1


def next_number(previous: int | None) -> int:
    """A unique number for the commit after `previous`."""
    return number_of(counter_of(previous) + 1)


def number_of(counter: int) -> int:
    """A unique number for a counter."""
    assert 0 < counter <= _MAX_COUNTER, "a number is a signed 64-bit integer"
    return counter << _RANDOM_BITS | randbits(_RANDOM_BITS)


def counter_of(number: int | None) -> int:
    """The counter of a commit number, from 1; 0 for None."""
    return 0 if number is None else number >> _RANDOM_BITS


def newest_number(opened: DeltaTable, writer: str) -> int | None:
    return opened.transaction_version(writer)


def stated(opened: DeltaTable, name: str) -> int | None:
    """The value of a name in an opened version, or None.

    Delta keeps it through compaction, vacuum and a shortened log.
    """
    return opened.transaction_version(name)


def commit_files(
    opened: DeltaTable,
    table: str,
    files: Sequence[DataFile],
    *,
    writer: str,
    previous: int | None,
    number: int,
    states: Mapping[str, int] | None = None,
    now: datetime | None = None,
) -> None:
    """Adds files to a table in one commit, the writer's `number`, which follows `previous`.

    `states`: further numbers that the table states from this commit on (see `stated`). `opened` must include the commit
    `previous`, and includes the new one afterwards. Raises Fenced if another process writes as this writer, and
    CommitFailed if nothing was written; then it may be repeated. Commits of other writers, such as a compaction, do not
    matter.
    """
    # Delta checks against the opened version, which must not include another writer's commit
    check_writer(opened, writer, previous)
    committed = next_moment_us(stated(opened, COMMITTED), now)
    numbers = {writer: number, COMMITTED: committed, **(states or {})}
    commit_upon(opened, table, files, writer=writer, previous=previous, numbers=numbers)


def commit_upon(
    opened: DeltaTable,
    table: str,
    files: Sequence[DataFile],
    *,
    writer: str,
    previous: int | None,
    numbers: Mapping[str, int],
) -> None:
    """As `commit_files`, for a caller that knows `previous` to be the writer's newest commit in `opened`.

    Looking it up again costs delta-rs dozens of requests in an object store.
    """
    layout = TABLES[table]
    properties = CommitProperties(
        app_transactions=[Transaction(name, value) for name, value in numbers.items()],
        # tells Spark's conflict checks that nothing was read; delta-rs leaves it out
        custom_metadata={"isBlindAppend": True},
    )
    check_there(opened, table, files)
    # Delta refuses a commit that races with an erasure or a change of properties; the next attempt includes them
    for tries_left in reversed(range(TRIES)):
        version = opened.version()
        try:
            opened.create_write_transaction(
                [file.add_action() for file in files],
                "append",
                layout.schema,
                [*layout.partition_by],
                commit_properties=properties,
            )
        except _FAILURES as error:
            # a lost response looks like a failure; the table tells
            reload(opened, table)
            if newest_number(opened, writer) == numbers[writer]:
                return
            check_writer(opened, writer, previous)
            if opened.version() == version or not tries_left:
                raise CommitFailed(table, str(error)) from error
        else:
            # the object does not see its own commit
            reload(opened, table)
            return


def next_moment_us(newest_us: int | None, now: datetime | None = None) -> int:
    """The time of a commit in microseconds since 1970: now, but later than the newest commit."""
    moment_us = ((now or datetime.now(UTC)) - _EPOCH) // timedelta(microseconds=1)
    return max(moment_us, (newest_us or 0) + 1)


def check_there(opened: DeltaTable, table: str, files: Sequence[DataFile]) -> None:
    """Raises CommitFailed if an old file is gone: the sweep may delete a file that no commit names."""
    before_ms = (time.time() - MAX_ATTEMPT_S) * 1000
    if old := [file.path for file in files if file.written_ms < before_ms]:
        # with the credentials of the opened table
        folder = PyFileSystem(DeltaStorageHandler.from_table(opened._table))  # noqa: SLF001
        gone = [info.path for info in folder.get_file_info(old) if not info.is_file]
        if gone:
            raise CommitFailed(table, f"what was written was swept up before it ({len(gone)} files): it took too long")


def upon_what_is_there(table: str, commit: Callable[[], object]) -> None:
    """Repeats a commit that Delta refused because of a concurrent one. Raises CommitFailed.

    `commit` opens the table each time, and may be done twice.
    """
    for _ in range(_REFUSALS):
        try:
            commit()
        except CommitFailedError as error:
            # a maintenance replaced files or changed properties since the table was opened
            failure = error
        else:
            return
    raise CommitFailed(table, str(failure)) from failure


def check_writer(opened: DeltaTable, writer: str, expected: int | None) -> None:
    """Raises Fenced if a writer's newest commit is not the expected one."""
    found = newest_number(opened, writer)
    if found != expected:
        raise Fenced(expected_number=counter_of(expected), found_number=counter_of(found))


def reload(opened: DeltaTable, table: str) -> None:
    """Updates an opened table to its newest version. Raises CommitFailed."""
    try:
        opened.update_incremental()
    except _FAILURES as error:
        # the next reader of the table sees whether the commit was made
        raise CommitFailed(table, f"it is unknown whether it was made: {error}") from error
