"""How fast a fleet may drain: a token bucket that goes into debt, and a pause that lets it recover."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config import Drain


class TokenBucket:
    """Tokens come back at `rate` a second up to `burst`; taking more than there are leaves a debt.

    Each taker is told how long its own debt takes to pay, so a crowd is spread and not sent away together.
    """

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at_s = burst, now_s

    def take(self, count: float, now_s: float) -> float:
        """Take `count` tokens; the seconds until the debt is paid, 0 when there is none."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate) - count
        self._at_s = now_s
        return max(0.0, -self._tokens / self._rate)


class DrainControl:
    """The pause that a device is asked for, from the operator's wish, the bucket and the load.

    `jitter` gives numbers between 0 and 1.
    """

    def __init__(self, settings: Drain, jitter: Callable[[], float], now_s: float) -> None:
        self._jitter = jitter
        self.change(settings, now_s)

    def change(self, settings: Drain, now_s: float) -> None:
        """Go by other settings from now on."""
        self._settings = settings
        rate = settings.max_records_per_s
        self._bucket = TokenBucket(rate, settings.burst_records, now_s) if rate else None

    def pause_s(self, records: int, *, load: float, waited_s: float, now_s: float) -> float:
        """How long the sender of a batch of `records` should pause.

        `load`: how full the window is, 0 to 1. `waited_s`: how long the batch waited for Pulsar. A full window alone is
        good use of it; a full window that moves slowly is an overload.
        """
        settings = self._settings
        wanted = settings.pause_s
        if self._bucket is not None:
            wanted = max(wanted, self._bucket.take(records, now_s))
        if load >= settings.overload_share and waited_s >= settings.overload_after_s:
            wanted = max(wanted, settings.overload_pause_s * (0.5 + self._jitter()))
        return round(min(wanted, settings.max_pause_s), 3)
