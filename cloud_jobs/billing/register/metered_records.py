"""Records held against the rows of usage that count them: of each device and UTC day all are metered, and each once.

Only columns that say how many there are and what they hold are read, and of files that lie within the days none that
say when a record was made. Vectorised: no row becomes an object but those that differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.usage import MAX_SEGMENT
from cloud_jobs.lake.content_bytes import is_customer_event
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, Erasures, records_and_erasures
from cloud_jobs.lake.schemas import QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake

_HOUR: Final = timedelta(hours=1)
_KEY: Final = ("tenant", "device", "day")
COUNTED: Final = ("records", "events", "content_bytes")
"""What is counted on both sides: records, those that are a customer's events, and the bytes of their content."""
WITH_REGION: Final = "records with a region"
"""What is counted beside the records: those that name the region through which they came."""
_COUNTS: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("device", pa.string()),
        pa.field("day", pa.date32()),
        *(pa.field(name, pa.int64()) for name in (*COUNTED, WITH_REGION)),
    ]
)


class DayDifference(NamedTuple):
    """A device and UTC day whose records and usage differ in one of COUNTED, or whose records are not all of a region:
    WITH_REGION, where `recorded` are all records, and `metered` those that name one."""

    device: TenantDevice
    day: date
    name: str
    recorded: int
    metered: int


class MeteredRecords(NamedTuple):
    """How many there are of COUNTED, by tenant, device and day, and every device and day where something differs.

    `recorded`: by the table of records; `metered`: by the rows of usage that are of whole devices. `covered`: how many
    records are there that usage covers, also on days of which positions are erased.
    """

    recorded: pa.Table
    metered: pa.Table
    differences: list[DayDifference]
    covered: int

    @property
    def sums(self) -> dict[str, tuple[int, int]]:
        """Of each of COUNTED how much was recorded and metered in all."""
        return {
            name: (int(pc.sum(self.recorded[name]).as_py() or 0), int(pc.sum(self.metered[name]).as_py() or 0))
            for name in COUNTED
        }

    def records_of(self) -> dict[TenantDevice, tuple[int, int]]:
        """How many records each device has, and how many are metered."""
        sides = (_by_device(self.recorded), _by_device(self.metered))
        return {device: (sides[0].get(device, 0), sides[1].get(device, 0)) for device in {**sides[0], **sides[1]}}


def whole_hours(hours: tuple[datetime, datetime]) -> tuple[datetime, datetime]:
    """The hours of usage that have a moment of [start, end): where the first begins, and where the last ends."""
    start, last = hours[0], hours[1] - timedelta.resolution
    begin, of_last = (one.astimezone(UTC).replace(minute=0, second=0, microsecond=0) for one in (start, last))
    return begin, of_last + _HOUR


def compare_records(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    usage: pa.Table,
    hours: tuple[datetime, datetime],
) -> MeteredRecords:
    """The records that usage covers at a snapshot beside the rows of usage that count them.

    `usage`: `usage_rows` of these devices for the hours with a moment between the two of `hours`, both included. Of
    days of which positions are erased only the events are on both sides: no position is one. Of days that a data
    subject asked to erase nothing is on either. Raises LakeError.
    """
    begin, end = whole_hours((hours[0], hours[1] + timedelta.resolution))
    # also erasures declared since the snapshot: a read at it has no such position any more
    stored, erasures = records_and_erasures(lake)
    erased = _erased_until(erasures, devices, begin)
    found = _recorded(lake, snapshot, stored, devices, (begin, end))
    covered = int(pc.sum(found["records"]).as_py() or 0)
    requested = {device: erasures.requests(*device) for device in erased}
    recorded, metered = (_events_alone(rows, erased, requested) for rows in (found, _metered(usage)))
    return MeteredRecords(recorded, metered, _differences(recorded, metered), covered)


def seq_counts(texts: pa.ChunkedArray) -> NDArray[np.int64]:
    """How many records each text of seq ranges names. Texts are read as bytes: none is parsed by itself."""
    joined = pa.concat_arrays([pa.array([], pa.string()), *texts.cast(pa.string()).chunks])
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    if data is None or not len(joined):
        return np.zeros(len(joined), np.int64)
    characters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    is_digit = (characters >= ord("0")) & (characters <= ord("9"))
    limits = np.flatnonzero(np.diff(np.r_[False, is_digit, False].view(np.int8)))
    begin, end = limits[::2], limits[1::2]
    # a number in quotes is an epoch; a text ends with a brace, so each number has a character after it
    is_seq = characters[end] != ord('"')
    begin, width = begin[is_seq], (end - begin)[is_seq]
    seqs = np.zeros(len(begin), np.int64)
    for place in range(int(width.max(initial=0))):
        longer = np.flatnonzero(width > place)
        seqs[longer] = seqs[longer] * 10 + (characters[begin[longer] + place] - ord("0"))
    row = np.searchsorted(ends - ends[0], begin[::2], side="right") - 1
    so_far = np.r_[0, np.cumsum(seqs[1::2] - seqs[::2] + 1)]
    at = np.r_[0, np.cumsum(np.bincount(row, minlength=len(joined)))]
    found: NDArray[np.int64] = so_far[at[1:]] - so_far[at[:-1]]
    return found


def _metered(usage: pa.Table) -> pa.Table:
    whole = usage.filter(pc.equal(usage["zone"], WHOLE_DEVICE))
    if not whole.num_rows:
        return _COUNTS.empty_table()
    counts = {name: _quarters(whole[name]) for name in ("events", "content_bytes")}
    rows = whole.select([*_KEY]).append_column("records", pa.array(seq_counts(whole["seq_ranges"])))
    for name, values in counts.items():
        rows = rows.append_column(name, pa.array(values))
    # of a region usage says nothing
    return _grouped(rows.append_column(WITH_REGION, pa.array(np.zeros(rows.num_rows, np.int64))))


