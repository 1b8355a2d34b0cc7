"""The features of a GeoJSON text, one after the other, each with its place; nothing of the text is passed over unsaid.

A text is one or more JSON values: FeatureCollections, arrays of Features, lone Features (RFC 8142, one on a line), or
all of these. What is not JSON is named with its place, and reading goes on at the next object that is no part of it
(`resume`). Only one feature is held decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

# Where reading goes on after a place of a text that is not JSON: at the next object that is no part of what is
# broken.

_MARK: Final = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\.)*+"(?=\s*(?:[,:}\]]|\Z))'  # a string
    r'|\\.'  # as in a string, so that each place is looked at once
    r'|\[[^"\\{}\[\]]*+\]'  # a list of numbers
    r'|["{}\[\]]'  # a quote that opens none, a bracket
)  # fmt: skip
_OBJECT, _ELEMENT, _MEMBER, _COORDINATES = range(4)
"""What is open: an object, or a list with the lists right in it: an element, the value of a member, coordinates."""


class Resumption:
    """Finds the place, in time linear in the text over all calls if each `begin` is at or after the last answer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._patience = len(text)  # characters that may be looked at in vain

    def after(self, begin: int, *, is_value: bool) -> int | None:
        """The first object from `begin` on, or after the value that begins there, that is no member and in no other.

        The elements of the open list are such objects, and those of a list `features`. Where a value does not end, the
        first object that lies right in its lists or coordinates is taken. None: there is none.
        """
        is_open, uncertain, offset = self._first(begin) if is_value else bytearray(), None, begin
        for mark_match in _MARK.finditer(self._text, begin + len(is_open)):
            offset = mark_match.start()
            mark = mark_match.group() if mark_match.end() == offset + 1 else ""
            if mark in ("}", "]"):
                if not _close(is_open, mark) and uncertain is not None:
                    break
                uncertain = uncertain if is_open else None
            elif mark == "[":
                self._open_list(is_open, offset)
            elif mark == "{":
                apart = self._is_apart(is_open, offset)
                if uncertain is None and (apart or self._is_uncertain(is_open, offset)):
                    uncertain = offset
                if apart or offset - (uncertain or offset) > self._patience:
                    break
                is_open.append(_OBJECT)
        if uncertain is not None:
            self._patience -= offset - uncertain  # nothing, if it is certain
        return uncertain

    def in_list(self, offset: int) -> bool:
        """Is what begins here an element of a list?"""
        before, comma = self._follows(offset)
        return comma or before == "["

    def _first(self, begin: int) -> bytearray:
        """What the value that begins here opens."""
        if self._text[begin : begin + 1] == "[":
            return bytearray([_MEMBER if self._follows(begin)[0] == ":" else _ELEMENT])
        return bytearray([_OBJECT] if self._text[begin : begin + 1] == "{" else [])

    def _open_list(self, is_open: bytearray, offset: int) -> None:
        if is_open and is_open[-1] != _OBJECT:
            is_open.append(is_open[-1])
        elif is_open or (self._follows(offset)[0] == ":" and self._name(offset) != "features"):
            is_open.append(_COORDINATES if self._name(offset) == "coordinates" else _MEMBER)

    def _is_apart(self, is_open: bytearray, offset: int) -> bool:
        """Is an object that begins here certainly no part of what is open?"""
        before, comma = self._follows(offset)
        if not is_open:
            return before != ":"
        return is_open[-1] == _OBJECT and before != ":" and (comma or before != '"')

    def _is_uncertain(self, is_open: bytearray, at: int) -> bool:
        """Is it a part only if what is open ends?"""
        return bool(is_open) and (
            is_open[-1] in (_ELEMENT, _COORDINATES) or (is_open[-1] == _OBJECT and self._follows(at)[0] == '"')
        )

    def _follows(self, offset: int) -> tuple[str, bool]:
        """The mark before what begins here, commas apart, and whether there is one; empty at the text's beginning."""
        comma = False
        before = offset - 1
        while before >= 0 and (self._text[before] == "," or self._text[before].isspace()):
            comma = comma or self._text[before] == ","
            before -= 1
        return (self._text[before] if before >= 0 else ""), comma

    def _name(self, offset: int) -> str:
        """The name of the member whose value begins here, in quotes or not, if it is a short one."""
        end = offset
        while end > 0 and (self._text[end - 1].isspace() or self._text[end - 1] in ":\"'"):
            end -= 1
        begin = end
        while begin > 0 and end - begin < 12 and self._text[begin - 1].isalpha():
            begin -= 1
        return self._text[begin:end]


