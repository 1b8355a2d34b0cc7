"""Documents into the register: numbered and committed at once, so that two clerks, a crash or a lost answer issue none
twice and leave no number out.

A commit holds only upon the documents that its writer has read. Who loses reads again, and numbers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from random import uniform
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.errors import CommitConflict, CommitFailed, Fenced
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number

Row = dict[str, Any]
MakeRows = Callable[[DeltaTable], Iterable[Sequence[Row]]]
"""The rows that are to be added to a version of a table, part by part; called again at each attempt."""
MakeFiles = Callable[[int], Sequence[DataFile]]
"""The files that are to be added by a commit with a counter; called again at each attempt."""
MAX_ATTEMPTS: Final = 40
"""Of writers that meet one wins each time, so this many can begin at the same moment."""
MAX_FAILURES: Final = 3
"""So many attempts may fail for another reason than another writer."""
_MAX_PAUSE_S: Final = 0.2


def post(
    register: Register, attempt: str, make: MakeRows, *, pause: Callable[[float], object] = time.sleep
) -> list[IssuedDocument]:
    """Adds the documents that `make` numbers, in one commit, and returns them: all of them or none.

    `attempt`: a name that no other command has; it is in each row. Raises what `make` raises; CommitConflict when
    others won MAX_ATTEMPTS times; CommitFailed, LakeError, StoreUnavailable: then nothing is posted, or nobody knows.
    """
    lake = register.lake

    def written(opened: DeltaTable, _: int) -> Sequence[DataFile]:
        # an earlier try of this command may have been committed, and only its answer was lost
        if register.attempted(opened, attempt):
            return []
        return [file for rows in make(opened) for file in _written(lake, rows)]

    _commit(lake, "documents", written, pause)
    return register.attempted(lake.open("documents"), attempt)


def commit_made(
    lake: Lake,
    table: str,
    make: MakeFiles,
    *,
    check: Callable[[DeltaTable], None] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Adds files to a table of the register, in one commit, whatever others add. Raises as `post`.

    `check` raises where the commit must not be made upon the version that was opened.
    """

    def written(opened: DeltaTable, counter: int) -> Sequence[DataFile]:
        check(opened)
        return make(counter)

    _commit(lake, table, written, pause)


def _commit(
    lake: Lake,
    table: str,
    make: Callable[[DeltaTable, int], Sequence[DataFile]],
    pause: Callable[[float], object],
) -> None:
    failures = 0
    for _ in range(MAX_ATTEMPTS):
        opened = lake.open(table)
        previous = newest_number(opened, table)
        number = next_number(previous)
        files = make(opened, counter_of(number))
        if not files:
            return
        try:
            commit_files(opened, table, files, writer=table, previous=previous, number=number)
        except Fenced:
            # so that two do not meet again and again
            pause(uniform(0, _MAX_PAUSE_S))
        except CommitFailed:
            failures += 1
            if failures == MAX_FAILURES:
                raise
            pause(uniform(0, _MAX_PAUSE_S))
        else:
            return
    raise CommitConflict(table)


def _written(lake: Lake, rows: Sequence[Row]) -> Iterable[DataFile]:
    """The rows in files, those of each legal entity apart: so the log says where its numbers are."""
    files, now = lake.files("documents"), datetime.now(UTC)
    in_order = sorted(rows, key=lambda row: str(row["legal_entity"]))
    for _, of_entity in groupby(in_order, key=lambda row: row["legal_entity"]):
        made = pa.Table.from_pylist([*of_entity], schema=TABLES["documents"].schema)
        yield from write_data_files(files, made, now, table="documents")
