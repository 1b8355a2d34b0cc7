"""On which line of a TOML text a key stands: what the parser does not say. Looked up only where there is a fault."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

from waybill.settings.bounded_toml import TOML_TOKEN

TomlPath = tuple[str | int, ...]
"""The names, and numbers in lists, that lead to a place."""
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class TomlLines:
    """The lines (from 1) of the tables, keys and list entries of a text that is right TOML."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[TomlPath, int] = {}
        self._counts: dict[TomlPath, int] = {}
        self._table: TomlPath = ()
        self._line = 1
        self._read()

    def of(self, path: TomlPath) -> int | None:
        """The line of a key, or of what is around it and has one."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._found:
                return self._found[path[:length]]
        return None

    def _read(self) -> None:
        """Statement by statement: a header, or a key and its value, which may go over lines."""
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
        """A table that is written inside a list."""
        number = self._counts[key] = self._counts.get(key, -1) + 1
        self._found[*key, number] = self._line

    def _inside(self, path: TomlPath) -> TomlPath:
        return (*path, self._counts[path]) if path in self._counts else path


def _names(text: str) -> list[str]:
    """The names of a dotted key."""
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
