"""Rows of one device in a table, each commit of the table's writer read once.

What a look costs follows from what came since the last one: the table stays open, and of its files only those are
opened that can hold rows of commits that were not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.stored_files import StoredFiles, read_stored
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import counter_of, newest_number

__all__ = ["NewRows"]


class NewRows:
    """What a table has of a device since a day. `number_column`: in it each row says with which commit it came."""

    def __init__(
        self,
        lake: Lake,
        table: str,
        device: TenantDevice,
        since: datetime,
        columns: Sequence[str],
        *,
        writer: str,
        number_column: str,
    ) -> None:
        self._lake, self._table, self._since = lake, table, since.astimezone(UTC).date()
        self._device = {"tenant": (device.tenant,) * 2, "device": (device.device,) * 2}
        self._columns, self._writer, self._number_column = [*columns], writer, number_column
        self._opened: DeltaTable | None = None
        self._through = 0

    def read(self) -> list[dict[str, Any]]:
        """The rows that were committed since the last call. Raises LakeError, StoreUnavailable."""
        with self._lake.damage_as_error(self._table):
            opened = self._newest()
            # the log says whether there is anything new; the files are opened only then
            newest = counter_of(newest_number(opened, self._writer))
            if newest <= self._through:
                return []
            numbers = (self._through + 1, newest)
            stored = StoredFiles.of(opened, self._table).of_days(self._since).between(self._number_column, *numbers)
            ranges = {**self._device, self._number_column: numbers}
            files, rows = self._lake.files(self._table), list[dict[str, Any]]()
            for path in stored.paths:
                rows += read_stored(files, self._table, path, self._columns, ranges).to_pylist()
            self._through = newest
            return rows

    def _newest(self) -> DeltaTable:
        if self._opened is not None:
            try:
                self._opened.update_incremental()
            except DeltaError:
                # its log may have been cut short since: as a whole it can be read
                self._opened = None
        if self._opened is None:
            self._opened = self._lake.open(self._table)
        return self._opened