def _quarters(column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = np.asarray(pc.list_flatten(column).to_numpy(), np.int64).reshape(len(column), QUARTERS)
    found: NDArray[np.int64] = values.sum(axis=1)
    return found


def _recorded(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    devices: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> pa.Table:
    found = [_COUNTS.empty_table()]
    if devices and snapshot.covers:
        found += _counted_files(lake, snapshot, stored, devices, hours)
    return _grouped(pa.concat_tables(found))


def _counted_files(
    lake: Lake,
    snapshot: LakeState,
    stored: StoredFiles,
    devices: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> Iterator[pa.Table]:
    begin, last = hours[0], hours[1] - timedelta.resolution
    names, tenants = sorted({one.device for one in devices}), sorted({one.tenant for one in devices})
    files = lake.files("records")
    with lake.damage_as_error("records"):
        stored = stored.of_days(begin.date(), last.date())
        stored = stored.between("ingest_number", high=snapshot.covers).within("device", [(one, one) for one in names])
        if not len(stored):
            return
        limits = zip(stored.paths, stored.bounds("ingest_number"), stored.bounds("device_time"), strict=True)
        for path, (_, newest), (earliest, latest) in limits:
            wanted: dict[str, Range] = {"tenant": (tenants[0], tenants[-1]), "device": (names[0], names[-1])}
            # a column that the log says all of is not read
            if newest is None or newest > snapshot.covers:
                wanted["ingest_number"] = (None, snapshot.covers)
            if earliest is None or earliest < begin or latest > last:
                wanted["device_time"] = (begin, last)
            columns = ("tenant", "device", "device_date", "kind", "name", "content_bytes", "region")
            for rows in stored_rows(files, "records", path, columns, wanted):
                yield _grouped(_as_counts(of_devices(rows, devices)))


def _as_counts(rows: pa.Table) -> pa.Table:
    ones = np.ones(rows.num_rows, np.int64)
    counts = [ones, is_customer_event(rows).astype(np.int64), rows["content_bytes"].cast(pa.int64())]
    counts.append(pc.is_valid(rows["region"]).cast(pa.int64()))
    key = [rows["tenant"], rows["device"], rows["device_date"]]
    return pa.table([*key, *counts], names=_COUNTS.names).cast(_COUNTS)


def _grouped(rows: pa.Table) -> pa.Table:
    names = (*COUNTED, WITH_REGION)
    made = rows.group_by([*_KEY]).aggregate([(name, "sum") for name in names])
    return made.select([*_KEY, *(f"{name}_sum" for name in names)]).rename_columns(_COUNTS.names).cast(_COUNTS)


def _by_device(rows: pa.Table) -> dict[TenantDevice, int]:
    made = rows.group_by(["tenant", "device"]).aggregate([("records", "sum")]).to_pylist()
    return {TenantDevice(row["tenant"], row["device"]): row["records_sum"] for row in made}


def _differences(recorded: pa.Table, metered: pa.Table) -> list[DayDifference]:
    joined = recorded.join(metered, [*_KEY], join_type="full outer", left_suffix="", right_suffix=" metered")
    sides = {name: (name, f"{name} metered") for name in COUNTED} | {WITH_REGION: ("records", WITH_REGION)}
    wrong = None
    for one, other in sides.values():
        differs = pc.not_equal(pc.fill_null(joined[one], 0), pc.fill_null(joined[other], 0))
        wrong = differs if wrong is None else pc.or_(wrong, differs)
    found = [
        DayDifference(TenantDevice(row["tenant"], row["device"]), row["day"], name, row[one] or 0, row[other] or 0)
        for row in joined.filter(wrong).to_pylist()
        for name, (one, other) in sides.items()
        if (row[one] or 0) != (row[other] or 0)
    ]
    return sorted(found, key=lambda one: (one.device, one.day, [*sides].index(one.name)))


def _erased_until(erasures: Erasures, devices: Collection[TenantDevice], begin: datetime) -> dict[TenantDevice, date]:
    """Of devices the last day for which a position that is erased may have counted."""
    found: dict[TenantDevice, date] = {}
    for device in devices if erasures else ():
        before = erasures.before(*device)
        if before is not None and before + MAX_SEGMENT > begin:
            found[device] = (before + MAX_SEGMENT).astimezone(UTC).date()
    return found


def _events_alone(
    rows: pa.Table, erased: dict[TenantDevice, date], requested: Mapping[TenantDevice, Sequence[Erasure]]
) -> pa.Table:
    """Of days with erased positions the events: how many records there were, and their bytes, only usage knows.

    Of days within a request not even these.
    """
    if not erased or not rows.num_rows:
        return rows
    keys = [
        (TenantDevice(tenant, device), day)
        for tenant, device, day in zip(*(rows[name].to_pylist() for name in _KEY), strict=True)
    ]
    whole = pa.array([day > erased.get(device, date.min) for device, day in keys])
    # no position is an event, so of these none is gone but by a request
    events = pa.array([not any(_is_within(day, one) for one in requested.get(device, ())) for device, day in keys])
    for name in (*COUNTED, WITH_REGION):
        there = events if name == "events" else whole
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.if_else(there, rows[name], 0))
    return rows


def _is_within(day: date, request: Erasure) -> bool:
    assert request.since is not None, "a request has a beginning"
    return request.since.date() <= day <= (request.before - timedelta.resolution).date()
