"""The certificates of many devices at once, read from a lake at a snapshot, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.certificates.certificate import (
    UNKNOWN_TOPIC,
    USUAL_BOUNDS,
    DeviceCertificate,
    DeviceCounts,
    Observed,
    certify,
)
from cloud_jobs.billing.certificates.decisions import by_device, decisions
from cloud_jobs.billing.contracts import DoubtBounds
from cloud_jobs.billing.contracts.published import micros, moment_of
from cloud_jobs.billing.rating.cells_of_usage import of_hours, quarters_of
from cloud_jobs.lake.coverage import Coverage, SeqRanges, TenantDevice
from cloud_jobs.lake.data_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import (
    DeviceFilter,
    conflicts,
    coverage,
    erasures,
    erasures_since,
    of_devices,
    reference_rows,
    rows_at,
    usage_rows,
)
from cloud_jobs.lake.snapshots import LakeState, Reach, reach_at
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.values import OdometerWay, encoded
from geo.reference.in_force import RefusedVersion, published_fences
from geo.reference.moments import stamp

# Counts of records that do not affect a certificate's state, for many devices at once.

_HOUR: Final = timedelta(hours=1)
_QUARTER: Final = _HOUR / QUARTERS
_NO_REACH: Final = Reach()
_OF_DEVICE: Final = ("tenant", "device")
_USAGE_KEY: Final = (*_OF_DEVICE, "hour", "zone", "commit_number")
_POSITION: Final = "position"
_OBSERVED: Final = (*OBSERVED, "events")
OBSERVED_COLUMNS: Final = (*_USAGE_KEY, *_OBSERVED, "unreadable", "counters")
"""The columns of usage that certificates need."""

HoursOf = Mapping[TenantDevice, tuple[datetime, datetime]]
"""For each device the requested time, its end excluded."""


Counts = Counter[TenantDevice]


def count_not_metered(lake: Lake, snapshot: LakeState, hours_of: HoursOf, reach: Reach) -> Counter[TenantDevice]:
    """The records of each device's time that usage does not cover yet.

    Positions within the reach around it count, because they affect its usage. Raises LakeError.
    """
    numbers = (snapshot.covers + 1, snapshot.ingest_number)
    if numbers[0] > numbers[1] or not hours_of:
        return Counter()
    start, end = _around(hours_of)
    first, last = start - reach.before, end + reach.after - timedelta.resolution
    stored = _of_days(lake, first, last).between("ingest_number", *numbers).between("device_time", first, last)
    found: Counter[TenantDevice] = Counter()
    wanted: dict[str, Range] = {"ingest_number": numbers, "device_time": (first, last)}
    for rows in _rows(lake, stored, hours_of, (*_OF_DEVICE, "kind", "device_time"), wanted):
        # outside the period only positions affect its usage
        near = pc.and_(_within(rows, hours_of, reach), pc.equal(rows["kind"], _POSITION))
        found += _counted(rows.filter(pc.or_(_within(rows, hours_of), near)))
    return found


def count_far_off(lake: Lake, snapshot: LakeState, hours_of: HoursOf) -> Counter[TenantDevice]:
    """The records of each device without a day (wrong clock), received since its time began. Raises LakeError."""
    found: Counter[TenantDevice] = Counter()
    if hours_of:
        with lake.damage_as_error("records"):
            stored = StoredFiles.of(lake.open("records"), "records").without_day()
        stored = stored.between("ingest_number", high=snapshot.ingest_number)
        wanted: dict[str, Range] = {"ingest_number": (None, snapshot.ingest_number)}
        for rows in _rows(lake, stored, hours_of, (*_OF_DEVICE, "received_at"), wanted):
            row_of, asked = _devices_of(rows)
            begin = np.array([micros(hours_of[one][0]) for one in asked], np.int64)[row_of]
            received = rows["received_at"].cast(pa.int64()).fill_null(np.iinfo(np.int64).max).to_numpy()
            found += _counted(rows.filter(pa.array(received >= begin)))
    return found


def count_late_positions(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice], hours_of: HoursOf
) -> Counter[TenantDevice]:
    """Positions of each device's time that arrived after the positions around them were erased."""
    late: Counter[TenantDevice] = Counter()
    if devices:
        start, end = _around(hours_of)
        columns = (*_USAGE_KEY, "seq_ranges")
        last = end - timedelta.resolution
        rows = usage_rows(lake, snapshot, devices, start, last, columns=columns, zone=LATE_POSITIONS)
        for row in rows.to_pylist():
            device = TenantDevice(row["tenant"], row["device"])
            begin, until = hours_of[device]
            if begin - _HOUR < row["hour"] < until:
                late[device] += SeqRanges.parse(row["seq_ranges"]).count
    return late


