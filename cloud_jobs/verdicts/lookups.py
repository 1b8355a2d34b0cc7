"""Rows of alerts, events and verdicts: what came since a commit, and what is known of some devices on some days."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.stored_files import StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake
from geo.spatial import DayEvent

_ROWS_AT_ONCE: Final = 50_000
"""Rows of devices that are decided together: as many as are held as objects of Python."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


class OpenedTable(NamedTuple):
    """A table as a run reads it."""

    lake: Lake
    name: str
    opened: DeltaTable

    def since(self, commit: int, until: int) -> pa.Table:
        """The rows that the commits after one, up to another, brought."""
        ranges = {"commit_number": (commit + 1, until)}
        return self._read(self._stored.between("commit_number", commit + 1, until), ranges)

    def of_devices(self, days: Collection[date], devices: Collection[TenantDevice]) -> list[Row]:
        """All rows of some devices on some days."""
        names = sorted({one.device for one in devices})
        stored = self._stored.on_days(days).within("device", [(name, name) for name in names])
        found = self._read(stored, {"device": (names[0], names[-1])})
        mine = found.filter(pc.is_in(found["device"], pa.array(names, pa.string())))
        wanted = {(one.tenant, one.device) for one in devices}
        return [row for row in mine.to_pylist() if (row["tenant"], row["device"]) in wanted]

    def from_day(self, first: date, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of the rows of all days from one on, some at a time, the latest day first."""
        files = self.lake.files(self.name)
        with self.lake.damage_as_error(self.name):
            # the path begins with the day
            for path in sorted(self._stored.of_days(first).paths, reverse=True):
                yield from stored_rows(files, self.name, path, columns, {})

    @property
    def _stored(self) -> StoredFiles:
        return StoredFiles.of(self.opened, self.name)

    def _read(self, stored: StoredFiles, ranges: dict[str, tuple[Any, Any]]) -> pa.Table:
        schema, files = TABLES[self.name].schema, self.lake.files(self.name)
        with self.lake.damage_as_error(self.name):
            parts = [
                part for path in stored.paths for part in stored_rows(files, self.name, path, schema.names, ranges)
            ]
            return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


def by_devices(*tables: pa.Table) -> Iterator[tuple[list[Row], ...]]:
    """The rows of each table, some devices after the other: all rows of a device together, at most so many at once
    or those of one device."""
    keyed = [table.sort_by([("tenant", "ascending"), ("device", "ascending")]) for table in tables]
    keys = pa.concat_tables([table.select(["tenant", "device"]) for table in keyed])
    counts = keys.group_by(["tenant", "device"]).aggregate([([], "count_all")])
    counts = counts.sort_by([("tenant", "ascending"), ("device", "ascending")])
    group: list[tuple[str, str]] = []
    held = 0
    for tenant, device, count in zip(
        *(counts[name].to_pylist() for name in ("tenant", "device", "count_all")), strict=True
    ):
        if group and held + count > _ROWS_AT_ONCE:
            yield tuple(_of(table, group) for table in keyed)
            group, held = [], 0
        group.append((tenant, device))
        held += count
    if group:
        yield tuple(_of(table, group) for table in keyed)


def _of(table: pa.Table, devices: Sequence[tuple[str, str]]) -> list[Row]:
    wanted = set(devices)
    some = table.filter(pc.is_in(table["device"], pa.array(sorted({device for _, device in devices}), pa.string())))
    return [row for row in some.to_pylist() if (row["tenant"], row["device"]) in wanted]


def event_of(row: Row) -> DayEvent:
    """The event of a row of alerts, of events or of verdicts."""
    t_ms = (row["time"] - _EPOCH) // timedelta(milliseconds=1)
    return DayEvent(t_ms, row["kind"], row["place"], row["value"], row["epoch"], row["seq"])


def moment(t_ms: int) -> datetime:
    """A moment of so many milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=t_ms)
