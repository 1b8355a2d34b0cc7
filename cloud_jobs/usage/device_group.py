"""What one task does: finds the hours of its devices that are touched, reads the fixes around them, meters, and writes
what is another usage than that in force. Without Spark, from files chosen by the driver, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from cloud_jobs.fence_changes import FenceChange
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.stored_files import Range, stored_rows
from cloud_jobs.published_fences import parse_fences
from cloud_jobs.usage.metering import meter_arrays
from cloud_jobs.usage.reading import PLACE, Arrays, Devices, PositionFile, joined, positions
from cloud_jobs.usage.touched_hours import (
    HOUR_MS,
    computable,
    device_hours,
    hour_of,
    near_changes,
    touched_by,
    with_margin,
)
from geo.spatial import TrackSettings, ZoneSet
from geo.spatial.ragged import Bools, Ints, distinct

_CONTENT: Final = ("distance_mm", "duration_ms", "entries", "seq_ranges")
_NOTHING: Final = (0, 0, 0, "{}")
_NOT_YET: Final[tuple[Any, ...]] = ()
_NEVER_MS: Final = -(1 << 62)

UsageKey = tuple[int, int, str]
"""The place of a device in its group, the hour since 1970, and the zone."""


class Rules(NamedTuple):
    """What decides usage apart from the fixes: fences (features), settings, and which fences are another now."""

    features: tuple[str, ...]
    settings: TrackSettings
    changes: tuple[FenceChange, ...]


class Stamp(NamedTuple):
    """What all rows of a run carry."""

    commit_number: int
    computed_at: datetime


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
    around: tuple[PositionFile, ...]
    usage: tuple[str, ...]
    erased_before_ms: dict[TenantDevice, int]


class GroupResult(NamedTuple):
    """What a task did: files with rows of usage, touched hours, new fixes in hours that are not computed again."""

    files: tuple[DataFile, ...]
    rows: int
    touched_hours: int
    fixes_after_erasure: int


def compute_group(
    records: FileSystem, usage: FileSystem, rules: Rules, stamp: Stamp
) -> Callable[[DeviceGroup], GroupResult]:
    """A function that computes a group; `records` and `usage` are the folders of the tables."""

    def compute(group: DeviceGroup) -> GroupResult:
        devices = Devices(group.names)
        touched, too_late = _touched(records, devices, group, rules)
        if not len(touched):
            return GroupResult((), 0, 0, too_late)
        fixes = _fixes(records, devices, group, touched, rules.settings)
        metered = meter_arrays(fixes, devices.names, _zones(rules.features), rules.settings)
        rows = follow(metered, _in_force(usage, devices, group.usage, touched, stamp), devices.names)
        for row in rows:
            row["computed_at"], row["commit_number"] = stamp.computed_at, stamp.commit_number
        table = pa.Table.from_pylist(rows, schema=USAGE)
        files = write_data_files(usage, table, stamp.computed_at, table="usage")
        return GroupResult(tuple(files), len(rows), len(touched), too_late)

    return compute


def follow(
    metered: dict[UsageKey, dict[str, Any]], in_force: dict[UsageKey, tuple[Any, ...]], names: Sequence[TenantDevice]
) -> list[dict[str, Any]]:
    """The rows that must follow those in force, in order: what is other now, and zeros for what is gone."""
    rows = [row for key, row in metered.items() if tuple(row[name] for name in _CONTENT) != in_force.get(key)]
    for key in in_force.keys() - metered.keys():
        if in_force[key] != _NOTHING:
            place, hour, zone = key
            moment = {"hour": hour * HOUR_MS * 1000, "zone": zone, "day": hour // 24}
            rows.append(names[place]._asdict() | moment | dict(zip(_CONTENT, _NOTHING, strict=True)))
    return sorted(rows, key=lambda row: (row["tenant"], row["device"], row["hour"], row["zone"]))


def _touched(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> tuple[Ints, int]:
    """The hours to compute, and the number of new fixes that lie in hours that are never computed again."""
    margin_ms = rules.settings.margin_ms
    low, high = group.increment
    wanted: dict[str, Range] = {"ingest_number": (low, high)}
    new = joined((one for path in group.new for one in positions(files, path, devices, (), wanted)), ("device", "t_ms"))
    keys = touched_by(new["device"], new["t_ms"], margin_ms)
    if rules.changes:
        keys = distinct(np.concatenate([keys, _near_changes(files, devices, group, rules)]))
    erased = np.array([group.erased_before_ms.get(name, _NEVER_MS) for name in devices.names], np.int64)
    own = device_hours(new["device"], new["t_ms"] // HOUR_MS)
    too_late = int(np.count_nonzero(~computable(own, erased, margin_ms)))
    return keys[computable(keys, erased, margin_ms)], too_late


def _near_changes(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> Ints:
    place = ("latitude", "longitude")
    wanted: dict[str, Range] = {"ingest_number": (None, group.increment[1])}
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


def _fixes(files: FileSystem, devices: Devices, group: DeviceGroup, touched: Ints, settings: TrackSettings) -> Arrays:
    """The fixes of the touched hours and of those around them, each device's in the order of (epoch, seq)."""
    needed = with_margin(touched, settings.margin_ms)
    hours = hour_of(needed)
    first_ms, last_ms = int(hours.min()) * HOUR_MS, (int(hours.max()) + 1) * HOUR_MS - 1
    wanted: dict[str, Range] = {
        "ingest_number": (None, group.increment[1]),
        "device_time": (_moment(first_ms), _moment(last_ms + 1)),
    }
    parts = []
    for file in group.around:
        if (file.last_ms is None or file.last_ms >= first_ms) and (file.first_ms is None or file.first_ms <= last_ms):
            for one in positions(files, file.path, devices, PLACE, wanted):
                mine = _among(device_hours(one["device"], one["t_ms"] // HOUR_MS), needed)
                parts.append({name: column[mine] for name, column in one.items()})
    names = ("device", "t_ms", *PLACE)
    fixes = joined(parts, names)
    order = np.lexsort((fixes["seq"], fixes["epoch"], fixes["device"]))
    fixes = {name: column[order] for name, column in fixes.items()}
    keys = device_hours(fixes["device"], fixes["t_ms"] // HOUR_MS)
    return fixes | {"touched": _among(keys, touched)}


def _in_force(
    files: FileSystem, devices: Devices, paths: Sequence[str], touched: Ints, stamp: Stamp
) -> dict[UsageKey, tuple[Any, ...]]:
    """What is in force for the touched hours: of each key the content that the latest commit gave it.

    A row that is known only from later on than those of this run has the content _NOT_YET, which no other equals.
    """
    hours = hour_of(touched)
    limits = _moment(int(hours.min()) * HOUR_MS), _moment(int(hours.max()) * HOUR_MS)
    wanted: dict[str, Range] = {**devices.ranges, "hour": limits}
    latest: dict[UsageKey, tuple[int, tuple[Any, ...]]] = {}
    columns = ("tenant", "device", "hour", "zone", *_CONTENT, "commit_number", "computed_at")
    for path in paths:
        for rows in stored_rows(files, "usage", path, columns, wanted):
            hour = rows["hour"].cast(pa.int64()).to_numpy() // (HOUR_MS * 1000)
            place = devices.places(rows)
            mine = (place >= 0) & _among(device_hours(np.maximum(place, 0), hour), touched)
            kept = rows.filter(pa.array(mine)).to_pylist()
            for at, number, row in zip(place[mine].tolist(), hour[mine].tolist(), kept, strict=True):
                key, content = (at, number, row["zone"]), tuple(row[name] for name in _CONTENT)
                if row["computed_at"] > stamp.computed_at:
                    content = _NOT_YET
                if key not in latest or latest[key][0] < row["commit_number"]:
                    latest[key] = row["commit_number"], content
    return {key: content for key, (_, content) in latest.items()}


def _among(keys: Ints, asked: Ints) -> Bools:
    """Which keys are among others, which are sorted."""
    at = np.searchsorted(asked, keys)
    return np.asarray(np.r_[asked, -1][at] == keys, np.bool_)


def _moment(t_ms: int) -> datetime:
    return datetime.fromtimestamp(t_ms / 1000, UTC)


# the fences of a country take seconds to parse, and a worker computes many groups
@lru_cache(maxsize=1)
def _zones(features: tuple[str, ...]) -> ZoneSet:
    return ZoneSet(parse_fences(features).fences)
