"""The metered way beside that of the vehicles' own odometers: a device whose two differ by much is named."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.record_counts import rows_within, stored_at
from cloud_jobs.lake.schemas import QUARTERS
from cloud_jobs.lake.snapshot_reads import usage_rows
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named, parts

ODOMETER: Final = "Vehicle.TraveledDistance"
"""The signal of the whole way that a vehicle has driven, in kilometres."""
_KILOMETRES: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?)\s*(?:km)?\s*")
MOST_PER_CENT: Final = 10
_DEVICES_AT_ONCE: Final = 250
_MM_IN_KM: Final = 1_000_000
_QUARTER: Final = timedelta(hours=1) / QUARTERS


class _Reading(NamedTuple):
    time: datetime
    km: float


def compare_odometers(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None, hours: tuple[datetime, datetime]
) -> Iterator[Comparison]:
    """What is metered of devices with an odometer from its first reading in [start, end) to its last one.

    Usage is of whole quarters of an hour: the way of the two at both ends may be in it or not. Merely counted: an
    odometer may be wrong, too. Raises LakeError.
    """
    readings = _readings(lake, snapshot, devices, hours)
    if not readings:
        return
    wrong = []
    for some in parts(sorted(readings), _DEVICES_AT_ONCE):
        ways = _metered(lake, snapshot, {device: readings[device] for device in some}, hours)
        for device in some:
            first, last = readings[device]
            driven_mm, (least_mm, most_mm) = round((last.km - first.km) * _MM_IN_KM), ways[device]
            if 100 * most_mm < (100 - MOST_PER_CENT) * driven_mm or 100 * least_mm > (100 + MOST_PER_CENT) * driven_mm:
                note = f"its odometer says {driven_mm / _MM_IN_KM:,.1f} km of the same time"
                place = f"{device.tenant}/{device.device}"
                wrong.append(Comparison(Station.USAGE, "way unlike its odometer's, mm", place, None, most_mm, note))
    note = f"the ways of {len(wrong):,} differ by more than {MOST_PER_CENT} %"
    yield Comparison(Station.USAGE, "devices with an odometer", "", None, len(readings), note)
    yield from named(wrong)


def _readings(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None, hours: tuple[datetime, datetime]
) -> dict[TenantDevice, tuple[_Reading, _Reading]]:
    """The first and the last reading of each device that has two."""
    start, last = hours[0], hours[1] - timedelta.resolution
    stored = stored_at(lake, snapshot).of_days(start.date(), last.date())
    bounds = {
        "device_time": (start, last),
        "ingest_number": (None, snapshot.ingest_number),
        "name": (ODOMETER, ODOMETER),
        "kind": ("signal", "signal"),
    }
    found: dict[TenantDevice, tuple[_Reading, _Reading]] = {}
    for rows in rows_within(lake, stored, ("tenant", "device", "device_time", "number", "text"), bounds, devices):
        for row in rows.to_pylist():
            km = _number(row["text"]) if row["number"] is None else row["number"]
            if km is not None:
                reading, device = _Reading(row["device_time"], km), TenantDevice(row["tenant"], row["device"])
                before = found.get(device, (reading, reading))
                found[device] = min(before[0], reading), max(before[1], reading)
    return {device: both for device, both in found.items() if both[0].time < both[1].time and both[0].km <= both[1].km}


def _number(text: str | None) -> float | None:
    """What a signal says as text, as `"48211.7"` or `"48211.7 km"`; None if that is no number."""
    found = _KILOMETRES.fullmatch(text or "")
    return float(found[1]) if found else None


def _metered(
    lake: Lake,
    snapshot: LakeState,
    readings: dict[TenantDevice, tuple[_Reading, _Reading]],
    hours: tuple[datetime, datetime],
) -> dict[TenantDevice, tuple[int, int]]:
    """Of each device its way in the quarters that lie between its readings, and in all that have some of that time."""
    rows = usage_rows(lake, snapshot, list(readings), hours[0], hours[1] - timedelta.resolution)
    found: dict[TenantDevice, tuple[int, int]] = defaultdict(lambda: (0, 0))
    names = ("tenant", "device", "hour", "distance_mm")
    for tenant, name, hour, amounts in zip(*(rows[column].to_pylist() for column in names), strict=True):
        device = TenantDevice(tenant, name)
        first, last = (reading.time for reading in readings[device])
        for number, amount in enumerate(amounts):
            begin = hour + number * _QUARTER
            least, most = found[device]
            within = first <= begin and begin + _QUARTER <= last
            beside = begin + _QUARTER <= first or last < begin
            found[device] = least + (amount if within else 0), most + (0 if beside else amount)
    return found
