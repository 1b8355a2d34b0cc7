"""Stations region and centre: records in the table by the region that they came through, and beside the coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.record_counts import count_all, count_by_device, rows_within, stored_at
from cloud_jobs.lake.snapshot_reads import conflicts, erasures, erasures_since
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.stored_files import StoredFiles
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named


class RecordsByRegion(NamedTuple):
    """`records`: how many there are of the period, in whichever region."""

    comparisons: list[Comparison]
    records: int


def compare_regions(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice] | None,
    heard_of: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> RecordsByRegion:
    """Records of [start, end) by the region that brought them, and what of it is in quarantine.

    Of each file only the columns are read of which the log does not say all. Raises LakeError.
    """
    start, last = hours[0], hours[1] - timedelta.resolution
    by_region: Counter[str | None] = Counter()
    stored = stored_at(lake, snapshot).of_days(start.date(), last.date())
    bounds = {"device_time": (start, last), "ingest_number": (None, snapshot.ingest_number)}
    for rows in rows_within(lake, stored, ("region",), bounds, devices):
        for row in rows.group_by(["region"]).aggregate([([], "count_all")]).to_pylist():
            by_region[row["region"]] += row["count_all"]
    found = [
        Comparison(Station.REGION, "records brought", region, None, count)
        for region, count in sorted(by_region.items(), key=lambda one: one[0] or "")
        if region is not None
    ]
    whole = Comparison(
        Station.REGION,
        "records of the period with a region",
        "all regions",
        by_region.total(),
        by_region.total() - by_region[None],
    )
    again = conflicts(lake, snapshot, heard_of).total()
    quarantined = [Comparison(Station.REGION, "records in quarantine: conflict, of any period", "", None, again)]
    if devices is None:
        malformed = lake.rows(
            "quarantine",
            ["cause"],
            where=[("cause", "=", "malformed"), ("commit_number", "<=", snapshot.quarantine_commit)],
        ).num_rows
        quarantined.append(
            Comparison(Station.REGION, "messages in quarantine: malformed, of any period", "", None, malformed)
        )
    return RecordsByRegion([whole, *found, *quarantined], by_region.total())


def compare_centre(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None, received: Mapping[TenantDevice, int]
) -> list[Comparison]:
    """What the coverage has received, of any period, is in the table of records, each once.

    The log's counts suffice where they are equal; else, and of some devices, the records are counted by device.
    """
    stored, expected = stored_at(lake, snapshot), sum(received.values())
    declared = [one for one in (erasures(lake, snapshot), erasures_since(lake, snapshot)) if one]
    name = "received records in the table, of any period"
    if devices is None:
        found = count_all(lake, snapshot, stored)
        if found == expected:
            return [Comparison(Station.CENTRE, name, "all devices", expected, found), *_without_day(stored)]
    counted = count_by_device(lake, snapshot, stored, devices)
    erased, wrong = 0, []
    for device in sorted({*received, *counted}):
        there, should = counted[device], received.get(device, 0)
        if there < should and any(one.before(*device) is not None for one in declared):
            erased += should - there
        elif there != should:
            wrong.append(Comparison(Station.CENTRE, name, f"{device.tenant}/{device.device}", should, there))
    note = f"{erased:,} of devices with erased positions are gone" if erased else ""
    whole = Comparison(Station.CENTRE, name, "all devices", expected - erased, counted.total(), note)
    return [whole, *named(wrong), *(_without_day(stored) if devices is None else ())]


def _without_day(stored: StoredFiles) -> list[Comparison]:
    far_off = sum(stored.without_day().row_counts)
    if not far_off:
        return []
    note = "their clock was far off: they are in no period"
    return [Comparison(Station.CENTRE, "records without a day", "all devices", None, far_off, note)]
