"""The fleet: where each device is, how old that is, and what is known about its records."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from cloud_jobs.billing.contracts import Account
from cloud_jobs.lake.coverage import TenantDevice
from console.context import Console, Query
from console.errors import BadQuery
from console.fixes import LastFix, LastFixes
from console.page import Column, Field, Island, Kind, Page, Row, Table, address
from console.reference import FenceVersion

SILENT_S: Final = 300.0
"""A device whose last fix is older is shown as silent: its speed and state since then are unknown."""
_MOVING_MPS: Final = 0.8

COLUMNS: Final = (
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("account", "Account"),
    Column("state", "State", Kind.STATE),
    Column("time", "Last fix", Kind.TIME),
    Column("age_s", "Age", Kind.AGE),
    Column("speed_mps", "Speed", Kind.SPEED),
    Column("region", "Region"),
)


def state_of(fix: LastFix, now: datetime) -> str:
    """`driving`, `parked`, `silent`, or `unknown` for a recent fix without a speed."""
    if (now - fix.time).total_seconds() > SILENT_S:
        return "silent"
    if fix.speed_mps is None:
        return "unknown"
    return "driving" if fix.speed_mps > _MOVING_MPS else "parked"


def page(console: Console, query: Query) -> Page:
    """Every device that the viewer may see, with its last fix."""
    now = console.now()
    fixes = console.last_fixes.read(now)
    accounts = console.reference.account_of(now)
    devices = sorted({*fixes.of, *accounts})
    box = _box(query.get("box"))
    rows = [
        row
        for device in devices
        if query.viewer.sees_tenant(device.tenant)
        and _matches(row := _row(device, fixes.of.get(device), accounts.get(device), now), query, box)
    ]
    state = {
        name: query.get(name) for name in ("tenant", "account", "region", "state", "box", "zone") if query.get(name)
    }
    table = Table("devices", "Devices", COLUMNS, tuple(rows), note=_note(fixes), empty="no device matches")
    return Page(
        path="/",
        title="Fleet",
        tables=(table,),
        island=Island("fleet", _island(rows, console.reference.fences_at(now))),
        state=state,
        form=_form(query, devices, accounts, fixes),
    )


def _row(device: TenantDevice, fix: LastFix | None, account: Account | None, now: datetime) -> Row:
    row: Row = {
        "id": f"{device.tenant}/{device.device}",
        "device": device.device,
        "tenant": device.tenant,
        "account": account.id if account else "none",
        "href": address("device", device.tenant, device.device),
        "state": "unknown",
        **dict.fromkeys(("time", "age_s", "speed_mps", "region", "latitude", "longitude", "heading_deg")),
    }
    if fix is None:
        return row
    state = state_of(fix, now)
    return row | {
        "state": state,
        "time": fix.time,
        "age_s": (now - fix.time).total_seconds(),
        # a silent device may drive now
        "speed_mps": None if state == "silent" else fix.speed_mps,
        "region": fix.region,
        "latitude": fix.latitude,
        "longitude": fix.longitude,
        "heading_deg": fix.heading_deg,
    }


def _matches(row: Row, query: Query, box: tuple[float, float, float, float] | None) -> bool:
    asked = ((name, query.get(name)) for name in ("tenant", "account", "region", "state"))
    if any(text and row[name] != text for name, text in asked):
        return False
    if box is None:
        return True
    if row["latitude"] is None:
        return False
    west, south, east, north = box
    inside = west <= row["longitude"] <= east if west <= east else not east < row["longitude"] < west
    return inside and bool(south <= row["latitude"] <= north)


def _box(text: str) -> tuple[float, float, float, float] | None:
    """West, south, east, north in degrees; a box across the antimeridian has its west east of its east."""
    if not text:
        return None
    try:
        west, south, east, north = (float(part) for part in text.split(","))
    except ValueError as error:
        raise BadQuery("box", f"{text!r} is not west,south,east,north in degrees") from error
    if not (abs(west) <= 180 and abs(east) <= 180 and -90 <= south <= north <= 90):
        raise BadQuery("box", f"{text!r} is not within the world, or its south is above its north")
    return west, south, east, north


def _note(fixes: LastFixes) -> str:
    if fixes.since is None:
        return "The lake has no records yet."
    left_out = f" {fixes.left_out:,} positions cannot be used and are not shown." if fixes.left_out else ""
    return f"Fixes since {fixes.since:%Y-%m-%d %H:%M} UTC; a device without one since then is unknown.{left_out}"


def _form(
    query: Query, devices: list[TenantDevice], accounts: dict[TenantDevice, Account], fixes: LastFixes
) -> tuple[Field, ...]:
    seen = [device for device in devices if query.viewer.sees_tenant(device.tenant)]
    tenants = sorted({device.tenant for device in seen})
    of_seen = sorted({accounts[device].id for device in seen if device in accounts})
    regions = sorted({fixes.of[device].region or "" for device in seen if device in fixes.of} - {""})
    return (
        Field("tenant", "Tenant", _choices(tenants)),
        Field("account", "Account", _choices(of_seen)),
        Field("region", "Region", _choices(regions)),
        Field("state", "State", _choices(["driving", "parked", "silent", "unknown"])),
        Field("box", "Box (west,south,east,north)"),
    )


def _choices(values: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((value, value) for value in values)


def _island(rows: list[Row], fences: tuple[FenceVersion, ...]) -> dict[str, Any]:
    return {
        "devices": [
            {name: row[name] for name in ("id", "state", "latitude", "longitude", "heading_deg", "age_s")}
            for row in rows
            if row["latitude"] is not None
        ],
        "fences": features_of(fences),
    }


def features_of(fences: tuple[FenceVersion, ...]) -> dict[str, Any]:
    """Fences and gates as a GeoJSON FeatureCollection."""
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": one.geometry,
                "properties": {"id": one.id, "name": one.name, "gate": one.is_gate},
            }
            for one in fences
        ],
    }
