"""Text that people wrote: shown safely, compared as it is read, with faults by line and column."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from waybill.settings.files import TOML_TOKEN

# Foreign text, made safe for logs and screens.


def one_line(text: str, most: int = 300) -> str:
    r"""At most `most` characters in one line; unprintable characters are escaped, as `\x1b`."""
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text[:most].strip())[:most]


def printable(text: str, keeps: str = "") -> str:
    """The text with control characters, colours and changes of direction escaped, except those in `keeps`."""
    if text.isprintable():
        return text
    return "".join(sign if sign in keeps or not _is_control(sign) else _escaped(sign) for sign in text)


def printable_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    r"""JSON for a terminal. Letters of every language stay; what `printable` escapes becomes `\u` and four digits."""
    if isinstance(value, BaseModel):
        text = value.model_dump_json(indent=indent)
    else:
        text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    return "".join(sign if sign == "\n" or not _is_control(sign) else json.dumps(sign)[1:-1] for sign in text)


def _is_control(sign: str) -> bool:
    category = unicodedata.category(sign)
    # spaces of any width are none
    return category[0] == "C" or category in {"Zl", "Zp"}


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


# Faults of text files, with line and column.

MAX_REASON_CHARACTERS: Final = 400
_AT_END: Final = "(at end of document)"
_AT: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")


class TextFault(NamedTuple):
    """A fault of a text: its line and column (from 1; 0: unknown), and the reason."""

    line: int
    column: int
    reason: str

    @property
    def place(self) -> str:
        """`:LINE:COLUMN` as far as known, to follow the name of a file."""
        return "".join(f":{number}" for number in (self.line, self.column) if number)

    def __str__(self) -> str:
        return f"{self.place[1:]}: {self.reason}" if self.place else self.reason


def toml_fault(text: str, error: ValueError) -> TextFault:
    # The parser says it in words only.
    said = str(error)
    at = _AT.search(said)
    line = int(at[1]) if at else text.count("\n") + 1 if said.endswith(_AT_END) else 0
    reason = f"is not valid TOML: {_AT.sub('', said)}"[:MAX_REASON_CHARACTERS]
    return TextFault(line, int(at[2]) if at else 0, reason)


# Names that look the same are the same name.

_WHOLE: Final = re.compile(r"([+-]?[0-9]+)\.0+")
_HYPHENS: Final = dict.fromkeys(map(ord, "\u2010\u2011\u2212"), "-")
_UNSEEN: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]")
"""Invisible letters and marks besides those of the category Cf (soft hyphen, joiners, tags)."""


def as_read(name: str) -> str:
    """A form in which names that a person cannot distinguish are equal.

    It composes letters (NFC), merges blanks, and drops outer blanks, invisible characters and the zero of a whole
    number (`12.0`).
    """
    if not name.isascii():
        seen = "".join(sign for sign in _UNSEEN.sub("", name) if unicodedata.category(sign) != "Cf")
        name = unicodedata.normalize("NFC", seen).translate(_HYPHENS)
    text = " ".join(name.split())
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def near_equal(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The groups of different names that read the same, in their order."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(as_read(name), []).append(name)
    return (tuple(group) for group in groups.values() if len(group) > 1)


def nearest(name: str, known: Iterable[str], similarity: float = 0.5) -> str:
    """The most similar known name, in upper or lower case; "": none is similar.

    `similarity` is between 0 and 1. A caller that hides or refuses something because of the answer asks for more than
    a message that only gives advice.
    """
    folded = {one.casefold(): one for one in known}
    near = get_close_matches(name.casefold(), folded, 1, similarity)
    return folded[near[0]] if near else ""


def name_advice(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: a known name that reads the same, or a similar one; else ""."""
    others = [one for one in known if one != name]
    reading = as_read(name)
    if same := next((one for one in others if as_read(one) == reading), None):
        return f"; this is written {name!a}, and there is {same!a}, which reads the same"
    near = nearest(name, others)
    return f"; did you mean {near!r}?" if near else ""


TomlPath = tuple[str | int, ...]
"""The keys and list indices that lead to a place."""
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class TomlLines:
    """The lines (from 1) of the tables, keys and list entries of a valid TOML text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[TomlPath, int] = {}
        self._counts: dict[TomlPath, int] = {}
        self._table: TomlPath = ()
        self._line = 1
        self._read()

    def of(self, path: TomlPath) -> int | None:
        """The line of a key, or else of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._found:
                return self._found[path[:length]]
        return None

    def _read(self) -> None:
        """Statement by statement: a header, or a key and its value, which may span lines."""
        start, depth = 0, 0
        key: TomlPath | None = None
        for match in TOML_TOKEN.finditer(self._text):
            piece = match[0]
            if piece == "=" and key is None:
                key = self._key(self._text[start : match.start()])
            elif piece in "[{" and key is not None:
                depth += 1
                if piece == "{" and depth == 2:
                    self._entry(key)
            elif piece in "]}" and key is not None:
                depth -= 1
            elif (piece == "\n" and depth <= 0) or (piece.startswith("#") and key is None):
                if key is None:
                    self._header(self._text[start : match.start()].strip())
                # a comment reaches to its line's end, and nothing of it is a key
                start, depth, key = match.end(), 0, None
            self._line += piece.count("\n")
        if key is None:
            self._header(self._text[start:].strip())

    def _header(self, text: str) -> None:
        if not text.startswith("["):
            return
        is_list = text.startswith("[[")
        names = _names(text.strip("[]"))
        path: TomlPath = ()
        for name in names[:-1]:
            path = self._inside((*path, name))
        path = (*path, *names[-1:])
        if is_list:
            number = self._counts[path] = self._counts.get(path, -1) + 1
            self._found.setdefault(path, self._line)
            path = (*path, number)
        self._table = path
        self._found.setdefault(path, self._line)

    def _key(self, text: str) -> TomlPath:
        path = (*self._table, *_names(text.strip()))
        self._found.setdefault(path, self._line)
        return path

    def _entry(self, key: TomlPath) -> None:
        """A table inside a list."""
        number = self._counts[key] = self._counts.get(key, -1) + 1
        self._found[*key, number] = self._line

    def _inside(self, path: TomlPath) -> TomlPath:
        return (*path, self._counts[path]) if path in self._counts else path


def _names(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(".")]
    if all(_BARE.fullmatch(part) for part in parts):
        return parts
    try:
        here: Any = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return []
    names = list[str]()
    while isinstance(here, dict):
        ((name, here),) = here.items()
        names.append(name)
    return names
