"""Which partitions a process tries to get, and when, so that several share them. Pure.

A partition's subscription is exclusive, so whoever tries gets it or hears that it is taken. All processes are alike;
one that holds more than another waits a moment, so that the other comes first. They are tried in groups, of which
there are as many however many partitions there are: so it takes no longer to go through more of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

__all__ = [
    "GIVEN_S",
    "GROUPS",
    "LEAVE_S",
    "MAX_TRIES",
    "RETRY_S",
    "SPREAD",
    "STEP_S",
    "YIELD_S",
    "YIELD_STEP_S",
    "ClaimState",
    "Claims",
]

GROUPS: Final = 12
"""So many groups there are at most, each tried at once."""
RETRY_S: Final = 1.0
"""How often a partition that somebody else has is tried, ..."""
MAX_TRIES: Final = 32
"""... as long as that are no more than so many a second: each costs the cluster an answer. Beyond that one of each
process is tried so often, and what nobody says to hold."""
SPREAD: Final = 8
"""One that was another's and is free makes so many others of the same process be tried now: it may have ended."""
STEP_S: Final = 0.1
"""Between two groups that are taken; ..."""
YIELD_STEP_S: Final = 0.5
"""... while another process holds fewer, so much: it comes first."""
YIELD_S: Final = 1.5
"""So much less often such a process tries what somebody else has."""
LEAVE_S: Final = 3.0
"""One that is free is left for so long to a process that has its state: it tries each second."""
GIVEN_S: Final = 4.0
"""One that was given back is not tried again for so long."""
_VARIES: Final = 0.3


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
    is_asked: bool = False


class Claims:
    """The partitions of a process, and when each is tried next. `draw`: a number from 0 to 1, for the order."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._claims: dict[str, _Claim] = {}
        self._left_s: dict[str, float] = {}
        self._resumes_s = self._probes_s = 0.0

    def add(self, partitions: Iterable[str], now_s: float) -> None:
        """These partitions there are; known ones stay as they are."""
        for name in partitions:
            # two that start at once do not go through them in one order
            self._claims.setdefault(name, _Claim(ClaimState.UNKNOWN, now_s + self._draw() * RETRY_S / 4))

    @property
    def at_once(self) -> int:
        """How many are tried at once, at most."""
        return max(math.ceil(len(self._claims) / GROUPS), 1)

    def due(self, now_s: float) -> list[str]:
        """The partitions to try now, all at once; none: none yet."""
        if now_s < self._resumes_s:
            return []
        # those that have waited longest: one that fails again and again keeps no other one waiting
        free = ((name, one) for name, one in self._claims.items() if one.state != ClaimState.HELD)
        waiting = ((one.next_s, name) for name, one in free if not one.is_asked)
        due = [(next_s, name) for next_s, name in waiting if next_s <= now_s]
        return [name for _, name in heapq.nsmallest(self.at_once, due)]

    def on_asked(self, names: Iterable[str]) -> None:
        """These are being tried: none is due before its answer, however long that takes."""
        for name in names:
            self._claims[name].is_asked = True

    def probe(
        self,
        held: Sequence[Collection[str]],
        ready: Collection[str],
        now_s: float,
        yields: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Once in `RETRY_S`: what each of the others says to hold. One of each is tried now, as it may have ended, and
        what none of them says to hold. `ready`: those that we could go on with, of these rather; there it yields to
        nobody."""
        if now_s < self._probes_s:
            return
        self._probes_s = now_s + RETRY_S
        free = self._claims.keys() - set[str]().union(*held)
        for names, most in ((free, self.at_once), *((of_one, 1) for of_one in held)):
            ours = [name for name in names if name in ready]
            self.hasten(ours or names, now_s, most, yields=not ours and any(map(yields, islice(names, 1))))

    def hasten(self, names: Iterable[str], now_s: float, most: int = SPREAD, *, yields: bool = False) -> None:
        """Of these, which a process has that gave one up or ended, some are tried now. `yields`: as for `on_taken`."""
        soon_s = now_s + (YIELD_S if yields else 0.0)
        found = [(one, name) for name in names if (one := self._claims.get(name)) is not None]
        later = [(one.next_s, name) for one, name in found if one.state == ClaimState.TAKEN and one.next_s > soon_s]
        for _, name in heapq.nsmallest(most, later):
            self._claims[name] = _Claim(ClaimState.TAKEN, soon_s)

    def on_held(self, name: str, now_s: float, *, yields: bool = False, is_ours: bool = False) -> None:
        """We got it. `yields`: there is a process that holds fewer than we do now. `is_ours`: we are ready for it, so
        nobody else is to come first."""
        self._left_s.pop(name, None)
        self._claims[name] = _Claim(ClaimState.HELD, now_s)
        if not is_ours:
            self._resumes_s = now_s + (YIELD_STEP_S if yields else STEP_S)

    def on_taken(self, name: str, now_s: float, *, yields: bool = False) -> None:
        """Another process has it. `yields`: there is one that holds fewer than we do."""
        self._left_s.pop(name, None)
        # never all in one moment, and none for long: in between somebody may have ended
        retry_s = max(RETRY_S, len(self._claims) / MAX_TRIES) * (1 - _VARIES * self._draw())
        self._claims[name] = _Claim(ClaimState.TAKEN, now_s + retry_s + (YIELD_S if yields else 0.0))

    def on_given(self, name: str, now_s: float) -> None:
        """We gave it to whoever holds fewer: if nobody takes it, it is ours again."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + GIVEN_S)

    def may_leave(self, name: str, now_s: float) -> bool:
        """Whether one that is free may still be left to another process."""
        return now_s - self._left_s.get(name, now_s) < LEAVE_S

    def on_left(self, name: str, now_s: float) -> None:
        """It was free, and is left to a process that is ready for it."""
        self._left_s.setdefault(name, now_s)
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + RETRY_S)

    def on_failed(self, name: str, now_s: float, wait_s: float = RETRY_S) -> None:
        """It could not be tried, or was lost."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + wait_s)

    def of_state(self, state: ClaimState) -> list[str]:
        """The partitions in a state, sorted."""
        return sorted(name for name, one in self._claims.items() if one.state == state)
