"""What somebody else wrote, as a log and a screen may show it."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from pydantic import BaseModel

__all__ = ["one_line", "printable", "printable_json"]


def one_line(text: str, most: int = 300) -> str:
    """At most so many characters, in one line that moves no cursor: what is not printable is escaped, as `\\x1b`."""
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text[:most].strip())[:most]


def printable(text: str, keeps: str = "") -> str:
    """All of a text, where nothing moves a cursor, changes a colour or turns the direction; `keeps`: signs that may."""
    if text.isprintable():
        return text
    return "".join(sign if sign in keeps or not _is_control(sign) else _escaped(sign) for sign in text)


def printable_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON for a terminal. Letters of every language stay; what `printable` escapes becomes `\\u` and four digits."""
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
