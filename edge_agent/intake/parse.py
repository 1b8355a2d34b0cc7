"""From a message of the vehicle to the bodies of records: lenient in form, strict in what a number means. Pure.

The contract with the vehicle (MQTT, JSON in UTF-8; `time` is milliseconds since 1970 or ISO 8601 with offset):

    vehicle/position  {"time", "latitude", "longitude", "altitude_m"?, "speed_mps"?, "heading_deg"?, "accuracy_m"?}
    vehicle/signal    {"time", "path", "value"}
    vehicle/event     {"time", "name", "attributes"?}
    vehicle/canary    {"time", "id"}

The first three may have one more level in the middle (`vehicle/7/position`). A message may be an array of such objects.
Members that the contract does not have are ignored. An optional member without a usable value is left out. A number may
be written as text. What cannot be read safely is carried as it came, and `malformed` says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from waybill.record import (
    MAX_RAW_BYTES,
    RESERVED_PREFIX,
    TOO_LARGE_EVENT,
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    Body,
    Canary,
    Event,
    InvalidJson,
    Position,
    Raw,
    Signal,
    meant_contract_topic,
    parse_json,
    vehicle_contract_topic,
)

LATEST_US = 253_402_300_800_000_000
"""The year 10000: a `time` at or beyond it is none."""
MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Of a message; what is deeper or larger is carried raw."""
MAX_ELEMENTS = 1_000
"""Of an array; a longer one is carried raw as a whole."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PADDING = b"\0 \t\r\n"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_MAX_NUMBER_CHARACTERS = 40
_YEAR_2000_S, _YEAR_2100_S = 946_684_800, 4_102_444_800
_UNITS = {1: "time-in-seconds", 1_000_000: "time-in-microseconds", 1_000_000_000: "time-in-nanoseconds"}
"""How many of a unit are a second; a number that is a time of this century in one of them is no milliseconds."""
_LEAP_SECOND = re.compile(r"(?<=[T ][0-9]{2}:[0-9]{2}:)60|(?<=[T ][0-9]{4})60")
_UTC_NAME, _SPACED_OFFSET = re.compile(r" ?(?:UTC|GMT|Z)$"), re.compile(r" +(?=[+-])")
_OPTIONAL = {
    "altitude_m": (-100_000.0, 1_000_000.0),
    "speed_mps": (0.0, 100_000.0),
    "heading_deg": (0.0, 360.0),
    "accuracy_m": (0.001, 10_000_000.0),
}
"""The optional members of a fix, with the least and the greatest usable value. An accuracy of 0 or less is none."""
_ROUNDED_FULL_CIRCLE_DEG = 360.5
"""A heading up to here is a full circle that was rounded; a greater one is a device's mark for *unknown*."""
_MAX_EXACT_INTEGER = 1 << 53
_COMPARED_NAMES, _COMPARED_CHARACTERS = 16, 40
"""Of a message, the members whose names are compared with those of the contract."""
_SLIP, _ABBREVIATION = 0.7, 0.5
"""How like a name has to be: one that a message has beside all it needs, and one in the place of what it lacks."""


class Parsed(NamedTuple):
    """One record of a message: a body, its device time (None: the message has none), and why it is raw (or "").

    `payload`: what of the message is this record. `unknown`, `unusable`: names of members that were left out, because
    the contract does not have them, and because their values cannot be used. `meant`: unknown names, each with the
    absent optional member that it is like. `detail`: which member makes the message raw, where that is known.
    """

    body: Body
    device_time_us: int | None
    malformed: str
    payload: bytes
    unknown: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    meant: tuple[tuple[str, str], ...] = ()
    detail: str = ""


