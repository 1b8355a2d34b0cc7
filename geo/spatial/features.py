"""The features of a GeoJSON text, one after the other, each with its place; nothing of the text is passed over unsaid.

A text is one or more JSON values: FeatureCollections, arrays of Features, lone Features (RFC 8142, one on a line), or
all of these. What is not JSON is named with its place, and nothing behind it is read. Only one feature is held decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final, NoReturn

from geo.spatial.ids import given_properties

MAX_TEXT_CHARS: Final = 1 << 29

_BLANK: Final = re.compile(r"[ \t\r\n\x1e]*")  # with the record separator of RFC 8142
_FEATURE: Final = frozenset({"type", "properties", "geometry"})  # members by which an object may be meant as one
_EXCERPT: Final = 20
_WGS84: Final = re.compile(
    r"WGS[ _]?84|(?:.*[:/#])?CRS:?84H?"
    r"|(?:.*[:/#])?EPSG(?:\.IO|\.XML)?[:/#](?:[0-9.]*[:/])?(?:4326|4979)(?:/[A-Z][A-Z0-9]*)?/?"
)
"""Names of WGS84 in capitals: EPSG:4326, OGC:CRS84, and these as URN or address."""
_MAX_CRS_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature, decoded, or the fault of a place that has none; `line` counts from 1.

    `place` says where it begins: its line and, unless it is the line's first, its number in the text.
    """

    line: int
    place: str
    value: dict[str, Any]
    fault: str | None = None


def crs_fault(value: object) -> str:
    """That a member `crs` (of GeoJSON 2008) says anything but WGS84, with what it says; "": it says WGS84, or nothing.

    Coordinates are longitude, latitude by whichever of its names. Others are refused: what is moved from one datum to
    another by a guess, or without the grid that belongs to it, is off by metres, and is billed.
    """
    if value is None:
        return ""
    name = _crs_name(value)
    shown = name[:_MAX_CRS_CHARS]
    if _WGS84.fullmatch(shown.strip().upper()):
        return ""
    said = f"is {shown!r}" if shown else "names no system that is known"
    return (
        f"its crs {said}, and positions are WGS84 (longitude, latitude): convert the file, for instance with "
        "`ogr2ogr -f GeoJSON -t_srs EPSG:4326 -lco RFC7946=YES NEW.geojson OLD.geojson`"
    )


def _crs_name(value: object) -> str:
    """As it is written: a name, an EPSG code or a link; "": it has none of these."""
    if isinstance(value, str):
        return value
    given = value.get("properties") if isinstance(value, dict) else None
    if isinstance(given, dict):
        for key in ("name", "href"):
            if isinstance(given.get(key), str):
                return str(given[key])
        if isinstance(given.get("code"), int | str):
            return f"EPSG:{given['code']}"
    return ""


