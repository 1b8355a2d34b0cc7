"""When a delivery is tried again, and when it is given up. Pure: handed the time and the jitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.webhooks.config import RetrySettings
from gateway.webhooks.http_outcome import HttpOutcome
from waybill.daemon.backoff import Backoff

__all__ = ["RetryStep", "next_step"]


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
