"""What a page is made of: facts and tables. The same page is HTML, JSON and tables in a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from cloud_jobs.errors import CloudError
from waybill.settings import printable

UNKNOWN: Final = "unknown"
"""What is shown for a value that is not known; zero is a known value."""

Row = dict[str, Any]
Source = TypeVar("Source")


class Kind(StrEnum):
    """How a cell is shown. The value of each kind, None where it is unknown:

    `text`, `state`, `code`: text; `time`: an aware datetime; `age` and `duration`: seconds; `count`: an int; `number`:
    a float; `coordinate`: degrees; `distance`: metres; `speed`: metres a second; `money`: text as it is printed;
    `yes_no`: a bool.
    """

    TEXT = "text"
    STATE = "state"
    CODE = "code"
    TIME = "time"
    AGE = "age"
    DURATION = "duration"
    COUNT = "count"
    NUMBER = "number"
    COORDINATE = "coordinate"
    DISTANCE = "distance"
    SPEED = "speed"
    MONEY = "money"
    YES_NO = "yes_no"


_LEFT: Final = frozenset({Kind.TEXT, Kind.STATE, Kind.CODE, Kind.TIME, Kind.YES_NO})


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `key`: of the value in each row. `link`: of the address that the cell links to, if the row has one."""

    key: str
    title: str
    kind: Kind = Kind.TEXT
    link: str = ""
    optional: bool = False

    @property
    def right(self) -> bool:
        return self.kind not in _LEFT


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. `note`: what a reader must know of it, as what it leaves out. `faults`: rows that could not
    be read, each with its reason. `links`: text and address of further pages of its rows. `is_list`: whether the
    number of its rows says something.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    note: str = ""
    empty: str = "nothing"
    faults: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    is_list: bool = True

    @classmethod
    def of(
        cls,
        id: str,  # noqa: A002 - the attribute's name
        title: str,
        columns: Iterable[Column],
        sources: Iterable[Source],
        row: Callable[[Source], Row],
        *,
        note: str = "",
        empty: str = "nothing",
        links: tuple[tuple[str, str], ...] = (),
        is_list: bool = True,
    ) -> Table:
        """A table of sources; one whose row cannot be made becomes a fault, and the others stay."""
        rows, faults = [], []
        for source in sources:
            try:
                rows.append(row(source))
            except (CloudError, ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
                faults.append(printable(f"{type(error).__name__}: {error}")[:300])
        return cls(id, title, tuple(columns), tuple(rows), note, empty, tuple(faults), links, is_list)


@dataclass(frozen=True, slots=True)
class Fact:
    """A single value with its name."""

    key: str
    title: str
    value: Any
    kind: Kind = Kind.TEXT
    href: str = ""


@dataclass(frozen=True, slots=True)
class Island:
    """A picture beside the tables. `kind`: the script's name of it. `data`: what it draws, as JSON values, or a
    function that makes them when they are asked for.

    A browser fetches `data` from the page's own address as JSON, so the picture has the rows of the tables.
    """

    kind: str
    data: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)

    def made(self) -> Mapping[str, Any]:
        return self.data() if callable(self.data) else self.data


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `path`: its address without the query, as `address` makes it. `state`: the query that shows it again.
    `warnings`: what a reader must know first. `template`: an own template of HTML, if the general one is not enough.
    `zone`: the time zone of its subject, as a document's, in which its times are unless another is asked for.
    """

    path: str
    title: str
    tables: tuple[Table, ...] = ()
    facts: tuple[Fact, ...] = ()
    island: Island | None = None
    warnings: tuple[str, ...] = ()
    state: Mapping[str, str] = field(default_factory=dict)
    form: tuple[Field, ...] = ()
    template: str = "page.html"
    zone: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


class Download(NamedTuple):
    """A file that an address gives. `body`: its bytes in pieces."""

    name: str
    media_type: str
    body: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the page's filter form. `options`: value and text of each choice; without: a text field."""

    name: str
    title: str
    options: tuple[tuple[str, str], ...] = ()
    type: str = "text"

    @classmethod
    def choice(cls, name: str, title: str, values: Iterable[str]) -> Field:
        """A field whose choices are shown as they are."""
        return cls(name, title, tuple((value, value) for value in values))


