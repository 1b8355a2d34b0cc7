"""The records that usage was computed from, as the lake has them: of some devices, and of the days of a period."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.lines import Line
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.usage import MAX_SEGMENT, ErasedPast
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake
from telemetry import IntervalSet

_SHOWN: Final = (
    "epoch",
    "seq",
    "kind",
    "device_time",
    "latitude",
    "longitude",
    "speed_mps",
    "accuracy_m",
    "received_at",
)
_STREAM: Final = ["tenant", "device", "epoch"]
_POSITIONS: Final = ("position", "position")
_HOUR: Final = timedelta(hours=1)

MAX_RECORDS_SHOWN = 100_000
"""The most records that one line is opened to."""


def line_records(lake: Lake, line: Line) -> Iterator[dict[str, Any]]:
    """The records that a line was computed from, by epoch and seq, at most MAX_RECORDS_SHOWN. Raises LakeError."""
    period, device, left = line.service_period, TenantDevice(line.key.tenant, line.key.device), MAX_RECORDS_SHOWN
    stored = _stored(lake, [device], period.start - MAX_SEGMENT, period.end - timedelta.resolution)
    for epoch, seqs in line.seq_ranges:
        wanted = _ranges([device]) | {"epoch": (epoch, epoch), "seq": (seqs.first, seqs.last)}
        chosen = stored.between("epoch", epoch, epoch).between("seq", seqs.first, seqs.last)
        found = [*_rows(lake, chosen, _SHOWN, wanted)]
        for batch in pa.concat_tables(found).sort_by("seq").to_batches() if found else ():
            for row in batch.to_pylist():
                # between the first and the last there are seqs of other lines
                if row["seq"] in seqs:
                    if not left:
                        return
                    left -= 1
                    yield row


def erased_pasts(lake: Lake, before: Mapping[TenantDevice, datetime], period: Period) -> dict[TenantDevice, ErasedPast]:
    """What is erased of usage in a period, of devices with a moment before which their positions are erased.

    Only where that moment is in the period, or at most MAX_SEGMENT before it, records are read. Raises LakeError.
    """
    found = {device: ErasedPast(moment) for device, moment in before.items() if moment >= period.end}
    by_moment: dict[datetime, list[TenantDevice]] = {}
    for device, moment in before.items():
        if period.start - MAX_SEGMENT < moment < period.end:
            by_moment.setdefault(moment, []).append(device)
    for moment, devices in by_moment.items():
        kept = _kept(lake, devices, moment, moment + MAX_SEGMENT + _HOUR)
        found |= {device: ErasedPast(moment, SeqRanges.union(kept[device])) for device in devices}
    return found


def count_not_metered(
    lake: Lake, devices: Collection[TenantDevice], period: Period, numbers: tuple[int, int]
) -> Counter[TenantDevice]:
    """How many positions each device has in a period, of those with an ingest number between the two, both included.

    Files without such numbers are not opened. Raises LakeError.
    """
    found: Counter[TenantDevice] = Counter()
    if numbers[0] > numbers[1] or not devices:
        return found
    first, last = period.start, period.end - timedelta.resolution
    stored = _stored(lake, devices, first, last).between("ingest_number", *numbers)
    wanted = _ranges(devices) | {"kind": _POSITIONS, "ingest_number": numbers, "device_time": (first, last)}
    for rows in _rows(lake, stored, ("tenant", "device"), wanted):
        for row in rows.group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist():
            found[TenantDevice(row["tenant"], row["device"])] += row["count_all"]
    return found


def _kept(
    lake: Lake, devices: Collection[TenantDevice], first: datetime, last: datetime
) -> dict[TenantDevice, list[SeqRanges]]:
    """The records of some devices that the lake has between two moments."""
    found: dict[TenantDevice, list[SeqRanges]] = {device: [] for device in devices}
    stored = _stored(lake, devices, first, last).between("device_time", first, last)
    wanted = _ranges(devices) | {"device_time": (first, last)}
    for rows in _rows(lake, stored, (*_STREAM, "seq"), wanted):
        mine = rows.filter(pc.is_in(rows["device"], pa.array({one.device for one in devices}, pa.string())))
        for row in mine.group_by(_STREAM).aggregate([("seq", "list")]).to_pylist():
            device = TenantDevice(row["tenant"], row["device"])
            if device in found:
                found[device].append(SeqRanges.of({row["epoch"]: IntervalSet.of(row["seq_list"])}))
    return found


def _stored(lake: Lake, devices: Collection[TenantDevice], first: datetime, last: datetime) -> StoredFiles:
    """The files that may hold records of some devices between two moments."""
    names = sorted({one.device for one in devices})
    with lake.damage_as_error("records"):
        of_days = StoredFiles.of(lake.open("records"), "records").of_days(first.date(), last.date())
        return of_days.within("device", [(one, one) for one in names])


def _ranges(devices: Collection[TenantDevice]) -> dict[str, Range]:
    tenants, names = {one.tenant for one in devices}, {one.device for one in devices}
    return {"tenant": (min(tenants), max(tenants)), "device": (min(names), max(names))}


def _rows(lake: Lake, stored: StoredFiles, columns: Collection[str], wanted: Mapping[str, Range]) -> Iterator[pa.Table]:
    files = lake.files("records")
    with lake.damage_as_error("records"):
        for path in stored.paths:
            yield from stored_rows(files, "records", path, [*columns], wanted)
