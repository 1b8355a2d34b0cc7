"""The rows of the records table of one device, each commit of the ingest read once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from deploy.canary.hops import ProbeItem
from deploy.canary.shown_records import RecordOfProbe

__all__ = ["DeviceRecords", "StoredRecord"]

_COLUMNS: Final = ("kind", "device_time", "epoch", "seq", "latitude", "longitude", "name", "ingest_number")


class StoredRecord(NamedTuple):
    """A record in the table, and the number of the ingest's commit that brought it."""

    record: RecordOfProbe
    ingest_number: int


class DeviceRecords:
    """What the table has of a device since a moment. `through`: the commit of the ingest up to which it was read."""

    def __init__(self, lake: Lake, device: TenantDevice, since: datetime) -> None:
        self._lake, self._device, self._since = lake, device, since.astimezone(UTC)
        self.through = 0

    def read_new(self) -> list[StoredRecord]:
        """The rows that were committed since the last call. Raises LakeError, StoreUnavailable."""
        with self._lake.damage_as_error("records"):
            newest = counter_of(newest_number(self._lake.open("records"), INGEST))
        # the log says whether there is anything new; the files are opened only then
        if newest <= self.through:
            return []
        rows = self._lake.rows(
            "records",
            _COLUMNS,
            where=[
                ("tenant", "=", self._device.tenant),
                ("device", "=", self._device.device),
                ("device_date", ">=", self._since.date()),
                ("ingest_number", ">", self.through),
            ],
        ).to_pylist()
        # a commit that was made after the look above is here as a whole, too
        self.through = max([newest, *(row["ingest_number"] for row in rows)])
        return [_stored(row) for row in rows if row["device_time"] >= self._since]


def _stored(row: dict[str, Any]) -> StoredRecord:
    item = ProbeItem(row["kind"], round(row["device_time"].timestamp() * 1000))
    place = None if row["latitude"] is None else (row["latitude"], row["longitude"])
    return StoredRecord(RecordOfProbe(item, row["epoch"], row["seq"], place, row["name"] or ""), row["ingest_number"])
