"""Which partitions a process tries to get, and when, so that several share them. Pure.

A partition's subscription is exclusive, so whoever tries gets it or hears that it is taken. All processes are alike;
one that holds more than another waits a moment, so that the other comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["GIVEN_S", "RETRY_S", "STEP_S", "YIELD_S", "YIELD_STEP_S", "ClaimState", "Claims"]

RETRY_S: Final = 1.0
"""How often a partition that somebody else has is tried."""
STEP_S: Final = 0.1
"""Between two that are taken; ..."""
YIELD_STEP_S: Final = 0.5
"""... while another process holds fewer, so much: it comes first."""
YIELD_S: Final = 1.5
"""So much less often such a process tries what somebody else has."""
GIVEN_S: Final = 4.0
"""One that was given back is not tried again for so long."""


class ClaimState(StrEnum):
    """What a process knows of a partition."""

    UNKNOWN = "unknown"
    """It was not tried yet, or could not be."""
    HELD = "held"
    """It is ours."""
    TAKEN = "taken"
    """When it was tried last, another process had it."""


@dataclass(slots=True)
class _Claim:
    state: ClaimState
    next_s: float


class Claims:
    """The partitions of a process, and when each is tried next. `draw`: a number from 0 to 1, for the order."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._claims: dict[str, _Claim] = {}
        self._resumes_s = 0.0

    def add(self, partitions: Iterable[str], now_s: float) -> None:
        """These partitions there are; known ones stay as they are."""
        for name in partitions:
            # two that start at once do not go through them in one order
            self._claims.setdefault(name, _Claim(ClaimState.UNKNOWN, now_s + self._draw() * RETRY_S / 4))

    def due(self, now_s: float) -> str | None:
        """The partition to try now; None: none yet."""
        # the one that has waited longest: a partition that fails again and again keeps no other one waiting
        waiting = [(one.next_s, name) for name, one in self._claims.items() if one.state != ClaimState.HELD]
        if not waiting or now_s < self._resumes_s:
            return None
        next_s, name = min(waiting)
        return name if next_s <= now_s else None

    def on_held(self, name: str, now_s: float, *, yields: bool = False) -> None:
        """We got it. `yields`: there is a process that holds fewer than we do now."""
        self._claims[name] = _Claim(ClaimState.HELD, now_s)
        self._resumes_s = now_s + (YIELD_STEP_S if yields else STEP_S)

    def on_taken(self, name: str, now_s: float, *, yields: bool = False) -> None:
        """Another process has it. `yields`: there is one that holds fewer than we do."""
        self._claims[name] = _Claim(ClaimState.TAKEN, now_s + RETRY_S + (YIELD_S if yields else 0.0))

    def on_given(self, name: str, now_s: float) -> None:
        """We gave it to whoever holds fewer: if nobody takes it, it is ours again."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + GIVEN_S)

    def on_failed(self, name: str, now_s: float, wait_s: float = RETRY_S) -> None:
        """It could not be tried, or was lost."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + wait_s)

    def of_state(self, state: ClaimState) -> list[str]:
        """The partitions in a state, sorted."""
        return sorted(name for name, one in self._claims.items() if one.state == state)
