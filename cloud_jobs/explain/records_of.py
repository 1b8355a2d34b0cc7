"""The records that an hour of a charge was computed from, as the lake has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from cloud_jobs.billing.usage import MAX_SEGMENT
from cloud_jobs.explain.explanation import ExplainedHour
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake

_SHOWN: Final = ("epoch", "seq", "kind", "device_time", "latitude", "longitude", "accuracy_m", "received_at")
_HOUR: Final = timedelta(hours=1)


def records_of_hour(lake: Lake, device: TenantDevice, hour: ExplainedHour, limit: int) -> Iterator[dict[str, Any]]:
    """The records of the seq ranges of an hour, by epoch and seq, at most `limit`. Raises LakeError."""
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
        stored = stored.of_days((hour.hour - MAX_SEGMENT).date(), (hour.hour + _HOUR).date())
        stored = stored.between("device", device.device, device.device).between("tenant", device.tenant, device.tenant)
        for epoch, seqs in hour.seq_ranges:
            wanted: dict[str, Range] = {
                "tenant": (device.tenant, device.tenant),
                "device": (device.device, device.device),
                "epoch": (epoch, epoch),
                "seq": (seqs.first, seqs.last),
            }
            chosen = stored.between("epoch", epoch, epoch).between("seq", seqs.first, seqs.last)
            found = [
                rows
                for path in chosen.paths
                for rows in stored_rows(lake.files("records"), "records", path, _SHOWN, wanted)
            ]
            for row in pa.concat_tables(found).sort_by("seq").to_pylist() if found else ():
                if limit <= 0:
                    return
                # between the first and the last there are records of other zones
                if row["seq"] in seqs:
                    limit -= 1
                    yield row
