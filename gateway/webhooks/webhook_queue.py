"""The way to one webhook: its queue, its threads, and its waits. No other webhook waits for it.

Deliveries have no order: one that is tried again stands beside those that came later.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

import structlog

from gateway.webhooks.config import RetrySettings, WebhookSettings
from gateway.webhooks.delivery import EndedDelivery, WebhookDelivery
from gateway.webhooks.http_outcome import HttpOutcome
from waybill.daemon.backoff import Backoff

# When a delivery is tried again, and when it is given up. Pure: handed the time and the jitter.


class RetryStep(NamedTuple):
    """What becomes of a delivery after an attempt: `wait_s` until the next one; None: it has ended, with `reason`."""

    wait_s: float | None
    reason: str


def next_step(
    outcome: HttpOutcome, attempts: int, age_s: float, retry: RetrySettings, random: Callable[[], float]
) -> RetryStep:
    """What follows on the attempt of that number (from 1) of a delivery that is `age_s` old.

    It waits for exponentially longer, with jitter, or as long as the server asks for; it is given up when the number
    of attempts is reached, or the next one would come after `max_age_s`.
    """
    if outcome.is_final:
        return RetryStep(None, outcome.reason)
    # what is final comes first: a server that refuses is not asked again to use up attempts
    if attempts >= retry.max_attempts:
        return RetryStep(None, "exhausted")
    wait_s = Backoff(retry.backoff_first_s, retry.backoff_max_s, random).delay_s(attempts)
    # a server that asks for a longer pause gets it, one that asks for a shorter one does not
    wait_s = max(wait_s, outcome.pause_s or 0.0)
    # an attempt that comes too late by then is not waited for: somebody can look at it now
    if age_s + wait_s > retry.max_age_s:
        return RetryStep(None, "expired")
    return RetryStep(wait_s, outcome.reason)


# a pause may be set while a thread waits for what comes after it
_IDLE_S: Final = 1.0
_LOG = structlog.get_logger("webhooks")


class WebhookQueueFacts(NamedTuple):
    """What is known of a webhook now. `last_problem`: of the last attempt; empty when the server took it."""

    waiting: int
    in_flight: int
    oldest_s: float
    last_problem: str
    paused_s: float


class WebhookQueue:
    """`attempt` makes one attempt; `on_ended` hears how a delivery ended, in a thread of the queue."""

    def __init__(
        self,
        name: str,
        settings: WebhookSettings,
        attempt: Callable[[WebhookDelivery], HttpOutcome],
        on_ended: Callable[[EndedDelivery], object],
        *,
        on_attempt: Callable[[str, HttpOutcome, float], object] = lambda _, __, ___: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._settings = name, settings
        self._attempt, self._on_ended, self._on_attempt, self._clock = attempt, on_ended, on_attempt, clock
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, WebhookDelivery]] = []
        self._numbers = count()
        self._flying: dict[int, WebhookDelivery] = {}
        self._resumes_s = 0.0
        self._is_stopping = False
        self._last_problem = ""
        self._threads = [
            threading.Thread(target=self._run, name=f"posts {name} {number}", daemon=True)
            for number in range(settings.parallel)
        ]

    @property
    def facts(self) -> WebhookQueueFacts:
        """What is known now."""
        now_s = self._clock()
        with self._changed:
            held = [*(one for _, _, one in self._waiting), *self._flying.values()]
            oldest_s = max((now_s - one.taken_s for one in held), default=0.0)
            paused_s = max(self._resumes_s - now_s, 0.0)
            return WebhookQueueFacts(len(self._waiting), len(self._flying), oldest_s, self._last_problem, paused_s)

    @property
    def is_running(self) -> bool:
        """Whether all its threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Begins to deliver."""
        for thread in self._threads:
            thread.start()

    def add(self, delivery: WebhookDelivery) -> bool:
        """Whether there is room for one more; it is tried as soon as a thread is free."""
        with self._changed:
            # those in flight count: each may come back to wait
            if len(self._waiting) + len(self._flying) >= self._settings.queue_messages:
                return False
            self._push(delivery, self._clock())
            return True

    def stop(self) -> None:
        """Begins no attempt any more. What waits is not ended: it comes again after a start."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self, until_s: float) -> bool:
        """Waits for the attempts in flight, until a moment of the clock; whether all came back."""
        for thread in self._threads:
            thread.join(max(until_s - self._clock(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _push(self, delivery: WebhookDelivery, due_s: float) -> None:
        # the number keeps apart what is due at the same moment
        heapq.heappush(self._waiting, (due_s, next(self._numbers), delivery))
        self._changed.notify()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            number, delivery = taken
            began_s = self._clock()
            delivery.attempts += 1
            try:
                outcome = self._attempt(delivery)
            except Exception as error:  # noqa: BLE001 - one message that cannot be sent must not end the way of all others
                _LOG.exception("an attempt failed by itself", webhook=self.name)
                outcome = HttpOutcome(False, "failed", f"internal error: {type(error).__name__}")
            self._on_attempt(self.name, outcome, self._clock() - began_s)
            if ended := self._settle(number, delivery, outcome):
                self._on_ended(ended)

    def _next(self) -> tuple[int, WebhookDelivery] | None:
        with self._changed:
            while not self._is_stopping:
                now_s = self._clock()
                # none is due while the server wants to be left alone
                due_s = max(self._waiting[0][0], self._resumes_s) if self._waiting else None
                if due_s is not None and due_s <= now_s:
                    _, number, delivery = heapq.heappop(self._waiting)
                    self._flying[number] = delivery
                    return number, delivery
                self._changed.wait(_IDLE_S if due_s is None else min(due_s - now_s, _IDLE_S))
            return None

    def _settle(self, number: int, delivery: WebhookDelivery, outcome: HttpOutcome) -> EndedDelivery | None:
        with self._changed:
            now_s = self._clock()
            del self._flying[number]
            problem = "" if outcome.is_delivered else outcome.detail
            if problem and not self._last_problem:
                _LOG.warning("a webhook does not take messages", webhook=self.name, problem=problem)
            self._last_problem, delivery.detail = problem, outcome.detail
            if outcome.pause_s:
                # who asks to be left alone is, for everything
                self._resumes_s = max(self._resumes_s, now_s + outcome.pause_s)
            age_s = now_s - delivery.taken_s
            step = next_step(outcome, delivery.attempts, age_s, self._settings.retry, random.random)
            if step.wait_s is None:
                return EndedDelivery(delivery, step.reason)
            self._push(delivery, now_s + step.wait_s)
            return None
