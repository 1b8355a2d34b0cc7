"""One probe, what of it has shown at a hop, and the words for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from deploy.canary.hops import Hop, ProbeItem

__all__ = ["HopColour", "HopCounts", "HopState", "Probe", "ProbeAtHop"]


class HopColour(StrEnum):
    """What can be said of a hop now."""

    GREEN = "green"
    """The newest probe that was due here came whole, once, in time and right."""
    RED = "red"
    """It did not."""
    UNKNOWN = "unknown"
    """No probe was due here yet, none came through the hop before, or nobody can say what should be here."""
    NOT_WATCHED = "not watched"
    """The settings leave it out: nothing is asked, and nothing is known."""


@dataclass(frozen=True, slots=True)
class HopState:
    """A hop's colour, and why."""

    hop: Hop
    colour: HopColour
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HopCounts:
    """Items at one hop, of the probes of one span of time. `delayed` ones are consumed, too; `repeated` are messages
    that came again on a topic, as they may; what is `not_reached` has not come through the hop before."""

    consumed: int = 0
    delayed: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    repeated: int = 0
    not_reached: int = 0

    @property
    def level(self) -> float | None:
        """The service level, (consumed - delayed) / (consumed + lost); None: nothing was due.

        What never came to the hop before is not due here: a level falls at the hop whose fault it is.
        """
        due = self.consumed + self.lost
        return (self.consumed - self.delayed) / due if due else None

    def __add__(self, other: HopCounts) -> HopCounts:
        return HopCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def growth(self, before: HopCounts) -> HopCounts:
        """By how much each count is more than before."""
        return HopCounts(*(max(0, getattr(self, name) - getattr(before, name)) for name in self.__slots__))

    def highest(self, other: HopCounts) -> HopCounts:
        """Of each count the higher one."""
        return HopCounts(*(max(getattr(self, name), getattr(other, name)) for name in self.__slots__))


class ProbeAtHop:
    """What is missing and what was seen (when, in s) of one probe at one hop.

    `whole_s`: when the last of its items was seen. `wrong`, `unknown`: why; "": it is not. `taken`: what of its counts
    was added to totals.
    """

    __slots__ = ("count", "doubled", "items", "missing", "repeated", "seen", "taken", "unknown", "whole_s", "wrong")

    def __init__(self, items: Iterable[ProbeItem]) -> None:
        self.items = frozenset(items)
        self.missing = set(self.items)
        self.count = len(self.items)
        self.seen: dict[ProbeItem, float] = {}
        self.doubled = self.repeated = 0
        self.wrong = self.unknown = ""
        self.whole_s: float | None = None
        self.taken = HopCounts()

    def try_see(self, item: ProbeItem, now_s: float) -> bool:
        """Notes an item that was missing."""
        # a second time is the books' affair, which know under which id
        if item not in self.missing:
            return False
        self.missing.discard(item)
        self.seen[item] = now_s
        if not self.missing:
            self.whole_s = now_s
        return True

    @property
    def fault(self) -> str:
        """What is wrong with what came; "": nothing."""
        return self.wrong or (f"{self.doubled} are there twice" if self.doubled else "")


@dataclass(slots=True)
class Probe:
    """One scripted drive: when it begins and ends (s since 1970), and what has shown of it at each watched hop."""

    number: int
    begins_s: float
    ends_s: float
    hops: dict[Hop, ProbeAtHop]
