"""What one task does: finds the hours of its devices that are touched, reads the records in and around them, meters,
and writes what is another usage than that in force. Without Spark, from files chosen by the driver, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from cloud_jobs.fence_changes import EVERYTHING, FenceChange
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.stored_files import Range
from cloud_jobs.usage.after_erasure import LATE_COLUMNS, WHOLE_COLUMNS, meter_late
from cloud_jobs.usage.following import Stamp, columns_in_force, position_hours, rows_to_follow, stamped, usage_in_force
from cloud_jobs.usage.metering import MeterRules, meter
from cloud_jobs.usage.reading import (
    IS,
    METERED_COLUMNS,
    RECORD_ARRAYS,
    Arrays,
    Devices,
    RecordFile,
    joined,
    positions,
    records,
    with_texts,
)
from cloud_jobs.usage.touched_hours import (
    HOUR_MS,
    among,
    computable,
    device_hours,
    hour_of,
    hours_after,
    hours_before,
    is_in_order,
    near_changes,
    touched_by,
    with_margin,
)
from geo.spatial import TrackSettings
from geo.spatial.ragged import Bools, Ints, distinct

_NEVER_MS: Final = -(1 << 62)


class Rules(NamedTuple):
    """What decides usage apart from the fixes: fences (features), settings, and which fences are another now."""

    features: tuple[str, ...]
    settings: TrackSettings
    changes: tuple[FenceChange, ...]


class DeviceGroup(NamedTuple):
    """Devices that one task computes, and the files that can hold what it needs of them.

    `new`: records with an ingest number in `increment`. `changed`: of days in which fences changed. `around`: of the
    days of both, and of those beside them. `usage`: what was computed before. `erased_before_ms`: of the devices that
    have erased positions.
    """

    names: tuple[TenantDevice, ...]
    increment: tuple[int, int]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    around: tuple[RecordFile, ...]
    usage: tuple[str, ...]
    erased_before_ms: dict[TenantDevice, int]


class GroupResult(NamedTuple):
    """What a task did: files with rows of usage, touched hours, new records in hours that are not computed again: of
    those what needs no position is added to what is in force."""

    files: tuple[DataFile, ...]
    rows: int
    touched_hours: int
    records_after_erasure: int


def compute_group(
    records_folder: FileSystem, usage_folder: FileSystem, rules: Rules, stamp: Stamp
) -> Callable[[DeviceGroup], GroupResult]:
    """A function that computes a group, from the folders of the tables."""

    def compute(group: DeviceGroup) -> GroupResult:
        devices = Devices(group.names)
        hours, late = _touched(records_folder, devices, group, rules)
        touched, made, too_late = hours.all, [], 0
        if len(touched):
            metering = _meter_rules(rules.features, rules.settings)
            # a gap is of the hour in which it ends, and known from the fixes at both ends; of touched hours, which are
            # read anyway, nobody knows yet whether tracks take any of their fixes
            known = position_hours(usage_folder, devices, group.usage, touched)
            known = known[~among(known, touched)]
            following = hours_after(known, hours.near)
            touched = distinct(np.concatenate([touched, following[hours.are_computable(following)]]))
            records = group_records(
                records_folder, devices, group, touched, rules.settings, before=hours_before(known, touched)
            )
            metered = meter(records, metering)
            in_force = usage_in_force(usage_folder, devices, group.usage, touched)
            made.append(rows_to_follow(metered, in_force, devices.names, metering.versions, stamp))
        if len(late):
            # few, if any: they are read again, with what is metered of them
            found = _late_records(records_folder, devices, group, late)
            too_late = len(found["t_ms"])
            held = columns_in_force(usage_folder, devices, group.usage, late, WHOLE_COLUMNS)
            in_force_late = {key: dict(zip(WHOLE_COLUMNS, values, strict=True)) for key, values in held.items()}
            made.append(stamped(meter_late(found, in_force_late, devices.names), stamp))
        if not made:
            return GroupResult((), 0, 0, 0)
        rows = pa.concat_tables(made)
        files = write_data_files(usage_folder, rows, stamp.computed_at, table="usage")
        return GroupResult(tuple(files), rows.num_rows, len(touched), too_late)

    return compute


class _TouchedHours(NamedTuple):
    """The hours to compute; `near`: those of them in which new positions have a say."""

    all: Ints
    near: Ints
    are_computable: Callable[[Ints], Bools]


def _touched(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> tuple[_TouchedHours, Ints]:
    """The hours to compute, and those with new records that are never computed again."""
    margin_ms = rules.settings.margin_ms
    wanted: dict[str, Range] = {"ingest_number": group.increment}
    names = ("device", "t_ms", "is_position")
    new = joined((one for path in group.new for one in records(files, path, devices, (), wanted)), names)
    own = distinct(device_hours(new["device"], new["t_ms"] // HOUR_MS))
    fix = new["is_position"]
    near = touched_by(new["device"][fix], new["t_ms"][fix], rules.settings.reach_ahead_ms, margin_ms)
    keys = distinct(np.concatenate([near, own]))
    if rules.changes:
        keys = distinct(np.concatenate([keys, _of_changes(files, devices, group, rules)]))
    erased = np.array([group.erased_before_ms.get(name, _NEVER_MS) for name in devices.names], np.int64)

    def are_computable(hours: Ints) -> Bools:
        return computable(hours, erased, margin_ms)

    keys, near = (one[are_computable(one)] for one in (keys, near))
    return _TouchedHours(keys, near, are_computable), own[~are_computable(own)]


def _late_records(files: FileSystem, devices: Devices, group: DeviceGroup, late: Ints) -> Arrays:
    """The new records of hours that are never computed again."""
    names = ("device", "t_ms", *IS, *LATE_COLUMNS)
    wanted: dict[str, Range] = {"ingest_number": group.increment}
    found = joined((one for path in group.new for one in records(files, path, devices, LATE_COLUMNS, wanted)), names)
    mine = among(device_hours(found["device"], found["t_ms"] // HOUR_MS), late)
    found = {name: column[mine] for name, column in found.items()}
    return with_texts(found, files, group.new, devices, ranges=wanted, hours=late)


def _of_changes(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> Ints:
    """The hours in which something may be another one now, although no record of them is new."""
    wanted: dict[str, Range] = {"ingest_number": (None, group.increment[1])}
    if EVERYTHING in rules.changes:
        # also hours without a fix: their rows say by which engine they were computed, and when
        parts = (one for path in group.changed for one in records(files, path, devices, (), wanted))
        found = joined(parts, ("device", "t_ms"))
        return distinct(device_hours(found["device"], found["t_ms"] // HOUR_MS))
    place = ("latitude", "longitude")
    names = ("device", "t_ms", *place)
    found = joined((one for path in group.changed for one in positions(files, path, devices, place, wanted)), names)
    gap_ms = round(rules.settings.max_gap_s * 1000)
    return near_changes(
        found["device"],
        found["t_ms"],
        found["longitude"],
        found["latitude"],
        changes=rules.changes,
        gap_ms=gap_ms,
    )


def group_records(
    files: FileSystem, devices: Devices, group: DeviceGroup, touched: Ints, settings: TrackSettings, *, before: Ints
) -> Arrays:
    """The records of the touched hours and the fixes around them, each device's in the order of (epoch, seq).

    `before`: hours whose fixes are needed too, where a gap may begin; the fixes after them have a say in theirs.
    """
    needed = distinct(np.concatenate([with_margin(touched, settings.margin_ms), before, before + 1]))
    hours = hour_of(needed)
    first_ms, last_ms = int(hours.min()) * HOUR_MS, (int(hours.max()) + 1) * HOUR_MS - 1
    wanted: dict[str, Range] = {
        "ingest_number": (None, group.increment[1]),
        "device_time": (_moment(first_ms), _moment(last_ms + 1)),
    }
    parts, paths = [], []
    for file in group.around:
        if (file.last_ms is None or file.last_ms >= first_ms) and (file.first_ms is None or file.first_ms <= last_ms):
            for one in records(files, file.path, devices, METERED_COLUMNS, wanted):
                keys = device_hours(one["device"], one["t_ms"] // HOUR_MS)
                one["touched"] = among(keys, touched)
                mine = one["touched"] | (one["is_position"] & among(keys, needed))
                parts.append(one if mine.all() else {name: column[mine] for name, column in one.items()})
                paths.append(file.path)
    found = joined(parts, (*RECORD_ARRAYS, "touched"))
    found = with_texts(found, files, dict.fromkeys(paths), devices, ranges=wanted, hours=touched)
    if is_in_order(found["device"], found["epoch"], found["seq"]):
        return found
    order = np.lexsort((found["seq"], found["epoch"], found["device"]))
    return {name: column[order] for name, column in found.items()}


def _moment(t_ms: int) -> datetime:
    return datetime.fromtimestamp(t_ms / 1000, UTC)


# the fences of a country take seconds to parse, and a worker computes many groups
@lru_cache(maxsize=1)
def _meter_rules(features: tuple[str, ...], settings: TrackSettings) -> MeterRules:
    return MeterRules(features, settings)
