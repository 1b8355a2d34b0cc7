"""How old things are, for deleting them: a wall clock that nobody believes at once.

A clock that is years ahead for a moment must not make everything too old. This one follows the wall clock backwards
at once, and forwards at most `MAX_PACE` times as fast as the monotonic clock runs: what has to go goes later.
"""

from __future__ import annotations

SET_CLOCK_MS = 1_577_836_800_000
"""2020-01-01: what is stamped earlier was stamped by a clock that nobody had set, so the stamp says nothing."""
MAX_PACE = 24
"""An hour of running catches up with a day of standing still; a wrong clock has to stay wrong for months to matter."""


class AgeClock:
    """Pure: handed both clocks. `believed_ms`: as the run before left it; 0: the first time it sees is believed."""

    def __init__(self, believed_ms: int) -> None:
        self.trusted_ms = believed_ms
        self._monotonic_ms: int | None = None

    def advance(self, wall_ms: int, monotonic_ms: int) -> int:
        """The time in milliseconds since 1970 by which age is judged now."""
        ran_ms = 0 if self._monotonic_ms is None else max(0, monotonic_ms - self._monotonic_ms)
        self._monotonic_ms = monotonic_ms
        ahead_ms = self.trusted_ms + MAX_PACE * ran_ms if self.trusted_ms else wall_ms
        self.trusted_ms = min(wall_ms, ahead_ms)
        return self.trusted_ms
