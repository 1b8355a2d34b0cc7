"""Reads at a snapshot: usage in force, reference data, coverage, erasures and record counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.appending import Row
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice, text_ranks
from cloud_jobs.lake.data_files import Range, StoredFiles, rows_where, stored_rows
from cloud_jobs.lake.erasures import Erasure, Erasures
from cloud_jobs.lake.schemas import QUARTERS, TABLES
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Condition, Lake
from cloud_jobs.lake.values import encoded
from geo.reference.in_force import publication_order

# Row counts of a snapshot, in total and by device: from the log where possible.


def miscounted(lake: Lake, snapshot: LakeState) -> dict[TenantDevice, tuple[int, int]]:
    """Devices whose number of records in the table differs from their coverage, with both numbers.

    First compares the totals of the log, and reads records only if they differ. After erasures, only surplus records
    are reported. Raises LakeError.
    """
    rows = lake.coverage_rows(lake.coverage_manifest(snapshot.ingest_commit))
    received, stored = received_counts(rows), stored_at(lake, snapshot)
    expected, found = int(received.sum()), count_all(lake, snapshot, stored)
    may_be_erased = any((erasures(lake, snapshot), erasures_since(lake, snapshot)))
    if found == expected or (may_be_erased and found < expected):
        return {}
    there, known = count_by_device(lake, snapshot, stored, None), received_by_device(rows, received)
    both = {one: (known.get(one, 0), there[one]) for one in sorted({*known, *there})}
    # missing records may be erased
    return {one: pair for one, pair in both.items() if pair[1] > pair[0] or (pair[1] < pair[0] and not may_be_erased)}


def received_counts(rows: pa.Table) -> NDArray[np.int64]:
    lists = rows["received"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    bounds = lists.flatten().to_numpy()
    so_far = np.r_[0, np.cumsum(bounds[1::2] - bounds[::2] + 1)]
    at = np.r_[0, np.cumsum(lists.value_lengths().to_numpy().astype(np.int64) // 2)]
    found: NDArray[np.int64] = so_far[at[1:]] - so_far[at[:-1]]
    return found


def received_by_device(rows: pa.Table, received: NDArray[np.int64]) -> dict[TenantDevice, int]:
    made = rows.select(["tenant", "device"]).append_column("received", pa.array(received))
    found = made.group_by(["tenant", "device"]).aggregate([("received", "sum")]).to_pylist()
    return {TenantDevice(row["tenant"], row["device"]): row["received_sum"] for row in found}


def stored_at(lake: Lake, snapshot: LakeState) -> StoredFiles:
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
        return stored.between("ingest_number", high=snapshot.ingest_number) if len(stored) else stored


def count_all(lake: Lake, snapshot: LakeState, stored: StoredFiles) -> int:
    """The number of records at a snapshot, by the log; files with later records are read."""
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


def count_by_device(
    lake: Lake, snapshot: LakeState, stored: StoredFiles, devices: Collection[TenantDevice] | None
) -> Counter[TenantDevice]:
    found: Counter[TenantDevice] = Counter()
    bounds = {"ingest_number": (None, snapshot.ingest_number)}
    for rows in rows_within(lake, stored, ("tenant", "device"), bounds, devices):
        for row in rows.group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist():
            found[TenantDevice(row["tenant"], row["device"])] += row["count_all"]
    return found


def rows_within(
    lake: Lake,
    stored: StoredFiles,
    columns: Sequence[str],
    bounds: Mapping[str, Range],
    devices: Collection[TenantDevice] | None,
) -> Iterator[pc.Table]:
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
            # a range that the bounds of the file already guarantee is not read
            open_ = {name: limit for name, limit in bounds.items() if not _is_within(known[name][at], limit)}
            for rows in stored_rows(files, "records", path, columns, wanted | open_):
                yield rows if devices is None else of_devices(rows, devices)


def _is_within(known: Range, limit: Range) -> bool:
    (lowest, highest), (low, high) = known, limit
    if lowest is None or highest is None:
        return False
    return (low is None or low <= lowest) and (high is None or highest <= high)


# Usage rows in force: the last committed one of each tenant, device, hour and zone. Vectorised.

_HOUR_US: Final = 3_600_000_000
_MOST: Final = (1 << 63) - 1

_Integers = NDArray[np.int64]


def rows_in_force(rows: pa.Table) -> pa.Table:
    """Of usage rows, for each tenant, device, hour and zone the one with the highest commit number, sorted by key.

    Identical rows count once. Raises LakeError for two different rows with the same key and highest commit.
    """
    if not rows.num_rows:
        return rows
    keys = _keys(rows)
    commits = rows["commit_number"].to_numpy()
    ascends = bool((keys[1:] >= keys[:-1]).all())
    order = np.arange(len(keys)) if ascends else np.argsort(keys, kind="stable")
    keys, commits = keys[order], commits[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    if len(starts) == len(keys):
        return rows if ascends else rows_at(rows, order)
    highest = np.repeat(np.maximum.reduceat(commits, starts), np.diff(np.r_[starts, len(keys)]))
    newest = np.flatnonzero(commits == highest)
    first = np.r_[True, keys[newest[1:]] != keys[newest[:-1]]]
    again = np.flatnonzero(~first)
    _refuse_contradictions(rows, order[newest[again - 1]], order[newest[again]])
    return rows_at(rows, order[newest[first]])


def _keys(rows: pa.Table) -> _Integers:
    """A number for the key of each row, in the order of the keys."""
    (tenant, tenants), (device, devices), (zone, zones) = (
        text_ranks(rows[name]) for name in ("tenant", "device", "zone")
    )
    hour = rows["hour"].cast(pa.int64()).to_numpy() // _HOUR_US
    hour = hour - hour.min()
    named = tenant * devices + device
    # there are fewer devices than tenants times names, and rows of a device are mostly adjacent
    known = np.unique(named[np.r_[True, named[1:] != named[:-1]]])
    hours = int(hour.max()) + 1
    assert max(tenants * devices, len(known) * hours * zones) <= _MOST, "a key is a signed 64-bit integer"
    found: _Integers = (np.searchsorted(known, named) * hours + hour) * zones + zone
    return found


def rows_at(rows: pa.Table, at: _Integers) -> pa.Table:
    """The rows at some places."""
    return pa.table([_taken_of(column, at) for column in rows.columns], schema=rows.schema)


def _taken_of(column: pa.ChunkedArray, at: _Integers) -> pa.Array | pa.ChunkedArray:
    if not pa.types.is_list(column.type):
        return column.take(pa.array(at))
    joined = column.combine_chunks()
    joined = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    offsets, is_known = joined.offsets.to_numpy(), joined.is_valid().to_numpy(zero_copy_only=False)
    if not (np.diff(offsets) == QUARTERS * is_known).all():
        return joined.take(pa.array(at))
    # Arrow's take handles one list at a time, which is many times slower
    values = joined.values.to_numpy()[offsets[0] : offsets[-1]].reshape(-1, QUARTERS)
    are_known = is_known[at]
    values = values[(np.cumsum(is_known) - 1)[at[are_known]]].reshape(-1)
    ends = np.r_[0, np.cumsum(are_known * QUARTERS)].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(~are_known))


def _refuse_contradictions(rows: pa.Table, one: _Integers, other: _Integers) -> None:
    """`one`, `other`: pairs of rows with the same key and commit."""
    for pair in zip(one.tolist(), other.tolist(), strict=True):
        found: list[dict[str, Any]] = [rows.slice(at, 1).to_pylist()[0] for at in pair]
        if found[0] != found[1]:
            row = found[0]
            key = f"{row['tenant']}/{row['device']} at {row['hour'].isoformat()} in zone {row['zone']!r}"
            raise LakeError(f"usage of {key} was computed twice in one commit, with two results")


_HOUR: Final = timedelta(hours=1)
_DEVICE: Final = ["tenant", "device"]
_DEVICES_AT_ONCE: Final = 1 << 20


def usage_rows(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    first: datetime,
    last: datetime,
    *,
    columns: Sequence[str] = TABLES["usage"].schema.names,
    zone: str | None = None,
) -> pa.Table:
    """The usage in force at a snapshot, of hours that overlap the closed interval from `first` to `last`.

    One row for each tenant, device, hour and zone (or of one `zone`), sorted; `columns` include the key and the commit
    number. Raises LakeError, also for two different rows with the same key and commit.
    """
    begin, end = first.astimezone(UTC) - _HOUR + timedelta.resolution, last.astimezone(UTC)
    wanted: dict[str, Range] = {"hour": (begin, end), "commit_number": (None, snapshot.usage_number)}
    if zone is not None:
        wanted["zone"] = (zone, zone)
    return rows_in_force(_rows_of_devices(lake, "usage", devices, columns, wanted, days=(begin, end)))


def event_rows(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    begin: datetime,
    end: datetime,
    *,
    columns: Sequence[str],
) -> pa.Table:
    """All revisions at a snapshot of events of devices from `begin` until before `end`, in any order. Raises LakeError.

    A revision of an event may lie elsewhere in its UTC day, so whole days are read; nothing is left out by time.
    """
    days = begin.astimezone(UTC), end.astimezone(UTC) - timedelta.resolution
    wanted: dict[str, Range] = {"commit_number": (None, snapshot.events_number)}
    return _rows_of_devices(
        lake, "geofence_events", devices if snapshot.events_number else (), columns, wanted, days=days
    )


def _rows_of_devices(
    lake: Lake,
    table: str,
    devices: Collection[TenantDevice],
    columns: Sequence[str],
    wanted: dict[str, Range],
    *,
    days: tuple[datetime, datetime] | None = None,
) -> pa.Table:
    """The rows of devices within bounds. `days`: only the files of these days. Raises LakeError."""
    empty = TABLES[table].schema.empty_table().select([*columns])
    if not devices:
        return empty
    tenants, names = sorted({one.tenant for one in devices}), sorted({one.device for one in devices})
    # devices first: they decide about most row groups
    wanted = {"device": (names[0], names[-1]), "tenant": (tenants[0], tenants[-1]), **wanted}
    with lake.damage_as_error(table):
        stored, mine = StoredFiles.of(lake.open(table), table), DeviceFilter(devices)
        stored = stored.of_days(*(day.date() for day in days)) if days else stored
        stored = stored.within("device", [(name, name) for name in names])
        parts = stored.rows(lake.files(table), columns, wanted)
        return pa.concat_tables([empty, *(mine.of(rows).cast(empty.schema) for rows in parts)])


def used_devices(lake: Lake, snapshot: LakeState, start: datetime, end: datetime) -> pa.Table:
    """The tenants and devices with usage at a snapshot in hours from `start` until before `end`. Raises LakeError."""
    begin, last = start.astimezone(UTC), end.astimezone(UTC) - timedelta.resolution
    begin -= _HOUR - timedelta.resolution
    wanted = {"hour": (begin, last), "commit_number": (None, snapshot.usage_number)}
    found = pa.table({name: pa.array([], pa.string()) for name in _DEVICE})
    more, merge_at = list[pa.Table](), _DEVICES_AT_ONCE
    with lake.damage_as_error("usage"):
        stored = StoredFiles.of(lake.open("usage"), "usage").of_days(begin.date(), last.date())
        for rows in stored.rows(lake.files("usage"), _DEVICE, wanted):
            more.append(rows.group_by(_DEVICE).aggregate([]))
            if sum(part.num_rows for part in more) >= merge_at:
                found = pa.concat_tables([found, *more]).group_by(_DEVICE).aggregate([])
                more, merge_at = [], max(found.num_rows, _DEVICES_AT_ONCE)
    return pa.concat_tables([found, *more]).group_by(_DEVICE).aggregate([])


def usage_rows_each(lake: Lake, snapshot: LakeState, first: datetime, last: datetime) -> int:
    """The approximate number of usage rows per device in an interval, by the log. Raises LakeError."""
    with lake.damage_as_error("usage"):
        stored = StoredFiles.of(lake.open("usage"), "usage")
        rows = sum(stored.of_days(first.astimezone(UTC).date(), last.astimezone(UTC).date()).row_counts)
    streams = sum(file.rows for file in lake.coverage_manifest(snapshot.ingest_commit).files)
    return -(-rows // max(streams, 1))


def reference_rows(
    lake: Lake, snapshot: LakeState, kind: str | None = None, ids: Collection[str] | None = None
) -> list[Row]:
    """The publications at a snapshot in the order of publication: all, of one kind, or of some ids. Raises
    LakeError.
    """
    return publications(reference_table(lake, snapshot), kind, ids)


def reference_table(lake: Lake, snapshot: LakeState) -> pa.Table:
    """All publications at a snapshot, for several calls of `publications`. Raises LakeError."""
    where: list[Condition] = [("commit_number", "<=", snapshot.reference_commit)]
    return lake.rows("reference", where=where)


def publications(reference: pa.Table, kind: str | None = None, ids: Collection[str] | None = None) -> list[Row]:
    """Rows of `reference_table` in the order of publication: all, of one kind, or of some ids."""
    if kind is not None:
        reference = reference.filter(pc.equal(reference["kind"], kind))
    if ids is not None:
        reference = reference.filter(pc.is_in(reference["id"], pa.array(sorted(ids), pa.string())))
    return sorted(reference.to_pylist(), key=publication_order)


def coverage(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None = None
) -> dict[DeviceStream, Coverage]:
    """The coverage at a snapshot, of some devices or of all. Raises LakeError."""
    return lake.coverage_at(snapshot.ingest_commit, devices)


def erasures(lake: Lake, snapshot: LakeState) -> Erasures:
    """The erasures that were declared at a snapshot. Raises LakeError."""
    return _erasures(lake, [("number", "<=", snapshot.erasures_number)])


def erasures_since(lake: Lake, snapshot: LakeState) -> Erasures:
    """The erasures declared after a snapshot, which no read at the snapshot shows. Raises LakeError."""
    return _erasures(lake, [("number", ">", snapshot.erasures_number)])


def conflicts(lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice]) -> Counter[TenantDevice]:
    """By device, the records that arrived again with other content until a snapshot. Raises LakeError."""
    wanted: dict[str, Range] = {"cause": ("conflict", "conflict"), "commit_number": (None, snapshot.quarantine_commit)}
    rows = _rows_of_devices(lake, "quarantine", devices, _DEVICE, wanted)
    counted = rows.group_by(_DEVICE).aggregate([([], "count_all")])
    return Counter({TenantDevice(row["tenant"], row["device"]): row["count_all"] for row in counted.to_pylist()})


class DeviceFilter:
    """Selects the rows of some devices, prepared once for many tables with the columns `tenant` and `device`."""

    def __init__(self, devices: Collection[TenantDevice]) -> None:
        parts = [sorted({*of}) for of in zip(*devices, strict=True)] or [[], []]
        tenant, device = ({name: at for at, name in enumerate(names)} for names in parts)
        self._tenants, self._names = (pa.array(names, pa.string()) for names in parts)
        self._known = np.array(sorted({tenant[one.tenant] * len(device) + device[one.device] for one in devices}))

    def mask(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Whether each row is of one of the devices."""
        tenant, device = _numbers_in(rows["tenant"], self._tenants), _numbers_in(rows["device"], self._names)
        are_named: NDArray[np.bool_] = (tenant >= 0) & (device >= 0)
        if len(self._known) < len(self._tenants) * len(self._names):
            are_named &= np.isin(tenant * len(self._names) + device, self._known)
        return are_named

    def of(self, rows: pa.Table) -> pa.Table:
        return rows_where(rows, self.mask(rows))


def _numbers_in(column: pa.ChunkedArray, values: pa.Array) -> _Integers:
    """The place of each text in `values`; -1 if it is not there."""
    texts = encoded(column)
    places = pc.index_in(texts.dictionary, values).fill_null(-1).to_numpy(zero_copy_only=False)
    # the last place is that of a null
    found: _Integers = np.append(places, -1)[texts.indices.fill_null(len(places)).to_numpy()].astype(np.int64)
    return found


def of_devices(rows: pa.Table, devices: Collection[TenantDevice]) -> pa.Table:
    return DeviceFilter(devices).of(rows)


def _erasures(lake: Lake, where: list[Condition]) -> Erasures:
    rows = lake.rows("erasures", Erasure._fields, where=where).to_pylist()
    return Erasures(Erasure(**row) for row in rows)
