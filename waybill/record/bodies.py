"""What a record can say: the kinds, validated where bytes from outside become records.

What these constructors take can be written, stored and read everywhere: text is Unicode without lone surrogates,
numbers are finite and within the range of the wire. Nothing is converted: a text or a boolean is no number, but a whole
number is one. They raise pydantic's ValidationError.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

MAX_RAW_BYTES = 1 << 20
"""The largest payload that is carried as one record."""

RESERVED_PREFIX = "waybill."
"""Names of events and paths of signals that begin so are the system's: no sensor may use them, no bill counts them."""
TOO_LARGE_EVENT = f"{RESERVED_PREFIX}too_large"
"""In the place of a message that is too large to be carried; its attributes have `topic`, `bytes` and `reason`."""
BROKER_DROPPED_EVENT = f"{RESERVED_PREFIX}broker_dropped"
"""The vehicle's broker dropped messages before an agent had them; its attributes have how many `messages`, and since
when (`since`, milliseconds since 1970, or null)."""
NO_FAULTS = frozenset({"unknown-topic", "no-fix", "no-value"})
"""Why a record is raw although nothing is wrong: its topic is nobody's contract, the receiver sees no satellite, or the
sensor has no value now."""
RAW_REASONS = (
    *("unknown-topic", "misspelt-topic", "no-fix", "no-json", "no-object", "wrong-fields", "reserved-name"),
    *("too-large", "unencodable", "no-time", "time-not-read", "impossible-time", "time-without-offset"),
    *("time-in-seconds", "time-in-microseconds", "time-in-nanoseconds", "impossible-position", "no-value"),
    *("number-too-large", "number-out-of-range", "too-deep", "too-many-values", "duplicate-name"),
    *("lone-surrogate", "unreadable"),
)
"""Why agents carry a message raw. A centre takes any other word, and counts it as one of `OTHER_REASON`."""
OTHER_REASON = "other"
MAX_NAME_CHARACTERS = 256
MAX_TOPIC_CHARACTERS = 65_535
MAX_RAW_REASON_CHARACTERS = 64
MAX_TEXT_CHARACTERS = 1 << 20
"""The longest text of a signal, and the longest attributes of an event."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Text = Annotated[str, StringConstraints(strict=True, max_length=MAX_TEXT_CHARACTERS)]


class Kind(IntEnum):
    """The kind of a record, as its number on the wire."""

    POSITION = 1
    SIGNAL = 2
    EVENT = 3
    CANARY = 4
    RAW = 5


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Position(_Body):
    """One fix, WGS84. On the wire: 1e-7 degrees, millimetres (per second), hundredths of a degree."""

    latitude: float = Field(ge=-90, le=90)
    longitude: float = Field(ge=-180, le=180)
    altitude_m: float | None = Field(default=None, ge=-100_000, le=1_000_000)
    speed_mps: float | None = Field(default=None, ge=0, le=100_000)
    heading_deg: float | None = Field(default=None, ge=0, le=360)
    accuracy_m: float | None = Field(default=None, ge=0, le=10_000_000)


class Signal(_Body):
    """A vehicle signal, named by its COVESA VSS path, for instance `Vehicle.TraveledDistance`.

    A number is carried as IEEE 754 double, so a whole number beyond 2**53 has no place here.
    """

    path: Name
    value: StrictBool | Annotated[float, Field(strict=True)] | Text


class Event(_Body):
    """Something that happened on the vehicle. `attributes` is the text of a JSON object."""

    name: Name
    attributes: Text = "{}"


class Canary(_Body):
    """A record that carries nothing but its own identity, sent to see it come out at the other end."""

    id: Name


class Raw(_Body):
    """A payload that nobody understood, carried as it is. `reason`: why it is raw, a short stable word."""

    topic: Annotated[str, StringConstraints(max_length=MAX_TOPIC_CHARACTERS)]
    payload: Annotated[bytes, Field(max_length=MAX_RAW_BYTES)]
    reason: Annotated[str, StringConstraints(max_length=MAX_RAW_REASON_CHARACTERS)] = ""


Body = Position | Signal | Event | Canary | Raw

KIND_OF: dict[type[Body], Kind] = {
    Position: Kind.POSITION,
    Signal: Kind.SIGNAL,
    Event: Kind.EVENT,
    Canary: Kind.CANARY,
    Raw: Kind.RAW,
}
