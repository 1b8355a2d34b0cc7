"""Fences and gates: each version with its dates and windows, and the difference of two versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import shapely

from console.context import Console, Query
from console.errors import BadQuery, NotThere
from console.http import clock_of
from console.page import Clock, Column, Fact, Field, Island, Kind, Page, Row, Table, address
from console.pages.fleet import features_of
from console.reference import FenceVersion
from geo.reference.in_force import RefusedVersion
from geo.spatial import Fence, Gate
from geo.spatial.geodesic import WGS84
from geo.spatial.weekly import DAYS, Weekly

MAX_SHOWN: Final = 2_000
MOST_COMPARED: Final = 10_000
"""Corners of two areas together. Combs that lie across each other meet as often as the product of their teeth."""
ALWAYS: Final = "always"
"""The key of a version that always was in force; others have the time from which they are."""
STATES: Final = ("in force", "coming", "past")
_M2: Final = 1e6

VERSIONS: Final = (
    Column("text", "Fence or gate", link="href"),
    Column("kind", "Kind"),
    Column("state", "State", Kind.STATE),
    Column("begin", "From"),
    Column("end", "Until"),
    Column("windows", "Weekly windows"),
    Column("area_km2", "km²", Kind.NUMBER),
)
PUBLISHED: Final = (Column("published_by", "Published by"), Column("reason", "Reason"))
REFUSED: Final = (
    Column("kind", "Kind"),
    Column("id", "Id", Kind.CODE),
    Column("effective_from", "From"),
    Column("reason", "Why it cannot be used"),
    Column("published_at", "Published"),
    Column("place", "Message", optional=True),
)
CHANGES: Final = (Column("property", "Property", Kind.CODE), Column("before", "Before"), Column("after", "After"))


def page(console: Console, query: Query) -> Page:
    """Every version that the viewer sees in force and to come, past ones on request, and refused publications."""
    clock = clock_of(console, query)
    now = clock.now
    state, name = query.get("state"), query.get("id")
    found = [
        one
        for one in console.fences.versions(query.viewer, now)
        if (state_of(one, now) == state if state else state_of(one, now) != "past") and name.lower() in _names(one)
    ]
    sees_all = query.viewer.sees_all
    note = "" if sees_all else "Fences that your contracts price, or that recent events of your devices name. "
    note += "Versions in force and to come." if not state else ""
    if len(found) > MAX_SHOWN:
        note += f" The first {MAX_SHOWN:,} of {len(found):,} are listed."
    tables = [
        Table.of(
            "fences",
            "Versions",
            (*VERSIONS, *(PUBLISHED if sees_all else ())),
            found[:MAX_SHOWN],
            lambda one: _row(one, clock, query),
            note=note.strip(),
            empty="no version matches",
        )
    ]
    if sees_all:
        tables.append(
            Table.of(
                "refused",
                "Refused publications",
                REFUSED,
                console.reference.state().refused[:MAX_SHOWN],
                _refused_row,
                note="What each was to replace stays in force.",
                empty="none",
            )
        )
    in_force = tuple(one for one in found if one.holds_at(now))[:MAX_SHOWN]
    return Page(
        path="/fences",
        title="Fences",
        tables=tuple(tables),
        island=Island("fences", {"fences": features_of(in_force)}) if in_force else None,
        state=query.state("id", "state"),
        form=(Field("id", "Id or name"), Field.choice("state", "State", STATES)),
    )


def _refused_row(one: RefusedVersion) -> Row:
    return {
        "kind": one.kind,
        "id": one.id,
        "effective_from": one.effective_from or "unknown",
        "reason": one.reason,
        "published_at": one.published_at,
        "place": one.place,
    }


def fence_page(console: Console, query: Query) -> Page:
    """The versions of one fence, and the difference of two of them: `from` and `to` are keys of versions."""
    clock = clock_of(console, query)
    now = clock.now
    fence = query.path["id"]
    versions = [one for one in console.fences.versions(query.viewer, now) if one.id == fence]
    if not versions:
        raise NotThere("there is no such fence or gate, or you may not see it")
    new = _version(versions, query.get("to"), "to") or _current(versions, now)
    at = versions.index(new)
    old = _version(versions, query.get("from"), "from") or (versions[at - 1] if at else None)
    sees_all = query.viewer.sees_all
    choices = tuple((key_of(one), _key_text(one, clock)) for one in versions)
    tables = [
        Table.of(
            "changes",
            "Changes",
            CHANGES,
            changes(old, new) if old else [],
            lambda one: one,
            note=f"From {_key_text(old, clock)} to {_key_text(new, clock)}."
            + (f" More than {MOST_COMPARED:,} corners: too many to compare the areas." if _is_large(old, new) else "")
            if old
            else "There is no version before this one.",
            empty="nothing changed" if old else "nothing to compare",
        ),
        Table.of(
            "versions",
            "Versions",
            (*VERSIONS, *(PUBLISHED if sees_all else ())),
            versions,
            lambda one: _row(one, clock, query),
        ),
    ]
    return Page(
        path=address("fences", fence),
        title=f"Fence {new.name}" if not new.is_gate else f"Gate {new.name}",
        tables=tuple(tables),
        facts=(*_facts(old, new, now), Fact("happened", "Here", "events", href=address("events", fence=fence))),
        island=Island("fences", difference(old, new)),
        state={
            **({"from": key_of(old)} if old else {}),
            "to": key_of(new),
            **query.state(),
        },
        form=(Field("from", "From version", choices), Field("to", "To version", choices)),
    )


# Versions.


def key_of(one: FenceVersion) -> str:
    """What names a version among those of its id."""
    return ALWAYS if one.begin is None else one.begin.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _key_text(one: FenceVersion, clock: Clock) -> str:
    return "the first version" if one.begin is None else clock.text(one.begin)


def _version(versions: Sequence[FenceVersion], key: str, name: str) -> FenceVersion | None:
    if not key:
        return None
    found = next((one for one in versions if key_of(one) == key), None)
    if found is None:
        raise BadQuery(name, f"{key!r} is no version of this fence; its versions: {', '.join(map(key_of, versions))}")
    return found


def _current(versions: Sequence[FenceVersion], now: datetime) -> FenceVersion:
    """The version in force; else the next one, else the last."""
    return next((one for one in versions if state_of(one, now) != "past"), versions[-1])


def state_of(one: FenceVersion, now: datetime) -> str:
    """One of STATES; weekly windows are not looked at."""
    if one.begin is not None and one.begin > now:
        return "coming"
    return "past" if one.until is not None and one.until <= now else "in force"


def _names(one: FenceVersion) -> str:
    return f"{one.id}\n{one.name}".lower()


def _row(one: FenceVersion, clock: Clock, query: Query) -> Row:
    published: Row = {"published_by": one.published_by, "reason": one.reason} if query.viewer.sees_all else {}
    return published | {
        "id": one.id,
        "name": one.name,
        "text": one.name if one.name == one.id else f"{one.name} ({one.id})",
        "href": address("fences", one.id, to=key_of(one), zone=query.zone),
        "key": key_of(one),
        "kind": "gate" if one.is_gate else "area",
        "state": state_of(one, clock.now),
        "begin": "always" if one.begin is None else clock.text(one.begin),
        "end": "open" if one.until is None else clock.text(one.until),
        "windows": windows_text(one.properties.get("weekly")),
        "area_km2": None if one.is_gate else area_m2(one) / _M2,
    }


def windows_text(given: object) -> str:
    """Weekly windows in words, as `Mon-Fri 07:00-19:00, Sat 08:00-12:00 (Europe/Berlin)`."""
    if given is None:
        return "always"
    weekly = Weekly.model_validate(given, strict=False)
    windows = [
        f"{_days_text(window.days)} {window.start}-{window.until}"
        + ("" if window.start < window.until else " of the next day")
        for window in weekly.windows
    ]
    return f"{', '.join(windows)} ({weekly.timezone})"


def _days_text(days: Iterable[str]) -> str:
    at = sorted({DAYS.index(day) for day in days})
    runs: list[list[int]] = []
    for day in at:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    parts = [[DAYS[day].capitalize() for day in run] for run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else " and ".join(run) for run in parts)


# The difference of two versions.


def area_m2(one: FenceVersion) -> float:
    """The area on WGS84, without holes; 0 for a gate."""
    return 0.0 if isinstance(one.made, Gate) else _area_m2(one.made.shape)


def _area_m2(shape: Any) -> float:
    total = 0.0
    for part in shapely.get_parts(shape):
        if part.geom_type == "Polygon":
            total += _ring_m2(part.exterior) - sum(_ring_m2(hole) for hole in part.interiors)
    return total


def _ring_m2(ring: Any) -> float:
    longitudes, latitudes = shapely.get_coordinates(ring).T
    return abs(float(WGS84.polygon_area_perimeter(longitudes, latitudes)[0]))


def _parts(old: FenceVersion | None, new: FenceVersion) -> tuple[Any, Any]:
    """What is added to the area and what is removed; None where there are no two areas, or too many corners."""
    if old is None or isinstance(old.made, Gate) or isinstance(new.made, Gate) or _is_large(old, new):
        return None, None
    return new.made.shape.difference(old.made.shape), old.made.shape.difference(new.made.shape)


def _is_large(old: FenceVersion, new: FenceVersion) -> bool:
    """Whether the areas have so many corners that their difference may take very long."""
    areas = [one.made.shape for one in (old, new) if isinstance(one.made, Fence)]
    return sum(int(shapely.get_num_coordinates(one)) for one in areas) > MOST_COMPARED


def _facts(old: FenceVersion | None, new: FenceVersion, now: datetime) -> Iterable[Fact]:
    yield Fact("state", "State", state_of(new, now), Kind.STATE)
    yield Fact("windows", "Weekly windows", windows_text(new.properties.get("weekly")))
    if new.is_gate:
        return
    added, removed = _parts(old, new)
    yield Fact("area_km2", "Area, km²", area_m2(new) / _M2, Kind.NUMBER)
    if old is not None:
        yield Fact("area_before_km2", "Area before, km²", area_m2(old) / _M2, Kind.NUMBER)
        yield Fact("added_km2", "Added, km²", None if added is None else _area_m2(added) / _M2, Kind.NUMBER)
        yield Fact("removed_km2", "Removed, km²", None if removed is None else _area_m2(removed) / _M2, Kind.NUMBER)


def changes(old: FenceVersion, new: FenceVersion) -> list[Row]:
    """The properties that differ, and whether the border does."""
    found: list[Row] = []
    if old.geometry != new.geometry:
        found.append({"property": "border", "before": _corners(old), "after": _corners(new)})
    for name in sorted({*old.properties, *new.properties}):
        before, after = old.properties.get(name), new.properties.get(name)
        if before != after:
            found.append({"property": name, "before": _said(name, before), "after": _said(name, after)})
    return found


def _corners(one: FenceVersion) -> str:
    return f"{len(shapely.get_coordinates(shapely.from_geojson(json.dumps(one.geometry)))):,} positions"


def _said(name: str, value: object) -> str:
    if value is None:
        return "not set"
    if name == "weekly":
        return windows_text(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def difference(old: FenceVersion | None, new: FenceVersion) -> dict[str, Any]:
    """What the map draws: both borders, and the areas that were added and removed."""
    added, removed = _parts(old, new)
    shapes = {"added": added, "removed": removed}
    return {
        "old": features_of((old,) if old else ()),
        "new": features_of((new,)),
        **{
            name: None if shape is None or shape.is_empty else json.loads(shapely.to_geojson(shape))
            for name, shape in shapes.items()
        },
    }
