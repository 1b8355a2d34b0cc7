"""How fast a fleet may drain: a token bucket that goes into debt, and a pause that lets it recover."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.config import Drain
from gateway.validation import Sender
from runtime.token_bucket import TokenBucket

MAX_SENDERS = 10_000
"""Devices whose own share is known; of more, the one that sent longest ago begins anew."""


class SharedBucket:
    """One bucket for all senders, into which none can bring more debt than `burst` records or one batch.

    Each sender has a bucket of its own beside it. What one sends beyond its own debt of `burst` is asked of it alone:
    a device that ignores its pauses does not make the others wait. Each sender is asked for the time that its own debt
    takes to pay, so a crowd is spread and not sent away together.
    """

    def __init__(self, rate: float, burst: float, max_pause_s: float) -> None:
        self._rate, self._burst, self._max_debt = rate, burst, burst + rate * max_pause_s
        self._shared = TokenBucket(rate, burst)
        self._own: OrderedDict[Sender, TokenBucket] = OrderedDict()

    def take(self, sender: Sender, count: float, now_s: float) -> float:
        """Take `count` tokens for a sender; the seconds that it should pause."""
        own = self._own.setdefault(sender, TokenBucket(self._rate, self._burst, self._max_debt))
        self._own.move_to_end(sender)
        if len(self._own) > MAX_SENDERS:
            self._own.popitem(last=False)
        before = own.tokens(now_s)
        shared = count if before >= 0 else min(count, max(0.0, before + self._burst))
        own.take(count, now_s)
        self._shared.take(shared, now_s)
        return max(own.wait_s(0, now_s), self._shared.wait_s(0, now_s))


class DrainControl:
    """The pause that a device is asked for, from the operator's wish, the bucket and the load.

    `jitter` gives numbers between 0 and 1.
    """

    def __init__(self, settings: Drain, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self.reconfigure(settings)

    def reconfigure(self, settings: Drain) -> None:
        """Go by other settings from now on."""
        self._settings = settings
        rate = settings.max_records_per_s
        self._bucket = SharedBucket(rate, settings.burst_records, settings.max_pause_s) if rate else None

    def take_pause_s(self, sender: Sender, records: int, *, load: float, waited_s: float, now_s: float) -> float:
        """How long the sender of a batch of `records` should pause, at most `max_pause_s`.

        `load`: how full the window is, 0 to 1. `waited_s`: how long the batch waited for Pulsar. A full window alone is
        good use of it; a full window that moves slowly is an overload.
        """
        settings = self._settings
        wanted = settings.pause_s
        if self._bucket is not None:
            wanted = max(wanted, self._bucket.take(sender, records, now_s))
        if load >= settings.overload_share and waited_s >= settings.overload_after_s:
            # Spread: devices that pause equally long come back together.
            wanted = max(wanted, settings.overload_pause_s * (0.5 + self._jitter()))
        return round(min(wanted, settings.max_pause_s), 3)
