"""The lake as the console reads it: tables that stay open, and each read counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.tables import Condition, Lake
from cloud_jobs.lake.transactions import newest_number

_REFRESH_S: Final = 1.0
"""A table is asked for newer commits at most this often."""


@dataclass(slots=True)
class _Open:
    table: DeltaTable
    stored: StoredFiles
    asked_s: float


class OpenLake:
    """The tables of a lake, each opened once and then brought up to date. Any thread may read.

    Reading methods raise LakeError for a missing or damaged table, and StoreUnavailable.
    """

    def __init__(self, lake: Lake, clock: Callable[[], float] = time.monotonic) -> None:
        self.lake = lake
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self.files_read = 0

    def version(self, table: str) -> int:
        """The version that reads of the table see now."""
        return int(self._current(table).table.version())

    def opened(self, table: str) -> DeltaTable:
        """The current version, for what its log states. It is brought up to date in place: do not keep it."""
        return self._current(table).table

    def stored(self, table: str) -> StoredFiles:
        """The files of the current version with their bounds."""
        return self._current(table).stored

    def rows(self, table: str, columns: Sequence[str] | None = None, *, where: Sequence[Condition] = ()) -> pa.Table:
        """Rows of a table; files that cannot hold such rows are not opened."""
        return self.rows_in(self.stored(table), columns, where=where)

    def rows_in(
        self, stored: StoredFiles, columns: Sequence[str] | None = None, *, where: Sequence[Condition] = ()
    ) -> pa.Table:
        """Rows of some files of a table."""
        try:
            rows, count = self.lake.rows_in(stored, columns, where=where)
        except LakeError:
            # its files may have been replaced, as by a restored copy: the next read opens all tables anew
            with self._lock:
                self._open.clear()
            raise
        with self._lock:
            self.files_read += count
        return rows

    def has(self, table: str) -> bool:
        """Whether the table exists. Raises LakeError if there is no lake at all, and StoreUnavailable."""
        if table in self._open or self.lake.has(table):
            return True
        # each lake has this table: without it a share is not mounted, or the path is wrong
        if not self.lake.has("records"):
            raise LakeError(
                f"there is no lake at {self.lake.location}: check `lake` in the settings, and whether its disk is "
                "mounted; `cloud-jobs ingest` creates a lake"
            )
        return False

    def newest_number(self, table: str, writer: str) -> int | None:
        """The number of a writer's newest commit."""
        with self.lake.damage_as_error(table):
            return newest_number(self.opened(table), writer)

    def _current(self, table: str) -> _Open:
        with self._lock:
            held = self._open.get(table)
            if held is not None and self._clock() - held.asked_s < _REFRESH_S:
                return held
            if held is None:
                opened = self.lake.open(table)
            else:
                opened, before = held.table, held.table.version()
                try:
                    with self.lake.damage_as_error(table):
                        opened.update_incremental()
                except LakeError:
                    # a lake that was restored or taken away: all tables are opened anew
                    self._open.clear()
                    opened, before = self.lake.open(table), -1
                if opened.version() == before:
                    held.asked_s = self._clock()
                    return held
            with self.lake.damage_as_error(table):
                current = _Open(opened, StoredFiles.of(opened, table), self._clock())
            self._open[table] = current
            return current
