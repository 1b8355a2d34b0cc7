"""Bytes by the UTC day and month: on the wire, and written to flash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from edge_agent.store.database import BufferCounters

_DAY, _BYTES = "flash_day", "flash_bytes_today"


@dataclass(frozen=True, slots=True)
class DataUsage:
    """Bytes in the UTC day and month that `day` (20261121) and `month` (202611) name."""

    day: int = 0
    day_bytes: int = 0
    month: int = 0
    month_bytes: int = 0

    def add(self, wall_s: float, size: int) -> DataUsage:
        """With bytes of a time; a new day or month begins with nothing."""
        now = datetime.fromtimestamp(wall_s, UTC)
        day, month = int(now.strftime("%Y%m%d")), int(now.strftime("%Y%m"))
        day_bytes = size + (self.day_bytes if day == self.day else 0)
        return DataUsage(day, day_bytes, month, size + (self.month_bytes if month == self.month else 0))


class FlashMeter:
    """Adds up what this process causes to be written, from now on. `written`: bytes since the process began."""

    def __init__(self, counters: BufferCounters, written: Callable[[], int]) -> None:
        self._counters = counters
        self._written = written
        self._counted = written()

    def sample(self, wall_s: float) -> None:
        """Counts what was written since the last look."""
        written = self._written()
        new, self._counted = written - self._counted, written
        day, size = self._counters.value(_DAY), self._counters.value(_BYTES)
        today = DataUsage(day=day, day_bytes=size).add(wall_s, new)
        self._counters.add(_DAY, today.day - day, lazily=True)
        self._counters.add(_BYTES, today.day_bytes - size, lazily=True)
