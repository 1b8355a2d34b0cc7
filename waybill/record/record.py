"""The record and its id, and the batch of consecutive records that is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from waybill.record.intervals import IntervalSet

# Kinds of records, validated at the border.

MAX_RAW_BYTES = 1 << 20
"""The largest payload that is carried as one record."""

RESERVED_PREFIX = "waybill."
"""The prefix of the system's events and signals: sensors may not use it, and bills do not count them."""
TOO_LARGE_EVENT = f"{RESERVED_PREFIX}too_large"
"""Replaces a message that is too large; its attributes have `topic`, `bytes` and `reason`."""
BROKER_DROPPED_EVENT = f"{RESERVED_PREFIX}broker_dropped"
"""The vehicle's broker dropped messages before an agent had them; its attributes have how many `messages`, and since
when (`since`, milliseconds since 1970, or null)."""
NO_MAPPING = "mapping:when:no-match"
"""Why a message is raw that the conditions of all mappings exclude."""
NO_ARRIVAL = "mapping:time:queued"
"""Why a message without a device time is raw that may have waited at the vehicle's broker: its arrival is not known."""
NO_FAULTS = frozenset({"unknown-topic", "no-fix", "no-value", NO_MAPPING, NO_ARRIVAL})
"""Why a record is raw although nothing is wrong: its topic is nobody's contract, the receiver sees no satellite, the
sensor has no value now, no mapping is meant for it, or it waited for the agent."""
RAW_REASONS = (
    *("unknown-topic", "misspelt-topic", "no-fix", "no-json", "no-object", "wrong-fields", "reserved-name"),
    *("too-large", "unencodable", "no-time", "time-not-read", "impossible-time", "time-without-offset"),
    *("time-in-seconds", "time-in-microseconds", "time-in-nanoseconds", "impossible-position", "no-value"),
    *("number-too-large", "number-out-of-range", "too-deep", "too-many-values", "duplicate-name"),
    *("lone-surrogate", "unreadable", NO_MAPPING, NO_ARRIVAL),
    *("mapping:format", "mapping:each", "mapping:time", "mapping:latitude", "mapping:longitude", "mapping:position"),
    *("mapping:signal", "mapping:event", "mapping:outputs", "mapping:accuracy", "mapping:size"),
    "mapping:vehicle",
)
"""Why agents carry a message raw, as a centre counts them: see `raw_reason_group`."""
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

    Numbers are IEEE 754 doubles, so whole numbers beyond 2**53 are not exact and are refused.
    """

    path: Name
    value: StrictBool | Annotated[float, Field(strict=True)] | Text


class Event(_Body):
    """Something that happened on the vehicle. `attributes` is the text of a JSON object."""

    name: Name
    attributes: Text = "{}"


class Canary(_Body):
    """A record with nothing but its identity, to see it arrive at the other end."""

    id: Name


class Raw(_Body):
    """A payload that the agent could not read, unchanged. `reason`: why, as a short stable word."""

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


def raw_reason_group(reason: str) -> str:
    """The word of RAW_REASONS for a reason: of `mapping:field:why` the first two parts; else OTHER_REASON."""
    if reason not in RAW_REASONS and reason.startswith("mapping:"):
        reason = reason.rpartition(":")[0]
    return reason if reason in RAW_REASONS else OTHER_REASON


DEVICE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a device or a tenant may be called: it also stands in MQTT topics and file names."""

EPOCH_RANDOM_BITS = 15
MIN_DEVICE_TIME_US, MAX_DEVICE_TIME_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: what a calendar, a table and a query can hold."""
MAX_UNCERTAINTY_MS = (1 << 31) - 1
MAX_BOOT_CHARACTERS = 256
MAX_MAPPING_CHARACTERS = 96
MAX_REASON_CHARACTERS = 64


def new_epoch(wall_ms: int, random_bits: int) -> int:
    """The number of a new buffer: 48 bits of wall clock in milliseconds, then 15 random bits; fits a signed int64.

    Epochs of one device sort by their creation if its clock was right, and differ even if it was not.
    """
    return (wall_ms & (1 << 48) - 1) << EPOCH_RANDOM_BITS | random_bits & (1 << EPOCH_RANDOM_BITS) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a device. With its batch's device and epoch, `seq` is its permanent record id.

    `device_time_us`: microseconds since 1970-01-01T00:00Z by the device's clock (corrected if `uncertainty_ms` > 0).
    `monotonic_us`: microseconds of the monotonic clock within one boot of the device, 0 to 2**63-1. `boot`: identifies
    that boot. `uncertainty_ms`: 0 as measured, else the half-width of a corrected device time. `mapping`: name and
    digest of the settings that translated a foreign message, at most 96 printable ASCII characters; empty for a message
    of the agent's own contract. `encode` refuses values outside the bounds above.
    """

    seq: int
    device_time_us: int
    body: Body
    monotonic_us: int = 0
    boot: str = ""
    uncertainty_ms: int = 0
    mapping: str = ""


class Tombstone(NamedTuple):
    """The device declares the records from `first` to `last`, inclusive, lost for `reason`."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a batch, readable without its records.

    `head`: the highest sequence number that the device had committed when the batch was made. `record_seqs`: the ids of
    the records inside. `tombstones`: ranges declared lost; they never overlap `record_seqs`. `stated_us`: the device
    states that no record of this stream with a seq above `head` has an earlier device time (microseconds since 1970);
    0: no statement.
    """

    device: str
    epoch: int
    head: int
    record_seqs: IntervalSet
    tombstones: tuple[Tombstone, ...] = ()
    stated_us: int = 0

    @property
    def is_heartbeat(self) -> bool:
        """Whether it has no records and no tombstones, only a statement."""
        return not self.record_seqs and not self.tombstones

    @property
    def seqs(self) -> IntervalSet:
        """The ids that the batch covers: delivered or declared lost."""
        return self.record_seqs | self.lost_seqs if self.tombstones else self.record_seqs

    @property
    def lost_seqs(self) -> IntervalSet:
        return IntervalSet((tombstone.first, tombstone.last) for tombstone in self.tombstones)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one device and epoch in ascending order of `seq`, and ranges declared lost; a heartbeat has neither.

    `head`, `stated_us`: see Header.
    """

    device: str
    epoch: int
    head: int
    records: tuple[Record, ...] = ()
    tombstones: tuple[Tombstone, ...] = field(default=())
    stated_us: int = 0

    @property
    def header(self) -> Header:
        ranges = IntervalSet.of(record.seq for record in self.records)
        return Header(self.device, self.epoch, self.head, ranges, self.tombstones, self.stated_us)
