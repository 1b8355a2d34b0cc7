"""What time it is and was: the clocks, their jumps, the age of records, and how far the vehicle was heard."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from waybill.record import MAX_DEVICE_TIME_US, MAX_UNCERTAINTY_MS, Batch, Record

SET_CLOCK_MS = 1_577_836_800_000
"""2020-01-01: what is stamped earlier was stamped by a clock that nobody had set, so the stamp says nothing."""
# The clocks of the device. The only place that reads them.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT_CHARACTERS = 12


class Clocks(Protocol):
    """Wall clock, monotonic clock, and the boot that the latter belongs to."""

    @property
    def boot(self) -> str:
        """Identifies this boot of the device."""

    def wall_us(self) -> int:
        """Microseconds since 1970 by the wall clock, right or wrong."""

    def monotonic_us(self) -> int:
        """Microseconds of a clock that only runs forward, also while the device sleeps."""


@dataclass(frozen=True, slots=True)
class SystemClocks:
    """The clocks of the operating system."""

    boot: str

    @classmethod
    def of_this_boot(cls) -> SystemClocks:
        """The clocks, with the kernel's boot id."""
        return cls(_BOOT_ID.read_text(encoding="ascii").replace("-", "")[:BOOT_CHARACTERS])

    def wall_us(self) -> int:
        """See Clocks."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """See Clocks."""
        # Linux's CLOCK_MONOTONIC stands still in suspend.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


# Detection of wall clock jumps, and correction of earlier timestamps. Pure: handed both clocks.


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The wall clock of `boot` moved by `delta_us` against the monotonic clock, which said `at_us` when it was noticed.

    `offset_us`: wall minus monotonic time before the jump.
    """

    boot: str
    offset_us: int
    delta_us: int
    at_us: int


class ClockMonitor:
    """Compares the clocks. A slow drift (NTP slewing the clock) is followed; more than `jump_us` at once is a jump."""

    def __init__(self, boot: str, offset_us: int, jump_us: int) -> None:
        self._boot = boot
        self._jump_us = jump_us
        self.offset_us = offset_us

    def check(self, wall_us: int, monotonic_us: int) -> ClockJump | None:
        """The jump since the last look, if there was one."""
        before_us, self.offset_us = self.offset_us, wall_us - monotonic_us
        delta_us = self.offset_us - before_us
        return ClockJump(self._boot, before_us, delta_us, monotonic_us) if abs(delta_us) > self._jump_us else None


@dataclass(frozen=True, slots=True)
class CorrectionRules:
    """How a jump is corrected.

    A record whose device time was within `same_clock_us` of the clock before the jump, and nearer to it than to the
    clock after the jump, was stamped by the former and moves with it. Any other has its time from elsewhere (GPS), and
    stays. The uncertainty is `jump_us`, the smallest jump that is noticed, and what the monotonic clock may have
    drifted between the record and the jump.
    """

    same_clock_us: int = 300_000_000
    drift_ppm: float = 100.0
    jump_us: int = 2_000_000

    def correct(self, batch: Batch, jump: ClockJump) -> Batch | None:
        """The batch with the times of the jump's boot corrected; None if nothing in it has to be."""
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
        """Half-width of a corrected time; at most what a record can say."""
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
"""A broker that delivers nothing for so long, though nothing waits for its acknowledgement, has kept nothing more."""


class HeadStatement(NamedTuple):
    """No record of the epoch with a seq above `head` has a device time before `stated_us`, or will have one."""

    epoch: int
    head: int
    stated_us: int


class HeardThrough:
    """Up to which moment of the monotonic clock all that the vehicle sent came in. Times in microseconds.

    `grace_us`: how much older than the moment at which it reached the broker the time of a message may be.
    """

    def __init__(self, grace_us: int) -> None:
        self._grace_us = grace_us
        self._is_connected = self._is_caught_up = False
        self._latest_us = self._kept_us = 0
        self.heard_us: int | None = None
        """None: not since the agent started, or since a message came too late for what was stated."""

    def on_connected(self, now_us: int, *, resumed: bool) -> None:
        """A connection to the vehicle's broker. `resumed`: it may have kept messages, and delivers those first."""
        self._is_connected, self._is_caught_up = True, not resumed
        self._latest_us = self._kept_us = now_us

    def on_disconnected(self) -> None:
        """What is sent from now on is not heard."""
        self._is_connected = False

    def on_message(self, now_us: int, age_us: int | None) -> None:
        """A message came. `age_us`: by its own time; None of one that has none, or that the broker would not keep."""
        self._latest_us = now_us
        if age_us is None:
            return
        self._kept_us = now_us
        if age_us > self._grace_us:
            # in order: behind a message that waited at the broker others wait
            self._is_caught_up = False
        elif not self._is_caught_up:
            # what reached the broker before this one was made came before it
            self.heard_us = max(self.heard_us or 0, now_us - max(age_us, 0))

    def on_redelivered(self, now_us: int) -> None:
        """A message came that is stored already: the broker is still busy with what it kept."""
        self._latest_us = self._kept_us = now_us

    def on_contradicted(self) -> None:
        """A message was older than what was stated: how far the vehicle was heard is unknown until it is caught up."""
        self._is_caught_up, self.heard_us = False, None

    def look(self, now_us: int, *, waits: bool) -> None:
        """All that the connection brought was taken. `waits`: something is not acknowledged, so the broker may wait."""
        if not self._is_connected:
            return
        is_quiet = not waits and now_us - self._latest_us >= QUIET_US
        # what has no time of its own gets that of its arrival, so only a message that has one could be too old: of a
        # broker that is still delivering what it kept, one would have come by now
        if is_quiet or now_us - self._kept_us >= self._grace_us:
            self._is_caught_up = True
        if self._is_caught_up:
            self.heard_us = now_us
