"""New revisions of events, from fixes and known revisions: a pure function of both. Knows no Spark.

Events of one UTC day of a device, and their ids, depend on its fixes of that day and around it, never on the order in
which they came. So one run over everything ends with the same events as any number of runs over parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.schemas import FIX, GEOFENCE_EVENTS, without
from cloud_jobs.reference.tables import parse_fences
from geo.spatial import (
    DayEvent,
    FenceSet,
    Fixes,
    GateSet,
    PublishedEventSettings,
    Revision,
    TrackSettings,
    build_tracks,
    end_fixes,
    find_events,
    identified,
    new_revisions,
    valid_positions,
)
from geo.spatial.event_ids import DAY_MS
from geo.spatial.ragged import Bools, Ints, expand, run_starts

# Days of devices to compute, and the fixes that each needs. Pure.

REACH_MS: Final = 12 * 3_600_000
"""Fixes this far before and after a UTC day affect its events."""
_TIME_BITS: Final = 42  # device times of rows with a partition are before 2100, 4.1e12 ms


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Touched days of devices: unit u is `day[u]` (days since 1970) of `device[u]`.

    `row` are the fixes of all units, one unit after the other, `unit` the unit of each.
    """

    device: Ints
    day: Ints
    row: Ints
    unit: Ints


def units_of(device: Ints, t_ms: Ints, touched: Bools, *, max_gap_ms: float, reach_ms: int) -> Units:
    """The units of fixes that are sorted by (device, time); `touched`: the fix's own day is asked for.

    A unit has the fixes of its day, and those of the same unbroken stretch within `reach_ms` of the day. It is a
    function of the device's fixes alone.
    """
    if not len(device):
        nothing = np.zeros(0, dtype=np.int64)
        return Units(nothing, nothing, nothing, nothing)
    day = t_ms // DAY_MS
    first = np.flatnonzero(run_starts(device, day))
    last = np.append(first[1:], len(device)) - 1
    asked = np.logical_or.reduceat(touched, first)
    first, last = first[asked], last[asked]
    low, high = _stretch(device, t_ms, max_gap_ms, first, last)
    key = (device << _TIME_BITS) + t_ms
    # a negative time would reach into the bits of the device before
    begin = np.maximum(day[first] * DAY_MS - reach_ms, 0)
    end = (day[first] + 1) * DAY_MS + reach_ms
    low = np.maximum(low, np.searchsorted(key, (device[first] << _TIME_BITS) + begin))
    high = np.minimum(high, np.searchsorted(key, (device[first] << _TIME_BITS) + end) - 1)
    unit, row = expand(low, high - low + 1)
    return Units(device[first], day[first], row, unit)


