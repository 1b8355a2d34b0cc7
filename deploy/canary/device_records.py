"""The rows of the records table of one device, each commit of the ingest read once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import INGEST, Lake
from deploy.canary.hops import ProbeItem
from deploy.canary.new_rows import NewRows
from deploy.canary.shown_records import RecordOfProbe

__all__ = ["DeviceRecords", "StoredRecord"]

_COLUMNS: Final = ("kind", "device_time", "epoch", "seq", "latitude", "longitude", "name", "ingest_number")


class StoredRecord(NamedTuple):
    """A record in the table, and the number of the ingest's commit that brought it."""

    record: RecordOfProbe
    ingest_number: int


class DeviceRecords:
    """What the table has of a device since a moment."""

    def __init__(self, lake: Lake, device: TenantDevice, since: datetime) -> None:
        self._since = since.astimezone(UTC)
        self._rows = NewRows(
            lake, "records", device, self._since, _COLUMNS, writer=INGEST, number_column="ingest_number"
        )

    def read_new(self) -> list[StoredRecord]:
        """The rows that were committed since the last call. Raises LakeError, StoreUnavailable."""
        return [_stored(row) for row in self._rows.read() if row["device_time"] >= self._since]


def _stored(row: dict[str, Any]) -> StoredRecord:
    item = ProbeItem(row["kind"], round(row["device_time"].timestamp() * 1000))
    place = None if row["latitude"] is None else (row["latitude"], row["longitude"])
    return StoredRecord(RecordOfProbe(item, row["epoch"], row["seq"], place, row["name"] or ""), row["ingest_number"])
