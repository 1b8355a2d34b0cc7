"""Waits between attempts: they double, with jitter, up to a maximum. And a token bucket."""

from __future__ import annotations

import math
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, wait_exponential

# A token bucket with debt. Pure: handed the time.


class TokenBucket:
    """`rate` tokens are added per second, up to `burst`; it begins full. A debt is at most `max_debt`."""

    def __init__(self, rate: float, burst: float, max_debt: float = math.inf) -> None:
        assert rate > 0, rate
        self._rate, self._burst, self._max_debt = rate, burst, max_debt
        self._tokens, self._at_s = burst, -math.inf

    def tokens(self, now_s: float) -> float:
        """The tokens there are now; a negative number is a debt."""
        return min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._rate)

    def take(self, count: float, now_s: float) -> None:
        """Take `count` tokens, even if there are fewer. A negative count returns tokens."""
        self._tokens = min(self._burst, max(self.tokens(now_s) - count, -self._max_debt))
        self._at_s = max(self._at_s, now_s)

    def try_take(self, now_s: float) -> bool:
        if self.tokens(now_s) < 1:
            return False
        self.take(1, now_s)
        return True

    def wait_s(self, count: float, now_s: float) -> float:
        """Seconds until there are `count` tokens; `wait_s(0, …)` is the time to repay a debt."""
        return max(0.0, (count - self.tokens(now_s)) / self._rate)


class Backoff:
    """Waits between attempts: `first_s`, then twice as long each time, up to `max_s`.

    `random` returns numbers from 0 to 1. Each wait is drawn from the upper half of its range, so that a fleet that lost
    its gateway does not reconnect all at once.
    """

    def __init__(self, first_s: float, max_s: float, random: Callable[[], float]) -> None:
        self._ceiling = wait_exponential(multiplier=first_s, max=max_s)
        self._random = random
        self._failures = 0

    def take_delay_s(self) -> float:
        """The seconds to wait after one more failure."""
        self._failures += 1
        return self.delay_s(self._failures)

    def delay_s(self, attempt: int) -> float:
        """The seconds to wait after attempt 1, 2, …."""
        # The strategy looks at the number of the attempt and at nothing else.
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        return self._ceiling(state) * (0.5 + self._random() / 2)

    def reset(self) -> None:
        self._failures = 0