def _stretch(device: Ints, t_ms: Ints, max_gap_ms: float, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """First and last row of the stretches without a gap in which `first` and `last` lie."""
    opens = run_starts(device)
    opens[1:] |= np.diff(t_ms) > max_gap_ms
    begins = np.flatnonzero(opens)
    ends = np.append(begins[1:], len(device)) - 1
    number = np.cumsum(opens) - 1
    return begins[number[first]], ends[number[last]]


INPUT: Final = pa.schema(
    [
        pa.field("unit", pa.string()),
        *without(FIX, "device"),
        pa.field("touched", pa.bool_()),
        pa.field("id", pa.string()),
        pa.field("revision", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("place", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("retracted", pa.bool_()),
    ]
)
"""The input of one day of a device: the fixes of the day (`touched`) and around it, and its known revisions
(`id` is not null). `unit` names tenant, device and day: see `device_of`."""

REVISIONS: Final = without(GEOFENCE_EVENTS, "emitted_at", "commit_number")
"""Revisions on their way to the table `geofence_events`."""


@dataclass(frozen=True, slots=True)
class EventRules:
    """All that decides events, apart from the fixes. Raises CloudError for a gap beyond the reach."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: GeofenceSettings

    def __post_init__(self) -> None:
        if self.tracks.max_gap_s * 1000 > REACH_MS:
            raise CloudError(f"tracks.max_gap_s cannot exceed {REACH_MS // 1000} s, the reach of a day's events")

    @classmethod
    def of(cls, features: Iterable[str], tracks: TrackSettings, events: GeofenceSettings) -> EventRules:
        """With the fences and gates of published features. Raises CloudError for one that cannot be used."""
        made = parse_fences(features)
        # as for alerts, which cannot wait: hysteresis keeps noise out of events
        return cls(FenceSet(made.fences), GateSet(made.gates), tracks.as_reported(), events)


def device_of(unit: str) -> tuple[str, str]:
    """The tenant and device of a unit, which is named `tenant`, `device` and `day` with line feeds between them."""
    tenant, device, _ = unit.split("\n")
    return tenant, device


def revise(rows: pa.Table, rules: EventRules) -> pa.Table:
    """New revisions (schema REVISIONS) of the days asked for.

    `rows` (schema INPUT): whole units, sorted by unit, time, epoch, seq.
    """
    is_fix = pc.is_null(rows["id"])
    fixes, before = rows.filter(is_fix), _known(rows.filter(pc.invert(is_fix)))
    names = fixes["unit"].combine_chunks().dictionary_encode()
    revisions: list[dict[str, Any]] = []
    for number, events in _events(names.indices, fixes, rules):
        unit = names.dictionary[number].as_py()
        changed = new_revisions(before.get(unit, []), identified(*device_of(unit), events))
        revisions += [_row(*device_of(unit), one) for one in sorted(changed, key=lambda one: (one.content, one.id))]
    return pa.Table.from_pylist(revisions, schema=REVISIONS)


def _events(unit: pa.Array, fixes: pa.Table, rules: EventRules) -> Iterator[tuple[int, list[DayEvent]]]:
    """The events of each unit that has a fix of its day."""
    columns = {name: fixes[name].to_numpy() for name in INPUT.names[1:9]}
    usable = valid_positions(columns["latitude"], columns["longitude"])
    columns = {name: column[usable] for name, column in columns.items()}
    units = units_of(
        unit.to_numpy().astype("int64")[usable],
        columns["t_ms"],
        columns["touched"].astype(bool),
        max_gap_ms=rules.tracks.max_gap_s * 1000,
        reach_ms=REACH_MS,
    )
    part: dict[str, Any] = {
        name: columns[name][units.row] for name in ("t_ms", "latitude", "longitude", "accuracy_m", "speed_mps")
    }
    tracks = build_tracks(
        Fixes(
            device=units.unit,
            t_ms=part["t_ms"],
            lat=part["latitude"],
            lon=part["longitude"],
            accuracy_m=part["accuracy_m"],
            speed_mps=part["speed_mps"],
        ),
        rules.tracks,
    )
    # the unit stands in place of the device
    events = find_events(tracks, rules.fences, rules.gates, rules.events)
    row = units.row[end_fixes(tracks, events)]
    ids = zip(columns["epoch"][row].tolist(), columns["seq"][row].tolist(), strict=True)
    found: dict[int, list[DayEvent]] = {}
    for event, record in zip(events, ids, strict=True):
        if event.t_ms // DAY_MS == units.day[event.device]:
            made = DayEvent(event.t_ms, event.kind, event.place, event.value, *record)
            found.setdefault(event.device, []).append(made)
    for number, name in enumerate(units.device.tolist()):
        yield name, found.get(number, [])


def _known(rows: pa.Table) -> dict[str, list[Revision[DayEvent]]]:
    known: dict[str, list[Revision[DayEvent]]] = {}
    for row in rows.to_pylist():
        content = DayEvent(*(row[name] for name in DayEvent._fields))
        known.setdefault(row["unit"], []).append(Revision(row["id"], row["revision"], content, row["retracted"]))
    return known


def _row(tenant: str, device: str, revision: Revision[DayEvent]) -> dict[str, Any]:
    event = revision.content
    return {
        "id": revision.id,
        "revision": revision.revision,
        "tenant": tenant,
        "device": device,
        "epoch": event.epoch,
        "seq": event.seq,
        "kind": event.kind,
        "place": event.place,
        "time": event.t_ms * 1000,
        "value": event.value,
        "retracted": revision.retracted,
        "day": event.t_ms // DAY_MS,
    }


class GeofenceSettings(PublishedEventSettings):
    """When an event counts, and where it is published.

    Changed hysteresis applies to the days that new records touch; the others stay as they were published.
    """

    topic: str = Field(
        default="persistent://{tenant}/events/geofence",
        description="where events are published; `{tenant}`: each tenant's to its own",
    )
    interval_s: float = Field(default=5.0, ge=0.1, le=3600, description="the pause between two runs of --follow")
