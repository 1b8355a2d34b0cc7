"""What an address asks: a tenant, times, a box, and a part of the rows. What cannot be read raises BadQuery."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

from cloud_jobs.billing.contracts import is_canary
from cloud_jobs.lake.coverage import TenantDevice
from console.errors import BadQuery
from console.page import Clock, Field, Page, is_usual, ms_of

if TYPE_CHECKING:
    from console.context import Console, Query

_AGO: Final = re.compile(r"(\d{1,5})\s*(min|h|d)")
_MOST_NAMED: Final = 20
_UNITS: Final = {"min": "minutes", "h": "hours", "d": "days"}


def tenant_asked(query: Query) -> str:
    """The tenant of an address, or an empty text. Raises NotThere for one that the viewer may not see."""
    if tenant := query.get("tenant"):
        query.viewer.require_tenant(tenant)
    return tenant


def tenant_field(console: Console, query: Query) -> Field:
    """The choice among the tenants of the settings that the viewer may see."""
    return Field.choice("tenant", "Tenant", filter(query.viewer.sees_tenant, console.settings.tenants))


def check_asked(page: Page, query: Query) -> None:
    """Raises BadQuery for a parameter that the page does not have, and for a value that is none of its choices."""
    known = sorted({*(field.name for field in page.form), *page.state, "zone"})
    for name in query.asked:
        if name not in known:
            raise BadQuery(name, f"this page has no such parameter; {_nearest(name, known)}")
    for field in page.form:
        values, text = [value for value, _ in field.options], page.state.get(field.name)
        if values and text and text not in values:
            raise BadQuery(field.name, f"{text!r} is not known here; {_nearest(text, values)}")


def _nearest(text: str, known: list[str]) -> str:
    """The one that may be meant, or what there is."""
    near = get_close_matches(text, known, 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known[:_MOST_NAMED])}"


NO_CANARIES: Final = "Canaries are left out; choose their tenant to see them."


def is_meant(query: Query, tenant: str) -> bool:
    """Whether a page shows devices of a tenant: canaries only if a tenant is asked for."""
    return bool(query.get("tenant")) or not is_canary(tenant)


def visible_asked(
    console: Console, query: Query, devices: Collection[TenantDevice], during: tuple[datetime, datetime] | None = None
) -> Collection[TenantDevice]:
    """The devices that the viewer may see, without canaries unless a tenant is asked for."""
    return console.visible(query.viewer, [one for one in devices if is_meant(query, one.tenant)], during)


def moment_asked(query: Query, name: str, clock: Clock) -> datetime | None:
    """A time in ISO 8601, of the clock's zone if it has no offset, or a span before now, as `24h`; None: not asked."""
    text = query.get(name).strip()
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return clock.now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        # a plus sign that was not quoted arrives as a space
        moment = datetime.fromisoformat(text.replace(" ", "+" if text.count(":") > 1 else "T"))
        made = (moment if moment.tzinfo else moment.replace(tzinfo=clock.zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadQuery(name, f"{text!r} is not a time, as 2026-01-05T08:20 or 24h") from error
    if not is_usual(made):
        raise BadQuery(name, f"{text!r} is not a time between 1971 and 2200")
    return made


def local_text(moment: datetime, zone: ZoneInfo) -> str:
    """A time as a field of a form has it."""
    return moment.astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S")


class Span(NamedTuple):
    """From `start` until before `end`, in UTC."""

    start: datetime
    end: datetime

    @property
    def start_ms(self) -> int:
        return ms_of(self.start)

    @property
    def end_ms(self) -> int:
        return ms_of(self.end)

    def widened(self, before_ms: float, after_ms: float) -> Span:
        return Span(self.start - timedelta(milliseconds=before_ms), self.end + timedelta(milliseconds=after_ms))


def span_asked(query: Query, clock: Clock, *, default: Callable[[], Span], longest: timedelta) -> Span:
    """The span that `start` and `end` of an address name.

    Without both: `default`. With one: the default's length after or before it.
    """
    start, end = (moment_asked(query, name, clock) for name in ("start", "end"))
    if start is None or end is None:
        usual = default()
        length = usual.end - usual.start
        if start is None:
            start = usual.start if end is None else end - length
        end = end or start + length
    if not start < end:
        raise BadQuery("end", "it is not after the start")
    if end - start > longest:
        raise BadQuery("end", f"the span is longer than {longest.total_seconds() / 3600:,.0f} hours")
    return Span(start, end)


class Box(NamedTuple):
    """Degrees. A box across the antimeridian has its west east of its east."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def parse(cls, text: str) -> Box:
        try:
            box = cls(*(float(part) for part in text.split(",")))
        except (ValueError, TypeError) as error:
            raise BadQuery("box", f"{text!r} is not west,south,east,north in degrees") from error
        if not (abs(box.west) <= 180 and abs(box.east) <= 180 and -90 <= box.south <= box.north <= 90):
            raise BadQuery("box", f"{text!r} is not within the world, or its south is above its north")
        return box

    @property
    def parts(self) -> list[Box]:
        """The box, or both sides of the antimeridian."""
        if self.west <= self.east:
            return [self]
        return [one for one in (self._replace(east=180.0), self._replace(west=-180.0)) if one.west < one.east]

    def holds(self, longitude: float, latitude: float) -> bool:
        return self.south <= latitude <= self.north and any(one.west <= longitude <= one.east for one in self.parts)


class Part(NamedTuple):
    """A part of many rows. `note`: which ones, "" for all. `links`: text and address of the parts around."""

    begin: int
    end: int
    note: str
    links: tuple[tuple[str, str], ...]


def part_asked(query: Query, path: str, name: str, *, each: int, of: int) -> Part:
    """The part of `of` rows whose number, from 1, the parameter `name` is; `each`: rows of a part."""
    text = query.get(name) or "1"
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= 1):
        raise BadQuery(name, f"{text!r} is not the number of a page")
    number = int(text)
    begin, end, links = min((number - 1) * each, of), min(number * each, of), []
    if number > 1:
        links.append(("Previous rows", query.address_with(path, **{name: "" if number == 2 else str(number - 1)})))
    if end < of:
        links.append(("Next rows", query.address_with(path, **{name: str(number + 1)})))
    return Part(begin, end, f"Rows {begin + 1:,} to {end:,} of {of:,}." if links else "", tuple(links))
