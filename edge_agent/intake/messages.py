"""Turns a message of the vehicle into record bodies. Lenient in form, strict in what a number means. Pure.

The contract with the vehicle (MQTT, JSON in UTF-8; `time` is milliseconds since 1970 or ISO 8601 with offset):

    vehicle/position  {"time", "latitude", "longitude", "altitude_m"?, "speed_mps"?, "heading_deg"?, "accuracy_m"?}
    vehicle/signal    {"time", "path", "value"}
    vehicle/event     {"time", "name", "attributes"?}
    vehicle/canary    {"time", "id"}

The first three may have one more level in the middle (`vehicle/7/position`). A message may be an array of such objects.
Unknown members, and optional members with unusable values, are left out. A number may be written as text. A message
that cannot be read safely becomes a raw record, and `malformed` says why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

import structlog
from pydantic import ValidationError

from waybill.record import (
    MAX_ELEMENTS,
    MAX_RAW_BYTES,
    NO_FAULTS,
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
    parse_message_json,
    vehicle_contract_topic,
)

# Statistics of raw records. Bounded.

log = structlog.get_logger("edge_agent.intake")

MAX_KINDS: Final = 64
"""Pairs of topic and reason that are counted separately; further topics are counted as OTHER_TOPICS."""
OTHER_TOPICS: Final = "(other topics)"
SAMPLE_CHARACTERS: Final = 80
SHOWN_S: Final = 600.0
"""How long an unreadable message affects `state`."""
SILENT_S: Final = 600.0
"""A mapping that reads messages for so long without a record is shown as a warning."""
READABLE, SOME, NONE = "readable", "some unreadable", "none readable"


@dataclass(slots=True)
class UnreadableKind:
    """Messages of one topic and reason. `sample`: the beginning of the last one, printable."""

    topic: str
    reason: str
    messages: int = 0
    detail: str = ""
    sample: str = ""


class UnreadableMessages:
    """Unreadable messages since the settings were loaded. Written by one thread."""

    def __init__(self) -> None:
        self.readable_at_s = -math.inf
        """When a contract message was last read; set by the intake."""
        self._unreadable_at_s = -math.inf
        self._kinds: dict[tuple[str, str], UnreadableKind] = {}

    def add(self, topic: str, reason: str, payload: bytes, now_s: float, detail: str = "") -> None:
        """Counts and logs one, without the payload, which may contain a position."""
        if (topic, reason) not in self._kinds and len(self._kinds) >= MAX_KINDS:
            topic = OTHER_TOPICS
        kind = self._kinds.setdefault((topic, reason), UnreadableKind(_printable(topic), reason))
        kind.messages += 1
        kind.sample = printable_sample(payload)
        kind.detail = _printable(detail)
        if reason in NO_FAULTS:
            return
        self._unreadable_at_s = now_s
        log.warning(
            "a message cannot be read and is carried raw, in no bill: see `edge-agent status`",
            topic=kind.topic,
            reason=reason,
            messages=kind.messages,
            detail=kind.detail,
        )

    def state(self, now_s: float) -> str:
        """Whether all, some or none of the contract messages of the last SHOWN_S could be read."""
        if now_s - self._unreadable_at_s >= SHOWN_S:
            return READABLE
        return SOME if now_s - self.readable_at_s < SHOWN_S else NONE

    def rows(self) -> list[dict[str, Any]]:
        """The kinds as plain values, the most frequent first and harmless ones last. Any thread may call this."""
        kinds = sorted([*self._kinds.values()], key=lambda one: (one.reason in NO_FAULTS, -one.messages))
        return [asdict(kind) for kind in kinds]


def printable_sample(payload: bytes) -> str:
    """The beginning of a message, safe to print on a terminal."""
    return _printable(payload[: 4 * SAMPLE_CHARACTERS].decode("utf-8", "replace"))


def _printable(text: str) -> str:
    shown = "".join(one if one.isprintable() else "·" for one in text[: SAMPLE_CHARACTERS + 1])
    return shown if len(shown) <= SAMPLE_CHARACTERS else f"{shown[: SAMPLE_CHARACTERS - 1]}…"


LATEST_US = 253_402_300_800_000_000
"""The year 10000, above every valid `time`."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_MAX_NUMBER_CHARACTERS = 40
_MAX_TIME_CHARACTERS = 80
YEAR_2000_S, YEAR_2100_S = 946_684_800, 4_102_444_800
TIME_UNITS = {
    "s": (1, "seconds"),
    "ms": (1_000, "milliseconds"),
    "us": (1_000_000, "microseconds"),
    "ns": (1_000_000_000, "nanoseconds"),
}
"""Units of numbers since 1970: how many make a second, and their names."""
_LEAP_SECOND = re.compile(r"(?<=[T ][0-9]{2}:[0-9]{2}:)60|(?<=[T ][0-9]{4})60")
_UTC_NAME, _SPACED_OFFSET = re.compile(r" ?(?:UTC|GMT|Z)$"), re.compile(r" +(?=[+-])")
OPTIONAL_BOUNDS = {
    "altitude_m": (-100_000.0, 1_000_000.0),
    "speed_mps": (0.0, 100_000.0),
    "heading_deg": (0.0, 360.0),
    "accuracy_m": (0.001, 10_000_000.0),
}
"""The optional members of a fix with their smallest and largest usable value."""
_ROUNDED_FULL_CIRCLE_DEG = 360.5
"""A heading up to here is a rounded full circle; a greater one means *unknown*."""
_MAX_EXACT_INTEGER = 1 << 53


