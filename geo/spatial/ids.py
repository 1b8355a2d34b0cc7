"""Rules for the ids of devices and fences: rows of files are distinguished by them, and terminals show them."""

from __future__ import annotations

import re
from typing import Any, Final

# Properties of a GeoJSON feature. Imports nothing that computes.


def named(feature: dict[str, Any]) -> Any:
    """The id that a GeoJSON feature gives, `properties.id` or its own, whatever its type; None if it gives none."""
    return given_properties(feature).get("id", feature.get("id"))


def given_properties(feature: dict[str, Any]) -> dict[str, Any]:
    """The properties of a feature that are not null: exported tables write null for a missing value."""
    value = feature.get("properties")
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else {}


MAX_ID_CHARS: Final = 256
_NO_CHARACTERS: Final = "\ufdd0-\ufdef" + "".join(
    chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)
)
UNSHOWN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff" + _NO_CHARACTERS + "]"
)
"""Line ends, escapes and other controls, surrogates, noncharacters, and characters that change the writing direction.

They make a name or an amount read differently from what is stored, and XML cannot represent most of them."""


def id_fault(name: str) -> str:
    """Why a text cannot be an id; "" if it can."""
    if not name:
        return "it is empty"
    if len(name) > MAX_ID_CHARS:
        return f"it is longer than {MAX_ID_CHARS} characters"
    if name != name.strip():
        return "it begins or ends with a blank"
    return unshown_in(name)


def unshown_in(text: str) -> str:
    """The first character of a text that no id may have, as a fault; "" if there is none."""
    match = UNSHOWN.search(text)
    if match is None:
        return ""
    code = ord(match.group())
    return "it is not UTF-8" if 0xD800 <= code <= 0xDFFF else f"it holds the control character U+{code:04X}"
