"""Place and time: which devices were in an area within a window, from when to when, and how often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import shapely

from cloud_jobs.lake.coverage import TenantDevice
from console.asked import NO_CANARIES, Box, Span, local_text, span_asked, tenant_asked, tenant_field, visible_asked
from console.context import Console, Query
from console.errors import BadQuery
from console.fixes import degrees_text
from console.http import clock_of
from console.movements import Movements, newest_span, read_movements
from console.page import Column, Fact, Field, Island, Kind, Page, Row, Table, device_day, moment_of
from console.pages.fleet import features_of
from console.reference import FenceVersion
from geo.spatial import Fence, FenceSet, fences_from_geojson, find_visits, pieces_by_fence

USUAL: Final = timedelta(hours=24)
LONGEST: Final = timedelta(days=31)
MOST_VISITS: Final = 2_000
MOST_PIECES: Final = 50_000
"""More parts of tracks inside the area are not drawn."""
_AREAS: Final = ("box", "circle", "area")

_VISITS: Final = (
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("start", "From", Kind.TIME),
    Column("began", "Began"),
    Column("end", "Until", Kind.TIME),
    Column("ended", "Ended"),
    Column("stay_s", "Stay", Kind.DURATION),
)
_DEVICES: Final = (
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("visits", "Visits", Kind.COUNT),
    Column("stay_s", "Stay in all", Kind.DURATION),
    Column("metres", "Driven inside", Kind.DISTANCE),
    Column("first", "First", Kind.TIME),
    Column("last", "Last", Kind.TIME),
)


# The area of an address.


def area_of(query: Query) -> Fence | None:
    """The area of an address: a box, a circle, or GeoJSON. Raises BadQuery for one that cannot be used."""
    asked = [(name, query.get(name)) for name in _AREAS if query.get(name)]
    if not asked:
        return None
    if len(asked) > 1:
        raise BadQuery(asked[1][0], f"there is a {asked[0][0]} too; name one area")
    name, text = asked[0]
    match name:
        case "box":
            areas = shapely.MultiPolygon([shapely.box(*part) for part in Box.parse(text).parts])
            geometry, properties = json.loads(shapely.to_geojson(areas)), dict[str, Any]()
        case "circle":
            longitude, latitude, radius_m = _circle(text)
            geometry, properties = {"type": "Point", "coordinates": [longitude, latitude]}, {"radius_m": radius_m}
        case _:
            geometry, properties = _geojson(text)
    feature = {"type": "Feature", "id": "area", "properties": {"id": "area", **properties}, "geometry": geometry}
    report = fences_from_geojson(json.dumps(feature))
    if not report.fences:
        raise BadQuery(name, report.refused[0] if report.refused else "it is no area")
    return report.fences[0]


def _circle(text: str) -> tuple[float, float, float]:
    try:
        longitude, latitude, radius_m = (float(part) for part in text.split(","))
        if not np.isfinite((longitude, latitude, radius_m)).all():
            raise ValueError("it is not finite")
    except ValueError as error:
        raise BadQuery("circle", f"{text!r} is not longitude,latitude,radius in metres") from error
    return longitude, latitude, radius_m


def _geojson(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The geometry of a text, and the width or radius that makes an area of a line or point."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadQuery("area", "it is not GeoJSON, or is longer than 4,000 characters") from error
    if isinstance(value, dict) and value.get("type") == "FeatureCollection":
        features = value.get("features")
        if not isinstance(features, list) or len(features) != 1:
            raise BadQuery("area", "it is not one feature")
        value = features[0]
    properties: Any = {}
    if isinstance(value, dict) and value.get("type") == "Feature":
        properties, value = value.get("properties") or {}, value.get("geometry")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        raise BadQuery("area", "it is not a geometry or a feature of GeoJSON")
    return value, {name: properties[name] for name in ("radius_m", "width_m") if name in properties}


# Who was there.


class Visit(NamedTuple):
    """A stay within the area and the window. `began` and `ended`: how, in words."""

    device: TenantDevice
    start: datetime
    began: str
    end: datetime
    ended: str

    @property
    def stay_s(self) -> float:
        return (self.end - self.start).total_seconds()


@dataclass(frozen=True, slots=True)
class Presence:
    """What was found. `metres`: driven inside, by device. `lines`: the parts of tracks inside, in degrees."""

    moved: Movements
    visits: list[Visit]
    metres: dict[TenantDevice, float]
    lines: list[list[list[float]]]
    pieces: int


def find_presence(console: Console, query: Query, area: Fence, span: Span, tenant: str) -> Presence:
    """The visits of the area with exact crossings, as geofence events have them. Raises BadQuery, LakeError."""
    rules = console.settings.tracks
    west, south, east, north = area.shape.bounds
    moved = read_movements(
        console.lake,
        # what decides the first and the last segment lies outside the window
        span.widened(rules.margin_ms, rules.reach_ahead_ms),
        rules,
        partial(visible_asked, console, query, during=span),
        tenant=tenant,
        near=Box(west, south, east, north),
    )
    fences = FenceSet([area])
    found = find_visits(moved.tracks, fences, console.settings.geofence)
    visits = []
    columns = (found.device, found.start_ms, found.end_ms, found.entered, found.left)
    for device, start_ms, end_ms, entered, left in zip(*(column.tolist() for column in columns), strict=True):
        if end_ms < span.start_ms or start_ms >= span.end_ms:
            continue
        began = "inside before" if start_ms < span.start_ms else "entered" if entered else "first fix inside"
        ended = "inside after" if end_ms > span.end_ms else "left" if left else "last fix inside"
        start, end = max(start_ms, span.start_ms), min(end_ms, span.end_ms)
        visits.append(Visit(moved.devices[device], moment_of(start), began, moment_of(end), ended))
    visits.sort(key=lambda one: (one.start, one.device))
    return _with_lines(moved, visits, fences, span)


def _with_lines(moved: Movements, visits: list[Visit], fences: FenceSet, span: Span) -> Presence:
    fixes, tracks = moved.tracks.fixes, moved.tracks
    pieces = pieces_by_fence(tracks, fences)
    before = np.full(len(fixes), -1, dtype=np.int64)
    before[tracks.row[1:]] = tracks.row[:-1]
    end = pieces.end_fix
    begin = before[end]
    inside = (fixes.t_ms[end] > span.start_ms) & (fixes.t_ms[begin] < span.end_ms) if len(end) else np.zeros(0, bool)
    begin, end, metres = begin[inside], end[inside], pieces.metres[inside]
    totals = np.bincount(fixes.device[end], metres, minlength=len(moved.devices))
    # the short way over the antimeridian
    east = fixes.lon[end] - fixes.lon[begin]
    east -= np.round(east / 360) * 360
    north = fixes.lat[end] - fixes.lat[begin]
    places = [
        np.round(np.column_stack((fixes.lon[begin] + share * east, fixes.lat[begin] + share * north)), 7)
        for share in (pieces.start[inside], pieces.end[inside])
    ]
    shown = np.arange(min(len(end), MOST_PIECES))
    goes_on = (pieces.start[inside] == 0.0) & (np.append([-1], end[:-1]) == begin)
    runs = np.split(shown, np.flatnonzero(~goes_on[shown])[1:]) if len(shown) else []
    lines = [[places[0][run[0]].tolist(), *places[1][run].tolist()] for run in runs]
    of_device = {device: float(totals[at]) for at, device in enumerate(moved.devices)}
    return Presence(moved, visits, of_device, lines, len(end))


# The page.


def page(console: Console, query: Query) -> Page:
    """The form, and if it names an area: the visits, the devices, and the map of both."""
    tenant, clock = tenant_asked(query), clock_of(console, query)
    usual, zone = partial(newest_span, console.lake, USUAL, clock.now), clock.zone
    span = span_asked(query, clock, default=usual, longest=LONGEST)
    area = area_of(query)
    found = None if area is None else find_presence(console, query, area, span, tenant)
    if found is not None:
        tenants = (TenantDevice(name, "*") for name in sorted({one.device.tenant for one in found.visits}))
        what = {"since": span.start, "until": span.end, "devices_there": len({one.device for one in found.visits})}
        console.log_access(query.viewer, "console where", *tenants, **what)
    return Page(
        path="/where",
        title="Place and time",
        facts=() if found is None else _facts(found, span),
        tables=_tables(found, query),
        island=Island(
            "where",
            _island(console.fences.in_force(query.viewer, span.start, span.end), area, found)
            | _places(console, query, span),
        ),
        state=query.state(*_AREAS, "tenant")
        | {"start": local_text(span.start, zone), "end": local_text(span.end, zone)},
        form=(
            Field("box", "Box (west,south,east,north)"),
            Field("circle", "Circle (longitude,latitude,metres)"),
            Field("area", "GeoJSON"),
            Field("start", "From", type="datetime-local"),
            Field("end", "Until", type="datetime-local"),
            tenant_field(console, query),
        ),
    )


def _places(console: Console, query: Query, span: Span) -> dict[str, str]:
    """Last fixes, for a map that shows where devices are before an area is named."""
    if any(map(query.get, _AREAS)):
        return {}
    console.log_fleet_access(query.viewer, "console where")
    fixes = console.feed.fixes(console.now()).of
    places = [fixes[one] for one in visible_asked(console, query, fixes, span)]
    return {
        "longitude": degrees_text(np.array([one.longitude for one in places])),
        "latitude": degrees_text(np.array([one.latitude for one in places])),
    }


def _facts(found: Presence, span: Span) -> tuple[Fact, ...]:
    return (
        Fact("start", "From", span.start, Kind.TIME),
        Fact("end", "Until", span.end, Kind.TIME),
        Fact("devices", "Devices there", len({visit.device for visit in found.visits}), Kind.COUNT),
        Fact("visits", "Visits", len(found.visits), Kind.COUNT),
        Fact("files_read", "Files read", found.moved.files_read, Kind.COUNT),
        Fact("files", "Files of the table", found.moved.files, Kind.COUNT),
    )


def _tables(found: Presence | None, query: Query) -> tuple[Table, ...]:
    if found is None:
        return (Table("visits", "Visits", _VISITS, empty="Name an area above, or draw one on the map."),)
    count = len(found.visits)
    cut = f" The first {MOST_VISITS:,} of {count:,}." if count > MOST_VISITS else ""
    hidden = f" {found.pieces - MOST_PIECES:,} parts of tracks are not drawn." if found.pieces > MOST_PIECES else ""
    canaries, asked_zone = "" if query.get("tenant") else f" {NO_CANARIES}", query.zone
    note = f"Times are those of the crossings. {found.moved.read_note()}{cut}{hidden}{canaries}"
    empty = "no device was there"
    of_device: dict[TenantDevice, list[Visit]] = {}
    for visit in found.visits:
        of_device.setdefault(visit.device, []).append(visit)
    devices = [*of_device.items()][:MOST_VISITS]
    return (
        Table.of("devices", "Devices", _DEVICES, devices, partial(_device_row, found, asked_zone), empty=empty),
        Table.of(
            "visits",
            "Visits",
            _VISITS,
            found.visits[:MOST_VISITS],
            partial(_visit_row, asked_zone),
            note=note,
            empty=empty,
        ),
    )


def _visit_row(asked_zone: str, one: Visit) -> Row:
    return {
        "id": f"{one.device.tenant}/{one.device.device}/{one.start.isoformat()}",
        "device": one.device.device,
        "tenant": one.device.tenant,
        "start": one.start,
        "began": one.began,
        "end": one.end,
        "ended": one.ended,
        "stay_s": one.stay_s,
        "href": device_day(one.device, one.start, asked_zone),
    }


def _device_row(found: Presence, asked_zone: str, item: tuple[TenantDevice, list[Visit]]) -> Row:
    device, visits = item
    return {
        "id": f"{device.tenant}/{device.device}",
        "device": device.device,
        "tenant": device.tenant,
        "visits": len(visits),
        "stay_s": sum(visit.stay_s for visit in visits),
        "metres": found.metres.get(device),
        "first": visits[0].start,
        "last": max(visit.end for visit in visits),
        "href": device_day(device, visits[0].start, asked_zone),
    }


def _island(fences: Sequence[FenceVersion], area: Fence | None, found: Presence | None) -> dict[str, Any]:
    return {
        "area": None if area is None else json.loads(shapely.to_geojson(area.shape)),
        "lines": [] if found is None else found.lines,
        "fences": features_of(fences),
    }
