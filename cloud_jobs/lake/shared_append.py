"""Rows for a small table that several processes append to at once, each row once.

A commit holds only upon the version whose keys its writer has read: it carries an application transaction, of which
Delta lets one of two win. The other one reads again what is there now, and goes on with what is still missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import uniform
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from cloud_jobs.errors import CommitConflict, LakeError
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake

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
            rows = missing(lake.dataset(table, opened).to_table(columns=columns))
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