def _close(is_open: bytearray, mark: str) -> bool:
    """Closes what the bracket closes, and what is open in it; False if that is more than one, or nothing is open."""
    if not is_open:
        return True
    if (mark == "}") == (is_open[-1] == _OBJECT):
        is_open.pop()
        return True
    if mark == "}":
        del is_open[max(is_open.rfind(_OBJECT), 0) :]
    else:
        # one by one, so that each is looked at once: a copy for each bracket would be quadratic
        while is_open and is_open[-1] == _OBJECT:
            is_open.pop()
        del is_open[-1:]
    return False


MAX_TEXT_CHARS: Final = 1 << 29
MAX_SYNTAX_FAULTS: Final = 100
"""After so many places that are not JSON the rest of a text is not read, and said not to be."""

_BLANK: Final = re.compile(r"[ \t\r\n\x1e]*")  # with the record separator of RFC 8142
_LISTS: Final = re.compile(r"(?:\[[ \t\r\n\x1e]*+)++(?=\{)")  # that begin before an object
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


class _Torn(Exception):
    """The text is not JSON at `at`; `begin`: where the value with the fault begins, if it is one."""

    def __init__(self, reason: str, at: int, begin: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at
        self.begin, self.is_value = at if begin is None else begin, begin is not None


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
        self._faults, self._inside = 0, False
        self._alone: int | None = None  # where an object begins of which no list has been read
        self._string: int | None = None  # where the string begins that was read last: it may hold what follows its end
        self._resumption = Resumption(text)
        self.stated_crs: list[tuple[int, Any]] = []
        """The member `crs` of each collection so far, and where the collection begins."""

    def features(self) -> Iterator[Feature]:
        """Documents until the end; after a fault, what follows that is no part of it."""
        self._blank()
        while self._at < len(self._text):
            try:
                yield from self._rest_of_list() if self._inside else self._document()
            except _Torn as torn:
                self._faults += 1
                following = self._resumption.after(torn.begin, is_value=torn.is_value)
                yield self._torn(torn, following)
                if following is None or self._faults == MAX_SYNTAX_FAULTS:
                    return
                self._at = following
                # a fault may stand in the head, before the list was seen to begin
                self._inside = self._inside or self._resumption.in_list(following)
            self._alone = None
            self._blank()

    def _document(self) -> Iterator[Feature]:
        """An object, member by member, an array, value by value, or anything else, whole."""
        begin = self._at
        if self._next("["):
            yield from self._elements()
        elif self._next("{"):
            self._alone = begin
            yield from self._members(begin, {}, first=True)
        else:
            yield self._feature(begin, self._value())

    def _rest_of_list(self) -> Iterator[Feature]:
        """After a fault in a list of features, or before one."""
        begin = self._at
        if self._resumption.in_list(begin):
            yield from self._elements()
        else:  # where a list was cut off another collection may begin
            yield from self._document()
            self._inside = self._next(",")
            if self._inside:
                yield from self._elements()
            elif not self._next("]"):
                return
        if self._text[self._at : self._at + 1] in (",", "}"):  # the list is a member, not an array by itself
            yield from self._members(begin, {}, first=False)

    def _members(self, begin: int, members: dict[str, Any], *, first: bool) -> Iterator[Feature]:
        """The members of an object, to its end; a list of features is read one by one."""
        streamed = not first
        while not self._next("}"):
            if not first:
                self._expect(",")
            first = False
            name_at = self._at
            name = self._value()
            if not isinstance(name, str):
                raise _Torn("a member has no name", name_at)
            self._expect(":")
            if name == "features" and self._next("["):
                streamed, self._alone = True, None
                self.stated_crs.append((begin, members.get("crs")))
                yield from self._elements()
            elif name in members:
                raise _Torn(f"the member {name!r} comes twice", name_at)
            else:
                members[name] = self._value()
                if streamed and name == "crs":
                    self.stated_crs.append((begin, members["crs"]))
        if not streamed:
            yield self._feature(begin, members)
        elif members.get("type") != "FeatureCollection" and not _FEATURE.isdisjoint(members):
            # without a type or such members it is taken for a collection; otherwise it may be meant as a fence
            yield self._feature(begin, members | {"features": []})

    def _elements(self) -> Iterator[Feature]:
        """The elements of a list of features, to its end; a list in it that begins with an object is named and read."""
        self._inside = True
        is_open = int(not self._next("]"))
        while is_open:
            begin = self._at
            if lists := _LISTS.match(self._text, begin):
                yield Feature(*self._place(begin), {}, "it is not a Feature but a list: the objects in it are read")
                is_open, self._at = is_open + lists.group().count("["), lists.end()
                begin = self._at
            yield self._feature(begin, self._value())
            while is_open and self._next("]"):
                is_open -= 1
            if is_open:
                self._expect(",")
        self._inside = False

    def _value(self) -> Any:
        begin = self._at
        try:
            value, self._at = self._decoder.raw_decode(self._text, begin)
        except json.JSONDecodeError as fault:
            raise _Torn(fault.msg, fault.pos, begin) from None
        except RecursionError:
            raise _Torn("it is nested too deeply", begin, begin) from None
        except ValueError as fault:
            # Python reads no whole number of more than 4,300 digits: that takes time by their square.
            reason = "a number has too many digits" if "digits" in str(fault) else str(fault)
            raise _Torn(reason, begin, begin) from None
        self._string = begin if isinstance(value, str) else None
        self._blank()
        return value

    def _blank(self) -> None:
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches the empty string

    def _next(self, mark: str) -> bool:
        """Is this mark next? Then it is read."""
        if self._text[self._at : self._at + 1] != mark:
            return False
        self._at, self._string = self._at + 1, None
        self._blank()
        return True

    def _expect(self, mark: str) -> None:
        if not self._next(mark):
            found = self._text[self._at : self._at + _EXCERPT]
            reason = f"{mark!r} is expected where " + (f"{found!r} is" if found else "the text ends")
            raise _Torn(reason, self._at, self._string)

    def _feature(self, begin: int, value: Any) -> Feature:
        line, place = self._place(begin)
        if isinstance(value, dict):
            both = "features" in value and value.get("type") != "FeatureCollection"
            return Feature(line, place, value, "a Feature has no member 'features': it is not used" if both else None)
        return Feature(line, place, {}, f"it is not a Feature but {_named(value)}")

    def _torn(self, torn: _Torn, following: int | None) -> Feature:
        line, place = self._place(torn.begin if self._alone is None else self._alone)
        reason = f"not JSON: {torn.reason} ({self._where(torn.at)})"
        if self._faults == MAX_SYNTAX_FAULTS:
            reason += f"; after {MAX_SYNTAX_FAULTS} such places the rest of the text is not read"
        elif following is not None:
            reason += f"; reading goes on at {self._where(following)}"
        else:
            reason += "; nothing after it is read"
        return Feature(line, place, {}, reason)

    def _where(self, offset: int) -> str:
        line = self._line + self._text.count("\n", self._counted, offset)
        return f"line {line}, column {offset - self._text.rfind(chr(10), 0, offset)}"

    def _place(self, begin: int) -> tuple[int, str]:
        self._line += self._text.count("\n", self._counted, begin)
        self._counted = max(begin, self._counted)
        self._number += 1
        first = self._line != self._last_line
        self._last_line = self._line
        return self._line, f"line {self._line}" if first else f"line {self._line}, feature {self._number}"


def _named(value: Any) -> str:
    kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