class Parsed(NamedTuple):
    """One record of a message: its body, its device time (None: the message has none), and why it is raw (or "").

    `payload`: the part of the message that became this record. `left_out`: unknown and unusable members. `detail`: the
    member that makes the message raw, if known.
    """

    body: Body
    device_time_us: int | None
    malformed: str
    payload: bytes
    left_out: tuple[str, ...] = ()
    detail: str = ""
    mapping: str = ""
    """The mapping that read it, `name@digest`; with `+held` for a position whose other half is older; "": none."""
    torn: object = None
    """What the mapping's join needs of it."""


class LateRecord(NamedTuple):
    """A record that became due without a message: the topic and monotonic time of the message that it waited for."""

    topic: str
    parsed: Parsed
    arrival_us: int


class MessageParser:
    """Reads messages of the vehicle's contract. `edge_agent.mapping.parser` has one that reads other messages, too."""

    filters: tuple[str, ...] = ()
    """The MQTT filters of messages that it reads besides those of the contract."""
    needs_arrivals = False
    """Whether a message may get the time of its arrival."""

    def parse(self, topic: str, payload: bytes, missing: int = 0) -> tuple[Parsed, ...]:
        """The records of a message, as `parse_message`. Changes nothing."""
        return parse_message(topic, payload, missing)

    def accept(self, parsed: tuple[Parsed, ...], topic: str, arrival_us: int) -> tuple[Parsed, ...]:  # noqa: ARG002
        """The records of a message that is stored: counted, and with a torn position that it completes.

        `arrival_us`: when the message came, by the monotonic clock.
        """
        return parsed

    def without_arrival(self, parsed: tuple[Parsed, ...], topic: str, payload: bytes) -> tuple[Parsed, ...]:  # noqa: ARG002
        """The records of a message that may have waited at the broker. Call it before `accept`."""
        return parsed

    def due_in(self, now_us: int) -> float | None:  # noqa: ARG002 - contract messages wait for nothing
        """Seconds until `expire` has a record; None when nothing waits."""
        return None

    def expire(self, now_us: int) -> Sequence[LateRecord]:  # noqa: ARG002 - contract messages wait for nothing
        """The records that are due now."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """The mappings with their counters, as plain values. Any thread may call this."""
        return []


class MalformedMessage(Exception):
    """`reason`: a short stable word for metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def parse_message(topic: str, payload: bytes, missing: int = 0) -> tuple[Parsed, ...]:
    """The records of a message: one, or one for each element of an array. An unreadable message becomes one raw record.

    `missing`: bytes of a too large message that were not received.
    """
    if missing or len(payload) > MAX_RAW_BYTES:
        about = json.dumps({"topic": topic[:1024], "bytes": len(payload) + missing, "reason": "too-large"})
        return (Parsed(Event(name=TOO_LARGE_EVENT, attributes=about), None, "too-large", payload),)
    contract_topic = vehicle_contract_topic(topic)
    if contract_topic is None:
        return (_raw(topic, payload, "unknown-topic" if meant_contract_topic(topic) is None else "misspelt-topic"),)
    try:
        value = _json_value(payload)
        if isinstance(value, list):
            return _elements(topic, contract_topic, value)
        return (_parsed(contract_topic, value, payload),)
    except MalformedMessage as error:
        return (_raw(topic, payload, error.reason, error.detail),)


