"""Which rows of usage follow those that are in force: what is another one now, and zeros for what is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from cloud_jobs.fence_versions import FenceVersions
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import OBSERVED, QUANTITIES, QUARTERS, USAGE, WHOLE_DEVICE
from cloud_jobs.lake.stored_files import Range, stored_rows
from cloud_jobs.usage.basis import NO_RECORDS
from cloud_jobs.usage.metering import Metered
from cloud_jobs.usage.reading import Devices
from cloud_jobs.usage.touched_hours import HOUR_MS, MOST_HOURS, among, device_hours, hour_of
from geo.spatial.ragged import Ints

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


class RowInForce(NamedTuple):
    """What is in force for a key."""

    digest: str
    rules_number: int | None
    is_zeros: bool


def rows_to_follow(
    metered: Metered,
    in_force: Mapping[UsageKey, RowInForce],
    names: Sequence[TenantDevice],
    versions: FenceVersions,
    stamp: Stamp,
) -> pa.Table:
    """The rows (schema USAGE) that must follow those in force for the hours that were metered."""
    found = metered.table(names, versions)
    if in_force:
        keys = [*zip(metered.device, metered.hour, metered.zone, strict=True)]
        digests = found["digest"].to_pylist()
        held = (in_force.get(key) for key in keys)
        # what is the same by other rules has to say that it is: else it looks as if it had not been computed by them
        changed = [
            row is None or (row.digest, row.rules_number) != (digest, stamp.rules_number)
            for row, digest in zip(held, digests, strict=True)
        ]
        gone = {key for key, row in in_force.items() if not row.is_zeros} - {*keys}
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
    """What is in force for the touched hours: of each key the row that was committed last."""
    found = columns_in_force(files, devices, paths, touched, ("digest", "rules_number", "seq_ranges"))
    # an hour has few zones, but a run has many hours: no more than these is kept
    return {key: RowInForce(digest, rules, ranges == NO_RECORDS) for key, (digest, rules, ranges) in found.items()}


def position_hours(files: FileSystem, devices: Devices, paths: Sequence[str], touched: Ints) -> Ints:
    """The device hours around the touched ones of which tracks take positions by what is in force, in order."""
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
    # no fence has a say in nothing: a row of zeros is the same whichever fence was there
    return rows.table(names, FenceVersions((), 0))


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
