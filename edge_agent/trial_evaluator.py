"""When pushed settings have proven themselves, when not, and when to try again. Pure: handed the time."""

from __future__ import annotations

from typing import Literal

from waybill.daemon.backoff import Backoff

Verdict = Literal["running", "confirmed", "failed", "nothing to send", "holds back"]
MAX_RETRY_S = 21_600.0


class TrialEvaluator:
    """One trial: confirmed by an acknowledgement and a quarter of `confirm_s` without an error, else failed."""

    def __init__(self, now_s: float, confirm_s: float) -> None:
        self._until_s = now_s + confirm_s
        self._steady_s = confirm_s / 4
        self._good_since_s: float | None = None
        self._was_connected = False

    def evaluate(
        self, now_s: float, *, is_connected: bool, is_acked: bool, is_well: bool, batches: int, holds_back: bool = False
    ) -> Verdict:
        """The verdict now. `is_acked`: the present connection brought an acknowledgement of `batches` that were sent.

        A trial in which nothing was there to send says nothing about the settings. One that `holds_back` what flowed
        before ends at once: what it takes in may have to wait for another link.
        """
        if holds_back:
            return "holds back"
        self._was_connected = self._was_connected or is_connected
        if not (is_acked and is_well):
            self._good_since_s = None
        elif self._good_since_s is None:
            self._good_since_s = now_s
        if self._good_since_s is not None and now_s - self._good_since_s >= self._steady_s:
            return "confirmed"
        if now_s < self._until_s:
            return "running"
        return "nothing to send" if self._was_connected and batches == 0 else "failed"


class RetryTimes:
    """When a proposal that was taken back is tried again: `first_s` later, then twice as long each time."""

    def __init__(self, first_s: float) -> None:
        # Without jitter: a trial is one device's own, and a fleet was not refused at one moment.
        self._backoff = Backoff(first_s, MAX_RETRY_S, lambda: 1.0)
        self.due_s = 0.0

    def schedule_next(self, now_s: float) -> None:
        """A trial ended without a confirmation."""
        self.due_s = now_s + self._backoff.take_delay_s()

    def reset(self) -> None:
        """A new proposal."""
        self._backoff.reset()
        self.due_s = 0.0
