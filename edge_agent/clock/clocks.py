"""The clocks of the device. The only place that reads them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
