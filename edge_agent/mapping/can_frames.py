"""Frames of a CAN bus, decoded by a DBC file. Needs the extra `edge-can`.

Frames come as lines of `candump -L`, or as JSON: an object or an array of objects with `id` and `data`. Identifiers
as text are hexadecimal, as candump writes them: 3 digits for 11 bits, 8 digits for 29 bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import bitstruct

from edge_agent.mapping.formats import (
    Decoder,
    NotForMappings,
    Undecodable,
    UndecodableMessage,
    decode_json,
    decode_text,
)
from edge_agent.mapping.paths import MessagePath, parse_path
from edge_agent.mapping.units import DIMENSIONS
from waybill.record import MAX_MESSAGE_VALUES
from waybill.settings import file_fault, name_advice, nearest, open_file

# cantools imports its tester, and with it all of python-can, to drive a bus: memory for what the agent never does.
sys.modules.setdefault("cantools.tester", ModuleType("cantools.tester"))
from cantools.database import Error as DatabaseError  # noqa: E402
from cantools.database import load_string  # noqa: E402
from cantools.database.can import Database, Message  # noqa: E402

MAX_DBC_BYTES: Final = 4 << 20
FRAME: Final = "frame"
"""The member of an element with what is known about the frame itself."""
MAX_BITS: Final = 16_384
"""A message of J1939 in several frames has up to 1,785 bytes."""
_SIZES: Final = re.compile(r"^[ \t]*(?:BO_|SG_) [^:\n]*:[ \t]*([0-9]{1,20})(?:\|([0-9]{1,20}))?", re.MULTILINE)
"""The size of a message in bytes, or start and length of a signal in bits."""
_LINE: Final = re.compile(
    r"\((?P<timestamp>\d{1,12}(?:\.\d{1,9})?)\)\s+(?P<interface>\S{1,32})\s+(?P<id>[0-9A-Fa-f]{3}|[0-9A-Fa-f]{8})"
    r"#(?:(?P<remote>R\d?)|(?:#[0-9A-Fa-f])?(?P<data>(?:[0-9A-Fa-f]{2}){0,64}))(?:_[0-9A-Fa-f])?(?:\s+[RT])?\s*"
)
_ID: Final = re.compile(r"(?:0x)?([0-9A-Fa-f]{1,8})")
_STANDARD_IDS: Final = 1 << 11
_EXTENDED_IDS: Final = 1 << 29

_UNIT_WORDS: Final = {
    "kmh": "km/h", "kph": "km/h", "kmph": "km/h", "km/hr": "km/h", "mps": "m/s", "knots": "kn", "kt": "kn",
    "°": "deg", "degree": "deg", "degrees": "deg", "°/s": "deg/s", "degree/s": "deg/s", "degrees/s": "deg/s",
    "°c": "degC", "deg c": "degC", "degree c": "degC", "celsius": "degC", "°f": "degF", "deg f": "degF", "kelvin": "K",
    "%": "percent", "pct": "percent", "1/min": "rpm", "u/min": "rpm", "rev/min": "rpm", "r/min": "rpm",
    "volt": "V", "volts": "V", "v": "V", "amp": "A", "amps": "A", "ampere": "A", "l": "l", "litre": "l", "liter": "l",
    "m³": "m^3", "m3": "m^3", "m/s²": "m/s^2", "m/s2": "m/s^2", "m/s/s": "m/s^2", "meter": "m", "metre": "m",
    "mile": "mi", "miles": "mi", "feet": "ft", "sec": "s", "second": "s", "seconds": "s", "msec": "ms",
    "minute": "min", "minutes": "min", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
}  # fmt: skip
"""Other words that DBC files have for our units, in small letters."""
_OUR_UNITS: Final = {unit.lower(): unit for units in DIMENSIONS.values() for unit in units if len(unit) > 1}
_EXACT_UNITS: Final = frozenset(unit for units in DIMENSIONS.values() for unit in units)


class CanDatabase:
    """The messages of a DBC file. Immutable."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file cannot be used."""
        try:
            with open_file(path) as file:
                content = file.read(MAX_DBC_BYTES + 1)
        except OSError as error:
            raise ValueError(f"can.dbc: {path} cannot be read: {file_fault(error)}") from error
        if len(content) > MAX_DBC_BYTES:
            raise ValueError(f"can.dbc: {path} has more than {MAX_DBC_BYTES} bytes")
        self.path = path
        self.digest = hashlib.sha256(content).hexdigest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252", "replace")
        self._all = _messages(text, path)
        self._messages = {one.name: one for one in self._all}

    def decoder(self, names: Iterable[str]) -> Decoder:
        """A decoder that reads the frames of these messages and skips all others, as members that nobody reads."""
        return FrameDecoder([self._messages[name] for name in sorted(set(names))]).decode

    def check_member(self, place: str, path: str, unit: str) -> None:
        """Raises ValueError if the file has no such signal, or gives it in another unit."""
        try:
            self._check_unit(self._parsed_path(path), unit)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

    def _parsed_path(self, path: str) -> MessagePath:
        parsed = parse_path(path)
        name, *rest = (*parsed.steps, "")[:3]
        if parsed.up or not isinstance(name, str) or not name or len(parsed.steps) > 2:
            raise ValueError(f"{path!r}: a path is MESSAGE.SIGNAL, or {FRAME}.MEMBER")
        if name == FRAME:
            return parsed
        if (message := self._messages.get(name)) is None:
            raise ValueError(f"{self.path} has no message {name!r}{name_advice(name, self._messages)}")
        same = [one.name for one in self._all if one.name == name or _identity(one) == _identity(message)]
        if len(same) > 1:
            raise ValueError(f"{self.path} has messages with one name or one identifier: {', '.join(same[:5])}")
        signals = {one.name for one in message.signals}
        if len(parsed.steps) == 2 and rest[0] not in signals:
            raise ValueError(f"message {name} has no signal {rest[0]!r}{_advice(str(rest[0]), signals)}")
        return parsed

    def _check_unit(self, path: MessagePath, unit: str) -> None:
        """A unit of the file that has no word here cannot be compared."""
        if unit == "none" or len(path.steps) < 2 or path.steps[0] == FRAME:
            return
        message, signal = (str(step) for step in path.steps)
        text = self._messages[message].get_signal_by_name(signal).unit or ""
        word = unit_word(text)
        if word is not None and word != unit:
            known = f"the DBC file gives {message}.{signal} in {text!r}"
            raise ValueError(f"unit: {known}, not in {unit!r}; did you mean {word!r}?")


