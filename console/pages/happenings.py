"""Events and encounters, and alerts with their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.lake.coverage import TenantDevice
from console.asked import NO_CANARIES, local_text, tenant_field
from console.completeness import not_covered
from console.context import Console, Query
from console.happenings import (
    EVENT_KINDS,
    NO_VERDICT,
    AlertRow,
    EncounterRow,
    EventRow,
    NotRead,
    Selection,
    alerts,
    encounters,
    events,
    selection,
)
from console.http import clock_of
from console.lake import OpenLake
from console.page import Clock, Column, Fact, Field, Island, Kind, Page, Row, Table, address, duration_text
from console.pages.fleet import features_of

MAX_SHOWN: Final = 1_000
_ASKED: Final = ("tenant", "device", "fence", "kind")

EVENTS: Final = (
    Column("time", "Time", Kind.TIME),
    Column("tenant", "Tenant"),
    Column("device", "Device", link="device_href"),
    Column("kind", "Kind"),
    Column("place", "Fence or gate", link="place_href"),
    Column("detail", "Detail"),
    Column("revision", "Revision", Kind.COUNT, optional=True),
)
ENCOUNTERS: Final = (
    Column("start", "From", Kind.TIME),
    Column("end", "To", Kind.TIME),
    Column("tenant", "Tenant"),
    Column("device_a", "Device", link="a_href"),
    Column("device_b", "Met", link="b_href"),
    Column("duration_s", "For", Kind.DURATION),
    Column("min_m", "Nearest", Kind.DISTANCE),
    Column("min_at", "Nearest at", Kind.TIME, optional=True),
)
ALERTS: Final = (
    Column("time", "Time", Kind.TIME),
    Column("verdict", "Verdict", Kind.STATE),
    Column("tenant", "Tenant"),
    Column("device", "Device", link="device_href"),
    Column("kind", "Kind"),
    Column("place", "Fence or gate", link="place_href"),
    Column("detail", "Detail"),
    Column("reason", "Reason"),
    Column("correct_time", "Correct time"),
    Column("region", "Region"),
    Column("delay_s", "Raised after", Kind.DURATION),
    Column("decided_at", "Decided", Kind.TIME, optional=True),
)
_REASONS: Final = {
    "did_not_occur": "all records are there, and it did not occur",
    "incorrect_data": "it had another time or value",
    "incomplete": "records of the region are missing",
    "not_received": "its record is missing",
    "not_computed": "its record was not computed in time",
}


def events_page(console: Console, query: Query) -> Page:
    """Events at fences and encounters, in force."""
    clock = clock_of(console, query)
    asked = selection(console.lake, query, clock, "geofence_events", "encounters")
    names = _names(console, query, asked)
    _log_access(console, query, asked, "console /events")
    found, warnings = told(console, query, asked, events)
    met, more = told(console, query, asked, encounters)
    tables = (
        Table.of(
            "events",
            "Events at fences",
            EVENTS,
            found[:MAX_SHOWN],
            lambda one: _event_row(one, names, query),
            note=_note(asked, clock, len(found)),
            empty=warnings[0] if warnings else "no event",
        ),
        Table.of(
            "encounters",
            "Encounters",
            ENCOUNTERS,
            met[:MAX_SHOWN],
            lambda one: _encounter_row(one, query),
            note=_cut(len(met)),
            empty=more[0] if more else "no encounter",
        ),
    )
    count = None if warnings else len(found)
    return Page(
        path="/events",
        title="Events",
        tables=tables,
        facts=(
            Fact("events", "Events", count, Kind.COUNT),
            Fact("encounters", "Encounters", None if more else len(met), Kind.COUNT),
        ),
        warnings=(*warnings, *more),
        state=_state(query, asked, clock),
        form=_form(console, query, names, (*EVENT_KINDS, "encounter")),
    )


def alerts_page(console: Console, query: Query) -> Page:
    """The alerts of the regions with the verdicts of the centre, and events without an alert."""
    clock = clock_of(console, query)
    asked = selection(console.lake, query, clock, "alerts", "verdicts")
    names = _names(console, query, asked)
    _log_access(console, query, asked, "console /alerts")
    found, warnings = told(console, query, asked, alerts)
    verdict = query.get("verdict")
    shown = [one for one in found if not verdict or one.verdict == verdict]
    counts = Counter[str](one.verdict for one in found)
    unknown = set(_TITLES) if warnings else set[str]()
    if lacking := _lacks(console, query, asked, events):
        warnings, unknown = (*warnings, *lacking), {*unknown, "late"}
    table = Table.of(
        "alerts",
        "Alerts",
        ALERTS,
        shown[:MAX_SHOWN],
        lambda one: _alert_row(one, names, query, clock),
        note=_note(asked, clock, len(shown)),
        empty=warnings[0] if warnings else "no alert",
    )
    facts = tuple(
        Fact(
            name.replace(" ", "_"),
            title,
            None if name in unknown else counts[name],
            Kind.COUNT,
            query.address_with("/alerts", verdict=name),
        )
        for name, title in _TITLES.items()
    )
    verdicts = Field("verdict", "Verdict", tuple(_TITLES.items()))
    return Page(
        path="/alerts",
        title="Alerts",
        tables=(table,),
        facts=facts,
        island=Island("alerts", _island(console, query, shown, clock.now)) if shown else None,
        warnings=warnings,
        state=_state(query, asked, clock) | query.state("verdict"),
        form=(*_form(console, query, names, EVENT_KINDS), verdicts),
    )


_TITLES: Final = {
    "confirmed": "Confirmed",
    "corrected": "Corrected",
    "withdrawn": "Withdrawn",
    "late": "Late: an event without an alert",
    NO_VERDICT: "No verdict yet",
}


def told(
    console: Console, query: Query, asked: Selection, read: Callable[[OpenLake, Selection], list[Any]]
) -> tuple[list[Any], tuple[str, ...]]:
    """What a read has of devices that the viewer may see throughout the span; and why not all of it is known."""
    try:
        found = read(console.lake, asked)
    except NotRead as error:
        return [], (f"{str(error)[0].upper()}{str(error)[1:]}.",)
    devices = {device for one in found for device in devices_of(one)}
    visible = console.visible(query.viewer, devices, (asked.start, asked.end))
    return [one for one in found if visible.issuperset(devices_of(one))], _lacks(console, query, asked, read)


def _lacks(
    console: Console, query: Query, asked: Selection, read: Callable[[OpenLake, Selection], list[Any]]
) -> tuple[str, ...]:
    """What has not been computed of the span yet. An alert is there without its record."""
    if read not in {events, encounters}:
        return ()
    table, what = ("geofence_events", "Events cover") if read is events else ("encounters", "Encounters cover")
    said = not_covered(console.lake, table, what, asked.end, clock_of(console, query))
    return (said,) if said else ()


def devices_of(one: EventRow | EncounterRow | AlertRow) -> list[TenantDevice]:
    """The device of an event or alert, both of an encounter."""
    names = (one.device_a, one.device_b) if isinstance(one, EncounterRow) else (one.device,)
    return [TenantDevice(one.tenant, name) for name in names]


def _log_access(console: Console, query: Query, asked: Selection, page: str) -> None:
    """Events at fences say where a device was."""
    if asked.device and asked.tenant:
        device = TenantDevice(asked.tenant, asked.device)
        console.log_access(query.viewer, page, device, since=asked.start, until=asked.end)
    else:
        console.log_fleet_access(query.viewer, page)


class _Names(NamedTuple):
    """Names of fences in any version, by id. An event names a fence also if it is too old for `seen`: those with a
    page, and those to choose from.
    """

    of: dict[str, str]
    seen: dict[str, str]


def _names(console: Console, query: Query, asked: Selection) -> _Names:
    seen = {one.id: one.name for one in console.fences.versions(query.viewer, asked.end)}
    return _Names({one.id: one.name for one in console.reference.state().fences}, seen)


def _place(place: str, names: _Names) -> tuple[str, str]:
    """The name with the id, if they differ, and the address; "" for a fence without a page."""
    name = names.of.get(place)
    text = place if name in {None, place} else f"{name} ({place})"
    return text, address("fences", place) if place in names.seen else ""


def _event_row(one: EventRow, names: _Names, query: Query) -> Row:
    place, href = _place(one.place, names)
    return one._asdict() | {
        "place": place,
        "place_id": one.place,
        "place_href": href,
        "device_href": _device(one.tenant, one.device, query),
        "detail": _detail(one.kind, one.value),
    }


def _encounter_row(one: EncounterRow, query: Query) -> Row:
    return one._asdict() | {
        "a_href": _device(one.tenant, one.device_a, query),
        "b_href": _device(one.tenant, one.device_b, query),
        "duration_s": (one.end - one.start).total_seconds(),
    }


def _alert_row(one: AlertRow, names: _Names, query: Query, clock: Clock) -> Row:
    place, href = _place(one.place, names)
    is_late = one.verdict == "late"
    delay = None if one.raised_at is None else (one.raised_at - one.time).total_seconds()
    return one._asdict() | {
        "place": place,
        "place_id": one.place,
        "place_href": href,
        "device_href": _device(one.tenant, one.device, query),
        "detail": _detail(one.kind, one.value),
        "region": "no alert" if is_late else one.region,
        "reason": _REASONS.get(one.reason or "", one.reason) or "",
        "correct_time": clock.text(one.correct_time) if one.correct_time else "",
        "delay_s": delay,
    }


def _detail(kind: str, value: float) -> str:
    """What the value of an event means."""
    if kind in {"exit", "dwell"}:
        return f"{duration_text(value)} inside"
    return f"{value * 3.6:.0f} km/h at most" if kind == "speeding" else ""


def _device(tenant: str, device: str, query: Query) -> str:
    return address("device", tenant, device, zone=query.zone)


def _state(query: Query, asked: Selection, clock: Clock) -> dict[str, str]:
    span = {} if asked.is_default else {"since": asked.start, "until": asked.end}
    return query.state(*_ASKED) | {name: local_text(moment, clock.zone) for name, moment in span.items()}


def _note(asked: Selection, clock: Clock, count: int) -> str:
    newest = " This is the newest day that has any." if asked.is_default else ""
    canaries = "" if asked.tenant else f" {NO_CANARIES}"
    return f"From {clock.text(asked.start)} to {clock.text(asked.end)}.{newest}{_cut(count)}{canaries}"


def _cut(count: int) -> str:
    return f" The newest {MAX_SHOWN:,} of {count:,} are listed; choose a shorter span." if count > MAX_SHOWN else ""


def _form(console: Console, query: Query, names: _Names, kinds: Iterable[str]) -> tuple[Field, ...]:
    fences = sorted(names.seen.items(), key=lambda pair: pair[1])
    return (
        tenant_field(console, query),
        Field("device", "Device"),
        Field("fence", "Fence or gate", tuple(fences[:_MAX_CHOICES])) if len(fences) <= _MAX_CHOICES else _FENCE,
        Field.choice("kind", "Kind", kinds),
        Field("since", "From", type="datetime-local"),
        Field("until", "Until", type="datetime-local"),
    )


_MAX_CHOICES: Final = 200
_FENCE: Final = Field("fence", "Fence or gate")


def _island(console: Console, query: Query, shown: list[AlertRow], now: datetime) -> dict[str, Any]:
    """The fences with their alerts by verdict."""
    counts: dict[str, Counter[str]] = {}
    for one in shown:
        counts.setdefault(one.place, Counter())[one.verdict] += 1
    fences = features_of([one for one in console.fences.in_force(query.viewer, now) if one.id in counts])
    for feature in fences["features"]:
        of_fence = counts[feature["properties"]["id"]]
        count = sum(of_fence.values())
        name = f"{feature['properties']['name']}: {count:,}"
        feature["properties"] |= {"name": name, "alerts": count, "verdicts": dict(of_fence)}
    return {"fences": fences}
