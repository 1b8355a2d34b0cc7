"""The fleet: where each device is, how old that is, and what is known about its records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from cloud_jobs.errors import LakeError, StoreUnavailable
from cloud_jobs.lake.coverage import TenantDevice
from console.asked import NO_CANARIES, Box, is_meant, local_text, moment_asked, part_asked
from console.completeness import STATES, not_covered
from console.context import Console, Query
from console.counts import AlertCounts, DayUsage, alerts_of, usage_of
from console.fixes import LastFix, LastFixes, day_span, fix_columns, fix_numbers
from console.http import clock_of
from console.page import UNKNOWN, Column, Fact, Field, Island, Kind, Page, Row, Table, address, ms_of
from console.reference import FenceVersion

SILENT_S: Final = 300.0
"""A device whose last fix is older is shown as silent: its speed and state since then are unknown."""
CLOCKS: Final = timedelta(minutes=1)
"""So much may the clocks of a device and of this console differ. A fix that is farther ahead says nothing of now."""
MOVING_MPS: Final = 0.8
ROWS_OF_PAGE: Final = 200
_ALERTS: Final = timedelta(hours=1)
_LONG_AGO: Final = timedelta(hours=1)
_MOTION: Final = ("driving", "parked", "silent", "unknown")
_CHOICES: Final = {
    "state": _MOTION,
    "records": STATES,
    "registry": ("expected", "active", "suspended", "revoked", "not registered", UNKNOWN),
}
_SORTS: Final[Mapping[str, Callable[[Seen], Any]]] = {
    "state": lambda one: _MOTION.index(one.state),
    "newest fix": lambda one: -one.fix.time.timestamp() if one.fix else math.inf,
    "oldest fix": lambda one: one.fix.time.timestamp() if one.fix else math.inf,
    "speed": lambda one: -(one.fix.speed_mps or 0.0) if one.fix and one.state != "silent" else math.inf,
    "records": lambda one: one.records,
}
_FILTERS: Final = ("tenant", "account", "region", "state", "records", "registry")

COLUMNS: Final = (
    Column("device", "Device", link="href"),
    Column("tenant", "Tenant"),
    Column("state", "State", Kind.STATE),
    Column("age_s", "Age", Kind.AGE),
    Column("speed_mps", "Speed", Kind.SPEED),
    Column("today_m", "Today", Kind.DISTANCE),
    Column("records", "Records", Kind.STATE),
    Column("alerts", "Alerts", Kind.COUNT),
    Column("registry", "Registry", Kind.STATE, optional=True),
    Column("region", "Region", optional=True),
    Column("account", "Account", optional=True),
    Column("time", "Last fix", Kind.TIME, optional=True),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A device that matches the page's filters, and what of it is known without a further read."""

    device: TenantDevice
    fix: LastFix | None
    account: str
    state: str
    records: str
    registry: str | None

    def value(self, name: str) -> str:
        """What a filter of that name is compared with."""
        return {
            "tenant": self.device.tenant,
            "account": self.account,
            "region": (self.fix.region if self.fix else None) or "",
            "state": self.state,
            "records": self.records,
            "registry": self.registry or UNKNOWN,
        }[name]


def state_of(fix: LastFix, now: datetime) -> str:
    """`driving`, `parked`, `silent`, or `unknown` for a recent fix without a speed."""
    if (now - fix.time).total_seconds() > SILENT_S:
        return "silent"
    if fix.speed_mps is None or fix.time > now + CLOCKS:
        return UNKNOWN
    return "driving" if fix.speed_mps > MOVING_MPS else "parked"


