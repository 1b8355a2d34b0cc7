"""What one task does: finds the hours of its devices that are touched, reads the records in and around them, meters,
and writes what is another usage than that in force. Without Spark, from files chosen by the driver, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from cloud_jobs.fence_changes import EVERYTHING, FenceChange
from cloud_jobs.fence_versions import FenceVersions
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.lake.stored_files import Range
from cloud_jobs.lake.vehicle_counters import counters_texts
from cloud_jobs.usage.basis import NO_RECORDS, unreadable_text
from cloud_jobs.usage.following import (
    Stamp,
    UsageKey,
    columns_in_force,
    position_hours,
    rows_to_follow,
    stamped,
    usage_in_force,
)
from cloud_jobs.usage.metering import QUARTER_MS, Metered, MeterRules, meter
from cloud_jobs.usage.reading import (
    IS,
    METERED_COLUMNS,
    NOT_RAW,
    REASONS,
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
from waybill.record import IntervalSet

# Records that come after the positions of their hours were erased: what of them needs no position is metered all the
# same, upon what is in force. Pure, but for the rows in force that it is handed.

LATE_COLUMNS: Final = ("epoch", "seq", "content_bytes")
"""What is read of a late record beside its device, its kind and its time."""
WHOLE_COLUMNS: Final = ("seq_ranges", "events", "content_bytes", "unreadable", "counters", *OBSERVED)
"""What is taken of a row in force."""


_COUNTED_LATE: Final = {
    "events": "is_event",
    "content_bytes": "content_bytes",
    "messages": "is_readable",
    "positions": "is_position",
}
"""What a late record adds to, and the array that says how much."""


WholeRow = Mapping[str, Any]
"""What is in force of a device hour: WHOLE_COLUMNS; nothing of an hour without a row."""


class _LateRow(NamedTuple):
    device: int
    hour: int
    zone: str
    seq_ranges: str
    quantities: Mapping[str, Ints] = {}
    unreadable: str = ""
    counters: str = ""


def meter_late(late: Arrays, in_force: Mapping[UsageKey, WholeRow], names: Sequence[TenantDevice]) -> pa.Table:
    """The rows (schema METERED) that follow those in force: of the whole device with the late records' events and
    bytes, and of LATE_POSITIONS with the positions among them, whose way is not metered.

    `late`: `device`, `t_ms`, `is_position`, `is_event`, `is_readable`, `is_odometer`, `reason`, `counter` and
    LATE_COLUMNS, each record once. A record that is in a row already is passed over.
    """
    rows: list[_LateRow] = []
    hours = late["t_ms"] // HOUR_MS
    for device, hour in sorted({*zip(late["device"].tolist(), hours.tolist(), strict=True)}):
        at = np.flatnonzero((late["device"] == device) & (hours == hour))
        whole = in_force.get((device, hour, WHOLE_DEVICE), {})
        known = dict(SeqRanges.parse(whole.get("seq_ranges", NO_RECORDS)))
        # a run that died after its commit may be asked for the same records
        pairs = zip(late["epoch"][at].tolist(), late["seq"][at].tolist(), strict=True)
        at = at[[seq not in known.get(epoch, IntervalSet()) for epoch, seq in pairs]]
        if not len(at):
            continue
        quarter = late["t_ms"][at] % HOUR_MS // QUARTER_MS
        # the ways stay as they are
        quantities = {
            name: np.array(whole.get(name) or (0,) * QUARTERS, np.int64)
            for name in ("events", "content_bytes", *OBSERVED)
        }
        for name, column in _COUNTED_LATE.items():
            quantities[name] += np.bincount(quarter, late[column][at], QUARTERS).astype(np.int64)
        unreadable = _unreadable(whole.get("unreadable"), quarter, late["reason"][at])
        (counters,) = counters_texts(
            [whole.get("counters") or ""], quarter, late["is_odometer"][at], late["counter"][at]
        )
        rows.append(_LateRow(device, hour, WHOLE_DEVICE, _joined(whole, late, at), quantities, unreadable, counters))
        # a segment needs the fixes around it, and those are gone
        positions = at[late["is_position"][at]]
        if len(positions):
            before = in_force.get((device, hour, LATE_POSITIONS), {})
            rows.append(_LateRow(device, hour, LATE_POSITIONS, _joined(before, late, positions)))
    return _as_metered(rows).table(names, FenceVersions((), 0))


def _joined(row: WholeRow, late: Arrays, at: Ints) -> str:
    epochs, seqs = late["epoch"][at], late["seq"][at]
    more = {int(epoch): IntervalSet.of(seqs[epochs == epoch].tolist()) for epoch in np.unique(epochs)}
    return SeqRanges.union([SeqRanges.parse(row.get("seq_ranges", NO_RECORDS)), SeqRanges.of(more)]).text()


def _unreadable(before: str | None, quarter: Ints, reason: Ints) -> str:
    counts: dict[str, list[int]] = json.loads(before) if before else {}
    for at, code in zip(quarter.tolist(), reason.tolist(), strict=True):
        if code != NOT_RAW:
            counts.setdefault(REASONS[code], [0] * QUARTERS)[at] += 1
    return unreadable_text(counts)


def _as_metered(rows: Sequence[_LateRow]) -> Metered:
    # a row of late positions counts nothing
    nothing = np.zeros(QUARTERS, np.int64)

    def amounts(names: Sequence[str]) -> tuple[Any, ...]:
        found = ([row.quantities.get(name, nothing) for row in rows] for name in names)
        return tuple(np.array(one, np.int64).reshape(-1, QUARTERS) for one in found)

    return Metered(
        device=[row.device for row in rows],
        hour=[row.hour for row in rows],
        zone=[row.zone for row in rows],
        quantities=amounts(QUANTITIES),
        observed=amounts(OBSERVED),
        unreadable=[row.unreadable for row in rows],
        counters=[row.counters for row in rows],
        seq_ranges=[row.seq_ranges for row in rows],
    )


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
