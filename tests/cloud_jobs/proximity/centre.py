"""The proximity job without Spark: the same choice of slices, pieces and pairs, in memory."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.proximity.encounter_revisions import INPUT, revise
from cloud_jobs.proximity.encounters import (
    CROWD,
    FIXES,
    IN_CROWD,
    PARTS,
    PIECES,
    PLACES,
    SEPARATOR,
    SLICE_MS,
    crowded,
    parts_of,
    parts_of_crowds,
    pieces_of,
    places_of,
    slice_day,
)
from geo.spatial import TrackSettings

DAY_SLICES = 86_400_000 // SLICE_MS


class ProximityFix(NamedTuple):
    device: str
    seq: int
    t_ms: int
    latitude: float
    longitude: float
    tenant: str = "acme"
    accuracy_m: float | None = None
    speed_mps: float | None = None

    @property
    def name(self) -> str:
        return f"{self.tenant}{SEPARATOR}{self.device}"


@dataclass
class ProximityCentre:
    """Takes fixes in any pieces; `table` has every revision that was published."""

    distance_m: float = 100.0
    cell_m: float = 1_000.0
    crowd_devices: int = 100
    tracks: TrackSettings = field(default_factory=TrackSettings)
    fixes: set[ProximityFix] = field(default_factory=set)
    table: list[dict[str, Any]] = field(default_factory=list)

    def take(self, arrivals: Iterable[ProximityFix]) -> list[dict[str, Any]]:
        new = set(arrivals) - self.fixes
        self.fixes |= new
        margin = self.tracks.margin_ms
        touched = {
            (fix.name, number)
            for fix in new
            for number in range((fix.t_ms - margin) // SLICE_MS, (fix.t_ms + margin) // SLICE_MS + 1)
        }
        parts, asked_for = self._parts(touched)
        rows = [row | {"pair": pair(row)} for row in parts.to_pylist()]
        for row in self.table:
            asked = [number for device, number in asked_for if slice_day(number) == row["day"] and device in named(row)]
            if asked:
                known = known_row(row)
                rows.append(known | {"pair": pair(known), "asked": asked})
        given = pa.Table.from_pylist(sorted(rows, key=lambda row: row["pair"]), schema=INPUT)
        news = as_rows(revise(given))
        self.table += news
        return news

    def _parts(self, touched: set[tuple[str, int]]) -> tuple[pa.Table, set[tuple[str, int]]]:
        """The parts of touched slices, and the slices of devices that these are all parts of."""
        slices = np.array(sorted({number for _, number in touched}), dtype=np.int64)
        reach, apart_m = -(-self.tracks.margin_ms // SLICE_MS), self.tracks.apart_m(self.distance_m)
        near = {number + by for number in slices.tolist() for by in range(-reach, reach + 1)}
        rows: list[dict[str, Any]] = [
            fix._asdict() | {"device": fix.name, "epoch": 7} for fix in self.fixes if fix.t_ms // SLICE_MS in near
        ]
        rows.sort(key=lambda row: (row["device"], row["t_ms"], row["seq"]))
        rows += [{"device": device, "asked": number} for device, number in touched]
        table = pa.Table.from_pylist(rows, schema=FIXES)
        if not rows:
            return PARTS.empty_table(), touched
        pieces = pa.Table.from_batches(
            pieces_of(table, slices, self.tracks, apart_m=apart_m, cell_m=self.cell_m), PIECES
        )
        in_crowd = in_crowds(pieces, apart_m, self.crowd_devices)
        asked = touched | in_crowd.keys() | self._known_crowds(set(slices.tolist()))
        marked = [
            row
            | {
                "asked": (row["device"], row["slice"]) in asked,
                "minutes": in_crowd.get((row["device"], row["slice"]), 0),
            }
            for row in pieces.to_pylist()
        ]
        pieces = pa.Table.from_pylist(marked, schema=PIECES)
        crowds = [{"device": device, "slice": number, "minutes": bits} for (device, number), bits in in_crowd.items()]
        found = list(parts_of_crowds(pa.Table.from_pylist(crowds, schema=IN_CROWD), self.distance_m))
        # cell by cell, as tasks would have them
        for cell in set(pieces["cell"].to_pylist()):
            found += parts_of(pieces.filter(pa.compute.equal(pieces["cell"], cell)), self.distance_m, apart_m)
        return pa.Table.from_batches(found, PARTS), asked

    def _known_crowds(self, slices: set[int]) -> set[tuple[str, int]]:
        known = {
            (named(row)[1], int(part[0]))
            for row in self.table
            if row["device_a"] == CROWD
            for part in json.loads(row["parts"])
        }
        return {one for one in known if one[1] in slices}

    def in_force(self) -> list[tuple[Any, ...]]:
        newest: dict[str, dict[str, Any]] = {}
        for row in sorted(self.table, key=lambda row: row["revision"]):
            newest[row["id"]] = row
        names = ("device_a", "device_b", "start", "end", "min_m", "min_at", "parts", "id", "day", "tenant")
        return sorted(tuple(row[name] for name in names) for row in newest.values() if not row["retracted"])


def in_crowds(pieces: pa.Table, apart_m: float, most: int) -> dict[tuple[str, int], int]:
    """The minutes (bits) in which devices are in a crowd, by device and slice: as the job counts them."""
    places = pa.Table.from_batches(places_of(pieces, apart_m), PLACES).sort_by("minute")
    return _minutes(crowded(places, most))


def _minutes(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for row in pa.Table.from_batches(batches, IN_CROWD).to_pylist():
        key = row["device"], row["slice"]
        found[key] = found.get(key, 0) | row["minutes"]
    return found


def pair(row: dict[str, Any]) -> str:
    return f"{row['device_a']}\n{row['device_b']}"


def known_row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "revision", "retracted", "parts")
    a, b = named(row)
    return {name: row[name] for name in names} | {"device_a": a, "device_b": b, "slice": row["day"] * DAY_SLICES}


def named(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['tenant']}{SEPARATOR}{row['device_a']}", f"{row['tenant']}{SEPARATOR}{row['device_b']}"


def as_rows(news: pa.Table) -> list[dict[str, Any]]:
    for name in ("start", "end", "min_at"):
        news = news.set_column(news.schema.get_field_index(name), name, news[name].cast("int64"))
    days = news["day"].cast("int32")
    rows: list[dict[str, Any]] = news.set_column(news.schema.get_field_index("day"), "day", days).to_pylist()
    return rows
