"""Reads the journal: the existing records, and the positions in the order in which they were made."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from simulator.truth.shapes import TruthError

# A record: kind, device time and content on the wire's grid.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
POSITION_GRID = (
    ("latitude", 10_000_000),
    ("longitude", 10_000_000),
    ("altitude_m", 1_000),
    ("speed_mps", 1_000),
    ("heading_deg", 100),
    ("accuracy_m", 1_000),
)


class Made(NamedTuple):
    """One existing record. `time_us`: None for raw payloads, which only the agent's clock dates."""

    kind: str
    time_us: int | None
    content: str


def made_position(
    time_us: int,
    latitude: float,
    longitude: float,
    *,
    altitude_m: float | None = None,
    speed_mps: float | None = None,
    heading_deg: float | None = None,
    accuracy_m: float | None = None,
) -> Made:
    """A position in degrees, metres and metres per second."""
    values = (latitude, longitude, altitude_m, speed_mps, heading_deg, accuracy_m)
    content = {
        # Integers on the grid compare exactly, whichever doubles they come from.
        name: round(value * grid)
        for (name, grid), value in zip(POSITION_GRID, values, strict=True)
        if value is not None
    }
    return Made("position", time_us, _canonical(content))


def made_signal(time_us: int, path: str, value: float | bool | str) -> Made:
    """A signal. A boolean is the text "true" or "false", as in the tables; a number is a double."""
    kept: float | str = (
        # First, because a bool is also a number.
        str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else float(value)
    )
    return Made("signal", time_us, _canonical({"path": path, "value": kept}))


def made_event(time_us: int, name: str, attributes: str | dict[str, Any]) -> Made:
    """An event; `attributes`: a mapping or JSON text with any order of keys."""
    mapping = json.loads(attributes) if isinstance(attributes, str) else attributes
    return Made("event", time_us, _canonical({"name": name, "attributes": mapping}))


def made_canary(time_us: int, name: str) -> Made:
    return Made("canary", time_us, _canonical({"id": name}))


def is_customer_event(made: Made) -> bool:
    """Whether a customer pays for the event; events of the system are free."""
    return made.kind == "event" and not json.loads(made.content)["name"].startswith("waybill.")


def content_bytes(made: Made) -> int:
    """The billed size of a record: 16 bytes, 8 for each number, and the bytes of its texts or payload; 0 for system
    events.
    """
    content = json.loads(made.content)
    match made.kind:
        case "position":
            return 16 + 8 * len(content)
        case "signal":
            value = content["value"]
            return 16 + _length(content["path"]) + (_length(value) if isinstance(value, str) else 8)
        case "event" if not is_customer_event(made):
            return 0
        case "event":
            # As vehicles write them: without blanks, in ASCII.
            attributes = json.dumps(content["attributes"], separators=(",", ":"))
            return 16 + _length(content["name"]) + _length(attributes)
        case "canary":
            return 16 + _length(content["id"])
        case _:
            return 16 + _length(content["topic"]) + len(base64.b64decode(content["payload_base64"]))


def made_raw(topic: str, payload: bytes) -> Made:
    encoded = base64.b64encode(payload).decode("ascii")
    return Made("raw", None, _canonical({"topic": topic, "payload_base64": encoded}))


def time_us_of(time: int | str) -> int:
    """Microseconds since 1970 of a payload's time: milliseconds, or ISO 8601 with an offset."""
    if isinstance(time, int):
        return time * 1000
    # In integers, because timestamp() is a double that rounds microseconds.
    return (datetime.fromisoformat(time) - EPOCH) // timedelta(microseconds=1)


def _length(text: str) -> int:
    return len(text.encode("utf-8"))


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


class TruePosition(NamedTuple):
    """A fix on the grid: 1e-7 degrees, millimetres, millimetres a second; None if not stated."""

    time_us: int
    longitude_e7: int
    latitude_e7: int
    accuracy_mm: int | None
    speed_mm_s: int | None = None


def position_of(made: Made) -> TruePosition:
    grid = json.loads(made.content)
    assert made.time_us is not None
    return TruePosition(
        made.time_us, grid["longitude"], grid["latitude"], grid.get("accuracy_m"), grid.get("speed_mps")
    )


class Entry(NamedTuple):
    """A line of the journal; `position`: if the record is a fix."""

    device: str
    made: Made
    position: TruePosition | None


def read_journal(path: Path) -> Iterator[Entry]:
    """The entries of a journal, in order. Raises TruthError with the line."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield _entry(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise TruthError(f"{path}, line {number}: {error!r}") from error
    except FileNotFoundError as error:
        raise TruthError(f"there is no journal {path}: run `fleet-simulator drive` first, which writes it") from error
    except OSError as error:
        raise TruthError(f"{path}: cannot be read: {error}") from error


def _entry(line: dict[str, Any]) -> Entry:
    device, kind, content = line["device"], line["kind"], line["content"]
    if kind == "raw":
        return Entry(device, made_raw(content["topic"], base64.b64decode(content["payload_base64"])), None)
    time_us = time_us_of(line["time"])
    if kind == "position":
        made = made_position(time_us, **content)
        return Entry(device, made, position_of(made))
    if kind == "signal":
        return Entry(device, made_signal(time_us, content["path"], content["value"]), None)
    if kind == "event":
        return Entry(device, made_event(time_us, content["name"], content.get("attributes", {})), None)
    if kind == "canary":
        return Entry(device, made_canary(time_us, content["id"]), None)
    raise ValueError(f"unknown kind {kind!r}")
