"""How much the agent writes to flash, by the day."""

from __future__ import annotations

from collections.abc import Callable

from edge_agent.drain.link_budget import PersistentCounters
from edge_agent.drain.link_policy import DataUsage

_DAY, _BYTES = "flash_day", "flash_bytes_today"


class FlashMeter:
    """Adds up what this process causes to be written, from now on. `written`: bytes since the process began."""

    def __init__(self, counters: PersistentCounters, written: Callable[[], int]) -> None:
        self._counters = counters
        self._written = written
        self._counted = written()

    def sample(self, wall_s: float) -> None:
        """Counts what was written since the last look."""
        written = self._written()
        new, self._counted = written - self._counted, written
        day, size = self._counters.counter(_DAY), self._counters.counter(_BYTES)
        today = DataUsage(day=day, day_bytes=size).add(wall_s, new)
        self._counters.count(_DAY, today.day - day, lazily=True)
        self._counters.count(_BYTES, today.day_bytes - size, lazily=True)