class _MalformedMessage(Exception):
    """The message does not follow the contract. `reason`: a short stable word for metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def parse_message(topic: str, payload: bytes, missing: int = 0) -> tuple[Parsed, ...]:
    """The records of a message: one, or one for each element of an array. What cannot be read is carried as it is.

    `missing`: bytes of the message that were not kept because it is too large.
    """
    if missing or len(payload) > MAX_RAW_BYTES:
        return (Parsed(_too_large(topic, len(payload) + missing), None, "too-large", payload),)
    contract_topic = vehicle_contract_topic(topic)
    if contract_topic is None:
        return (_raw(topic, payload, "unknown-topic" if meant_contract_topic(topic) is None else "misspelt-topic"),)
    try:
        value = _json_value(payload)
        if isinstance(value, list):
            return _elements(topic, contract_topic, value)
        return (_parsed(contract_topic, value, payload),)
    except _MalformedMessage as error:
        return (_raw(topic, payload, error.reason, error.detail),)


def _elements(topic: str, contract_topic: str, elements: list[Any]) -> tuple[Parsed, ...]:
    """The records of an array, each readable or raw. Raises _MalformedMessage if none of them can be read."""
    if not elements or len(elements) > MAX_ELEMENTS or not all(isinstance(one, dict) for one in elements):
        raise _MalformedMessage("no-object")
    found: list[Parsed] = []
    for element in elements:
        payload = json.dumps(element, separators=(",", ":")).encode()
        try:
            found.append(_parsed(contract_topic, element, payload))
        except _MalformedMessage as error:
            found.append(_raw(topic, payload, error.reason, error.detail))
    if all(one.malformed for one in found):
        raise _MalformedMessage(found[0].malformed, found[0].detail)
    return tuple(found)


def _parsed(contract_topic: str, message: Any, payload: bytes) -> Parsed:
    if not isinstance(message, dict):
        raise _MalformedMessage("no-object")
    read, members = _READERS[contract_topic]
    unusable: list[str] = []
    try:
        body = read(message, unusable)
    except KeyError as error:
        raise _MalformedMessage("wrong-fields", _missing(error.args[0], message, members)) from error
    except ValidationError as error:
        raise _MalformedMessage("wrong-fields", f"`{error.errors()[0]['loc'][0]}` cannot be used") from error
    if message.get("time") is None:
        raise _MalformedMessage("no-time", "" if "time" in message else _missing("time", message, members))
    unknown = () if message.keys() <= members else tuple(message.keys() - members)
    like = ((name, _like(name[:_COMPARED_CHARACTERS], members)) for name in unknown[:_COMPARED_NAMES])
    meant = tuple((name, member) for name, member in like if member and member not in message)
    return Parsed(body, _device_time_us(message["time"]), "", payload, unknown, tuple(unusable), meant)


@lru_cache(maxsize=256)
def _like(name: str, members: frozenset[str]) -> str:
    """The member of the contract that a name is like, also without its unit, as `speed`; "" for none."""
    names = {member.rpartition("_")[0] or member: member for member in members}
    name = name.casefold()
    stem = name.rpartition("_")[0]
    near = [stem] if stem in names else get_close_matches(name, [*names, *members], 1, _SLIP)
    return names.get(near[0], near[0]) if near else ""


def _missing(member: str, message: dict[str, Any], members: frozenset[str]) -> str:
    unknown = [name[:_COMPARED_CHARACTERS] for name in message if name not in members][:_COMPARED_NAMES]
    # `altitude` is like `latitude`, and more like `altitude_m`
    names = {name.casefold(): name for name in unknown if _like(name, members) in {"", member}}
    near = get_close_matches(member, names, 1, _ABBREVIATION)
    return f"`{member}` is missing" + (f"; is `{names[near[0]]}` meant?" if near else "")


def _raw(topic: str, payload: bytes, malformed: str, detail: str = "") -> Parsed:
    return Parsed(Raw(topic=topic, payload=payload, reason=malformed), None, malformed, payload, detail=detail)


def _too_large(topic: str, size: int) -> Event:
    about = json.dumps({"topic": topic[:1024], "bytes": size, "reason": "too-large"})
    return Event(name=TOO_LARGE_EVENT, attributes=about)


def _json_value(payload: bytes) -> Any:
    text = payload.removeprefix(_BYTE_ORDER_MARK).rstrip(_PADDING)
    try:
        return parse_json(text, max_bytes=MAX_RAW_BYTES, max_depth=MAX_DEPTH, max_values=MAX_VALUES, nan_is_null=True)
    except InvalidJson as error:
        raise _MalformedMessage("no-json" if error.reason in {"not-json", "not-utf-8"} else error.reason) from error


def _number(value: Any) -> float | None:
    """A number, or a text that is nothing but one; None for anything else. JSON's true is an int to Python."""
    if type(value) is float:
        return value
    if isinstance(value, str):
        value = value.strip() if len(value) <= _MAX_NUMBER_CHARACTERS else ""
        return float(value) if _NUMBER.fullmatch(value) else None
    return float(value) if type(value) is int else None


