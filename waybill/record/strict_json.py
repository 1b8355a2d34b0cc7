"""JSON from outside, checked before it is built.

RFC 8259 in UTF-8, restricted to values that msgpack, an Arrow table and a database can hold: names of an object are
unique, whole numbers fit 64 bits, other numbers a finite double, and text has no lone surrogates. Time and memory are
proportional to `max_bytes` and `max_values`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from waybill.record.errors import InvalidJson
from waybill.record.record import MAX_RAW_BYTES

MAX_DEPTH = 100
"""The deepest nesting that a caller may allow: far below the interpreter's limit of recursion."""
PLAIN_BYTES = 4096
"""Longer texts always get the full check."""
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1

MAX_MESSAGE_DEPTH, MAX_MESSAGE_VALUES = 32, 10_000
"""Limits of a sensor's message; a deeper or larger one is carried raw."""
MAX_ELEMENTS = 1_000
"""A sensor's message with more elements is carried raw as a whole."""

# Possessive: nothing is given back, so no text is read twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(
    data: bytes, *, max_bytes: int, max_depth: int = 16, max_values: int = 10_000, nan_is_null: bool = False
) -> Any:
    """The value of a JSON text. Raises InvalidJson.

    `max_bytes`: length of `data`. `max_depth`: nested arrays and objects, at most MAX_DEPTH. `max_values`: elements of
    arrays and members of objects, in total. `nan_is_null`: NaN and Infinity, which some libraries write for *unknown*,
    are read as null.
    """
    assert 0 <= max_depth <= MAX_DEPTH
    if len(data) > max_bytes:
        raise InvalidJson("too-large", f"{len(data)} bytes, {max_bytes} are allowed", max_bytes)
    plain = _plain_object(data, max_values) if max_depth and len(data) <= PLAIN_BYTES else None
    if plain is not None:
        return plain
    _check_shape(data, max_depth, max_values)
    try:
        value = (_NULLING_DECODER if nan_is_null else _DECODER).decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidJson("not-utf-8", error.reason, error.start) from error
    except json.JSONDecodeError as error:
        raise InvalidJson("not-json", error.msg, len(error.doc[: error.pos].encode())) from error
    if _SURROGATE.search(data):
        _check_text(value)
    return value


def message_text(payload: bytes) -> bytes:
    """The text of a sensor's message, without a byte order mark and the padding around it."""
    return payload.removeprefix(b"\xef\xbb\xbf").strip(b"\0 \t\r\n")


def parse_message_json(payload: bytes) -> Any:
    """The value of a sensor's message, where NaN is null. Raises InvalidJson."""
    return parse_json(
        message_text(payload),
        max_bytes=MAX_RAW_BYTES,
        max_depth=MAX_MESSAGE_DEPTH,
        max_values=MAX_MESSAGE_VALUES,
        nan_is_null=True,
    )


def _plain_object(data: bytes, max_values: int) -> dict[str, Any] | None:
    """Fast path for most messages: an object of texts and numbers, without escapes. None: it needs the full check."""
    # An escape may be half of a surrogate pair; a second brace may be nested, or stand in a text.
    if b"\\" in data or b"[" in data or data.count(b"{") != 1:
        return None
    try:
        text = data.decode("utf-8")
        value, end = _PLAIN.raw_decode(text)
    except ValueError:
        return None
    # No more members than colons: if there are as many names, no name stands twice.
    if end != len(text) or type(value) is not dict or not max_values > len(value) == data.count(b":"):
        return None
    for one in value.values():
        if type(one) is float:
            # Infinity and NaN minus themselves are NaN, which is not 0.
            if one - one != 0:
                return None
        elif type(one) is int and not MIN_INTEGER <= one <= MAX_INTEGER:
            return None
    return value


def _check_shape(data: bytes, max_depth: int, max_values: int) -> None:
    """Counts brackets and commas, also inside strings, and looks closer only if there are too many."""
    opened = data.count(b"[") + data.count(b"{")
    if opened <= max_depth and opened + data.count(b",") <= max_values:
        return
    bare = _STRING.sub(lambda found: b'"' * (len(found[0])), data)  # every byte keeps its place
    values = bare.count(b"[") + bare.count(b"{") + bare.count(b",")
    if values > max_values:
        raise InvalidJson("too-many-values", f"more than {max_values} values")
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > max_depth:
            raise InvalidJson("too-deep", f"nested more than {max_depth} deep", bracket.start())
        if depth < 0:
            raise InvalidJson("not-json", "a bracket closes what was not opened", bracket.start())


def _object(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    # Of a name that stands twice a dict keeps the last value, in silence.
    if len(made) != len(members):
        twice, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise InvalidJson("duplicate-name", f"the name {twice[:80]!r} stands twice in one object")
    return made


def _integer(text: str) -> int:
    # int() of a long text takes the square of its length.
    if len(text) <= 20 and MIN_INTEGER <= (value := int(text)) <= MAX_INTEGER:
        return value
    raise InvalidJson("number-out-of-range", f"{text[:40]} is outside of 64 bits, signed")


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:  # infinite
        raise InvalidJson("number-out-of-range", f"{text[:40]} is outside of the range of a double")
    return value


def _constant(text: str) -> NoReturn:
    raise InvalidJson("not-json", f"{text} is not a valid JSON number")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        before = error.object[max(0, error.start - 20) : error.start]
        raise InvalidJson("lone-surrogate", f"half of a surrogate pair after {before!r}") from error


_PLAIN = json.JSONDecoder()
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
_NULLING_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=lambda _: None
)
