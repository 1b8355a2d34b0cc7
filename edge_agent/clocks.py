"""The device's clocks, their jumps, and up to which time the vehicle's messages have been received."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from waybill.record import MAX_DEVICE_TIME_US, MAX_UNCERTAINTY_MS, Batch, Record

SET_CLOCK_MS = 1_577_836_800_000
"""2020-01-01: an earlier stamp comes from a clock that was not set, and says nothing."""
# The clocks of the device. The only place that reads them.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT_CHARACTERS = 12


class Clocks(Protocol):
    """Wall clock and monotonic clock, in microseconds, and the boot that the latter belongs to."""

    @property
    def boot(self) -> str:
        """Identifies this boot of the device."""

    def wall_us(self) -> int:
        """Microseconds since 1970 by the wall clock, which may be wrong."""

    def monotonic_us(self) -> int:
        """Microseconds of a clock that never goes back, and also runs while the device sleeps."""


@dataclass(frozen=True, slots=True)
class SystemClocks:
    boot: str

    @classmethod
    def of_this_boot(cls) -> SystemClocks:
        return cls(_BOOT_ID.read_text(encoding="ascii").replace("-", "")[:BOOT_CHARACTERS])

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        # Linux's CLOCK_MONOTONIC stops in suspend.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


# Detection of wall clock jumps, and correction of earlier timestamps. Pure: handed both clocks.


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock of `boot` moved by `delta_us` against the monotonic clock, noticed at `at_us` of the latter.

    `offset_us`: wall minus monotonic time before the jump.
    """

    boot: str
    offset_us: int
    delta_us: int
    at_us: int


class ClockMonitor:
    """Compares the clocks. It follows a slow drift (NTP); a change of more than `jump_us` at once is a jump."""

    def __init__(self, boot: str, offset_us: int, jump_us: int) -> None:
        self._boot = boot
        self._jump_us = jump_us
        self.offset_us = offset_us

    def check(self, wall_us: int, monotonic_us: int) -> ClockJump | None:
        before_us, self.offset_us = self.offset_us, wall_us - monotonic_us
        delta_us = self.offset_us - before_us
        return ClockJump(self._boot, before_us, delta_us, monotonic_us) if abs(delta_us) > self._jump_us else None


@dataclass(frozen=True, slots=True)
class CorrectionRules:
    """How a jump is corrected.

    A record was stamped by the old clock if its device time was within `same_clock_us` of that clock, and nearer to it
    than to the new clock. Such a record moves with the jump. Any other got its time elsewhere (GPS) and stays. The
    uncertainty is `jump_us` plus the possible drift of the monotonic clock between record and jump.
    """

    same_clock_us: int = 300_000_000
    drift_ppm: float = 100.0
    jump_us: int = 2_000_000

    def correct(self, batch: Batch, jump: ClockJump) -> Batch | None:
        """The batch with corrected times of the jump's boot; None if nothing changes."""
        corrected = tuple(self._corrected(record, jump) for record in batch.records)
        if corrected == batch.records:
            return None
        return Batch(batch.device, batch.epoch, batch.head, corrected, batch.tombstones)

    def corrected_time_us(self, device_time_us: int, monotonic_us: int, jump: ClockJump) -> int | None:
        """The corrected device time of a record of the jump's boot; None if it stays."""
        from_old_us = abs(device_time_us - monotonic_us - jump.offset_us)
        from_new_us = abs(device_time_us - monotonic_us - jump.offset_us - jump.delta_us)
        late = monotonic_us > jump.at_us + self.same_clock_us
        if late or from_old_us > self.same_clock_us or from_old_us >= from_new_us:
            return None
        return min(max(0, device_time_us + jump.delta_us), MAX_DEVICE_TIME_US)

    def uncertainty_ms(self, monotonic_us: int, jump: ClockJump) -> int:
        """Half-width of a corrected time, limited to what a record can hold."""
        drift_us = abs(jump.at_us - monotonic_us) * self.drift_ppm / 1_000_000
        return min(math.ceil((self.jump_us + drift_us) / 1000), MAX_UNCERTAINTY_MS)

    def _corrected(self, record: Record, jump: ClockJump) -> Record:
        if record.boot != jump.boot:
            return record
        time_us = self.corrected_time_us(record.device_time_us, record.monotonic_us, jump)
        if time_us is None:
            return record
        uncertainty_ms = max(record.uncertainty_ms, self.uncertainty_ms(record.monotonic_us, jump))
        return replace(record, device_time_us=time_us, uncertainty_ms=uncertainty_ms)


QUIET_US = 5_000_000
"""If nothing is unacknowledged and the broker delivers nothing for this long, its queue is empty."""


class HeadStatement(NamedTuple):
    """No record of the epoch with a seq above `head` has, or will have, a device time before `stated_us`."""

    epoch: int
    head: int
    stated_us: int


class InputWatermark:
    """Input watermark: all messages that the vehicle sent before this monotonic time have been received. In
    microseconds.

    `grace_us`: how much older a message's own time may be than its arrival at the broker.
    """

    def __init__(self, grace_us: int) -> None:
        self._grace_us = grace_us
        self._is_connected = self._is_caught_up = False
        self._latest_us = self._kept_us = 0
        self.received_until_us: int | None = None
        """None: unknown since the start, or since a message contradicted the statement."""

    def on_connected(self, now_us: int, *, resumed: bool) -> None:
        """`resumed`: the broker may have queued messages, and delivers those first."""
        self._is_connected, self._is_caught_up = True, not resumed
        self._latest_us = self._kept_us = now_us

    def on_disconnected(self) -> None:
        self._is_connected = False

    def on_message(self, now_us: int, age_us: int | None) -> None:
        """`age_us`: by the message's own time; None if it has none, or if the broker would not have queued it."""
        self._latest_us = now_us
        if age_us is None:
            return
        self._kept_us = now_us
        if age_us > self._grace_us:
            # in order: more messages wait behind one that waited at the broker
            self._is_caught_up = False
        elif not self._is_caught_up:
            # messages that reached the broker before this one was made came before it
            self.received_until_us = max(self.received_until_us or 0, now_us - max(age_us, 0))

    def on_redelivered(self, now_us: int) -> None:
        """A message came that is stored already: the broker still delivers its queue."""
        self._latest_us = self._kept_us = now_us

    def on_contradicted(self) -> None:
        """A message was older than the statement: the watermark is unknown until the broker's queue is empty."""
        self._is_caught_up, self.received_until_us = False, None

    def update(self, now_us: int, *, waits: bool) -> None:
        """Updates the watermark after all received messages were handled. `waits`: some are unacknowledged, so the
        broker may hold others back.
        """
        if not self._is_connected:
            return
        is_quiet = not waits and now_us - self._latest_us >= QUIET_US
        # Only a message with a time of its own can be too old, and a broker that still delivers its queue would have
        # sent one by now.
        if is_quiet or now_us - self._kept_us >= self._grace_us:
            self._is_caught_up = True
        if self._is_caught_up:
            self.received_until_us = now_us
