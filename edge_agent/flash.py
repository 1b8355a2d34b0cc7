"""How much the agent writes to flash, by the day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_agent.drain.budget import Spent

_DAY, _BYTES = "flash_day", "flash_bytes_today"


class Tallies(Protocol):
    """Counters that outlive a restart."""

    def tally(self, name: str, increase: int = 0, *, lazily: bool = False) -> int:
        """A counter; an increase is stored with the next transaction, which it calls for unless `lazily`."""


class FlashMeter:
    """Adds up what this process causes to be written, from now on. `written`: bytes since the process began."""

    def __init__(self, tallies: Tallies, written: Callable[[], int]) -> None:
        self._tallies = tallies
        self._written = written
        self._counted = written()

    def look(self, wall_s: float) -> None:
        """Counts what was written since the last look."""
        written = self._written()
        new, self._counted = written - self._counted, written
        day, size = self._tallies.tally(_DAY), self._tallies.tally(_BYTES)
        today = Spent(day=day, day_bytes=size).add(wall_s, new)
        self._tallies.tally(_DAY, today.day - day, lazily=True)
        self._tallies.tally(_BYTES, today.day_bytes - size, lazily=True)