def _advice(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return name_advice(name, names) if nearest(name, names) else f"; it has {', '.join(names[:20])}"


def unit_word(text: str) -> str | None:
    """Our word for a unit of a DBC file; None if there is none."""
    text = " ".join(text.replace("Â°", "°").replace("º", "°").split())
    if text in _EXACT_UNITS:
        return text
    small = text.lower()
    return _UNIT_WORDS.get(small) or _OUR_UNITS.get(small)


def _identity(message: Message) -> tuple[int, bool]:
    return message.frame_id, message.is_extended_frame


def _messages(text: str, path: Path) -> list[Message]:
    # cantools makes room for each bit: a start at 999999999 costs minutes.
    if any(int(number) > MAX_BITS for sizes in _SIZES.findall(text) for number in sizes if number):
        raise ValueError(f"can.dbc: {path} has a message or signal beyond {MAX_BITS} bits")
    try:
        # Not strict: signals of one message overlap in many files of makers, and each is read as the file says.
        database = load_string(text, database_format="dbc", strict=False)
    except DatabaseError as error:
        raise ValueError(f"can.dbc: {path} is not a readable DBC file: {' '.join(str(error).split())[:200]}") from error
    assert isinstance(database, Database)
    messages = [one for one in database.messages if not one.is_container]
    if any(one.name == FRAME for one in messages):
        raise ValueError(f"can.dbc: {path} has a message {FRAME!r}: that name is used for the frame itself")
    if not messages:
        raise ValueError(f"can.dbc: {path} has no message")
    return messages


class _Frame(NamedTuple):
    id: int
    is_extended: bool
    data: bytes
    about: dict[str, Any]
    source: Any
    """The frame as it came."""


class FrameDecoder:
    """Decodes frames of some messages."""

    def __init__(self, messages: list[Message]) -> None:
        self._by_id = {_identity(one): one for one in messages}
        groups: dict[int, list[Message]] = {}
        for one in messages:
            if one.protocol == "j1939":
                groups.setdefault(_parameter_group(one.frame_id), []).append(one)
        # J1939: the same parameter group from any source; two messages of one group are told apart by the identifier.
        self._by_group = {group: found[0] for group, found in groups.items() if len(found) == 1}

    def decode(self, payload: bytes) -> Any:
        """Elements `{MESSAGE: {SIGNAL: value}, "frame": {…}}`, one for each frame of the messages."""
        found: list[_Frame | Undecodable | None]
        if payload.lstrip()[:1] in {b"{", b"["}:
            value = decode_json(payload)
            found = [*map(_json_frame, value if isinstance(value, list) else [value])]
        else:
            lines = decode_text(payload).splitlines()
            if len(lines) > MAX_MESSAGE_VALUES:
                raise UndecodableMessage("too-many-values", f"{len(lines)} frames")
            found = [_line_frame(line) for line in lines if line.strip()]
        elements = [element for one in found if (element := self._element(one)) is not None]
        if not elements:
            raise NotForMappings
        return elements[0] if len(found) == 1 and isinstance(elements[0], dict) else elements

    def _element(self, frame: _Frame | Undecodable | None) -> Any:
        if frame is None or isinstance(frame, Undecodable):
            return frame
        message = self._by_id.get((frame.id, frame.is_extended))
        about = {"id": frame.id, "extended": frame.is_extended, **frame.about}
        if message is None and frame.is_extended:
            message = self._by_group.get(_parameter_group(frame.id))
        if message is None:
            return None
        if message.protocol == "j1939":
            about["source"] = frame.id & 0xFF
        try:
            signals = message.decode_simple(frame.data)
        except (DatabaseError, bitstruct.Error, ValueError, LookupError, ArithmeticError) as error:
            return _unreadable(frame.source, f"{message.name}: {error}"[:200])
        values = {name: _plain(message, name, value) for name, value in signals.items()}
        return {message.name: values, FRAME: about}


def _plain(message: Message, name: str, value: Any) -> Any:
    """The value of a signal: a number, a text of the value table, or null if the file says that it is none."""
    if not isinstance(value, int | float):
        return str(value)
    signal = message.get_signal_by_name(name)
    # Patterns like 0xFFFF for *not available* are outside of the range of the signal.
    low, high = signal.minimum, signal.maximum
    if low is not None and high is not None and low < high and not low <= value <= high:
        return None
    return value if math.isfinite(value) else None


def _parameter_group(identifier: int) -> int:
    group = identifier >> 8 & 0x3FFFF
    return group if group & 0xFF00 >= 0xF000 else group & 0x3FF00  # below 240 the last byte is the receiver


def _unreadable(source: Any, detail: str) -> Undecodable:
    text = source if isinstance(source, str) else json.dumps(source, separators=(",", ":"))
    return Undecodable("frame", text.encode(), detail)


def _line_frame(line: str) -> _Frame | Undecodable | None:
    """A frame of a line; None for a remote frame, which has no data, and for an error frame of the interface."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return _unreadable(line, "not a line of `candump -L`")
    identifier, is_extended = int(match["id"], 16), len(match["id"]) == 8
    if match["remote"] is not None or identifier >= _EXTENDED_IDS:
        return None
    if not is_extended and identifier >= _STANDARD_IDS:
        return _unreadable(line, "an identifier of 11 bits is at most 7FF")
    about = {"timestamp": float(match["timestamp"]), "interface": match["interface"]}
    return _Frame(identifier, is_extended, bytes.fromhex(match["data"]), about, line)


def _json_frame(frame: Any) -> _Frame | Undecodable:
    if not isinstance(frame, dict):
        return _unreadable(frame, "a frame is an object with `id` and `data`")
    identifier, data = frame.get("id"), frame.get("data")
    is_extended = frame.get("extended")
    if isinstance(identifier, str) and (match := _ID.fullmatch(identifier.strip())):
        is_extended = len(match[1]) == 8 if is_extended is None else is_extended
        identifier = int(match[1], 16)
    if type(identifier) is not int or not 0 <= identifier < _EXTENDED_IDS:
        return _unreadable(frame, "`id` is not a frame identifier")
    if is_extended is None:
        is_extended = identifier >= _STANDARD_IDS
    if not isinstance(is_extended, bool) or (not is_extended and identifier >= _STANDARD_IDS):
        return _unreadable(frame, "`extended` does not fit `id`")
    try:
        payload = bytes.fromhex(data) if isinstance(data, str) and len(data) <= 192 else None
    except ValueError:
        payload = None
    if payload is None or len(payload) > 64:
        return _unreadable(frame, "`data` is not up to 64 bytes in hexadecimal digits")
    about = {name: value for name, value in frame.items() if name not in {"id", "data", "extended"}}
    return _Frame(identifier, is_extended, payload, about, frame)
