"""How long to wait before trying again."""

from __future__ import annotations

from random import Random


class AgentBackoff:
    """Doubles from `first_s` to `most_s`; each wait is drawn from the upper half: a fleet does not return as one."""

    def __init__(self, first_s: float, max_s: float, random: Random) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._random = random
        self._failures = 0

    def next_delay_s(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling_s = min(self._max_s, self._first_s * (1 << min(self._failures, 30)))
        self._failures += 1
        return ceiling_s * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the shortest wait."""
        self._failures = 0
