"""A span of time again: where each device was, and what happened, as it happened."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from cloud_jobs.lake.coverage import TenantDevice
from console.asked import NO_CANARIES, Span, local_text, span_asked, tenant_asked, tenant_field, visible_asked
from console.context import Console, Query
from console.fixes import column_text, degrees_text
from console.happenings import AlertRow, EncounterRow, EventRow, Selection, alerts, encounters, events
from console.http import clock_of
from console.movements import (
    Movements,
    newest_span,
    read_movements,
)
from console.page import Column, Fact, Field, Island, Kind, Page, Row, Table, device_day, moment_of, ms_of
from console.pages.fleet import SILENT_S, features_of
from console.pages.happenings import devices_of, told

USUAL: Final = timedelta(hours=2)
LONGEST: Final = timedelta(hours=24)
MOST_DEVICES: Final = 2_000
MOST_FIXES: Final = 400_000
"""With more fixes, those that are sent are farther apart than `STEP_S`."""
STEP_S: Final = 10
MOST_EVENTS: Final = 2_000
_ASKED: Final = ("tenant", "at", "rate", "device")

_EVENTS: Final = (
    Column("time", "Time", Kind.TIME),
    Column("kind", "Event"),
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("place", "Place"),
)
_DEVICES: Final = (
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("first", "First fix", Kind.TIME),
    Column("last", "Last fix", Kind.TIME),
    Column("fixes", "Fixes", Kind.COUNT),
    Column("metres", "Driven", Kind.DISTANCE),
)


def page(console: Console, query: Query) -> Page:
    """The events of a span, and each device's first and last fix in it."""
    zone = clock_of(console, query).zone
    span, tenant = _asked(console, query)
    moved = _read(console, query, span, tenant)
    happened, warnings = _happenings(console, query, span, tenant)
    shown = happened[:MOST_EVENTS]
    _log_access(console, query, span, {*(one.tenant for one in moved.devices), *(one.device.tenant for one in shown)})
    cut = f" The first {len(shown):,} of {len(happened):,}." if len(happened) > len(shown) else ""
    return Page(
        path="/replay",
        title="Replay",
        facts=(
            Fact("start", "From", span.start, Kind.TIME),
            Fact("end", "Until", span.end, Kind.TIME),
            Fact("devices", "Devices", len(moved.devices), Kind.COUNT),
        ),
        tables=(
            Table.of(
                "events",
                "Events",
                _EVENTS,
                shown,
                partial(_event_row, query.zone),
                note=f"In the order of time.{cut} {'' if tenant else NO_CANARIES}",
            ),
            _devices(moved, span, query.zone),
        ),
        island=Island(
            "replay",
            {
                "data": query.address_with(
                    "/replay/data", start=span.start.isoformat(), end=span.end.isoformat(), tenant=tenant
                ),
                "zone": zone.key,
                "fences": features_of(console.fences.in_force(query.viewer, span.start, span.end)),
                "events": [
                    {"id": one.id, "t_ms": ms_of(one.time) - span.start_ms, "device": _id(one.device)} for one in shown
                ],
            },
        ),
        warnings=warnings,
        state=query.state(*_ASKED) | {"start": local_text(span.start, zone), "end": local_text(span.end, zone)},
        form=(
            Field("start", "From", type="datetime-local"),
            Field("end", "Until", type="datetime-local"),
            tenant_field(console, query),
        ),
    )


def data(console: Console, query: Query) -> Page:
    """The fixes of a span as base64 columns of int32, for the picture."""
    span, tenant = _asked(console, query)
    moved = _read(console, query, span, tenant)
    _log_access(console, query, span, {one.tenant for one in moved.devices})
    state = query.state(*_ASKED, "start", "end")
    return Page("/replay/data", "Fixes of a span", island=Island("columns", columns(moved, span)), state=state)


def _log_access(console: Console, query: Query, span: Span, tenants: Iterable[str]) -> None:
    """Events, and the first and last fix, say where a device was: the table is logged as the picture is."""
    devices = (TenantDevice(name, "*") for name in sorted(tenants))
    console.log_access(query.viewer, "console replay", *devices, since=span.start, until=span.end)


def _asked(console: Console, query: Query) -> tuple[Span, str]:
    tenant, clock = tenant_asked(query), clock_of(console, query)
    usual = partial(newest_span, console.lake, USUAL, clock.now)
    return span_asked(query, clock, default=usual, longest=LONGEST), tenant


def _read(console: Console, query: Query, span: Span, tenant: str) -> Movements:
    visible = partial(visible_asked, console, query, during=span)
    # places as reported: a replay shows what was received
    rules = console.settings.tracks.as_reported()
    return read_movements(console.lake, span, rules, visible, tenant=tenant)


