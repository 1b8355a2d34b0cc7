"""Which region to deliver to: the first, another one when it fails, and back. Pure: handed time and chance."""

from __future__ import annotations

from random import Random

from edge_agent.config import FailoverSettings


class Regions:
    """The place in the list of uplinks, and when to leave it.

        first ──fails for after_s──▶ next ──return_after_s──▶ look at the first ──held for hold_s──▶ first
                                      ▲                               │ failed
                                      └───────────────────────────────┘

    Every time is stretched by a random part of itself, so that a fleet does not move as one.
    """

    def __init__(self, count: int, settings: FailoverSettings, random: Random) -> None:
        self._count = count
        self._settings = settings
        self._random = random
        self._failing_since_s: float | None = None
        self._leave_after_s = self._stretched(settings.after_s)
        self._probe_at_s = 0.0
        self.index = 0

    def on_failure(self, now_s: float, since_s: float | None = None) -> bool:
        """The uplink fails, since `since_s` or now; True when this was long enough to go to the next region."""
        if self._failing_since_s is None:
            self._failing_since_s = now_s if since_s is None else since_s
        if self._count == 1 or now_s - self._failing_since_s < self._leave_after_s:
            return False
        self._move(now_s, (self.index + 1) % self._count)
        return True

    def on_success(self) -> None:
        """The uplink acknowledges, or is connected and has nothing to acknowledge."""
        self._failing_since_s = None

    def should_probe(self, now_s: float) -> bool:
        """Whether it is time to see if the preferred region is back."""
        return self.index != 0 and now_s >= self._probe_at_s

    def on_probed(self, now_s: float, *, held: bool) -> bool:
        """The preferred region was reachable for `hold_s`, or not; True when the place changed."""
        if held and self.index != 0:
            self._move(now_s, 0)
            return True
        self._probe_at_s = now_s + self._stretched(self._settings.return_after_s)
        return False

    def _move(self, now_s: float, at: int) -> None:
        self.index = at
        self._failing_since_s = None
        self._leave_after_s = self._stretched(self._settings.after_s)
        self._probe_at_s = now_s + self._stretched(self._settings.return_after_s)

    def _stretched(self, time_s: float) -> float:
        return time_s * (1 + self._settings.jitter * self._random.random())
