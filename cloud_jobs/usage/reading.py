"""Records of some devices from files, as arrays: of every kind, or positions alone. Without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.derived.fences import FenceChange
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import Range, stored_rows
from cloud_jobs.lake.values import ODOMETER, dropped_messages, encoded, is_customer_event, odometer_m
from geo.spatial.ragged import Bools, Floats, Ints, distinct, expand, run_starts
from waybill.record import (
    BROKER_DROPPED_EVENT,
    NO_FAULTS,
    OTHER_REASON,
    RAW_REASONS,
    TOO_LARGE_EVENT,
    meant_contract_topic,
    raw_reason_group,
)

# Hours of devices to compute. Pure, on arrays.

HOUR_MS: Final = 3_600_000
MOST_HOURS: Final = 24
"""The longest gap, in hours, in which a way is inferred; a longer gap is silence."""
_HOUR_BITS: Final = 22
_BASE: Final = 1 << 10
"""Hours before 1970 that a margin may reach into; the days of records with a partition end before 2100."""


def device_hours(device: Ints, hour: Ints) -> Ints:
    return (device << _HOUR_BITS) + hour + _BASE


def device_of(keys: Ints) -> Ints:
    return keys >> _HOUR_BITS


def hour_of(keys: Ints) -> Ints:
    return (keys & ((1 << _HOUR_BITS) - 1)) - _BASE


def touched_by(device: Ints, t_ms: Ints, reach_ahead_ms: int, margin_ms: int) -> Ints:
    """The hours in which a new fix can change something: those that contain the end of a segment that it affects.

    A segment is decided by the fixes from the margin before its end to the reach ahead after it.
    """
    return _spans(device, (t_ms - reach_ahead_ms) // HOUR_MS, (t_ms + margin_ms) // HOUR_MS)


def with_margin(keys: Ints, margin_ms: int) -> Ints:
    """Device hours, and those around them whose fixes affect them."""
    reach, hour = -(-margin_ms // HOUR_MS), hour_of(keys)
    return _spans(device_of(keys), hour - reach, hour + reach)


def hours_before(known: Ints, keys: Ints) -> Ints:
    """For each device hour the last one before it among those `known` (in order), at most MOST_HOURS before it."""
    at = np.searchsorted(known, keys) - 1
    found = known[np.maximum(at, 0)] if len(known) else keys
    return distinct(found[(at >= 0) & (keys - found <= MOST_HOURS)])


def hours_after(known: Ints, keys: Ints) -> Ints:
    """For each device hour the first one after it among those `known`, at most MOST_HOURS after it."""
    at = np.searchsorted(known, keys, side="right")
    found = np.append(known, keys[:1])[np.minimum(at, len(known))]
    return distinct(found[(at < len(known)) & (found - keys <= MOST_HOURS)])


def computable(keys: Ints, erased_before_ms: Ints, margin_ms: int) -> Bools:
    """Which device hours no erased position affects. `erased_before_ms`: of each device."""
    return np.asarray(hour_of(keys) * HOUR_MS - margin_ms >= erased_before_ms[device_of(keys)], np.bool_)


def is_in_order(*columns: Ints) -> bool:
    """Whether rows are in the order of some columns, the first one first, and no two are equal in all."""
    less = np.zeros(max(len(columns[0]) - 1, 0), np.bool_)
    for column in reversed(columns):
        less = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & less)
    return bool(less.all())


def near_changes(
    device: Ints, t_ms: Ints, lon: Floats, lat: Floats, *, changes: Sequence[FenceChange], gap_ms: int
) -> Ints:
    """The hours with a fix in which a change of fences may matter: those in its time whose way came near it.

    A way is represented by the box around the fixes of the hour and of the gap before it. That box holds both ends of
    each segment that ends in the hour, and all between them.
    """
    if not len(device):
        return np.zeros(0, np.int64)
    # a segment that starts at a fix ends within the gap
    first, last = t_ms // HOUR_MS, (t_ms + gap_ms) // HOUR_MS
    fix, hour = expand(first, last - first + 1)
    keys = device_hours(device[fix], hour)
    order = np.argsort(keys, kind="stable")
    fix, keys = fix[order], keys[order]
    starts = np.flatnonzero(run_starts(keys))
    west, east = np.minimum.reduceat(lon[fix], starts), np.maximum.reduceat(lon[fix], starts)
    south, north = np.minimum.reduceat(lat[fix], starts), np.maximum.reduceat(lat[fix], starts)
    driven = np.logical_or.reduceat(first[fix] == hour_of(keys), starts)
    found = keys[starts]
    day = hour_of(found) // 24
    # the box of a way over the antimeridian spans the world
    around = (east - west > 180.0) | (west <= -180.0) | (east >= 180.0)
    near = np.zeros(len(found), np.bool_)
    for change in changes:
        beside = around | ((west <= change.east) & (east >= change.west))
        level = (south <= change.north) & (north >= change.south)
        near |= beside & level & (day >= change.first_day) & (day <= change.last_day)
    return found[near & driven]


def _spans(device: Ints, first: Ints, last: Ints) -> Ints:
    # fixes of a device mostly follow each other, and an hour has hundreds
    starts = np.flatnonzero(run_starts(device, first, last)) if len(device) else np.zeros(0, np.int64)
    row, hour = expand(first[starts], last[starts] - first[starts] + 1)
    return distinct(device_hours(device[starts][row], hour))


Integers = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

PLACE: Final = ("latitude", "longitude", "accuracy_m", "speed_mps")
METERED_COLUMNS: Final = ("epoch", "seq", "content_bytes", *PLACE)
"""The columns of a metered record besides device, kind and time."""
IS: Final = ("is_position", "is_event", "is_readable", "is_odometer")
RECORD_ARRAYS: Final = ("device", "t_ms", *IS, "reason", "counter", *METERED_COLUMNS)
NOT_RAW: Final = -1
"""The number of a record that is not raw."""
_OTHER_KIND: Final = "message"
_KINDS: Final = ("position", "signal", "event", "canary", _OTHER_KIND)
REASONS: Final = (
    *sorted(NO_FAULTS),
    *(f"{kind}/{reason}" for kind in _KINDS for reason in (*RAW_REASONS, OTHER_REASON) if reason not in NO_FAULTS),
)
"""Why a message is raw, numbered as in arrays: the kind that its topic promised, and the reason. A reason that is
no fault stands alone."""
_REASON_NUMBERS: Final = {reason: at for at, reason in enumerate(REASONS)}
_POSITION: Final = ("position", "position")


class Devices:
    """Some devices in order; in arrays a device is its place among them."""

    def __init__(self, names: Iterable[TenantDevice]) -> None:
        self.names = sorted(names)
        self._place = {name: at for at, name in enumerate(self.names)}
        devices = [name.device for name in self.names]
        self.ranges: dict[str, Range] = {}
        if devices:
            self.ranges["tenant"] = (self.names[0].tenant, self.names[-1].tenant)
            self.ranges["device"] = (min(devices), max(devices))

    def places(self, rows: pa.Table) -> Integers:
        """The place of the device of each row; -1 for any other device."""
        tenants, devices = (encoded(rows[name]) for name in ("tenant", "device"))
        starts = np.flatnonzero(run_starts(tenants.indices.to_numpy(), devices.indices.to_numpy()))
        first = pa.array(starts)
        named = zip(tenants.take(first).to_pylist(), devices.take(first).to_pylist(), strict=True)
        # rows of a device follow each other in a file
        found = np.array([self._place.get(TenantDevice(*name), -1) for name in named], np.int64)
        return np.repeat(found, np.diff(np.r_[starts, rows.num_rows]))


class RecordFile(NamedTuple):
    """A file of the records, and the range of its device times, in milliseconds, None where unknown."""

    path: str
    first_ms: int | None
    last_ms: int | None


def positions(
    files: FileSystem, path: str, devices: Devices, columns: Sequence[str], ranges: Mapping[str, Range]
) -> Iterator[Arrays]:
    """The positions of the devices in a file: `device` (their places), `t_ms`, and the columns that are asked for."""
    for arrays, _ in _arrays(files, path, devices, columns, {"kind": _POSITION, **ranges}, what=["kind"]):
        yield arrays


def records(
    files: FileSystem,
    path: str,
    devices: Devices,
    columns: Sequence[str],
    ranges: Mapping[str, Range],
    *,
    texts: bool = False,
) -> Iterator[Arrays]:
    """The records of the devices in a file, of every kind, as `positions`, with the flags IS:

    `is_position`; `is_event` (a customer's, not the system's own); `is_readable` (a message of the contract);
    `is_odometer` (a reading). With `texts` also `reason`, the place in REASONS of why a record is raw, else NOT_RAW;
    and `counter`: the metres of an odometer's reading, or the number of messages that the vehicle's broker dropped,
    else 0.
    """
    what = ["kind", "name", "number", "text"] if texts else ["kind", "name"]
    for arrays, found in _arrays(files, path, devices, columns, ranges, what=what):
        kind, name = found["kind"], found["name"]
        is_position, is_event = np.asarray(pc.equal(kind, "position")), is_customer_event(found)
        is_signal = np.asarray(pc.equal(kind, "signal"))
        is_readable, is_odometer = is_position | is_event | is_signal, is_signal & _is_named(name, ODOMETER)
        arrays |= dict(zip(IS, (is_position, is_event, is_readable, is_odometer), strict=True))
        yield arrays | _texts_of(found, is_odometer) if texts else arrays


def _texts_of(found: pa.Table, is_odometer: Bools) -> Arrays:
    reason, counter = np.full(found.num_rows, NOT_RAW, np.int16), np.zeros(found.num_rows, np.int64)
    is_raw, name = np.asarray(pc.equal(found["kind"], "raw")), found["name"]
    _set_numbers(reason, found, is_raw, ("name", "text"), lambda topic, text: reason_number(topic or "", text or ""))
    _set_numbers(reason, found, _is_named(name, TOO_LARGE_EVENT), ("text",), lambda text: _reason_of_large(text or ""))
    _set_numbers(counter, found, is_odometer, ("number", "text"), odometer_m)
    _set_numbers(counter, found, _is_named(name, BROKER_DROPPED_EVENT), ("text",), dropped_messages)
    return {"reason": reason, "counter": counter}


def _set_numbers(
    values: NDArray[Any], found: pa.Table, mask: Bools, columns: Sequence[str], number: Callable[..., int]
) -> None:
    """Set the numbers of some rows, by what their columns say."""
    at = np.flatnonzero(mask)
    texts = found.select(columns).take(pa.array(at)).columns
    values[at] = [number(*row) for row in zip(*(text.to_pylist() for text in texts), strict=True)]


def _is_named(names: pa.ChunkedArray, name: str) -> Bools:
    return np.asarray(pc.fill_null(pc.equal(names, name), False))


@lru_cache(maxsize=1024)
def reason_number(topic: str, reason: str) -> int:
    """The place in REASONS of a raw message on a topic; unknown topics and reasons have places of their own."""
    if reason in NO_FAULTS:
        return _REASON_NUMBERS[reason]
    contract_topic = meant_contract_topic(topic)
    kind = _OTHER_KIND if contract_topic is None else contract_topic.rpartition("/")[2]
    return _REASON_NUMBERS[f"{kind}/{raw_reason_group(reason)}"]


def _reason_of_large(attributes: str) -> int:
    try:
        topic = str(json.loads(attributes)["topic"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return reason_number("", OTHER_REASON)
    return reason_number(topic, "too-large")


def _arrays(
    files: FileSystem,
    path: str,
    devices: Devices,
    columns: Sequence[str],
    ranges: Mapping[str, Range],
    *,
    what: Sequence[str],
) -> Iterator[tuple[Arrays, pa.Table]]:
    """Arrays of the rows of the devices, and the rows with the columns that say `what` they are."""
    wanted = {**devices.ranges, **ranges}
    for rows in stored_rows(files, "records", path, ["tenant", "device", "device_time", *what, *columns], wanted):
        place = devices.places(rows)
        found = rows if (place >= 0).all() else rows.filter(pa.array(place >= 0))
        if found.num_rows:
            arrays = {name: found[name].to_numpy() for name in columns}
            arrays["t_ms"] = found["device_time"].cast(pa.int64()).to_numpy() // 1000
            yield {"device": place[place >= 0]} | arrays, found


def joined(parts: Iterable[Arrays], names: Sequence[str]) -> Arrays:
    """Arrays of several files, concatenated by name."""
    parts = [*parts]
    if not parts:
        return {name: np.zeros(0, np.bool_ if name.startswith("is_") else np.int64) for name in names}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def count_devices(files: FileSystem, path: str, ranges: Mapping[str, Range]) -> dict[TenantDevice, int]:
    counts = Counter[TenantDevice]()
    for rows in stored_rows(files, "records", path, ["tenant", "device"], ranges):
        found = rows.group_by(["tenant", "device"], use_threads=False).aggregate([([], "count_all")])
        for row in found.to_pylist():
            counts[TenantDevice(row["tenant"], row["device"])] += int(row["count_all"])
    return counts