class Happening(NamedTuple):
    """An event, encounter or alert of the span. `place`: the fence or gate, or the other device of an encounter."""

    id: str
    time: datetime
    kind: str
    device: TenantDevice
    place: str
    value: float

    @classmethod
    def of(cls, one: EventRow | EncounterRow | AlertRow, alerted: Collection[str]) -> Happening:
        device, *others = devices_of(one)
        if isinstance(one, EncounterRow):
            return cls(one.id, one.start, "encounter", device, _id(*others), one.min_m)
        if isinstance(one, AlertRow):
            return cls(f"alert-{one.id}", one.time, f"alert: {one.kind}", device, one.place, one.value)
        kind = f"{one.kind}, alerted" if one.id in alerted else one.kind
        return cls(one.id, one.time, kind, device, one.place, one.value)


def _happenings(console: Console, query: Query, span: Span, tenant: str) -> tuple[list[Happening], tuple[str, ...]]:
    """What happened in the span in the order of time, and what is not known of it."""
    asked = Selection(tenant, "", "", "", *span, is_default=False, tenants=query.viewer.tenants)
    found, warnings = zip(*(told(console, query, asked, read) for read in (events, encounters, alerts)), strict=True)
    # an alert has the id of the event that it announces; a late event has none
    alerted = {one.id for one in found[2] if one.raised_at is not None}
    known = {one.id for one in found[0]}
    rows = [*found[0], *found[1], *(one for one in found[2] if one.id in alerted - known)]
    happened = sorted((Happening.of(one, alerted) for one in rows), key=lambda one: (one.time, one.id))
    return happened, tuple(chain(*warnings))


def _event_row(asked_zone: str, one: Happening) -> Row:
    row: Row = {
        "id": one.id,
        "time": one.time,
        "kind": one.kind,
        "device": one.device.device,
        "tenant": one.device.tenant,
        "place": one.place,
        "value": one.value,
    }
    return row | {"href": device_day(one.device, one.time, asked_zone)}


def _devices(moved: Movements, span: Span, asked_zone: str) -> Table:
    fixes, row = moved.tracks.fixes, moved.tracks.row
    device = fixes.device[row]
    count = len(moved.devices)
    first = np.searchsorted(device, np.arange(count + 1))
    metres = np.bincount(device, moved.tracks.metres, minlength=count) if count else np.zeros(0)

    def made(at: int) -> Row:
        one, begin, end = moved.devices[at], int(first[at]), int(first[at + 1])
        times = [moment_of(fixes.t_ms[row[place]]) if end > begin else None for place in (begin, end - 1)]
        return {
            "id": _id(one),
            "device": one.device,
            "tenant": one.tenant,
            "first": times[0],
            "last": times[1],
            "fixes": end - begin,
            "metres": float(metres[at]) if end > begin else None,
            "href": device_day(one, times[0] or span.start, asked_zone),
        }

    cut = f" The first {MOST_DEVICES:,} of {count:,} devices." if count > MOST_DEVICES else ""
    shown = range(min(count, MOST_DEVICES))
    return Table.of("devices", "Devices", _DEVICES, shown, made, note=f"{moved.read_note()}{cut}", empty="no fix")


def columns(moved: Movements, span: Span) -> dict[str, Any]:
    """The fixes to draw: of each device at most one in each step, and both ends of each piece.

    `first`: where each device's fixes begin, and their number. `t_ms`: since `start_ms`. `longitude`, `latitude`: in
    1e-7 degrees. `speed`: cm/s; -1: not reported. `begins`: fixes to which no line leads from the one before.
    """
    fixes, tracks = moved.tracks.fixes, moved.tracks
    keep = fixes.device[tracks.row] < MOST_DEVICES
    row, linked = tracks.row[keep], tracks.linked[keep]
    piece = np.cumsum(~linked)
    step_s = STEP_S
    while True:
        bin_of = fixes.t_ms[row] // (step_s * 1000)
        wanted = np.ones(len(row), dtype=np.bool_)
        wanted[1:] = (piece[1:] != piece[:-1]) | (bin_of[1:] != bin_of[:-1])
        wanted[:-1] |= piece[1:] != piece[:-1]
        wanted[-1:] = True
        if np.count_nonzero(wanted) <= MOST_FIXES or step_s > 3600:
            break
        step_s *= 2
    at = row[wanted]
    speed = np.where(np.isfinite(moved.speed_mps[at]), moved.speed_mps[at] * 100, -1)
    count = min(len(moved.devices), MOST_DEVICES)
    return {
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "step_s": step_s,
        "silent_s": SILENT_S,
        "devices": [_id(one) for one in moved.devices[:count]],
        "first": column_text(np.searchsorted(fixes.device[at], np.arange(count + 1))),
        "t_ms": column_text(fixes.t_ms[at] - span.start_ms),
        "longitude": degrees_text(fixes.lon[at]),
        "latitude": degrees_text(fixes.lat[at]),
        "speed": column_text(np.clip(speed, -1, 100_000)),
        "begins": column_text(np.flatnonzero(~linked[wanted])),
    }


def _id(device: TenantDevice) -> str:
    return f"{device.tenant}/{device.device}"