def observed_usage(
    lake: Lake, snapshot: LakeState, hours_of: HoursOf, usage: pa.Table | None = None
) -> dict[TenantDevice, Observed]:
    """What usage reports about each device's time; devices without usage are left out. Raises LakeError.

    `usage`: see `certificates_of_spans`.
    """
    if not hours_of:
        return {}
    if usage is None:
        start, end = _around(hours_of)
        end -= timedelta.resolution
        rows = usage_rows(lake, snapshot, [*hours_of], start, end, columns=OBSERVED_COLUMNS, zone=WHOLE_DEVICE)
    else:
        is_whole = pc.equal(usage["zone"], WHOLE_DEVICE).to_numpy() & DeviceFilter(hours_of).mask(usage)
        rows = rows_at(usage.select(OBSERVED_COLUMNS), np.flatnonzero(is_whole))
    if not rows.num_rows:
        return {}
    device, names, within = _quarters_within(rows, hours_of)
    sums = {name: _sums(rows[name], within, device, len(names)).tolist() for name in _OBSERVED}
    begins = _quarter_begins(rows)
    last = np.full(len(names), -1)
    positions = np.where(within & (quarters_of(rows["positions"]) > 0), begins, -1)
    np.maximum.at(last, device, positions.max(axis=1))
    unreadable, after = [Counter[str]() for _ in names], [0 for _ in names]
    for at in np.flatnonzero(pc.fill_null(pc.not_equal(rows["unreadable"], ""), False)).tolist():
        for reason, counts in json.loads(rows["unreadable"][at].as_py()).items():
            unreadable[device[at]][reason] += sum(np.array(counts)[within[at]].tolist())
            if reason == UNKNOWN_TOPIC and (until := last[device[at]]) >= 0:
                after[device[at]] += sum(np.array(counts)[within[at] & (begins[at] > until)].tolist())
    dropped, readings = Counter[TenantDevice](), dict[TenantDevice, list[_Reading]]()
    for at in np.flatnonzero(pc.fill_null(pc.not_equal(rows["counters"], ""), False)).tolist():
        said, name, hour = json.loads(rows["counters"][at].as_py()), names[device[at]], rows["hour"][at].as_py()
        dropped[name] += sum(np.array(said.get("dropped", (0,) * QUARTERS))[within[at]].tolist())
        for number, both in enumerate(said.get("odometer_m", ())):
            if both and within[at][number]:
                readings.setdefault(name, []).append(_Reading(hour.astimezone(UTC) + number * _QUARTER, *both))
    ways = _odometer_ways(lake, snapshot, readings)
    return {
        name: Observed(
            **{of: one[at] for of, one in sums.items()},
            unreadable=tuple(sorted((+unreadable[at]).items())),
            positions_until="" if last[at] < 0 else stamp(moment_of(int(last[at])) + _QUARTER),
            unknown_after=after[at],
            dropped=dropped[name],
            odometer=ways.get(name),
        )
        for at, name in enumerate(names)
    }


class _Reading(NamedTuple):
    """The least and the greatest odometer reading in a quarter of an hour."""

    begin: datetime
    low_m: int
    high_m: int


def _odometer_ways(
    lake: Lake, snapshot: LakeState, readings: Mapping[TenantDevice, list[_Reading]]
) -> dict[TenantDevice, OdometerWay]:
    """The odometer distance of devices with two readings whose odometer never went back."""
    spans = dict[TenantDevice, tuple[_Reading, _Reading]]()
    for name, found in readings.items():
        found.sort()
        first, last = found[0], found[-1]
        are_two = (first.begin, first.low_m) != (last.begin, last.high_m)
        if are_two and all(before.high_m <= after.low_m for before, after in pairwise(found)):
            spans[name] = first, last
    if not spans:
        return {}
    around = {name: (first.begin, last.begin + _QUARTER) for name, (first, last) in spans.items()}
    start, end = _around(around)
    columns = (*_USAGE_KEY, "distance_mm")
    rows = usage_rows(lake, snapshot, [*spans], start, end - timedelta.resolution, columns=columns)
    device, names, most = _quarters_within(rows, around)
    between = {name: (begin + _QUARTER, end - _QUARTER) for name, (begin, end) in around.items()}
    _, _, least = _quarters_within(rows, between)
    ways = [_sums(rows["distance_mm"], within, device, len(names)).tolist() for within in (least, most)]
    return {
        name: OdometerWay(*around[name], spans[name][1].high_m - spans[name][0].low_m, *both)
        for name, *both in zip(names, *ways, strict=True)
    }


