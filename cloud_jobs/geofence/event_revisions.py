"""From fixes and the known revisions to those that follow now: a pure function of both. Knows no Spark.

Events of one UTC day of a device depend on its fixes of that day and of the stretch around it, never on the order in
which these came. So a run over everything at once ends with the same events as any number of runs over parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.errors import CloudError
from cloud_jobs.geofence.config import GeofenceSettings
from cloud_jobs.geofence.units import DAY_MS, Units, units_of
from cloud_jobs.lake.schemas import FIX, GEOFENCE_EVENTS, without
from cloud_jobs.published_fences import parse_fences
from cloud_jobs.revisions import latest_by_id
from geo.spatial import (
    EventRevision,
    FenceSet,
    Fixes,
    GateSet,
    GeofenceEvent,
    TrackSettings,
    build_tracks,
    find_events,
    new_revisions,
    valid_positions,
)

INPUT: Final = pa.schema(
    [
        pa.field("unit", pa.string()),
        *without(FIX, "device"),
        pa.field("speed_mps", pa.float64()),
        pa.field("touched", pa.bool_()),
        pa.field("id", pa.string()),
        pa.field("revision", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("place", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("retracted", pa.bool_()),
    ]
)
"""What one day of a device needs: the fixes of the day (`touched`) and around it, and its known revisions
(`id` is not null). `unit` names the device and the day: see `device_of`."""

REVISIONS: Final = without(GEOFENCE_EVENTS, "emitted_at")
"""Revisions on their way to the table `geofence_events`."""


@dataclass(frozen=True, slots=True)
class EventRules:
    """Everything that decides what an event is, apart from the fixes. Raises CloudError for a gap beyond the reach."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: GeofenceSettings

    def __post_init__(self) -> None:
        if self.tracks.max_gap_s > self.events.reach_h * 3600:
            raise CloudError(f"tracks.max_gap_s cannot exceed geofence.reach_h ({self.events.reach_h} h)")

    @classmethod
    def of(cls, features: Iterable[str], tracks: TrackSettings, events: GeofenceSettings) -> EventRules:
        """With the fences and gates of published features. Raises CloudError for one that cannot be used."""
        made = parse_fences(features)
        return cls(FenceSet(made.fences), GateSet(made.gates), tracks, events)


def device_of(unit: str) -> str:
    """The device of a unit, which is named `device`, a line feed, `day`."""
    return unit.partition("\n")[0]


def revise(rows: pa.Table, rules: EventRules) -> pa.Table:
    """New revisions (schema REVISIONS) of the days asked for.

    `rows` (schema INPUT): whole units, sorted by unit, time, epoch, seq.
    """
    is_fix = pc.is_null(rows["id"])
    fixes, before = rows.filter(is_fix), _latest_revisions(rows.filter(pc.invert(is_fix)))
    names = fixes["unit"].combine_chunks().dictionary_encode()
    revisions: list[dict[str, Any]] = []
    for number, events in _events(names.indices, fixes, rules):
        unit = names.dictionary[number].as_py()
        device = device_of(unit)
        changed = new_revisions(before.get(unit, []), events, namespace=device)
        revisions += [_row(device, one) for one in sorted(changed, key=lambda one: (one.event, one.id))]
    return pa.Table.from_pylist(revisions, schema=REVISIONS)


def _events(unit: pa.Array, fixes: pa.Table, rules: EventRules) -> Iterator[tuple[int, list[GeofenceEvent]]]:
    """The events of each unit that has a fix of its day."""
    columns = {name: fixes[name].to_numpy() for name in INPUT.names[1:9]}
    usable = valid_positions(columns["latitude"], columns["longitude"])
    columns = {name: column[usable] for name, column in columns.items()}
    units = units_of(
        unit.to_numpy().astype("int64")[usable],
        columns["t_ms"],
        columns["touched"].astype(bool),
        max_gap_ms=rules.tracks.max_gap_s * 1000,
        reach_ms=round(rules.events.reach_h * 3_600_000),
    )
    events = _events_by_unit(units, columns, rules)
    for number, name in enumerate(units.device.tolist()):
        yield name, events.get(number, [])


def _events_by_unit(units: Units, columns: dict[str, Any], rules: EventRules) -> dict[int, list[GeofenceEvent]]:
    """The events of each unit in its own day; in them the unit stands in the place of the device."""
    part = {name: columns[name][units.row] for name in ("t_ms", "latitude", "longitude", "accuracy_m", "speed_mps")}
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
    events = find_events(tracks, rules.fences, rules.gates, rules.events)
    return {
        unit: [event._replace(device=0) for event in several if event.t_ms // DAY_MS == units.day[unit]]
        for unit, several in groupby(events, key=lambda event: event.device)
    }


def _latest_revisions(rows: pa.Table) -> dict[str, list[EventRevision]]:
    """The latest known revision of each event, by unit, in the order of ids."""
    known: dict[str, list[EventRevision]] = {}
    for row in rows.to_pylist():
        event = GeofenceEvent(0, row["t_ms"], row["kind"], row["place"], row["value"])
        known.setdefault(row["unit"], []).append(EventRevision(row["id"], row["revision"], event, row["retracted"]))
    return {
        unit: [revision for _, revision in sorted(latest_by_id(revisions).items())] for unit, revisions in known.items()
    }


def _row(device: str, revision: EventRevision) -> dict[str, Any]:
    event = revision.event
    return {
        "id": revision.id,
        "revision": revision.revision,
        "device": device,
        "kind": event.kind,
        "place": event.place,
        "time": event.t_ms * 1000,
        "value": event.value,
        "retracted": revision.retracted,
        "day": event.t_ms // DAY_MS,
    }
