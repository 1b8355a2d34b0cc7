"""How much the agent writes to flash, by the day."""

from __future__ import annotations

from collections.abc import Callable

from edge_agent.drain.link_budget import DataUsage
from edge_agent.store.counters import BufferCounters

_DAY, _BYTES = "flash_day", "flash_bytes_today"


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
