"""Groups of devices, and the usage of one group: recomputed where records or fences changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from cloud_jobs.derived.fences import EVERYTHING, FenceChange, days_of
from cloud_jobs.lake.coverage import SeqRanges, TenantDevice
from cloud_jobs.lake.data_files import DataFile, Range, StoredFiles, day_of, stored_rows, write_data_files
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES, QUARTERS, USAGE, WHOLE_DEVICE
from cloud_jobs.lake.values import NO_RECORDS, counters_texts, unreadable_text
from cloud_jobs.reference.tables import FenceVersions
from cloud_jobs.usage.metering import QUARTER_MS, Metered, MeterRules, meter
from cloud_jobs.usage.reading import (
    HOUR_MS,
    IS,
    METERED_COLUMNS,
    MOST_HOURS,
    NOT_RAW,
    REASONS,
    RECORD_ARRAYS,
    Arrays,
    Devices,
    RecordFile,
    computable,
    device_hours,
    hour_of,
    hours_after,
    hours_before,
    is_in_order,
    joined,
    near_changes,
    positions,
    records,
    touched_by,
    with_margin,
)
from geo.spatial import TrackSettings
from geo.spatial.ragged import Bools, Ints, among, distinct
from waybill.record import IntervalSet

# Usage rows to write: changed rows, and zeros for removed ones.

HOUR_US: Final = HOUR_MS * 1000
_COLUMNS: Final = ("zone", "commit_number")
_NONE: Final = np.zeros(0, np.int64)

UsageKey = tuple[int, int, str]
"""The place of a device in its group, the hour since 1970, and the zone."""


class Stamp(NamedTuple):
    """What all rows of a run carry. `rules_number`: that of its track settings and its engine."""

    commit_number: int
    computed_at: datetime
    rules_number: int


RowInForce = tuple[str, int | None, bool]
"""Digest, rules number, and whether it is a row of zeros."""


def rows_to_follow(
    metered: Metered,
    in_force: Mapping[UsageKey, RowInForce],
    names: Sequence[TenantDevice],
    versions: FenceVersions,
    stamp: Stamp,
) -> pa.Table:
    """The rows (schema USAGE) that must follow those in force for the metered hours."""
    found = metered.table(names, versions)
    if in_force:
        keys = [*zip(metered.device, metered.hour, metered.zone, strict=True)]
        digests = found["digest"].to_pylist()
        held = (in_force.get(key) for key in keys)
        # a row with the same digest by other rules is written again: else it would look as if these did not compute it
        changed = [
            row is None or row[:2] != (digest, stamp.rules_number) for row, digest in zip(held, digests, strict=True)
        ]
        gone = {key for key, (_, _, is_zeros) in in_force.items() if not is_zeros} - {*keys}
        found = pa.concat_tables([found.filter(pa.array(changed, pa.bool_())), _zeros(sorted(gone), names)])
    return stamped(found, stamp)


def stamped(found: pa.Table, stamp: Stamp) -> pa.Table:
    """Rows (schema METERED) as those of a run (schema USAGE)."""
    count = found.num_rows
    found = found.append_column(
        USAGE.field("computed_at"), pa.repeat(pa.scalar(stamp.computed_at, USAGE.field("computed_at").type), count)
    )
    found = found.append_column(USAGE.field("commit_number"), pa.array(np.full(count, stamp.commit_number)))
    return found.append_column(USAGE.field("rules_number"), pa.array(np.full(count, stamp.rules_number)))


def usage_in_force(
    files: FileSystem, devices: Devices, paths: Sequence[str], touched: Ints
) -> dict[UsageKey, RowInForce]:
    """For each key of the touched hours the row that was committed last."""
    found = columns_in_force(files, devices, paths, touched, ("digest", "rules_number", "seq_ranges"))
    # a run has many hours, so only this is kept of each row
    return {key: (digest, rules, ranges == NO_RECORDS) for key, (digest, rules, ranges) in found.items()}


def position_hours(files: FileSystem, devices: Devices, paths: Sequence[str], touched: Ints) -> Ints:
    """The device hours around the touched ones in which tracks take positions, by the rows in force; in order."""
    hours = hour_of(touched)
    limits = _moment(int(hours.min()) - MOST_HOURS), _moment(int(hours.max()) + MOST_HOURS)
    whole = WHOLE_DEVICE, WHOLE_DEVICE
    wanted: dict[str, Range] = {**devices.ranges, "hour": limits, "zone": whole}
    keys, commits, counts = [_NONE], [_NONE], [_NONE]
    for path in paths:
        for rows in stored_rows(files, "usage", path, ("tenant", "device", "hour", "commit_number", "kept"), wanted):
            place = devices.places(rows)
            mine = np.flatnonzero((place >= 0) & np.asarray(pc.is_valid(rows["kept"])))
            found = rows.take(pa.array(mine))
            keys.append(device_hours(place[mine], found["hour"].cast(pa.int64()).to_numpy() // HOUR_US))
            commits.append(found["commit_number"].to_numpy())
            quarters = np.asarray(pc.list_flatten(found["kept"]).to_numpy(), np.int64)
            counts.append(quarters.reshape(len(mine), QUARTERS).sum(axis=1))
    key, commit, count = map(np.concatenate, (keys, commits, counts))
    order = np.lexsort((commit, key))
    last = np.append(key[order][1:] != key[order][:-1], True)[: len(order)]
    newest = order[last]
    return np.asarray(key[newest[count[newest] > 0]], np.int64)


def columns_in_force(
    files: FileSystem, devices: Devices, paths: Sequence[str], touched: Ints, names: Sequence[str]
) -> dict[UsageKey, tuple[Any, ...]]:
    """Some columns of the rows in force of the touched hours (in order), by their keys."""
    hours = hour_of(touched)
    limits = _moment(int(hours.min())), _moment(int(hours.max()))
    wanted: dict[str, Range] = {**devices.ranges, "hour": limits}
    latest: dict[UsageKey, tuple[int, tuple[Any, ...]]] = {}
    for path in paths:
        for rows in stored_rows(files, "usage", path, ("tenant", "device", "hour", *_COLUMNS, *names), wanted):
            hour = rows["hour"].cast(pa.int64()).to_numpy() // HOUR_US
            place = devices.places(rows)
            mine = (place >= 0) & among(device_hours(np.maximum(place, 0), hour), touched)
            kept = rows.filter(pa.array(mine))
            columns = (kept[name].to_pylist() for name in (*_COLUMNS, *names))
            for at, number, zone, commit, *values in zip(
                place[mine].tolist(), hour[mine].tolist(), *columns, strict=True
            ):
                key = at, number, zone
                if key not in latest or latest[key][0] < commit:
                    latest[key] = commit, tuple(values)
    return {key: row for key, (_, row) in latest.items()}


def _zeros(keys: Sequence[UsageKey], names: Sequence[TenantDevice]) -> pa.Table:
    nothing = np.zeros((len(keys), QUARTERS), np.int64)
    rows = Metered(
        device=[device for device, _, _ in keys],
        hour=[hour for _, hour, _ in keys],
        zone=[zone for _, _, zone in keys],
        quantities=(nothing,) * len(QUANTITIES),
        observed=(nothing,) * len(OBSERVED),
        unreadable=[""] * len(keys),
        counters=[""] * len(keys),
        seq_ranges=[NO_RECORDS] * len(keys),
    )
    # a row of zeros does not depend on the versions of fences
    return rows.table(names, FenceVersions((), 0))


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)


# One task: finds changed hours of its devices, reads their records, meters, and writes changed usage. No Spark.

# Late records of erased hours: everything that needs no position is metered. Pure.

LATE_COLUMNS: Final = ("epoch", "seq", "content_bytes")
"""The columns of a late record besides device, kind and time."""
WHOLE_COLUMNS: Final = ("seq_ranges", "events", "content_bytes", "unreadable", "counters", *OBSERVED)
"""The columns that are taken from a row in force."""


_COUNTED_LATE: Final = {
    "events": "is_event",
    "content_bytes": "content_bytes",
    "messages": "is_readable",
    "positions": "is_position",
}
"""The columns to which a late record adds, and the arrays with the amounts."""


WholeRow = Mapping[str, Any]
"""WHOLE_COLUMNS of the row in force of a device hour; empty without a row."""


_LateRow = tuple[int, int, str, str, Mapping[str, Ints], str, str]
"""Device, hour, zone, seq ranges, quantities by name, unreadable and counters."""


def meter_late(late: Arrays, in_force: Mapping[UsageKey, WholeRow], names: Sequence[TenantDevice]) -> pa.Table:
    """The rows (schema METERED) that follow those in force: of the whole device with the late records' events and
    bytes, and of LATE_POSITIONS with the positions among them, whose way is not metered.

    `late`: `device`, `t_ms`, `is_position`, `is_event`, `is_readable`, `is_odometer`, `reason`, `counter` and
    LATE_COLUMNS, each record once. A record that is in a row already is skipped.
    """
    rows: list[_LateRow] = []
    hours = late["t_ms"] // HOUR_MS
    for device, hour in sorted({*zip(late["device"].tolist(), hours.tolist(), strict=True)}):
        at = np.flatnonzero((late["device"] == device) & (hours == hour))
        whole = in_force.get((device, hour, WHOLE_DEVICE), {})
        known = dict(SeqRanges.parse(whole.get("seq_ranges", NO_RECORDS)))
        # a run after a crash may be asked for the same records again
        pairs = zip(late["epoch"][at].tolist(), late["seq"][at].tolist(), strict=True)
        at = at[[seq not in known.get(epoch, IntervalSet()) for epoch, seq in pairs]]
        if not len(at):
            continue
        quarter = late["t_ms"][at] % HOUR_MS // QUARTER_MS
        # distances and times stay as they are
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
        rows.append((device, hour, WHOLE_DEVICE, _joined(whole, late, at), quantities, unreadable, counters))
        # a segment needs the fixes around it, and those are gone
        positions = at[late["is_position"][at]]
        if len(positions):
            before = in_force.get((device, hour, LATE_POSITIONS), {})
            rows.append((device, hour, LATE_POSITIONS, _joined(before, late, positions), {}, "", ""))
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
    columns: list[list[Any]] = [[row[at] for row in rows] for at in range(7)]
    device, hour, zone, seq_ranges, quantities, unreadable, counters = columns
    # a row of late positions counts nothing
    nothing = np.zeros(QUARTERS, np.int64)

    def amounts(names: Sequence[str]) -> tuple[Ints, ...]:
        found = ([row.get(name, nothing) for row in quantities] for name in names)
        return tuple(np.array(one, np.int64).reshape(-1, QUARTERS) for one in found)

    return Metered(device, hour, zone, amounts(QUANTITIES), amounts(OBSERVED), unreadable, counters, seq_ranges)


_NEVER_MS: Final = -(1 << 62)


class Rules(NamedTuple):
    """What decides usage apart from the fixes: fences (features), settings, and the changes of fences."""

    features: tuple[str, ...]
    settings: TrackSettings
    changes: tuple[FenceChange, ...]


class DeviceGroup(NamedTuple):
    """The devices of one task, and the files that can hold their data.

    `new`: records with an ingest number in `increment`. `changed`: of days in which fences changed. `around`: of the
    days of both, and of those beside them. `usage`: what was computed before. `erased_before_ms`: of the devices with
    erased positions.
    """

    names: tuple[TenantDevice, ...]
    increment: tuple[int, int]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    around: tuple[RecordFile, ...]
    usage: tuple[str, ...]
    erased_before_ms: dict[TenantDevice, int]


MAX_VEHICLES: Final = 20
"""The most vehicles that a run names; its sums have all."""


class VehicleUsage(NamedTuple):
    """What a run computed for a device, in all of its touched hours. Distance in mm."""

    tenant: str
    device: str
    hours: int
    distance_mm: int
    entries: int


class UsageSums(NamedTuple):
    """The devices with the longest ways, at most MAX_VEHICLES, and the sums of all. Distance in mm."""

    listed: tuple[VehicleUsage, ...] = ()
    vehicles: int = 0
    distance_mm: int = 0
    entries: int = 0

    @classmethod
    def of(cls, metered: Metered, names: Sequence[TenantDevice]) -> UsageSums:
        device = np.array(metered.device, np.int64)
        # gates have no way, and rows of a whole device have neither: so nothing counts twice
        by_name = dict(zip(QUANTITIES, metered.quantities, strict=True))
        ways, entries = (
            np.bincount(device, by_name[name].sum(axis=1), len(names)).astype(np.int64)
            for name in ("distance_mm", "entries")
        )
        hours = Counter(one for one, _ in {*zip(metered.device, metered.hour, strict=True)})
        found = [
            VehicleUsage(names[at].tenant, names[at].device, hours[at], int(ways[at]), int(entries[at]))
            for at in np.unique(device).tolist()
        ]
        return cls(_longest(found), len(found), int(ways.sum()), int(entries.sum()))

    @classmethod
    def total(cls, parts: Iterable[UsageSums]) -> UsageSums:
        """The sums of groups, none of which has a device of another."""
        parts = [*parts]
        listed = _longest(one for part in parts for one in part.listed)
        return cls(
            listed,
            sum(part.vehicles for part in parts),
            sum(part.distance_mm for part in parts),
            sum(part.entries for part in parts),
        )


NO_USAGE: Final = UsageSums()


def _longest(found: Iterable[VehicleUsage]) -> tuple[VehicleUsage, ...]:
    ordered = sorted(found, key=lambda one: (-one.distance_mm, -one.entries, one.tenant, one.device))
    return tuple(ordered[:MAX_VEHICLES])


class GroupResult(NamedTuple):
    """The result of a task: files with rows of usage, touched hours, and new records in hours that are not computed
    again.
    """

    files: tuple[DataFile, ...]
    rows: int
    touched_hours: int
    records_after_erasure: int
    sums: UsageSums = NO_USAGE


def compute_group(
    records_folder: FileSystem, usage_folder: FileSystem, rules: Rules, stamp: Stamp
) -> Callable[[DeviceGroup], GroupResult]:
    """A function that computes a group, from the folders of the tables."""

    def compute(group: DeviceGroup) -> GroupResult:
        devices = Devices(group.names)
        touched, near, late = _touched(records_folder, devices, group, rules)
        made, too_late, sums = [], 0, NO_USAGE
        if len(touched):
            metering = _meter_rules(rules.features, rules.settings)
            # a gap is of the hour in which it ends, and known from the fixes at both ends; of touched hours, which are
            # read anyway, nobody knows yet whether tracks take any of their fixes
            known = position_hours(usage_folder, devices, group.usage, touched)
            known = known[~among(known, touched)]
            following = hours_after(known, near)
            following = following[_computable(following, devices, group, rules.settings.margin_ms)]
            touched = distinct(np.concatenate([touched, following]))
            records = group_records(
                records_folder, devices, group, touched, rules.settings, before=hours_before(known, touched)
            )
            metered = meter(records, metering)
            sums = UsageSums.of(metered, devices.names)
            in_force = usage_in_force(usage_folder, devices, group.usage, touched)
            made.append(rows_to_follow(metered, in_force, devices.names, metering.versions, stamp))
        if len(late):
            # few, if any, so they are read again with more columns
            found = _late_records(records_folder, devices, group, late)
            too_late = len(found["t_ms"])
            held = columns_in_force(usage_folder, devices, group.usage, late, WHOLE_COLUMNS)
            in_force_late = {key: dict(zip(WHOLE_COLUMNS, values, strict=True)) for key, values in held.items()}
            made.append(stamped(meter_late(found, in_force_late, devices.names), stamp))
        if not made:
            return GroupResult((), 0, 0, 0)
        rows = pa.concat_tables(made)
        files = write_data_files(usage_folder, rows, stamp.computed_at, table="usage")
        return GroupResult(tuple(files), rows.num_rows, len(touched), too_late, sums)

    return compute


def _touched(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> tuple[Ints, Ints, Ints]:
    """The hours to compute, those of them that new positions affect, and those that are never computed again."""
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
    keys, near = (one[_computable(one, devices, group, margin_ms)] for one in (keys, near))
    return keys, near, own[~_computable(own, devices, group, margin_ms)]


def _computable(hours: Ints, devices: Devices, group: DeviceGroup, margin_ms: int) -> Bools:
    erased = np.array([group.erased_before_ms.get(name, _NEVER_MS) for name in devices.names], np.int64)
    return computable(hours, erased, margin_ms)


def _late_records(files: FileSystem, devices: Devices, group: DeviceGroup, late: Ints) -> Arrays:
    """The new records of hours that are never computed again."""
    names = ("device", "t_ms", *IS, "reason", "counter", *LATE_COLUMNS)
    wanted: dict[str, Range] = {"ingest_number": group.increment}
    parts = (one for path in group.new for one in records(files, path, devices, LATE_COLUMNS, wanted, texts=True))
    found = joined(parts, names)
    mine = among(device_hours(found["device"], found["t_ms"] // HOUR_MS), late)
    return {name: column[mine] for name, column in found.items()}


def _of_changes(files: FileSystem, devices: Devices, group: DeviceGroup, rules: Rules) -> Ints:
    """The hours that changed fences or settings may affect without a new record."""
    wanted: dict[str, Range] = {"ingest_number": (None, group.increment[1])}
    if EVERYTHING in rules.changes:
        # hours without a fix too: their rows state the engine and the time of their computation
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

    `before`: hours whose fixes are needed too, because a gap may begin there; the fixes after them affect them.
    """
    needed = distinct(np.concatenate([with_margin(touched, settings.margin_ms), before, before + 1]))
    hours = hour_of(needed)
    first_ms, last_ms = int(hours.min()) * HOUR_MS, (int(hours.max()) + 1) * HOUR_MS - 1
    wanted: dict[str, Range] = {
        "ingest_number": (None, group.increment[1]),
        "device_time": (_moment_of_ms(first_ms), _moment_of_ms(last_ms + 1)),
    }
    parts = []
    for file in group.around:
        if (file.last_ms is None or file.last_ms >= first_ms) and (file.first_ms is None or file.first_ms <= last_ms):
            for one in records(files, file.path, devices, METERED_COLUMNS, wanted, texts=True):
                keys = device_hours(one["device"], one["t_ms"] // HOUR_MS)
                one["touched"] = among(keys, touched)
                mine = one["touched"] | (one["is_position"] & among(keys, needed))
                parts.append(one if mine.all() else {name: column[mine] for name, column in one.items()})
    found = joined(parts, (*RECORD_ARRAYS, "touched"))
    if is_in_order(found["device"], found["epoch"], found["seq"]):
        return found
    order = np.lexsort((found["seq"], found["epoch"], found["device"]))
    return {name: column[order] for name, column in found.items()}


def _moment_of_ms(t_ms: int) -> datetime:
    return datetime.fromtimestamp(t_ms / 1000, UTC)


# parsing the fences of a country takes seconds, and a worker computes many groups
@lru_cache(maxsize=1)
def _meter_rules(features: tuple[str, ...], settings: TrackSettings) -> MeterRules:
    return MeterRules(features, settings)


MOST_RECORDS: Final = 1_000_000
"""About the most records that a task holds at once; a device with more is a group by itself."""
_LEAST_RECORDS: Final = 50_000
_AROUND_EACH: Final = 400
"""About the number of records read around each device with a new one."""
_DAY_MS: Final = 86_400_000


class Wanted(NamedTuple):
    """The files of a run: with new records, of days with changed fences, and of all days that affect these."""

    increment: tuple[int, int]
    new: StoredFiles
    changed: StoredFiles | None
    around: StoredFiles

    @property
    def listed(self) -> list[tuple[str, dict[str, Range]]]:
        """The files whose devices are to be computed, with the range of ingest numbers that counts in each."""
        low, high = self.increment
        found: dict[str, dict[str, Range]] = {path: {"ingest_number": (low, high)} for path in self.new.paths}
        if self.changed is not None:
            found |= {path: {"ingest_number": (None, high)} for path in self.changed.paths}
        return [*found.items()]


def wanted_files(
    stored: StoredFiles, increment: tuple[int, int], changes: Sequence[FenceChange], margin_ms: int
) -> Wanted:
    """The files of a run over an increment (first and last ingest number) and changes of fences.

    A new fix touches hours up to a margin away, and the fixes that affect those lie up to a margin further.
    """
    new = stored.between("ingest_number", *increment)
    # an hour more for each margin: hours are computed and read whole; and the hours at both ends of the longest gap
    reach = timedelta(days=-(-(2 * (margin_ms + HOUR_MS) + MOST_HOURS * HOUR_MS) // _DAY_MS))
    days = {day for path in new.paths if (day := day_of(path)) is not None}
    changed = None
    if changes:
        first, last = days_of(changes)
        changed = stored.of_days(first - timedelta(days=1), last)
        days |= {day for path in changed.paths if (day := day_of(path)) is not None}
    around = {day + shift * timedelta(days=1) for day in days for shift in range(-reach.days, reach.days + 1)}
    return Wanted(increment, new, changed, stored.on_days(around))


def total(counts: Iterable[Mapping[TenantDevice, int]]) -> Counter[TenantDevice]:
    found = Counter[TenantDevice]()
    for one in counts:
        found.update(one)
    return found


def device_groups(
    counts: Mapping[TenantDevice, int], wanted: Wanted, usage: StoredFiles, erasures: Erasures, *, tasks: int
) -> Iterator[DeviceGroup]:
    """Groups of neighbouring devices: about `tasks` of them, more for much data, one for little."""
    weights = {name: number + _AROUND_EACH for name, number in sorted(counts.items())}
    most = min(max(sum(weights.values()) // max(tasks, 1), _LEAST_RECORDS), MOST_RECORDS)
    # these reach a day beyond any touched hour on both sides
    days = sorted(day for path in wanted.around.paths if (day := day_of(path)) is not None)
    usage = usage.of_days(days[0], days[-1]) if days else usage
    for names in _cut(weights, most):
        around = _of_devices(wanted.around, names)
        yield DeviceGroup(
            names=tuple(names),
            increment=wanted.increment,
            new=tuple(_of_devices(wanted.new, names).paths),
            changed=() if wanted.changed is None else tuple(_of_devices(wanted.changed, names).paths),
            around=tuple(record_files(around)),
            usage=tuple(_of_devices(usage, names).paths),
            erased_before_ms=_erased_before_ms(names, erasures),
        )


def _cut(weights: Mapping[TenantDevice, int], most: int) -> Iterator[list[TenantDevice]]:
    held: list[TenantDevice] = []
    weight = 0
    for name, more in weights.items():
        if held and weight + more > most:
            yield held
            held, weight = [], 0
        held.append(name)
        weight += more
    if held:
        yield held


def _of_devices(stored: StoredFiles, names: Sequence[TenantDevice]) -> StoredFiles:
    """The files that may hold rows of some devices, which are in order."""
    devices = [name.device for name in names]
    of_tenants = stored.between("tenant", names[0].tenant, names[-1].tenant)
    return of_tenants.between("device", min(devices), max(devices))


def record_files(stored: StoredFiles) -> Iterator[RecordFile]:
    """The files with the times of their rows, by the bounds in the log."""
    for path, (first, last) in zip(stored.paths, stored.bounds("device_time"), strict=True):
        yield RecordFile(path, _ms(first), _ms(last))


def _erased_before_ms(names: Iterable[TenantDevice], erasures: Erasures) -> dict[TenantDevice, int]:
    if not erasures:
        return {}
    found = {name: _ms(erasures.before(name.tenant, name.device)) for name in names}
    return {name: before for name, before in found.items() if before is not None}


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(pa.scalar(moment, pa.timestamp("us", tz="UTC")).value // 1000)
