"""Noticing that the wall clock jumped, and correction what was stamped before it did. Pure: handed both clocks.

A device that wakes up without a battery-backed clock stamps its records with a wrong time until GPS or NTP sets it. Its
monotonic clock was right all along, so the true time of those records is known up to the drift of that clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from waybill.record import MAX_DEVICE_TIME_US, MAX_UNCERTAINTY_MS, Batch, Record


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

    same_clock_us: int
    drift_ppm: float
    jump_us: int

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