def _device_time_us(value: Any) -> int:
    if type(value) is int and _YEAR_2000_S * 1000 <= value < _YEAR_2100_S * 1000:
        return value * 1000
    number = value if type(value) is int else _number(value)
    if number is None and isinstance(value, str):
        time_us = _iso_us(value.strip())
        if not 0 <= time_us < LATEST_US:
            raise _MalformedMessage("impossible-time")
        return time_us
    # A text with an exponent was made by a format that rounds, as C's %g to six digits: to minutes, all fixes alike.
    if number is None or (isinstance(value, str) and "e" in value.lower()):
        raise _MalformedMessage("time-not-read")
    for per_second, reason in _UNITS.items():
        if _YEAR_2000_S * per_second <= number < _YEAR_2100_S * per_second:
            raise _MalformedMessage(reason)
    # Before 2000 stands a clock that nobody has set yet: it is corrected when it is (`edge_agent.clock`).
    if not 0 <= number < _YEAR_2100_S * 1000:
        raise _MalformedMessage("impossible-time")
    return round(number * 1000)


def _iso_us(text: str) -> int:
    text = _SPACED_OFFSET.sub("", _UTC_NAME.sub("Z", text.upper()))
    try:
        moment = datetime.fromisoformat(_LEAP_SECOND.sub("59", text))
        if moment.tzinfo is None:
            raise _MalformedMessage("time-without-offset")
        # As POSIX counts: the leap second has the number of the one behind it.
        moment += timedelta(seconds=1 if _LEAP_SECOND.search(text) else 0)
        # timestamp() is a double of seconds: cut off instead of rounded, many a microsecond would be missing.
        return round(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise _MalformedMessage("time-not-read") from error


def _position(message: dict[str, Any], unusable: list[str]) -> Body:
    latitude, longitude = _coordinate(message, "latitude"), _coordinate(message, "longitude")
    if 180 < longitude <= 360:
        longitude -= 360  # of a device that counts eastward all around
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise _MalformedMessage("impossible-position")
    fields = {"latitude": latitude, "longitude": longitude}
    for name in message.keys() & _OPTIONAL.keys():
        value, (least, greatest) = _number(message[name]), _OPTIONAL[name]
        if name == "heading_deg" and value is not None and 360 < value <= _ROUNDED_FULL_CIRCLE_DEG:
            value -= 360
        # Bounds on both sides: no text makes a NaN, and an infinity is within none.
        if value is not None and least <= value <= greatest:
            fields[name] = value
        else:
            unusable.append(name)
    return Position(**fields)


def _coordinate(message: dict[str, Any], name: str) -> float:
    # Absent is a wrong format; null is what receivers say that see no satellite.
    if message[name] is None:
        raise _MalformedMessage("no-fix")
    if (value := _number(message[name])) is None:
        raise _MalformedMessage("wrong-fields", f"`{name}` is no number")
    return value


def _signal(message: dict[str, Any], _: list[str]) -> Body:
    value = message["value"]
    if value is None:
        raise _MalformedMessage("no-value")
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if type(value) is int:
        if abs(value) > _MAX_EXACT_INTEGER:  # as a double it would become another number
            raise _MalformedMessage("number-too-large")
        value = float(value)
    return Signal(path=_unreserved(message["path"]), value=value)


def _event(message: dict[str, Any], unusable: list[str]) -> Body:
    attributes = message.get("attributes", {})
    if not isinstance(attributes, dict):
        unusable.append("attributes")
        attributes = {}
    return Event(name=_unreserved(message["name"]), attributes=json.dumps(attributes, separators=(",", ":")))


def _unreserved(name: Any) -> Any:
    if isinstance(name, str) and name.startswith(RESERVED_PREFIX):
        raise _MalformedMessage("reserved-name")
    return name


def _canary(message: dict[str, Any], _: list[str]) -> Body:
    return Canary(id=message["id"])


_Reader = Callable[[dict[str, Any], list[str]], Body]
_READERS: dict[str, tuple[_Reader, frozenset[str]]] = {
    VEHICLE_POSITION: (_position, frozenset({"time", *Position.model_fields})),
    VEHICLE_SIGNAL: (_signal, frozenset({"time", *Signal.model_fields})),
    VEHICLE_EVENT: (_event, frozenset({"time", *Event.model_fields})),
    VEHICLE_CANARY: (_canary, frozenset({"time", *Canary.model_fields})),
}
"""For each topic what reads its messages (it adds to a list the names that it could not use), and their members."""
