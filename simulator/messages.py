"""A vehicle's MQTT messages, and their lines in the journal."""

import base64
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from waybill.record import VEHICLE_CANARY, VEHICLE_EVENT, VEHICLE_POSITION, VEHICLE_SIGNAL

TOPIC_KINDS = {
    VEHICLE_POSITION: "position",
    VEHICLE_SIGNAL: "signal",
    VEHICLE_EVENT: "event",
    VEHICLE_CANARY: "canary",
}


class VehicleMessage(NamedTuple):
    """One MQTT message, `offset_s` seconds of simulated time after the start.

    `written`: the same payload in another form, as it is sent; b"": sent as it is. `driven`: the payload of the same
    fix without noise and faults; b"": the same.
    """

    offset_s: float
    device: str
    topic: str
    payload: bytes
    written: bytes = b""
    driven: bytes = b""

    @property
    def sent(self) -> bytes:
        return self.written or self.payload


def position(
    time_ms: int,
    latitude: float,
    longitude: float,
    *,
    altitude_m: float | None = None,
    speed_mps: float | None = None,
    heading_deg: float | None = None,
    accuracy_m: float | None = None,
) -> bytes:
    """The payload of a fix, rounded to the grid of the wire: 1e-7 degrees, millimetres, hundredths of a degree."""
    body: dict[str, Any] = {"time": time_ms, "latitude": round(latitude, 7), "longitude": round(longitude, 7)}
    for name, value, digits in (
        ("altitude_m", altitude_m, 3),
        ("speed_mps", speed_mps, 3),
        ("heading_deg", heading_deg, 2),
        ("accuracy_m", accuracy_m, 3),
    ):
        if value is not None:
            body[name] = round(value, digits)
    return _json(body)


def signal(time_ms: int, path: str, value: float | bool | str) -> bytes:
    """The payload of a vehicle signal; `path`: its COVESA VSS path."""
    return _json({"time": time_ms, "path": path, "value": value})


def event(time_ms: int, name: str, attributes: dict[str, Any]) -> bytes:
    """The payload of an event. Its time is ISO 8601, which an agent must read as well as milliseconds."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return _json({"time": time, "name": name, "attributes": attributes})


def canary(time_ms: int, name: str) -> bytes:
    return _json({"time": time_ms, "id": name})


def journal_entry(message: VehicleMessage) -> dict[str, Any]:
    """The record of a message: device, kind, time (milliseconds or ISO 8601; None for raw) and content."""
    kind = TOPIC_KINDS.get(message.topic)
    try:
        # Parsed like the agent does: a broken payload on a known topic is a raw record for both.
        content = json.loads(message.payload) if kind else None
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        content = None
    if kind is None or not isinstance(content, dict):
        payload = base64.b64encode(message.payload).decode("ascii")
        content = {"topic": message.topic, "payload_base64": payload}
        return {"device": message.device, "kind": "raw", "time": None, "content": content}
    time = content.pop("time")
    return {"device": message.device, "kind": kind, "time": time, "content": content}


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def journal_line(message: VehicleMessage) -> str:
    return json.dumps(journal_entry(message), separators=(",", ":")) + "\n"


def driven_line(message: VehicleMessage) -> str:
    return journal_line(message._replace(payload=message.driven) if message.driven else message)