def _elements(topic: str, contract_topic: str, elements: list[Any]) -> tuple[Parsed, ...]:
    """The records of an array, each readable or raw. Raises MalformedMessage if no element can be read."""
    if not elements or len(elements) > MAX_ELEMENTS or not all(isinstance(one, dict) for one in elements):
        raise MalformedMessage("no-object")
    found: list[Parsed] = []
    for element in elements:
        payload = json.dumps(element, separators=(",", ":")).encode()
        try:
            found.append(_parsed(contract_topic, element, payload))
        except MalformedMessage as error:
            found.append(_raw(topic, payload, error.reason, error.detail))
    if all(one.malformed for one in found):
        raise MalformedMessage(found[0].malformed, found[0].detail)
    return tuple(found)


def _parsed(contract_topic: str, message: Any, payload: bytes) -> Parsed:
    if not isinstance(message, dict):
        raise MalformedMessage("no-object")
    read, members = _READERS[contract_topic]
    left_out: list[str] = []
    try:
        body = read(message, left_out)
    except KeyError as error:
        raise MalformedMessage("wrong-fields", f"`{error.args[0]}` is missing") from error
    except ValidationError as error:
        raise MalformedMessage("wrong-fields", f"`{error.errors()[0]['loc'][0]}` cannot be used") from error
    if message.get("time") is None:
        raise MalformedMessage("no-time")
    left_out += message.keys() - members
    return Parsed(body, _device_time_us(message["time"]), "", payload, tuple(left_out))


def _raw(topic: str, payload: bytes, malformed: str, detail: str = "") -> Parsed:
    return Parsed(Raw(topic=topic, payload=payload, reason=malformed), None, malformed, payload, detail=detail)


def _json_value(payload: bytes) -> Any:
    try:
        return parse_message_json(payload)
    except InvalidJson as error:
        raise MalformedMessage("no-json" if error.reason in {"not-json", "not-utf-8"} else error.reason) from error


def read_number(value: Any) -> float | None:
    """A number, or a text that is one; None for anything else. JSON's true is an int to Python."""
    if type(value) is float:
        return value
    if isinstance(value, str):
        value = value.strip() if len(value) <= _MAX_NUMBER_CHARACTERS else ""
        return float(value) if _NUMBER.fullmatch(value) else None
    return float(value) if type(value) is int else None


def _device_time_us(value: Any) -> int:
    if not isinstance(value, str) or whole_or_float(value) is not None:
        # A time before 2000 comes from a clock that is not set yet; it is corrected later (`edge_agent.clocks`).
        return counted_time_us(value, "ms")
    time_us = iso_time_us(value.strip())
    if not 0 <= time_us < LATEST_US:
        raise MalformedMessage("impossible-time")
    return time_us


def counted_time_us(value: Any, unit: str) -> int:
    """Microseconds since 1970 of a number in a unit of TIME_UNITS, or of a text that is one. Raises MalformedMessage.

    A number that is a time of this century in another unit is refused.
    """
    per_second = TIME_UNITS[unit][0]
    number = value if type(value) is int else whole_or_float(value)
    if number is None:
        raise MalformedMessage("time-not-read")
    if not YEAR_2000_S * per_second <= number < YEAR_2100_S * per_second:
        for other, name in TIME_UNITS.values():
            if YEAR_2000_S * other <= number < YEAR_2100_S * other:
                raise MalformedMessage(f"time-in-{name}")
        if not 0 <= number < YEAR_2100_S * per_second:
            raise MalformedMessage("impossible-time")
    return number * 1_000_000 // per_second if type(number) is int else round(number * (1_000_000 / per_second))


