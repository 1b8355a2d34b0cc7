"""TOML from a file or from outside, bounded in size and depth before the parser, which recurses, sees it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

MAX_TOML_BYTES = 1 << 20
MAX_PUSHED_BYTES = 16 << 10
"""Of settings that a gateway publishes for a device. The parser takes up to 1.3 µs for a byte of dotted keys."""
MAX_TOML_DEPTH = 16
"""Brackets inside brackets, and dots in one key."""

# Strings and comments as one token each, as the parser reads them; a bracket inside one is no bracket. A string that
# does not end is a token too, and no part gives back what it took: nothing is read twice. Whoever looks for the line of
# a key reads by it, too.
TOML_TOKEN = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^\\"\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?|#[^\n]*+|[\[{\]}.=,\n]",
    re.DOTALL,
)


def parse_toml(
    text: str,
    max_bytes: int = MAX_TOML_BYTES,
    *,
    max_signs: int | None = None,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """The tables of a TOML text; `parse_float` makes its numbers with a point. Raises ValueError, which says what is
    wrong.

    `max_signs`: so many opening brackets, points, commas and equals signs outside of strings: a table of a few bytes
    takes a hundred times as many in memory, so a large text is bounded by what is in it, too.
    """
    # Counted and not judged: a lone surrogate has no UTF-8, and is no reason to fail here.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise ValueError(f"{size} bytes, {max_bytes} are allowed")
    depth, signs = _depth_and_signs(text)
    if max_signs is not None and signs > max_signs:
        raise ValueError(f"{signs:,} brackets, points, commas and equals signs, {max_signs:,} are allowed")
    if depth > MAX_TOML_DEPTH:
        raise ValueError(f"nested deeper than {MAX_TOML_DEPTH}")
    tables = tomllib.loads(text, parse_float=parse_float)
    _refuse_large_integers(tables)
    return tables


def _refuse_large_integers(value: Any) -> None:
    """TOML's integers have 64 bits; Python's have as many as the text had room for."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _refuse_large_integers(one)
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("an integer of more than 64 bits")


def _depth_and_signs(text: str) -> tuple[int, int]:
    depth = dots = deepest = signs = 0
    for match in TOML_TOKEN.finditer(text):
        piece = match[0]
        signs += piece in "[{.=,"
        if piece in "[{":
            depth, dots = depth + 1, 0
        elif piece in "]}":
            depth, dots = max(0, depth - 1), 0
        elif piece == ".":
            dots += 1
        elif piece in "=,\n":
            dots = 0
        deepest = max(deepest, depth, dots)
    return deepest, signs
