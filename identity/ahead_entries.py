"""Entries that are right but for their date, which is ahead of our clock: until when they wait to be read again.

Whose clock is wrong, theirs or ours, nobody knows here. So nothing of lower rank is to be put in their place on the
topic meanwhile, and when our clock has come so far the topic is read again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from identity.precedence import Precedence

__all__ = ["AheadEntries"]

MAX_REMEMBERED: Final = 100_000
"""Devices; while there are more, every device is taken for one of them."""
PAUSE_S: Final = 60.0
"""The topic is not read again more often: one that is always ahead keeps nobody from reading to the end."""


class _Noted(NamedTuple):
    rank: Precedence
    due_ms: float
    dated_ms: float


class AheadEntries:
    """By device. One thread notes and settles, any may ask. Moments are milliseconds since 1970, by our clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._noted: dict[str, _Noted] = {}
        self._more_due_ms = self._earliest_ms = math.inf
        self._next_s = -math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, name: str, rank: Precedence, dated_ms: float, due_ms: float) -> None:
        """An entry of a device is dated ahead, and is not from `due_ms` on."""
        with self._lock:
            self._earliest_ms = min(self._earliest_ms, due_ms)
            former = self._noted.get(name)
            if former is not None:
                self._noted[name] = _Noted(max(rank, former.rank), min(due_ms, former.due_ms), dated_ms)
            elif len(self._noted) < MAX_REMEMBERED:
                self._noted[name] = _Noted(rank, due_ms, dated_ms)
            else:
                self._more_due_ms = min(self._more_due_ms, due_ms)

    def settle(self, name: str, rank: Precedence) -> None:
        """An entry of this rank holds of a device: what ranks no higher waits no more."""
        with self._lock:
            if (noted := self._noted.get(name)) is not None and noted.rank <= rank:
                del self._noted[name]

    def outranks(self, name: str, rank: Precedence) -> bool:
        """Whether an entry waits, or may wait, that would hold against one of this rank."""
        with self._lock:
            noted = self._noted.get(name)
            return math.isfinite(self._more_due_ms) if noted is None else noted.rank > rank

    def take_due(self, now_ms: float) -> bool:
        """Whether the topic is to be read again now; what does not come again then is named for as long as we run."""
        now_s = self._monotonic()
        with self._lock:
            if now_ms < self._earliest_ms or now_s < self._next_s:
                return False
            is_due = self._more_due_ms <= now_ms
            if is_due:
                self._more_due_ms = math.inf
            for name, noted in self._noted.items():
                if noted.due_ms <= now_ms:
                    self._noted[name], is_due = noted._replace(due_ms=math.inf), True
            self._earliest_ms = min((one.due_ms for one in self._noted.values()), default=math.inf)
            self._earliest_ms = min(self._earliest_ms, self._more_due_ms)
            if is_due:
                self._next_s = now_s + PAUSE_S
            return is_due

    @property
    def problem(self) -> str:
        """How many devices have one, and of which date; "" if none has."""
        with self._lock:
            if not self._noted:
                return ""
            name, noted = next(iter(self._noted.items()))
            count, more = len(self._noted), " at least" if math.isfinite(self._more_due_ms) else ""
        return (
            f"entries of {count} devices{more} are dated ahead of this machine's clock, and wait until it has come so "
            f"far ({name}: {_text(noted.dated_ms)}); compare this machine's clock with the cluster's"
        )


def _text(moment_ms: float) -> str:
    try:
        return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "a moment that no calendar has"
