"""The record and its id, and the batch of consecutive records that travels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from waybill.record.bodies import Body
from waybill.record.intervals import IntervalSet

DEVICE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a device or a tenant may be called: it also stands in MQTT topics and file names."""

EPOCH_RANDOM_BITS = 15
MIN_DEVICE_TIME_US, MAX_DEVICE_TIME_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: what a calendar, a table and a query can hold."""
MAX_UNCERTAINTY_MS = (1 << 31) - 1
MAX_BOOT_CHARACTERS = 256
MAX_REASON_CHARACTERS = 64


def new_epoch(wall_ms: int, random_bits: int) -> int:
    """The number of a new buffer: 48 bits of wall clock in milliseconds, then 15 random bits; fits a signed int64.

    Epochs of one device sort by their creation as long as its clock was right, and differ even when it was not.
    """
    return (wall_ms & (1 << 48) - 1) << EPOCH_RANDOM_BITS | random_bits & (1 << EPOCH_RANDOM_BITS) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a device recorded. With its batch's device and epoch, `seq` is its record id for ever.

    `device_time_us`: microseconds since 1970-01-01T00:00Z by the device's clock (corrected if `uncertainty_ms` > 0).
    `monotonic_us`: microseconds of the clock that only runs forward, within one boot of the device.
    `boot`: identifies that boot. `uncertainty_ms`: 0 as measured, else the half-width of a corrected device time.
    What is outside of the bounds above, `encode` refuses; the monotonic time is 0 to 2**63-1.
    """

    seq: int
    device_time_us: int
    body: Body
    monotonic_us: int = 0
    boot: str = ""
    uncertainty_ms: int = 0


class Tombstone(NamedTuple):
    """The records from `first` to `last`, both included, are declared lost by their device, for `reason`."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Header:
    """What a batch says of itself, readable without its records.

    `head`: the highest sequence number that the device had committed when the batch was made.
    `record_seqs`: the ids of the records inside. `tombstones`: ranges declared lost; they never overlap `record_seqs`.
    `stated_us`: the device's statement, that no record of this stream with a seq above `head` has a device time before
    it (microseconds since 1970); 0: it states nothing.
    """

    device: str
    epoch: int
    head: int
    record_seqs: IntervalSet
    tombstones: tuple[Tombstone, ...] = ()
    stated_us: int = 0

    @property
    def is_heartbeat(self) -> bool:
        """Whether it accounts for no record: it only states its head."""
        return not self.record_seqs and not self.tombstones

    @property
    def seqs(self) -> IntervalSet:
        """The ids of all records that the batch covers: delivered or declared lost."""
        return self.record_seqs | self.lost_seqs if self.tombstones else self.record_seqs

    @property
    def lost_seqs(self) -> IntervalSet:
        """The ids of the records that the batch declares lost."""
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
        """The batch without its records' bodies."""
        ranges = IntervalSet.of(record.seq for record in self.records)
        return Header(self.device, self.epoch, self.head, ranges, self.tombstones, self.stated_us)
