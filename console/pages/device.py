"""One device on one day: its track, what was received, what is missing, and where its records are now."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from cloud_jobs.billing.contracts import Account
from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from console.asked import moment_asked, part_asked
from console.completeness import stations
from console.context import Console, Query
from console.counts import OUTSIDE, DayUsage, usage_of
from console.device_day import QUARTER, DeviceDay, Hole, Quarter, track_columns
from console.errors import BadQuery, NotThere
from console.fixes import AHEAD, LastFix, day_span
from console.http import clock_of
from console.movements import Movements
from console.page import UNKNOWN, Clock, Column, Fact, Field, Island, Kind, Page, Row, Table, address, finite
from console.pages.fleet import CLOCKS, features_of, state_of
from console.reference import FenceVersion
from geo.spatial import Fence, ZoneSet

FIXES_OF_PAGE: Final = 100
_DAY: Final = timedelta(days=1)

_QUARTER_COLUMNS: Final = (
    Column("begin", "Quarter from", Kind.TIME),
    Column("records", "Records", Kind.COUNT),
    Column("positions", "Positions", Kind.COUNT),
)
_HOLE_COLUMNS: Final = (
    Column("what", "What", Kind.STATE),
    Column("count", "Records", Kind.COUNT),
    Column("first", "First seq", Kind.COUNT),
    Column("last", "Last seq", Kind.COUNT),
    Column("begin", "After", Kind.TIME),
    Column("end", "Before", Kind.TIME),
    Column("reason", "Reason"),
    Column("epoch", "Buffer", Kind.CODE, optional=True),
)
_STATION_COLUMNS: Final = (
    Column("station", "Station"),
    Column("records", "Records", Kind.COUNT),
    Column("seq", "Up to seq", Kind.COUNT),
    Column("until", "Up to", Kind.TIME),
    Column("says", "What is known"),
)
_USAGE_COLUMNS: Final = (
    Column("zone", "Zone"),
    Column("distance_m", "Distance", Kind.DISTANCE),
    Column("duration_s", "Time", Kind.DURATION),
    Column("entries", "Entries", Kind.COUNT),
    Column("crossings", "Crossings", Kind.COUNT),
)
_FIX_COLUMNS: Final = (
    Column("time", "Time", Kind.TIME),
    Column("latitude", "Latitude", Kind.COORDINATE),
    Column("longitude", "Longitude", Kind.COORDINATE),
    Column("speed_mps", "Speed", Kind.SPEED),
    Column("accuracy_m", "Accuracy", Kind.DISTANCE),
    Column("drawn", "Drawn"),
    Column("seq", "Seq", Kind.COUNT),
    Column("received_at", "Received", Kind.TIME, optional=True),
)
_REGISTRY_COLUMNS: Final = (
    Column("state", "State", Kind.STATE),
    Column("version", "Version", Kind.COUNT),
    Column("at", "Changed", Kind.TIME),
    Column("by", "By"),
    Column("reason", "Reason"),
    Column("region", "Region"),
    Column("until", "Certificate until", Kind.TIME),
)
_CERTIFICATE_COLUMNS: Final = (
    Column("period", "Period"),
    Column("state", "State", Kind.STATE),
    Column("received", "Received", Kind.COUNT),
    Column("missing", "Missing", Kind.COUNT),
    Column("declared_lost", "Declared lost", Kind.COUNT),
    Column("says", "Doubts and remarks"),
    Column("outcome", "Closing", Kind.STATE),
    Column("closed_at", "Closed", Kind.TIME),
)


def page(console: Console, query: Query) -> Page:
    """The page of the device that the path names. Raises NotThere for one that the viewer may not see."""
    device = TenantDevice(query.path["tenant"], query.path["device"])
    now = console.now()
    fixes = console.feed.fixes(now)
    fix, ahead = fixes.of.get(device), fixes.ahead.get(device, 0)
    streams = console.completeness.read().of_device(device)
    account = console.reference.account_of(now).get(device)
    if not query.viewer.sees_device(device, account) or not (fix or streams or account):
        if query.viewer.sees_all:
            tenants = ", ".join(sorted(console.settings.tenants))
            raise NotThere(f"there is no device '{device.tenant}/{device.device}'; tenants: {tenants}")
        raise NotThere("there is no such device, or you may not see it")
    own = console.zone_of(account.id) if account else ""
    clock = clock_of(console, query, own)
    day, zone = _day(query, fix, clock), clock.zone
    path = address("device", *device)
    start, end = day_span(datetime(day.year, day.month, day.day, tzinfo=zone))
    if not start < end:
        raise BadQuery("day", f"{day} does not exist in {zone.key}: the clocks there left it out")
    if not console.visible(query.viewer, [device], (start, end)):
        raise NotThere(f"another account paid for this device on {day}, or you may not see it on that day")
    console.log_access(query.viewer, "console device", device, day=day)
    of_day = DeviceDay.read(console.lake, device, start, end)
    track = of_day.track(console.settings.tracks)
    quarters, holes = of_day.quarters(), of_day.holes(streams)
    usage = usage_of(console.lake, [device], start, end).get(device)
    tables = (
        _stations(console, of_day, streams),
        _usage(usage),
        _holes(holes, streams),
        _certificates(console, device, account),
        _registry(console, device),
        _quarters(quarters),
        _fixes(of_day, track, query, path),
    )
    return Page(
        path=path,
        title=f"{device.device} of {device.tenant}",
        tables=tables,
        facts=(
            *_facts(console, device, fix, account, track),
            *_metered(usage),
            Fact("happened", "At fences", "events of this day", href=_events(query, device, day)),
        ),
        island=Island("device", lambda: _island(console.fences.versions(query.viewer, end), track, start))
        if len(track.tracks.row)
        else None,
        warnings=(*_clock_faults(fix, ahead, now), *_erased(console, device, of_day), *_warnings(of_day, track)),
        state={"day": day.isoformat(), **query.state("fixes", "at")},
        form=(Field("day", "Day", type="date"),),
        template="device.html",
        zone=own,
        extra={
            "bars": bars_of(quarters, holes, start, end, zone),
            "days": _days(query, path, day, fix.time.astimezone(zone).date() if fix else day),
            "zone": zone.key,
        },
    )


def _day(query: Query, fix: LastFix | None, clock: Clock) -> date:
    """The day that is asked for, else that of the time `at`, of the last fix, or today. Raises BadQuery."""
    text = query.get("day")
    if not text:
        moment = moment_asked(query, "at", clock) or (fix.time if fix else clock.now)
        return moment.astimezone(clock.zone).date()
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise BadQuery("day", f"{text!r} is not a day, as 2026-03-05") from error
    if not 1970 < day.year < 2200:
        raise BadQuery("day", f"{text!r} is not between 1971 and 2199")
    return day


def _events(query: Query, device: TenantDevice, day: date) -> str:
    return address("events", **device._asdict(), since=str(day), until=str(day + _DAY), zone=query.zone)


def _warnings(of_day: DeviceDay, track: Movements) -> tuple[str, ...]:
    cut = f"Only the first {of_day.rows.num_rows:,} records of the day are shown."
    empty = "No position of this day can be drawn."
    return (*([cut] if of_day.is_cut else []), *([] if len(track.tracks.row) else [empty]))


def _clock_faults(fix: LastFix | None, ahead: int, now: datetime) -> list[str]:
    """Why the state is unknown, or the last fix older than others."""
    found = []
    if fix is not None and fix.time > now + CLOCKS:
        seconds = (fix.time - now).total_seconds()
        found.append(f"The last fix is {seconds:,.0f} s ahead of this console's clock, so the state now is unknown.")
    if ahead:
        limit = AHEAD // timedelta(minutes=1)
        found.append(
            f"Positions left out of the last fix, as their time is over {limit} min after their receipt: {ahead:,}."
        )
    return found


def _erased(console: Console, device: TenantDevice, of_day: DeviceDay) -> tuple[str, ...]:
    """What was erased of the day: the reason why records or positions are not there."""
    erasures = console.last_fixes.erasures
    until = [one.before for one in erasures.requests(*device) if one.since and one.since < of_day.end]
    if until and (last := max(until).astimezone(UTC)) > of_day.start:
        return (f"Records of this device until {last:%Y-%m-%d %H:%M} UTC were erased on request.",)
    if erasures.include(*device, of_day.start):
        return ("Positions of this day were erased: their retention is over.",)
    return ()


def _days(query: Query, path: str, day: date, last: date) -> tuple[tuple[str, str], ...]:
    around = [("Day before", day - _DAY), ("Day after", day + _DAY)]
    if last != day:
        around.append((f"Day of the last fix, {last}", last))
    return tuple((text, query.address_with(path, day=one.isoformat(), fixes="")) for text, one in around)


def _facts(
    console: Console, device: TenantDevice, fix: LastFix | None, account: Account | None, track: Movements
) -> tuple[Fact, ...]:
    now = console.now()
    left_out = track.left_out()
    reasons = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sorted(left_out.items()))
    metres = float(track.tracks.metres.sum()) if len(track.tracks.row) else None
    state = state_of(fix, now) if fix else UNKNOWN
    return (
        Fact("state", "State now", state, Kind.STATE),
        Fact("time", "Last fix", fix.time if fix else None, Kind.TIME),
        Fact("age_s", "Age now", round((now - fix.time).total_seconds()) if fix else None, Kind.AGE),
        Fact("region", "Region", fix.region if fix else None),
        Fact("account", "Account", account.name if account else "none"),
        Fact("records", "Records", console.completeness.read().states(now).get(device), Kind.STATE),
        Fact("registry", "Registry", console.feed.registry_state(device), Kind.STATE),
        Fact("distance_m", "Way of the day, as reported", metres, Kind.DISTANCE),
        Fact("left_out", "Positions not drawn", f"{sum(left_out.values()):,} ({reasons})" if left_out else "0"),
    )


def _metered(usage: DayUsage | None) -> tuple[Fact, ...]:
    whole: Mapping[str, int] = usage.whole if usage else {}
    return (
        Fact("metered_m", "Metered distance", usage.distance_m if usage else None, Kind.DISTANCE),
        Fact("events", "Metered events", whole.get("events"), Kind.COUNT),
        Fact("content_bytes", "Metered bytes", whole.get("content_bytes"), Kind.COUNT),
    )


def _stations(console: Console, of_day: DeviceDay, streams: Mapping[int, Coverage]) -> Table:
    known = stations(streams)
    behind, commits = of_day.not_covered(console.lake)
    covered = None if behind is None else of_day.rows.num_rows - behind
    missing, lost = known["missing"], known["declared_lost"]
    buffer = "the highest seq and the time that the device stated; what it still holds is unknown here"
    centre = f"{missing:,} missing, {lost:,} declared lost; all streams of the device" if streams else ""
    metered = "no usage was computed" if commits is None else f"of this day; {commits:,} commits behind the centre"
    rows = (
        ("Buffer", None, known["head"], known["stated"], buffer),
        ("Centre", known["received"], known["through"], known["complete_until"], centre or "never received anything"),
        ("Usage", covered, "not counted", "not counted", metered),
    )
    return Table.of(
        "stations",
        "Where its records are now",
        _STATION_COLUMNS,
        rows,
        lambda row: {column.key: value for column, value in zip(_STATION_COLUMNS, row, strict=True)},
        is_list=False,
    )


def _usage(usage: DayUsage | None) -> Table:
    def row(of_zone: tuple[str, dict[str, int]]) -> Row:
        zone, amounts = of_zone
        return {
            "zone": zone if zone != OUTSIDE else "outside all zones",
            "distance_m": amounts["distance_mm"] / 1000,
            "duration_s": amounts["duration_ms"] / 1000,
            "entries": amounts["entries"],
            "crossings": amounts["crossings"],
        }

    zones = sorted(usage.zones.items()) if usage else []
    return Table.of("usage", "Usage", _USAGE_COLUMNS, zones, row, empty="no usage of this day")


def _holes(holes: Sequence[Hole], streams: Mapping[int, Coverage]) -> Table:
    def row(hole: Hole) -> Row:
        return hole._asdict() | {
            "what": "declared loss" if hole.reason else "missing",
            "count": hole.records,
            "reason": hole.reason or "not said",
        }

    note = "" if streams else "The device never sent anything, so what is missing is unknown."
    return Table.of("holes", "Missing and lost", _HOLE_COLUMNS, holes, row, note=note, empty="none beside this day")


def _certificates(console: Console, device: TenantDevice, account: Account | None) -> Table:
    """The certificate of the newest closing of the account that pays for the device."""
    lake, payer = console.lake, (account.parent or account.id) if account else None
    found: list[dict[str, Any]] = []
    if payer is not None and lake.has("closings") and lake.has("certificates"):
        columns = ("run", "outcome", "first_day", "last_day", "closed_at", "number")
        closings = lake.rows("closings", columns, where=[("payer", "=", payer)]).to_pylist()
        newest = max(closings, key=lambda one: (one["last_day"], one["number"]), default=None)
        if newest is not None:
            where = [("payer", "=", payer), ("run", "=", newest["run"]), ("tenant", "=", device.tenant)]
            rows = lake.rows("certificates", where=[*where, ("device", "=", device.device)]).to_pylist()
            found = [one | newest for one in rows]

    def row(one: dict[str, Any]) -> Row:
        document = json.loads(one["certificate"])
        return {
            "period": f"{one['first_day']} to {one['last_day']}",
            "state": one["state"],
            "received": document["received"],
            "missing": _count(document["missing"]),
            "declared_lost": sum(_count(ranges) for ranges in document["declared_lost"].values()),
            "says": "; ".join([*document["doubts"], *document["remarks"]]) or "none",
            "outcome": one["outcome"],
            "closed_at": one["closed_at"],
        }

    return Table.of("certificates", "Certificate", _CERTIFICATE_COLUMNS, found, row, empty="no closing has this device")


def _count(ranges_of: Mapping[str, Sequence[Sequence[int]]]) -> int:
    return sum(last - first + 1 for ranges in ranges_of.values() for first, last in ranges)


def _registry(console: Console, device: TenantDevice) -> Table:
    entry = console.feed.registry_entry(device)
    rows: tuple[Row, ...] = ()
    if entry is not None:
        rows = (
            {
                "state": str(entry.state),
                "version": entry.version,
                "at": entry.changed_at,
                "by": entry.changed_by,
                "reason": entry.reason or "none",
                "region": entry.region,
                "until": max((one.not_after for one in entry.certificates), default=None),
            },
        )
    state = console.feed.registry_state(device)
    note = "The registry keeps the last entry of a device."
    unknown = f"unknown: the registry is not read: {console.feed.registry_problem or 'not connected'}"
    empty = unknown if state is None else "the registry does not have this device"
    return Table("registry", "Registry", _REGISTRY_COLUMNS, rows, note=note if rows else "", empty=empty, is_list=False)


def _quarters(quarters: Sequence[Quarter]) -> Table:
    rows = tuple(one._asdict() for one in quarters if one.records)
    return Table("quarters", "Records received", _QUARTER_COLUMNS, rows, empty="no record of this day is in the lake")


def _fixes(of_day: DeviceDay, track: Movements, query: Query, path: str) -> Table:
    positions = of_day.positions()
    part = part_asked(query, path, "fixes", each=FIXES_OF_PAGE, of=positions.num_rows)
    drawn = of_day.drawn(track)[part.begin :]
    shown = [*zip(positions.slice(part.begin, FIXES_OF_PAGE).to_pylist(), drawn, strict=False)]

    def row(of_fix: tuple[dict[str, Any], str]) -> Row:
        one, is_drawn = of_fix
        return {
            "drawn": is_drawn,
            "time": one["device_time"],
            "latitude": finite(one["latitude"]),
            "longitude": finite(one["longitude"]),
            "speed_mps": finite(one["speed_mps"]),
            "accuracy_m": finite(one["accuracy_m"]),
            "seq": one["seq"],
            "received_at": one["received_at"],
        }

    note, empty = (
        f"{part.note} Positions as reported, also those that are not drawn.".strip(),
        "no position of this day",
    )
    return Table.of("fixes", "Fixes", _FIX_COLUMNS, shown, row, note=note, empty=empty, links=part.links)


def _island(fences: Sequence[FenceVersion], track: Movements, moment: datetime) -> dict[str, Any]:
    made = [one.made for one in fences if isinstance(one.made, Fence)]
    try:
        zones = ZoneSet(made) if made else None
    except ValueError as error:
        raise LakeError(f"the published fences cannot be used together: {error}") from error
    return {
        "track": track_columns(track, zones),
        "fences": features_of([one for one in fences if one.holds_at(moment)]),
    }


# The bar of the day, which the template draws.

BAR_WIDTH: Final = 960
_BAR_HEIGHT: Final = 60


def bars_of(
    quarters: Sequence[Quarter], holes: Sequence[Hole], start: datetime, end: datetime, zone: ZoneInfo
) -> dict[str, Any]:
    """Numbers of a drawing: a bar for each quarter with records, a mark for each hole, and the hours below."""
    most = max((one.records for one in quarters), default=0)
    span = (end - start).total_seconds()

    def x(moment: datetime) -> float:
        return round((moment - start).total_seconds() / span * BAR_WIDTH, 1)

    width = round(QUARTER.total_seconds() / span * BAR_WIDTH, 2)
    bars = [
        {"x": x(one.begin), "height": max(round(one.records / most * _BAR_HEIGHT), 1), "records": one.records}
        for one in quarters
        if one.records
    ]
    marks = []
    for hole in holes:
        begin = x(hole.begin) if hole.begin else x(hole.end) - 2 if hole.end else 0.0
        until = x(hole.end) if hole.end else begin + 2
        marks.append({"x": max(begin, 0.0), "width": max(until - begin, 2.0), "is_lost": bool(hole.reason)})
    hours = [
        {"x": x(one.begin), "text": f"{one.begin.astimezone(zone):%H}"}
        for one in quarters
        if one.begin.astimezone(zone).minute == 0 and one.begin.astimezone(zone).hour % 3 == 0
    ]
    said = f"Records of the day by quarter of an hour, at most {most:,}; {len(marks):,} holes or declared losses."
    return {
        "width": max(width - 1, 1),
        "bars": bars,
        "marks": marks,
        "hours": hours,
        "height": _BAR_HEIGHT,
        "says": said,
    }