def page(console: Console, query: Query, *, rows_of_page: int = ROWS_OF_PAGE) -> Page:
    """Every device that the viewer may see, with its last fix, now or at a time of the past."""
    clock = clock_of(console, query)
    at = moment_asked(query, "at", clock)
    now = at or clock.now
    fixes = console.feed.fixes(clock.now)
    if at is not None:
        fixes = console.last_fixes.at(at, fixes)
    everything = seen_devices(console, query, fixes, now)
    asked = [one for one in everything if is_meant(query, one.device.tenant)]
    matching = _matching(asked, query)
    part = part_asked(query, "/", "page", each=rows_of_page, of=len(matching))
    shown = matching[part.begin : part.end]
    devices = [one.device for one in shown]
    span = day_span(now.astimezone(clock.zone).replace(hour=0, minute=0, second=0, microsecond=0))
    usage = usage_of(console.lake, devices, *span)
    lacking = not_covered(console.lake, "usage", "Usage covers", now, clock)
    alerts = alerts_of(console.lake, now - _ALERTS, now)
    late = (
        "" if alerts.is_known or alerts.until is None else f"Alerts: none collected since {clock.text(alerts.until)}."
    )
    no_canaries = NO_CANARIES * (len(asked) < len(everything))
    console.log_fleet_access(query.viewer, "console fleet")
    table = Table(
        "devices",
        "Devices",
        tuple(replace(one, title="Today so far") if lacking and one.key == "today_m" else one for one in COLUMNS),
        tuple(_row(one, usage.get(one.device), alerts, now) for one in shown),
        note=" ".join(filter(None, (part.note, _note(fixes, at), lacking, late, no_canaries))),
        empty="no device matches",
        links=part.links,
    )
    facts = _facts(matching, fixes, now, query)
    return Page(
        path="/",
        title="Fleet",
        tables=(table,),
        facts=facts,
        island=Island(
            "fleet",
            lambda: (
                _island(console, query, matching, now, span) | {"live": "" if at else "/live", "zone": clock.zone.key}
            ),
        ),
        state=query.state(*_FILTERS, "device", "sort", "box", "page")
        | ({"at": local_text(at, clock.zone)} if at else {}),
        form=_form(everything, asked),
        extra={"links": _ways_to_then(facts, query)},
    )


def seen_devices(console: Console, query: Query, fixes: LastFixes, now: datetime) -> list[Seen]:
    """All devices that the viewer may see: with a fix, with records, or named by an account."""
    accounts = console.reference.account_of(now)
    coverage = console.completeness.read()
    records = coverage.states(now)
    registry, sees = console.feed.registry_state, query.viewer.sees_device
    found = []
    for device in sorted({*fixes.of, *accounts, *records}):
        account = accounts.get(device)
        if not sees(device, account):
            continue
        fix = fixes.of.get(device)
        if fix is not None and query.get("at") and fix.time > now:
            fix = None
        is_silent = device in records and device not in fixes.of and device not in fixes.ahead
        state = state_of(fix, now) if fix else "silent" if is_silent else UNKNOWN
        found.append(
            Seen(device, fix, account.id if account else "none", state, records.get(device, UNKNOWN), registry(device))
        )
    return found


def _matching(everything: list[Seen], query: Query) -> list[Seen]:
    """The devices that match all filters, in the order that is asked for. Raises BadQuery."""
    part, box = query.get("device").lower(), Box.parse(query.get("box")) if query.get("box") else None
    found = [one for one in everything if part in one.device.device.lower()]
    for name in _FILTERS:
        if text := query.get(name):
            found = [one for one in found if one.value(name) == text]
    if box is not None:
        found = [one for one in found if one.fix is not None and box.holds(one.fix.longitude, one.fix.latitude)]
    order = _SORTS.get(query.get("sort"))
    return sorted(found, key=order) if order else found


def _row(one: Seen, usage: DayUsage | None, alerts: AlertCounts, now: datetime) -> Row:
    fix, device = one.fix, one.device
    return {
        "id": f"{device.tenant}/{device.device}",
        "device": device.device,
        "tenant": device.tenant,
        "account": one.account,
        "href": address("device", device.tenant, device.device),
        "state": one.state,
        "time": fix.time if fix else None,
        "age_s": max(0, round((now - fix.time).total_seconds())) if fix else None,
        # a silent device may drive now
        "speed_mps": fix.speed_mps if fix and one.state != "silent" else None,
        "today_m": usage.distance_m if usage else None,
        "alerts": alerts.count(device),
        "records": one.records,
        "registry": one.registry,
        "region": fix.region if fix else None,
        "latitude": fix.latitude if fix else None,
        "longitude": fix.longitude if fix else None,
        "heading_deg": fix.heading_deg if fix else None,
    }


