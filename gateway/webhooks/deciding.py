"""Whether a message passes a rule now: quiet hours and the limit of an hour. Pure: handed the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from geo.alerts import AlertRule

__all__ = ["HOUR_MS", "PassDecision", "RuleHistory", "decide"]

HOUR_MS: Final = 3_600_000


class PassDecision(StrEnum):
    """What becomes of a message by one rule."""

    SEND = "send"
    QUIET = "quiet"
    """Held back: it is a quiet time of the rule."""
    LIMIT = "limit"
    """Held back: as many as the rule allows were sent within the last hour."""


class RuleHistory:
    """The messages that passed one rule, by their keys: those of the last hour, each with when (ms since 1970), and
    those that may come again, for as long as they may."""

    def __init__(self, passed: Iterable[tuple[str, int]] = ()) -> None:
        self._in_order = deque(sorted(passed, key=lambda one: one[1]))
        self._keys = {key for key, _ in self._in_order}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of it."""
        return not self._keys

    def forget(self, key: str) -> None:
        """A message does not come again."""
        self._keys.discard(key)

    def note(self, key: str, now_ms: int) -> None:
        """A message passed now, for the first time."""
        self._set_back(now_ms)
        self._in_order.append((key, now_ms))
        self._keys.add(key)

    def count(self, now_ms: int) -> int:
        """How many passed within the hour before now."""
        self._set_back(now_ms)
        # any 60 minutes, not those of the clock: at a full hour twice as much could pass at once
        while self._in_order and self._in_order[0][1] <= now_ms - HOUR_MS:
            # one that may come again is still known
            self._in_order.popleft()
        return len(self._in_order)

    def _set_back(self, now_ms: int) -> None:
        # a clock that was ahead and is set back must not fill the hour for as long as it was ahead
        if self._in_order and self._in_order[-1][1] > now_ms:
            self._in_order = deque((key, min(at_ms, now_ms)) for key, at_ms in self._in_order)


def decide(rule: AlertRule, history: RuleHistory, key: str, now_ms: int) -> PassDecision:
    """What becomes of a message by a rule, now.

    One that passed before passes again, whatever the time is: it comes again because nobody knows whether it arrived.
    """
    if key in history:
        return PassDecision.SEND
    # quiet before the limit: what is held back at night does not use up the hour after it
    if rule.is_quiet_at(now_ms):
        return PassDecision.QUIET
    if rule.max_per_hour is not None and history.count(now_ms) >= rule.max_per_hour:
        return PassDecision.LIMIT
    return PassDecision.SEND
