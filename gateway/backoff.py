"""How long to wait before the next attempt: jittered, exponential, bounded."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 0.2


class GatewayBackoff:
    """The waits of one thing that is tried again and again. `jitter` gives numbers between 0 and 1."""

    def __init__(self, max_s: float, jitter: Callable[[], float]) -> None:
        self._max_s, self._jitter = max_s, jitter
        self._failures = 0

    def next_delay_s(self) -> float:
        """Note a failure; the seconds to wait now."""
        self._failures += 1
        return delay_s(self._failures, self._max_s, self._jitter())

    def reset(self) -> None:
        """Begin anew."""
        self._failures = 0


def delay_s(attempt: int, max_s: float, jitter: float) -> float:
    """The wait after attempt 1, 2, ...: doubling up to `max_s`, of which a random half to the whole is taken."""
    return min(max_s, FIRST_S * float(1 << min(attempt - 1, 30))) * (0.5 + jitter / 2)