class _NotJson(Exception):
    """The text is not JSON at this place."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


def read_features(text: str) -> Iterator[Feature]:
    """Every feature of a text, and every fault of it, in order."""
    if len(text) > MAX_TEXT_CHARS:
        yield Feature(1, "line 1", {}, f"the text is longer than {MAX_TEXT_CHARS:,} characters: nothing of it is read")
        return
    if '"crs"' in text and (fault := _collection_fault(text)) is not None:
        yield fault
        return
    yield from _FeatureReader(text).features()


def _collection_fault(text: str) -> Feature | None:
    """That a collection of the text is not in WGS84, wherever it says so: it may say it behind its features."""
    reader = _FeatureReader(text)
    for _ in reader.features():
        pass
    for begin, stated in reader.stated_crs:
        if fault := crs_fault(stated):
            line = text.count("\n", 0, begin) + 1
            return Feature(line, f"line {line}", {}, f"{fault}; nothing of the text is used")
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a member twice")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


class _FeatureReader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        # By itself the decoder takes NaN and Infinity, which are not JSON, and of a member that comes twice the last.
        self._decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)
        self._line, self._counted, self._number, self._last_line = 1, 0, 0, 0
        self.stated_crs: list[tuple[int, Any]] = []
        """The member `crs` of each collection so far, and where the collection begins."""

    def features(self) -> Iterator[Feature]:
        """Documents until the end, or to the first place that is not JSON."""
        self._skip_blank()
        try:
            while self._at < len(self._text):
                yield from self._document()
        except _NotJson as fault:
            line, place = self._place(self._at)
            line += self._text.count("\n", self._counted, fault.at)
            column = fault.at - self._text.rfind("\n", 0, fault.at)
            said = f"not JSON: {fault.reason} (line {line}, column {column}); nothing after it is read"
            yield Feature(line, place, {}, said)

    def _document(self) -> Iterator[Feature]:
        """An object, member by member, an array, value by value, or anything else, whole."""
        begin = self._at
        if self._next("["):
            yield from self._elements()
        elif self._next("{"):
            yield from self._members(begin)
        else:
            yield self._feature(begin, self._value())

    def _members(self, begin: int) -> Iterator[Feature]:
        """The members of an object, to its end; a list of features is read one by one."""
        members: dict[str, Any] = {}
        is_collection = False
        is_end = self._next("}")
        while not is_end:
            name_at, name = self._at, self._value()
            if not isinstance(name, str):
                raise _NotJson("a member has no name", name_at)
            if name in members:
                raise _NotJson(f"the member {name!r} comes twice", name_at)
            self._expect(":")
            if name == "features" and self._next("["):
                is_collection = True
                yield from self._elements()
            else:
                members[name] = self._value()
            is_end = self._next("}")
            if not is_end:
                self._expect(",")
        if not is_collection:
            yield self._feature(begin, members)
            return
        self.stated_crs.append((begin, members.get("crs")))
        if members.get("type") != "FeatureCollection" and not _FEATURE.isdisjoint(members):
            # without a type or such members it is taken for a collection; otherwise it may be meant as a fence
            yield self._feature(begin, members | {"features": []})

    def _elements(self) -> Iterator[Feature]:
        """The elements of a list of features, to its end."""
        is_end = self._next("]")
        while not is_end:
            begin = self._at
            yield self._feature(begin, self._value())
            is_end = self._next("]")
            if not is_end:
                self._expect(",")

    def _value(self) -> Any:
        begin = self._at
        try:
            value, self._at = self._decoder.raw_decode(self._text, begin)
        except json.JSONDecodeError as fault:
            raise _NotJson(fault.msg, fault.pos) from None
        except RecursionError:
            raise _NotJson("it is nested too deeply", begin) from None
        except ValueError as fault:
            # Python reads no whole number of more than 4,300 digits: that takes time by their square.
            raise _NotJson("a number has too many digits" if "digits" in str(fault) else str(fault), begin) from None
        self._skip_blank()
        return value

    def _skip_blank(self) -> None:
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches the empty string

    def _next(self, mark: str) -> bool:
        """Is this mark next? Then it is read."""
        if self._text[self._at : self._at + 1] != mark:
            return False
        self._at += 1
        self._skip_blank()
        return True

    def _expect(self, mark: str) -> None:
        if not self._next(mark):
            found = self._text[self._at : self._at + _EXCERPT]
            raise _NotJson(f"{mark!r} is expected where " + (f"{found!r} is" if found else "the text ends"), self._at)

    def _feature(self, begin: int, value: Any) -> Feature:
        line, place = self._place(begin)
        if isinstance(value, dict):
            both = "features" in value and value.get("type") != "FeatureCollection"
            return Feature(line, place, value, "a Feature has no member 'features': it is not used" if both else None)
        kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        return Feature(line, place, {}, f"it is not a Feature but {kinds.get(type(value), 'a number')}")

    def _place(self, begin: int) -> tuple[int, str]:
        self._line += self._text.count("\n", self._counted, begin)
        self._counted = max(begin, self._counted)
        self._number += 1
        first = self._line != self._last_line
        self._last_line = self._line
        return self._line, f"line {self._line}" if first else f"line {self._line}, feature {self._number}"


# What a feature that can be used may mean otherwise: a property that is almost one that counts.
PROPERTIES: Final = (
    "id",
    "priority",
    "effective_from",
    "effective_until",
    "weekly",
    "speed_limit_mps",
    "radius_m",
    "width_m",
    "gate",
)
"""The properties of a feature that mean something here; others are the publisher's own."""
MAX_NOTICES: Final = 20
"""So many properties of a feature are named."""
_SIMILAR: Final = 0.8
"""As much as `radius` is like `radius_m`. With less, `date` would be taken for `gate`."""
_MAX_NAME_CHARS: Final = 60
_MAX_PROPERTIES: Final = 1_000


def feature_notices(feature: dict[str, Any]) -> tuple[str, ...]:
    """Of each property that is ignored, and may be meant as one that counts, which that may be."""
    given = given_properties(feature)
    absent = [name for name in PROPERTIES if name not in given]
    said = [
        f"the property {name!r} means nothing here, and is ignored: did you mean {near[0]}?"
        for name in islice(given, _MAX_PROPERTIES)
        if name not in PROPERTIES and len(name) <= _MAX_NAME_CHARS and (near := _nearest(name, absent))
    ]
    said += [
        f"{name} stands beside its properties, and is ignored: it belongs into them"
        for name in absent
        if name != "id" and name in feature
    ]
    return tuple(said[:MAX_NOTICES])


def _nearest(name: str, known: list[str]) -> list[str]:
    return get_close_matches(name.casefold().replace("-", "_").replace(" ", "_"), known, 1, _SIMILAR)