def _facts(matching: Sequence[Seen], fixes: LastFixes, now: datetime, query: Query) -> tuple[Fact, ...]:
    states = Counter(one.state for one in matching)
    facts = [Fact("devices", "Devices", len(matching), Kind.COUNT)]
    facts += [Fact(name, name.capitalize(), states[name], Kind.COUNT) for name in _MOTION]
    if fixes.left_out and query.viewer.sees_all:
        facts.append(Fact("left_out", "Positions not used, all devices", fixes.left_out, Kind.COUNT))
        if fixes.ahead:
            facts.append(Fact("ahead", "Of these, ahead of the clock", sum(fixes.ahead.values()), Kind.COUNT))
    newest = _stopped(sorted(one.fix.time for one in matching if one.state == "silent" and one.fix), len(matching))
    if newest is not None and now - newest > _LONG_AGO:
        href = query.address_with("/", at=newest.isoformat().replace("+00:00", "Z"), page="")
        facts.append(Fact("stopped", "Most devices stopped at", newest, Kind.TIME, href))
    if query.get("at"):
        facts.append(Fact("at", "Shown as of", now, Kind.TIME, query.address_with("/", at="", page="")))
    return tuple(facts)


def _ways_to_then(facts: Sequence[Fact], query: Query) -> tuple[tuple[str, str], ...]:
    """What shows the fleet when most devices stopped, if they did."""
    for fact in facts:
        if fact.key == "stopped":
            then = f"{fact.value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            start, end = ((fact.value + timedelta(seconds=one)).isoformat() for one in (-7200, 1))
            replay = address("replay", start=start, end=end, tenant=query.get("tenant"), zone=query.zone)
            return (f"Show the fleet of {then}, when most devices stopped", fact.href), (
                "Replay the two hours before",
                replay,
            )
    return ()


def _stopped(silent: Sequence[datetime], devices: int) -> datetime | None:
    """When most devices sent their last fix, if most are silent: the newest such fix near the median of all."""
    if len(silent) * 2 <= devices:
        return None
    median = silent[len(silent) // 2]
    return max(one for one in silent if one <= median + _LONG_AGO)


def has_stopped(console: Console) -> bool:
    """Whether most devices are known to have sent their last fix long ago, as after a demo."""
    try:
        times = sorted(one.time for one in console.last_fixes.read(console.now()).of.values())
    except (LakeError, StoreUnavailable):
        return False
    return bool(times) and console.now() - times[len(times) // 2] > _LONG_AGO


def _note(fixes: LastFixes, at: datetime | None) -> str:
    if not fixes.files:
        return "The lake has no records yet."
    said = (
        "Records: whether all records until five minutes before are received. Today: metered distance of the day. "
        "Alerts: of the last hour; without one, unknown if the job of the verdicts wrote nothing for five minutes."
    )
    earlier = "A device of which no fix until then was found is unknown."
    return said if at is None else f"{said} {earlier}"


def _form(everything: Sequence[Seen], asked: Sequence[Seen]) -> tuple[Field, ...]:
    known = {"tenant": sorted({one.device.tenant for one in everything})}
    known |= {name: sorted({one.value(name) for one in asked} - {""}) for name in ("account", "region")}
    return (
        *(Field.choice(name, name.capitalize(), values) for name, values in (known | _CHOICES).items() if values),
        Field("device", "Device has"),
        Field.choice("sort", "Sort by", _SORTS),
        Field("box", "Box (west,south,east,north)"),
        Field("at", "At", type="datetime-local"),
    )


def _island(
    console: Console, query: Query, matching: Sequence[Seen], now: datetime, span: tuple[datetime, datetime]
) -> dict[str, Any]:
    placed = [one.fix for one in matching if one.fix is not None]
    drawn = console.visible(query.viewer, [one.device for one in matching], span)
    tracks = console.day_tracks.read(*span).document(drawn)
    return {
        "ids": [[fix.tenant, fix.device] for fix in placed],
        **fix_columns(np.array([fix_numbers(one) for one in placed], np.int32).reshape(-1, 5).T),
        "now": ms_of(now),
        "silent_s": SILENT_S,
        "moving_mps": MOVING_MPS,
        "without_fix": Counter(one.state for one in matching if one.fix is None),
        "fences": features_of(console.fences.in_force(query.viewer, now)),
        "tracks": tracks,
    }


def features_of(fences: Sequence[FenceVersion]) -> dict[str, Any]:
    """Fences and gates as a GeoJSON FeatureCollection."""
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": one.geometry,
                "properties": {"id": one.id, "name": one.name, "gate": one.is_gate, "number": one.number},
            }
            for one in fences
        ],
    }