def whole_or_float(value: Any) -> int | float | None:
    """As `read_number`, exact for digits. A text with an exponent is none: its writer rounded it, to minutes or hours.

    C's %g writes six digits.
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) <= 20 and text.isascii() and text.isdigit():
            return int(text)
        return None if "e" in text.lower() else read_number(text)
    return value if type(value) is int else read_number(value)


def iso_time_us(text: str, zone: tzinfo | None = None) -> int:
    """Microseconds since 1970 of a text in ISO 8601. `zone`: of a text without an offset. Raises MalformedMessage."""
    # The patterns below read a run of blanks again from each of them.
    if len(text) > _MAX_TIME_CHARACTERS:
        raise MalformedMessage("time-not-read")
    text = _SPACED_OFFSET.sub("", _UTC_NAME.sub("Z", text.upper()))
    try:
        moment = datetime.fromisoformat(_LEAP_SECOND.sub("59", text))
        if moment.tzinfo is None:
            moment = zoned(moment, zone)
        # As in POSIX, the leap second has the number of the next second.
        moment += timedelta(seconds=1 if _LEAP_SECOND.search(text) else 0)
        # timestamp() is a double of seconds: without rounding, microseconds would be lost.
        return round(moment.timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise MalformedMessage("time-not-read") from error


def zoned(moment: datetime, zone: tzinfo | None) -> datetime:
    """The moment of a local time. Raises MalformedMessage for one that the zone has twice or not at all."""
    if zone is None:
        raise MalformedMessage("time-without-offset")
    moment = moment.replace(tzinfo=zone)
    if moment.utcoffset() != moment.replace(fold=1).utcoffset():
        raise MalformedMessage("time-without-offset", "the zone changes its clocks in this hour")
    return moment


def read_position(message: dict[str, Any], unusable: list[str]) -> Position:
    latitude, longitude = _coordinate(message, "latitude"), _coordinate(message, "longitude")
    if 180 < longitude <= 360:
        longitude -= 360  # of a device that counts eastward all around
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise MalformedMessage("impossible-position")
    fields = {"latitude": latitude, "longitude": longitude}
    for name in message.keys() & OPTIONAL_BOUNDS.keys():
        value, (least, greatest) = read_number(message[name]), OPTIONAL_BOUNDS[name]
        if name == "heading_deg" and value is not None and 360 < value <= _ROUNDED_FULL_CIRCLE_DEG:
            value -= 360
        # Bounds on both sides exclude infinities; no text becomes NaN.
        if value is not None and least <= value <= greatest:
            fields[name] = value
        else:
            unusable.append(name)
    return Position(**fields)


def _coordinate(message: dict[str, Any], name: str) -> float:
    # A missing coordinate is a wrong format; receivers without a fix send null.
    if message[name] is None:
        raise MalformedMessage("no-fix")
    if (value := read_number(message[name])) is None:
        raise MalformedMessage("wrong-fields", f"`{name}` is not a number")
    return value


def read_signal(message: dict[str, Any], _: list[str]) -> Body:
    value = message["value"]
    if value is None:
        raise MalformedMessage("no-value")
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if type(value) is int:
        if abs(value) > _MAX_EXACT_INTEGER:  # as a double it would become another number
            raise MalformedMessage("number-too-large")
        value = float(value)
    return Signal(path=_unreserved(message["path"]), value=value)


def read_event(message: dict[str, Any], unusable: list[str]) -> Body:
    attributes = message.get("attributes", {})
    if not isinstance(attributes, dict):
        unusable.append("attributes")
        attributes = {}
    return Event(name=_unreserved(message["name"]), attributes=json.dumps(attributes, separators=(",", ":")))


def _unreserved(name: Any) -> Any:
    if isinstance(name, str) and name.startswith(RESERVED_PREFIX):
        raise MalformedMessage("reserved-name")
    return name


_Reader = Callable[[dict[str, Any], list[str]], Body]
_READERS: dict[str, tuple[_Reader, frozenset[str]]] = {
    VEHICLE_POSITION: (read_position, frozenset({"time", *Position.model_fields})),
    VEHICLE_SIGNAL: (read_signal, frozenset({"time", *Signal.model_fields})),
    VEHICLE_EVENT: (read_event, frozenset({"time", *Event.model_fields})),
    VEHICLE_CANARY: (lambda message, _: Canary(id=message["id"]), frozenset({"time", *Canary.model_fields})),
}
"""By topic: the reader, which adds names with unusable values to a list, and the known members."""
MEMBERS: Final = frozenset[str]().union(*(members for _, members in _READERS.values()))
