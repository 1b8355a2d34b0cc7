"""What a table was at a moment: by the moments that its commits state, as long as those can be believed.

A commit by a clock that was ahead states a moment that has not come, and each one after it a later one: what was there
until then is not known from them. What is there now is known all the same: the newest version.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from datetime import datetime, timedelta
from typing import Any, Final

from deltalake import DeltaTable
from pyarrow.fs import FileSystem

from cloud_jobs.errors import NotKept
from cloud_jobs.lake.transactions import COMMITTED, MAX_LEAD

_NOW: Final = timedelta(minutes=5)
"""Whoever asks for now gets here within this time."""
_MAX_LEAD_MS: Final = MAX_LEAD.total_seconds() * 1000


def load_as_of(table: DeltaTable, files: FileSystem, as_of: datetime, now: datetime) -> bool:
    """Loads the table's version of a moment; False when the table did not exist yet. `files`: those of the table.

    Raises NotKept for a moment whose commits are no longer kept, or of which a clock that was ahead hides them.
    """
    moment_ms, newest = as_of.timestamp() * 1000, table.version()
    if 0 <= _committed_ms(files, newest) <= moment_ms:
        return True
    # halved, not read from its end: there may be a commit a second, and each is a file
    version = bisect_right(range(newest), moment_ms, key=lambda one: _committed_ms(files, one)) - 1
    if _is_hidden(files, version + 1, newest, moment_ms, now):
        if as_of + _NOW >= now:
            return True
        raise NotKept(
            f"what {table.table_uri} was at {as_of.isoformat()} is unknown: commits of then were made after one by a"
            " clock that was ahead; what it is now is known, without a moment, and so is what it was before"
        )
    if version < 0:
        return False
    if _committed_ms(files, version) < 0:
        raise NotKept(
            f"what {table.table_uri} was at {as_of.isoformat()} is unknown: the commits of then are no longer kept;"
            " how long they are is the setting maintenance.as_of_days"
        )
    table.load_as_version(version)
    return True


def _is_hidden(files: FileSystem, first: int, newest: int, moment_ms: float, now: datetime) -> bool:
    """Whether versions that state later moments may have been there already: from `first` on all state one."""
    if _committed_ms(files, first) > now.timestamp() * 1000 + _MAX_LEAD_MS:
        return True
    # By the clock of one's own process a commit after such a one is not ahead.
    while first <= newest:
        middle = (first + newest + 1) // 2
        clock_ms = _clock_ms(_actions(files, middle) or [])
        if clock_ms <= moment_ms:
            return _committed_ms(files, middle) > clock_ms + _MAX_LEAD_MS
        newest = middle - 1
    return False


def _committed_ms(files: FileSystem, version: int) -> float:
    """When a version was committed, in milliseconds since 1970; -1 for one whose commit is no longer kept.

    By what its writer stated, which never goes back; a version of another one, such as a merge, holds what the version
    before it holds, and is taken for as old. Of versions without either it is the clock's time.
    """
    clock_ms = None
    while (actions := _actions(files, version)) is not None:
        numbers = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        if COMMITTED in numbers:
            return float(numbers[COMMITTED] / 1000)
        clock_ms = _clock_ms(actions) if clock_ms is None else clock_ms
        version -= 1
    return -1.0 if clock_ms is None else clock_ms


def _clock_ms(actions: list[dict[str, Any]]) -> float:
    return max((float(action["commitInfo"]["timestamp"]) for action in actions if "commitInfo" in action), default=0.0)


def _actions(files: FileSystem, version: int) -> list[dict[str, Any]] | None:
    try:
        with files.open_input_file(f"_delta_log/{version:020}.json") as file:
            return [json.loads(line) for line in file.read().splitlines()]
    except FileNotFoundError:
        return None