def address(*parts: str, **query: str | None) -> str:
    """A path on this origin; names of devices and zones may hold any character."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    asked = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(asked)}" if asked else path


def device_day(device: tuple[str, str], moment: datetime, asked_zone: str) -> str:
    """The address of a device (tenant, name) on the day of a moment; which day it is, that page's zone decides."""
    return address("device", *device, at=plain(moment), zone=asked_zone)


def is_usual(moment: datetime) -> bool:
    """Whether a moment is far enough from the ends of the calendar to count on from it."""
    return 1971 <= moment.year <= 2200


def ms_of(moment: datetime) -> int:
    """Milliseconds since 1970, as browsers and the engine count."""
    return round(moment.timestamp() * 1000)


def moment_of(ms: float) -> datetime:
    """The moment of milliseconds since 1970."""
    return datetime.fromtimestamp(round(ms) / 1000, UTC)


def finite(value: float | None) -> float | None:
    """A number that may be shown; None for NaN and the like."""
    return value if value is not None and math.isfinite(value) else None


# Values as text, for HTML and for a terminal.


@dataclass(frozen=True, slots=True)
class Clock:
    """The time zone in which times are shown, and the time of the page.

    `usual`: the zone in which they are shown if none is asked for. `zones`: those of the accounts that may be seen.
    """

    zone: ZoneInfo
    now: datetime
    usual: str = "UTC"
    zones: tuple[str, ...] = ()

    @classmethod
    def utc(cls, now: datetime) -> Clock:
        return cls(ZoneInfo("UTC"), now)

    def text(self, moment: datetime) -> str:
        """The time with its offset, to the second."""
        local = moment.astimezone(self.zone)
        offset = local.strftime("%z")
        return local.strftime("%Y-%m-%d %H:%M:%S ") + (
            "UTC" if self.zone.key == "UTC" else f"{offset[:3]}:{offset[3:]}"
        )


def shown(value: Any, kind: Kind, clock: Clock) -> str:
    """A value as people read it; UNKNOWN for None."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return printable(value)
    if kind is Kind.TIME:
        return clock.text(value)
    made = _TEXTS.get(kind)
    return printable(str(value)) if made is None else made(value)


def duration_text(seconds: float) -> str:
    """Two units at most: `3 h 5 min`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{seconds:.1f} s" if 0 < seconds < 10 and seconds != whole else f"{whole} s"


_TEXTS: Final[Mapping[Kind, Callable[[Any], str]]] = {
    Kind.AGE: duration_text,
    Kind.DURATION: duration_text,
    Kind.COUNT: "{:,}".format,
    Kind.NUMBER: "{:,.2f}".format,
    Kind.COORDINATE: "{:.6f}".format,
    Kind.DISTANCE: lambda value: f"{value:,.0f} m" if abs(value) < 1000 else f"{value / 1000:,.1f} km",
    Kind.SPEED: lambda value: f"{value * 3.6:.0f} km/h",
    Kind.YES_NO: lambda value: "yes" if value else "no",
}


# A page as JSON.


def as_json(page: Page) -> dict[str, Any]:
    """The page's values as JSON values: times in ISO 8601 with Z, unknown as null."""
    document: dict[str, Any] = {
        "title": page.title,
        "path": page.path,
        "state": dict(page.state),
        "warnings": [*page.warnings],
        "facts": {fact.key: plain(fact.value) for fact in page.facts},
        "tables": {
            table.id: {
                "title": table.title,
                "note": table.note,
                "columns": {column.key: column.title for column in table.columns},
                "rows": [plain(row) for row in table.rows],
                "faults": [*table.faults],
                "links": dict(table.links),
            }
            for table in page.tables
        },
    }
    if page.island is not None:
        document["island"] = {"kind": page.island.kind, **plain(page.island.made())}
    return document


def plain(value: Any) -> Any:
    """A value that JSON has. A number that is none, as NaN, becomes null."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | None) else str(value)
