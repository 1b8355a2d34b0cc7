"""The partitions for which a process stands by: one that goes is one whose state is forgotten, or handed over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from gateway.alerts.partition_evaluation import PartitionEvaluation
from gateway.alerts.presence import Presence
from gateway.alerts.standby import PartitionStandby, PreparedState

__all__ = ["StandbyPartitions"]

TURN_S: Final = 1.0
KEEP_S: Final = 30.0
"""A partition whose owner is not heard is kept for so long."""
_CLOSE_S: Final = 2.0


class StandbyPartitions:
    """Chosen by what is heard of the other processes. `state` makes the state of a partition, without a message."""

    def __init__(self, client: Any, presence: Presence, state: Callable[[str], PartitionEvaluation]) -> None:
        self._client, self._presence, self._state = client, presence, state
        self._followed: dict[str, PartitionStandby] = {}
        self._kept_s: dict[str, float] = {}
        self._next_s = 0.0

    @property
    def names(self) -> list[str]:
        """The partitions that are followed."""
        return sorted(self._followed)

    @property
    def ready(self) -> list[str]:
        """Those of them that could be gone on with now."""
        return sorted(name for name, one in list(self._followed.items()) if one.is_ready)

    @property
    def behind_s(self) -> float | None:
        """How far behind is the one that is furthest; None: nothing is followed."""
        return max((one.behind_s for one in list(self._followed.values())), default=None)

    @property
    def problem(self) -> str:
        """Why one of them does not get on; empty when none is known to."""
        said = ((name, one.problem) for name, one in sorted(self._followed.items()))
        return next((f"{name} is not followed: {problem}" for name, problem in said if problem), "")

    def turn(self, taken: Iterable[str], held: int, now_s: float, *, most: int = 512) -> None:
        """Begins to follow, and ends, of those that other processes have, at most so many; once a second. `held`: how
        many we hold."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + TURN_S
        for name in taken:
            if len(self._followed) >= most:
                break
            if name not in self._followed and self._presence.is_standby(name, held, now_s):
                self._follow(name)
                self._kept_s[name] = now_s
        for name in self.names:
            if self._is_wanted(name, held, now_s):
                self._kept_s[name] = now_s
            elif self._presence.is_held_elsewhere(name, now_s) or now_s - self._kept_s[name] > KEEP_S:
                self._end(name).stop()

    def take(self, name: str) -> Callable[[], PreparedState | None]:
        """It is followed no more, as it is ours now: what gives the state that was made, when it is asked."""
        if name not in self._followed:
            return lambda: None
        one = self._end(name)
        one.stop()
        return one.hand_over

    def _is_wanted(self, name: str, held: int, now_s: float) -> bool:
        if self._presence.is_standby(name, held, now_s):
            return True
        # another is to be it now: what is ready is kept until that one is, too
        is_only = self._followed[name].is_ready and not self._presence.is_ready_elsewhere(name, now_s)
        return is_only and self._presence.is_held_elsewhere(name, now_s)

    def _end(self, name: str) -> PartitionStandby:
        del self._kept_s[name]
        return self._followed.pop(name)

    def close(self) -> None:
        """Ends all."""
        ending = list(self._followed.values())
        for one in ending:
            one.stop()
        ends_s = time.monotonic() + _CLOSE_S
        for one in ending:
            one.wait(max(ends_s - time.monotonic(), 0.0))

    def _follow(self, name: str) -> None:
        self._followed[name] = PartitionStandby(
            self._state(name), self._client, lambda: self._presence.acknowledged(name, time.monotonic())
        )
        self._followed[name].start()