def _quarters_within(
    rows: pa.Table, hours_of: HoursOf
) -> tuple[NDArray[np.int64], list[TenantDevice], NDArray[np.bool_]]:
    """The device index of each row, the devices, and which quarters of each row are in the device's time."""
    device, names = _devices_of(rows)
    limits = np.array([[micros(one) for one in hours_of[name]] for name in names], np.int64)
    limits = limits.reshape(-1, 2)[device]
    quarter = _quarter_begins(rows)
    # periods begin and end on quarters of an hour
    return device, names, (quarter >= limits[:, :1]) & (quarter < limits[:, 1:])


def _quarter_begins(rows: pa.Table) -> NDArray[np.int64]:
    """The start of each quarter of each row, in µs."""
    hour: NDArray[np.int64] = rows["hour"].cast(pa.int64()).to_numpy()[:, None]
    return hour + np.arange(QUARTERS) * (_QUARTER // timedelta.resolution)


def _devices_of(rows: pa.Table) -> tuple[NDArray[np.int64], list[TenantDevice]]:
    tenants, devices = (encoded(rows[name]) for name in _OF_DEVICE)
    count = max(len(devices.dictionary), 1)
    codes = tenants.indices.to_numpy().astype(np.int64) * count + devices.indices.to_numpy()
    pairs, place = np.unique(codes, return_inverse=True)
    names = [
        TenantDevice(tenants.dictionary[one // count].as_py(), devices.dictionary[one % count].as_py()) for one in pairs
    ]
    return place, names


def _sums(
    column: pa.ChunkedArray, within: NDArray[np.bool_], device: NDArray[np.int64], devices: int
) -> NDArray[np.int64]:
    """The sum of each device's quarters within its time; null counts as 0."""
    found = np.zeros(devices, np.int64)
    np.add.at(found, device, of_hours(quarters_of(column) * within))
    return found


def _of_days(lake: Lake, first: datetime, last: datetime) -> StoredFiles:
    with lake.damage_as_error("records"):
        return StoredFiles.of(lake.open("records"), "records").of_days(first.date(), last.date())


def _rows(
    lake: Lake,
    stored: StoredFiles,
    devices: Collection[TenantDevice],
    columns: Sequence[str],
    wanted: Mapping[str, Range],
) -> Iterator[pa.Table]:
    # bounds select row groups; rows are then filtered by exact pairs
    names, tenants = sorted({one.device for one in devices}), [one.tenant for one in devices]
    ranges = {"tenant": (min(tenants), max(tenants)), "device": (names[0], names[-1]), **wanted}
    files = lake.files("records")
    with lake.damage_as_error("records"):
        for path in stored.within("device", [(name, name) for name in names]).paths:
            for rows in stored_rows(files, "records", path, columns, ranges):
                yield of_devices(rows, devices)


def _around(hours_of: HoursOf) -> tuple[datetime, datetime]:
    return min(start for start, _ in hours_of.values()), max(end for _, end in hours_of.values())


def _within(rows: pa.Table, hours_of: HoursOf, reach: Reach = _NO_REACH) -> pa.Array:
    """Whether each row is in the time of its device, or within the reach around it."""
    row_of, asked = _devices_of(rows)
    spans = [(start - reach.before, end + reach.after) for start, end in map(hours_of.__getitem__, asked)]
    limits = np.array([[micros(one) for one in span] for span in spans], np.int64).reshape(-1, 2)[row_of]
    made = rows["device_time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    return pa.array((made >= limits[:, 0]) & (made < limits[:, 1]))


def _counted(rows: pa.Table) -> Counter[TenantDevice]:
    counted = rows.group_by([*_OF_DEVICE]).aggregate([([], "count_all")]).to_pylist()
    return Counter({TenantDevice(row["tenant"], row["device"]): row["count_all"] for row in counted})


def certificates_from(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    span: tuple[datetime, datetime],
    bounds: DoubtBounds | None = None,
) -> dict[TenantDevice, DeviceCertificate]:
    """`certificates_of_spans` for one time (its end excluded), also of devices without any record."""
    spans = dict.fromkeys(devices, span)
    return certificates_of_spans(lake, snapshot, spans, {} if bounds is None else dict.fromkeys(devices, bounds))


def certificates_of_spans(
    lake: Lake,
    snapshot: LakeState,
    spans: Mapping[TenantDevice, tuple[datetime, datetime]],
    bounds: Mapping[TenantDevice, DoubtBounds] = MappingProxyType({}),
    usage: pa.Table | None = None,
) -> dict[TenantDevice, DeviceCertificate]:
    """The certificate of each device for its own time (the end excluded), sorted by device.

    Ask for many devices in groups of neighbours: each call opens the logs of the tables once, and only files that may
    hold records of these devices. `bounds`: accepted doubts by device, else the defaults. `usage`: OBSERVED_COLUMNS of
    the rows in force of all these times, if they are read already. Raises LakeError.
    """
    names = sorted(spans)
    hours_of = {device: (spans[device][0].astimezone(UTC), spans[device][1].astimezone(UTC)) for device in names}
    streams: dict[TenantDevice, dict[int, Coverage]] = {device: {} for device in names}
    for stream, known in coverage(lake, snapshot, names).items():
        streams[stream.of_device][stream.epoch] = known
    reach = reach_at(snapshot)
    counts, observed = _counts(lake, snapshot, hours_of), observed_usage(lake, snapshot, hours_of, usage)
    far_off = count_far_off(lake, snapshot, hours_of)
    decided = by_device(decisions(lake, snapshot, names))
    return {
        device: certify(
            device,
            *hours_of[device],
            of,
            reach=reach,
            counts=counts[device],
            decisions=decided.get(device, ()),
            observed=observed.get(device, Observed())._replace(far_off=far_off[device]),
            bounds=bounds.get(device, USUAL_BOUNDS),
        )
        for device, of in streams.items()
    }


def refused_fences(lake: Lake, snapshot: LakeState) -> tuple[RefusedVersion, ...]:
    """The unusable fence publications of a snapshot; the versions before them were metered."""
    return published_fences(reference_rows(lake, snapshot, "fence")).refused


def unmetered_records(lake: Lake, snapshot: LakeState, hours_of: HoursOf) -> tuple[Counts, set[TenantDevice]]:
    """The unmetered records of each device's time, and the devices that may have lost such records by an erasure.

    No bill of these devices is final. Raises LakeError.
    """
    reach = reach_at(snapshot)
    counted = count_not_metered(lake, snapshot, hours_of, reach)
    return counted, _erased_unmetered(lake, snapshot, hours_of, reach)


def _counts(lake: Lake, snapshot: LakeState, hours_of: HoursOf) -> dict[TenantDevice, DeviceCounts]:
    devices = [*hours_of]
    not_metered, may_be_more = unmetered_records(lake, snapshot, hours_of)
    late = count_late_positions(lake, snapshot, _before(erasures(lake, snapshot), devices), hours_of)
    conflicting = conflicts(lake, snapshot, devices)
    return {
        device: DeviceCounts(
            late_positions=late[device],
            not_metered=not_metered[device],
            conflicts=conflicting[device],
            may_be_more=device in may_be_more,
        )
        for device in devices
    }


def _erased_unmetered(lake: Lake, snapshot: LakeState, hours_of: HoursOf, reach: Reach) -> set[TenantDevice]:
    """The devices whose unmetered records may have been erased, and so cannot be counted."""
    if snapshot.covers == snapshot.ingest_number:
        return set()
    # an erasure waits for current usage, not for that of this snapshot
    since = _before(erasures_since(lake, snapshot), hours_of)
    return {device for device, moment in since.items() if moment > hours_of[device][0] - reach.before}


def _before(declared: Erasures, devices: Collection[TenantDevice]) -> dict[TenantDevice, datetime]:
    """For each device with erased positions the moment before which they are erased."""
    if not declared:
        return {}
    found = {device: declared.before(*device) for device in devices}
    return {device: moment for device, moment in found.items() if moment is not None}
