"""How long something may stand still: what makes progress is not ended, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

__all__ = ["Standstill"]


class Standstill:
    """Since when nothing has changed. `timeout_s`: so long that may last."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._last: Hashable = None
        self._since_s = clock()

    def is_over(self, progress: Hashable) -> bool:
        """Whether `progress` is what it was for longer than that."""
        if progress != self._last:
            self._last, self._since_s = progress, self._clock()
        return self._clock() - self._since_s > self._timeout_s
