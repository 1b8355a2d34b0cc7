"""When to connect to the broker, and what it means when connections do not last."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config import Mqtt
from waybill.daemon.backoff import Backoff
from waybill.mqtt.takeovers import Takeovers

_TAKEN_OVER = "Session taken over"


class BrokerLink:
    """The attempts and the connections of one session, without its socket. `jitter` gives numbers between 0 and 1.

    A connection counts as good when it has lasted twice `backoff_max_s`. One that ends sooner counts as a failed
    attempt, so that two gateways of one name, which take the session from each other, slow down, and are recognised.
    """

    def __init__(self, name: str, settings: Mqtt, jitter: Callable[[], float], now_s: float) -> None:
        self.is_up = False
        self._advice = f"each gateway needs a name of its own, and this one is {name!r}"
        cause = f"another client of the same name takes the session over: {self._advice}"
        self._takeovers = Takeovers(cause, 2 * settings.backoff_max_s)
        self._timeout_s = settings.connect_timeout_s
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, jitter)
        self._connect_at_s = now_s
        self._answer_by_s: float | None = None
        self._was_taken_over = False

    @property
    def is_in_use(self) -> bool:
        """Whether there is a connection, or an attempt at one."""
        return self.is_up or self._answer_by_s is not None

    def is_due(self, now_s: float) -> bool:
        """Whether to connect now."""
        return not self.is_in_use and now_s >= self._connect_at_s

    def on_attempt(self, now_s: float) -> None:
        """CONNECT was sent: the answer must come in time."""
        self._answer_by_s = now_s + self._timeout_s

    def is_overdue(self, now_s: float) -> bool:
        """Whether the answer did not come in time."""
        return self._answer_by_s is not None and now_s > self._answer_by_s

    def on_connected(self, now_s: float) -> None:
        """The subscriptions stand."""
        self.is_up, self._answer_by_s = True, None
        self._takeovers.on_connected(now_s)

    def on_alive(self, now_s: float) -> None:
        """To be called now and then while it is up: it may have become a good one."""
        self._takeovers.on_alive(now_s)
        if self._takeovers.has_lasted(now_s):
            self._backoff.reset()
            self._was_taken_over = False

    def on_ended(self, reason: str, now_s: float, *, is_unexplained: bool = True) -> None:
        """An attempt failed, or the connection ended; `is_unexplained`: the broker closed it without a word."""
        # It may have become a good one since the last look: then this is no failed attempt.
        self.on_alive(now_s)
        self._was_taken_over |= self.is_up and _TAKEN_OVER in reason
        self._takeovers.on_ended(now_s, is_unexplained=is_unexplained)
        self.is_up, self._answer_by_s = False, None
        self._connect_at_s = now_s + self._backoff.take_delay_s()

    @property
    def problem(self) -> str:
        """Why connections do not last; empty while they do, as far as is known."""
        if self._was_taken_over:
            return f"another client of the same name took the session over: {self._advice}"
        return self._takeovers.problem
