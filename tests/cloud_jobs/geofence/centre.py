"""The geofence job without Spark: the same choice of days and rows, in memory."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from cloud_jobs.geofence.event_revisions import INPUT, REACH_MS, EventRules, GeofenceSettings, revise
from geo.spatial import TrackSettings
from geo.spatial.event_ids import DAY_MS


class GeofenceFix(NamedTuple):
    device: str
    seq: int
    t_ms: int
    latitude: float
    longitude: float
    accuracy_m: float | None = None
    tenant: str = "acme"


@dataclass
class GeofenceCentre:
    """Takes fixes in any pieces; `table` has every revision that was published."""

    rules: EventRules
    fixes: set[GeofenceFix] = field(default_factory=set)
    table: list[dict[str, Any]] = field(default_factory=list)

    def take(self, arrivals: Iterable[GeofenceFix]) -> list[dict[str, Any]]:
        new = set(arrivals) - self.fixes
        self.fixes |= new
        reach = REACH_MS
        touched = {
            (fix.tenant, fix.device, (fix.t_ms + shift) // DAY_MS) for fix in new for shift in (-reach, 0, reach)
        }
        rows = [
            self._fix_row(fix, day)
            for fix in self.fixes
            for day in range(fix.t_ms // DAY_MS - 1, fix.t_ms // DAY_MS + 2)
            if (fix.tenant, fix.device, day) in touched
        ]
        rows += [known_row(row) for row in self.table if key_of(row) in touched]
        rows.sort(key=lambda row: (row["unit"], row["t_ms"], row["epoch"], row["seq"]))
        news = as_rows(revise(pa.Table.from_pylist(rows, schema=INPUT), self.rules))
        self.table += news
        return news

    def in_force(self) -> list[tuple[Any, ...]]:
        """The events with their ids; how many revisions led there is history."""
        return sorted(content(row) for row in latest(self.table) if not row["retracted"])

    @staticmethod
    def _fix_row(fix: GeofenceFix, day: int) -> dict[str, Any]:
        return fix._asdict() | {
            "unit": f"{fix.tenant}\n{fix.device}\n{day}",
            "epoch": 7,
            "touched": fix.t_ms // DAY_MS == day,
        }


def as_rows(news: pa.Table) -> list[dict[str, Any]]:
    at = news.schema.get_field_index("time")
    rows: list[dict[str, Any]] = news.set_column(at, "time", news["time"].cast("int64")).to_pylist()
    return rows


def known_row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "revision", "epoch", "seq", "kind", "place", "value", "retracted")
    t_ms = row["time"] // 1000
    unit = "\n".join(map(str, key_of(row)))
    return {name: row[name] for name in names} | {"unit": unit, "t_ms": t_ms}


def key_of(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["tenant"], row["device"], row["time"] // 1000 // DAY_MS


def latest(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(table, key=lambda row: row["revision"]):
        newest[row["id"]] = row
    return list(newest.values())


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("device", "time", "kind", "place", "value", "id", "epoch", "seq", "day", "tenant")
    return tuple(row[name] for name in names)


def rules(tracks: TrackSettings | None = None, **settings: Any) -> EventRules:
    """A square of 0.01° at the origin's north-east with a limit of 22 m/s, and a gate east of it."""
    features = [
        {
            "type": "Feature",
            "properties": {"id": "square", "speed_limit_mps": 22},
            "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [0.01, 0], [0.01, 0.01], [0, 0.01], [0, 0]]]},
        },
        {
            "type": "Feature",
            "properties": {"id": "gate", "gate": True},
            "geometry": {"type": "LineString", "coordinates": [[0.015, 0], [0.015, 0.01]]},
        },
    ]
    return EventRules.of(map(json.dumps, features), tracks or TrackSettings(), GeofenceSettings(**settings))
