"""From a message of the vehicle to the body of a record. Nothing is dropped: what is not understood becomes raw.

The contract with the vehicle (MQTT, JSON in UTF-8; `time` is milliseconds since 1970 or ISO 8601 with offset):

    vehicle/position  {"time", "latitude", "longitude", "altitude_m"?, "speed_mps"?, "heading_deg"?, "accuracy_m"?}
    vehicle/signal    {"time", "path", "value"}
    vehicle/event     {"time", "name", "attributes"?}
    vehicle/canary    {"time", "id"}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from telemetry import (
    MAX_RAW_BYTES,
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
    parse_json,
)

LATEST_US = 253_402_300_800_000_000
"""The year 10000: a `time` at or beyond it is none."""
MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Of a message; what is deeper or larger is carried raw."""
TOO_LARGE_EVENT = "waybill.too_large"


class Parsed(NamedTuple):
    """A body, its device time (None where the message has none), and why it is not what its topic says (or "")."""

    body: Body
    device_time_us: int | None
    malformed: str = ""


class _MalformedMessage(Exception):
    """The message does not follow the contract; the text is a short stable word for metrics."""


def parse_message(topic: str, payload: bytes, missing: int = 0) -> Parsed:
    """The body of a message. What does not follow the contract is carried as it is, and `malformed` says why.

    `missing`: bytes of the message that were not kept because it is too large.
    """
    if missing or len(payload) > MAX_RAW_BYTES:
        return Parsed(_too_large(topic, len(payload) + missing), None, "too-large")
    reader = _READERS.get(topic)
    if reader is None:
        return Parsed(Raw(topic=topic, payload=payload), None, "unknown-topic")
    try:
        message = _json_object(payload)
        return Parsed(reader(message), _device_time_us(message.get("time")))
    except _MalformedMessage as error:
        return Parsed(Raw(topic=topic, payload=payload), None, str(error))
    except (ValidationError, TypeError, KeyError):
        return Parsed(Raw(topic=topic, payload=payload), None, "wrong-fields")


def _too_large(topic: str, size: int) -> Event:
    about = json.dumps({"topic": topic[:1024], "bytes": size, "reason": "too-large"})
    return Event(name=TOO_LARGE_EVENT, attributes=about)


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        message = parse_json(payload, max_bytes=MAX_RAW_BYTES, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    except InvalidJson as error:
        raise _MalformedMessage("no-json" if error.reason in {"not-json", "not-utf-8"} else error.reason) from error
    if not isinstance(message, dict):
        raise _MalformedMessage("no-object")
    return message


def _device_time_us(value: Any) -> int:
    # JSON's true is an int to Python.
    if isinstance(value, int) and not isinstance(value, bool):
        time_us = value * 1000
    elif isinstance(value, str):
        time_us = _iso_us(value)
    else:
        raise _MalformedMessage("no-time")
    if not 0 <= time_us < LATEST_US:
        raise _MalformedMessage("impossible-time")
    return time_us


def _iso_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise _MalformedMessage("time-without-offset")
        # timestamp() is a double of seconds: cut off instead of rounded, many a microsecond would be missing.
        return round(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise _MalformedMessage("no-time") from error


def _position(message: dict[str, Any]) -> Body:
    fields = {name: message[name] for name in Position.model_fields if name in message}
    if not message.keys() - {"time"} <= fields.keys():
        raise _MalformedMessage("unknown-fields")
    return Position(**fields)


def _signal(message: dict[str, Any]) -> Body:
    if message.keys() - {"time", "path", "value"}:
        raise _MalformedMessage("unknown-fields")
    value = message["value"]
    if type(value) is int:
        # A signal travels as a double: beyond 2**53 it would become another number.
        if abs(value) > 1 << 53:
            raise _MalformedMessage("number-too-large")
        value = float(value)
    return Signal(path=message["path"], value=value)


def _event(message: dict[str, Any]) -> Body:
    if message.keys() - {"time", "name", "attributes"}:
        raise _MalformedMessage("unknown-fields")
    attributes = message.get("attributes", {})
    if not isinstance(attributes, dict):
        raise _MalformedMessage("wrong-fields")
    return Event(name=message["name"], attributes=json.dumps(attributes, separators=(",", ":")))


def _canary(message: dict[str, Any]) -> Body:
    if message.keys() - {"time", "id"}:
        raise _MalformedMessage("unknown-fields")
    return Canary(id=message["id"])


_READERS: dict[str, Callable[[dict[str, Any]], Body]] = {
    VEHICLE_POSITION: _position,
    VEHICLE_SIGNAL: _signal,
    VEHICLE_EVENT: _event,
    VEHICLE_CANARY: _canary,
}
