"""Stations region and centre: records in the table by the region that they came through, and beside the coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import pyarrow.compute as pc

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import conflicts, erasures, erasures_since, of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named


def compare_regions(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice] | None,
    heard_of: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> list[Comparison]:
    """Records of [start, end) by the region that brought them, and what of it is in quarantine.

    Of each file only the columns are read of which the log does not say all. Raises LakeError.
    """
    start, last = hours[0], hours[1] - timedelta.resolution
    by_region: Counter[str | None] = Counter()
    stored = _stored(lake, snapshot).of_days(start.date(), last.date())
    bounds = {"device_time": (start, last), "ingest_number": (None, snapshot.ingest_number)}
    for rows in _rows(lake, stored, ("region",), bounds, devices):
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
    return [whole, *found, *quarantined]


def compare_centre(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None, received: Mapping[TenantDevice, int]
) -> list[Comparison]:
    """What the coverage has received, of any period, is in the table of records, each once.

    The log's counts suffice where they are equal; else, and of some devices, the records are counted by device.
    """
    stored, expected = _stored(lake, snapshot), sum(received.values())
    declared = [one for one in (erasures(lake, snapshot), erasures_since(lake, snapshot)) if one]
    name = "received records in the table, of any period"
    if devices is None:
        found = _count(lake, snapshot, stored)
        if found == expected:
            return [Comparison(Station.CENTRE, name, "all devices", expected, found), *_without_day(stored)]
    counted = _by_device(lake, snapshot, stored, devices)
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


def _stored(lake: Lake, snapshot: LakeState) -> StoredFiles:
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
        return stored.between("ingest_number", high=snapshot.ingest_number) if len(stored) else stored


def _count(lake: Lake, snapshot: LakeState, stored: StoredFiles) -> int:
    """Rows by the log; a file that holds later records as well is read."""
    if not len(stored):
        return 0
    found, files = 0, lake.files("records")
    newest = snapshot.ingest_number
    for path, rows, (_, high) in zip(stored.paths, stored.row_counts, stored.bounds("ingest_number"), strict=True):
        if high is not None and high <= newest:
            found += rows
            continue
        with lake.damage_as_error("records"):
            wanted: dict[str, Range] = {"ingest_number": (None, newest)}
            parts = stored_rows(files, "records", path, ("ingest_number",), wanted)
            found += sum(part.num_rows for part in parts)
    return found


def _by_device(
    lake: Lake, snapshot: LakeState, stored: StoredFiles, devices: Collection[TenantDevice] | None
) -> Counter[TenantDevice]:
    found: Counter[TenantDevice] = Counter()
    bounds = {"ingest_number": (None, snapshot.ingest_number)}
    for rows in _rows(lake, stored, ("tenant", "device"), bounds, devices):
        for row in rows.group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist():
            found[TenantDevice(row["tenant"], row["device"])] += row["count_all"]
    return found


def _rows(
    lake: Lake,
    stored: StoredFiles,
    columns: Sequence[str],
    bounds: Mapping[str, Range],
    devices: Collection[TenantDevice] | None,
) -> Iterator[pc.Table]:
    """Rows within bounds, of some devices or of all, row group by row group."""
    if not len(stored) or (devices is not None and not devices):
        return
    wanted: dict[str, Range] = {}
    if devices is not None:
        names, tenants = sorted({one.device for one in devices}), sorted({one.tenant for one in devices})
        wanted = {"tenant": (tenants[0], tenants[-1]), "device": (names[0], names[-1])}
        stored = stored.within("device", [(name, name) for name in names])
        columns = [*dict.fromkeys((*columns, "tenant", "device"))]
    files = lake.files("records")
    known = {name: stored.bounds(name) for name in bounds}
    with lake.damage_as_error("records"):
        for at, path in enumerate(stored.paths):
            # what the log says of all rows of a file is not read
            open_ = {name: limit for name, limit in bounds.items() if not _is_within(known[name][at], limit)}
            for rows in stored_rows(files, "records", path, columns, wanted | open_):
                yield rows if devices is None else of_devices(rows, devices)


def _is_within(known: Range, limit: Range) -> bool:
    (lowest, highest), (low, high) = known, limit
    if lowest is None or highest is None:
        return False
    return (low is None or low <= lowest) and (high is None or highest <= high)
