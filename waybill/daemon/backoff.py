"""How long to wait before the next attempt: it doubles, with jitter, up to a maximum."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryCallState, Retrying, wait_exponential

__all__ = ["Backoff"]


class Backoff:
    """The waits of one thing that is tried again and again: `first_s`, then twice as long each time, up to `max_s`.

    `random` gives numbers from 0 to 1. Each wait is drawn from the upper half of what it may be, also at the maximum:
    a fleet that lost its gateway at one moment does not return as one.
    """

    def __init__(self, first_s: float, max_s: float, random: Callable[[], float]) -> None:
        self._ceiling = wait_exponential(multiplier=first_s, max=max_s)
        self._random = random
        self._failures = 0

    def take_delay_s(self) -> float:
        """One more failure: the seconds to wait now."""
        self._failures += 1
        return self.delay_s(self._failures)

    def delay_s(self, attempt: int) -> float:
        """The seconds to wait after attempt 1, 2, …."""
        # The strategy looks at the number of the attempt and at nothing else.
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        return self._ceiling(state) * (0.5 + self._random() / 2)

    def reset(self) -> None:
        """Begins again with the shortest wait."""
        self._failures = 0
