"""When to commit: the balance between latency and flash wear, as a pure state machine that is handed the time.

A commit is due as soon as one of these is true of the messages that wait:

- one of them is urgent;
- there are `records` of them, or `size` bytes;
- the last commit is `delay_s` ago, and the oldest waits for GATHER_S; or the oldest waits for `delay_s`. So a vehicle
  that reports now and then is stored at once, and a busy one is not stored more often than every `delay_s`;
- the broker's window is full, so no more will come before they are acknowledged. A broker does not say how large its
  window is, so it is learned: when two commits in a row found the same number of messages and a silence, that number is
  taken for the window. Every 16th commit waits for its time again, so that a wrong guess does not last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GATHER_S = 0.02
"""What a vehicle reports together comes within this time, and is one commit also after a silence."""
SMALLEST_WINDOW = 8
RECHECK_EVERY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBudget:
    """What a commit may cost: at most `delay_s` of latency, at most so many `records` and bytes at once.

    Commits that nothing but time makes due are `delay_s` apart at least.
    """

    delay_s: float
    records: int
    size: int


class GroupCommit:
    """The messages that wait for a commit, counted."""

    def __init__(self, budget: CommitBudget) -> None:
        self._budget = budget
        self._window: int | None = None
        self._candidate: int | None = None
        self._commits = 0
        self._committed_s = -math.inf
        self.waiting = 0
        self._records = self._size = 0
        self._urgent = False
        self._oldest_s = self._latest_s = 0.0

    def add(self, now_s: float, size: int, *, urgent: bool, records: int = 1) -> None:
        """A message of so many records arrived."""
        if not self.waiting:
            self._oldest_s = now_s
        self._latest_s = now_s
        self.waiting += 1
        self._records += records
        self._size += size
        self._urgent = self._urgent or urgent
        # The broker sent more than the window that was learned, so it is larger.
        if self._window is not None and self.waiting > self._window:
            self._window = self._candidate = None

    def due_in(self, now_s: float) -> float | None:
        """Seconds until the commit is due; 0 when it is; None when nothing waits."""
        if not self.waiting:
            return None
        budget = self._budget
        if self._urgent or self._records >= budget.records or self._size >= budget.size or self._window_is_full():
            return 0.0
        return max(0.0, self._due_s - now_s)

    def on_committed(self, now_s: float) -> None:
        """What waited is committed."""
        self._learn(now_s)
        if self.waiting:
            self._committed_s = now_s
        self._commits += 1
        self._reset()

    @property
    def _due_s(self) -> float:
        """When what waits is due by time alone."""
        delay_s = self._budget.delay_s
        gathered_s = self._oldest_s + min(GATHER_S, delay_s)
        return min(max(gathered_s, self._committed_s + delay_s), self._oldest_s + delay_s)

    def _window_is_full(self) -> bool:
        return self.waiting == self._window and self._commits % RECHECK_EVERY != 0

    def _learn(self, now_s: float) -> None:
        by_time = self._due_s <= now_s
        half_s = self._budget.delay_s / 2
        silent = self._latest_s - self._oldest_s < half_s <= now_s - self._latest_s
        # A few messages and then silence are a slow vehicle, not a full window.
        if by_time and silent and self.waiting >= SMALLEST_WINDOW:
            if self.waiting == self._candidate:
                self._window = self.waiting
            self._candidate = self.waiting
        elif by_time:
            self._window = self._candidate = None

    def _reset(self) -> None:
        self.waiting = 0
        self._records = self._size = 0
        self._urgent = False
        self._oldest_s = self._latest_s = 0.0
