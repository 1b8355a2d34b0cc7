"""What was sent, what has shown where, and what that says of each hop. Pure: the time is handed in.

A *probe* is one scripted drive. At each hop it has *items* that are known beforehand: its records, its events, its
quantity, its amount. A hop has `limit_s` from the moment at which all items of the probe were at the hop before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from deploy.canary.hops import PARENT, Hop

__all__ = ["CanaryLedger", "HopColour", "HopCounts", "HopState", "ProbeAtHop"]


class HopColour(StrEnum):
    """What can be said of a hop now."""

    GREEN = "green"
    """The newest probe that was due here came whole, once, in time and right."""
    RED = "red"
    """It did not."""
    UNKNOWN = "unknown"
    """No probe was due here yet, or none came through the hop before."""


@dataclass(frozen=True, slots=True)
class HopState:
    """A hop's colour, and why."""

    hop: Hop
    colour: HopColour
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HopCounts:
    """Items at one hop, of the probes of one span of time. `delayed` ones are consumed, too."""

    consumed: int = 0
    delayed: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    @property
    def level(self) -> float | None:
        """The service level, (consumed - delayed) / (consumed + lost); None: nothing was due."""
        due = self.consumed + self.lost
        return (self.consumed - self.delayed) / due if due else None

    def __add__(self, other: HopCounts) -> HopCounts:
        return HopCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class ProbeAtHop:
    """One probe at one hop. `whole_s`: when the last of its items was seen."""

    missing: set[Hashable]
    count: int
    seen: set[Hashable] = field(default_factory=set)
    doubled: int = 0
    wrong: str = ""
    whole_s: float | None = None

    def see(self, item: Hashable, now_s: float) -> None:
        """An item has shown; a second time it is a double."""
        if item in self.seen:
            self.doubled += 1
        elif item in self.missing:
            self.missing.discard(item)
            self.seen.add(item)
            if not self.missing:
                self.whole_s = now_s


@dataclass(slots=True)
class _Probe:
    number: int
    sent_s: float
    hops: dict[Hop, ProbeAtHop]


class CanaryLedger:
    """The newest `most` probes of one vehicle.

    `limits_s`: how long each hop may take. What did not come `lost_after_s` after it was sent is counted as lost; it
    may still come, and is delayed then.
    """

    def __init__(self, limits_s: Mapping[Hop, float], lost_after_s: float, most: int = 10_000) -> None:
        self._limits_s, self._lost_after_s, self._most = dict(limits_s), lost_after_s, most
        self._probes: OrderedDict[int, _Probe] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probes)

    def send(self, number: int, items: Mapping[Hop, Iterable[Hashable]], now_s: float) -> None:
        """A probe was sent; these are the items that are to show at each hop that is watched."""
        assert number not in self._probes, "a probe is sent once"
        wanted = {hop: set(of_hop) for hop, of_hop in items.items()}
        self._probes[number] = _Probe(number, now_s, {hop: ProbeAtHop(of, len(of)) for hop, of in wanted.items()})
        # a canary runs for years
        while len(self._probes) > self._most:
            self._probes.popitem(last=False)

    # of a probe from before a restart nothing is known: what shows of it is nobody's fault
    def see(self, number: int, hop: Hop, items: Iterable[Hashable], now_s: float) -> None:
        """Items of a probe have shown at a hop; of a probe that is not kept any more nothing is noted."""
        if (probe := self._probes.get(number)) is not None:
            for item in items:
                probe.hops[hop].see(item, now_s)

    def is_wrong(self, number: int, hop: Hop, why: str) -> None:
        """What shows of a probe at a hop is not what it should be; "": it is right after all."""
        # by the next row it may be right again
        if (probe := self._probes.get(number)) is not None:
            probe.hops[hop].wrong = why

    def waiting(self, hop: Hop) -> list[int]:
        """The probes of which something is still to show at a hop, oldest first."""
        return [number for number, probe in self._probes.items() if hop in probe.hops and probe.hops[hop].missing]

    def states(self, now_s: float) -> list[HopState]:
        """What can be said of each hop now."""
        return [self._state(hop, now_s) for hop in Hop]

    def counts(self, hop: Hop, since_s: float, until_s: float, now_s: float) -> HopCounts:
        """What became of the items of the probes that were sent in a span of time."""
        probes = (one for one in self._probes.values() if since_s <= one.sent_s < until_s and hop in one.hops)
        return sum((self._counts(probe, hop, now_s) for probe in probes), HopCounts())

    def _state(self, hop: Hop, now_s: float) -> HopState:
        # the newest first: what was wrong an hour ago and is right now is right
        for probe in reversed(self._probes.values()):
            at = probe.hops.get(hop)
            if at is None or not at.count:
                continue
            fault = _fault(probe.number, at)
            if fault:
                return HopState(hop, HopColour.RED, fault)
            due_s = self._due_s(probe, hop)
            if at.whole_s is not None:
                if due_s is None or at.whole_s <= due_s:
                    return HopState(hop, HopColour.GREEN)
                return HopState(hop, HopColour.RED, f"probe {probe.number} came {at.whole_s - due_s:.0f} s too late")
            if due_s is not None and now_s > due_s:
                missing = f"{len(at.missing)} of {at.count} of probe {probe.number}"
                return HopState(hop, HopColour.RED, f"{missing} are missing since {now_s - due_s:.0f} s")
            if due_s is None and (before := self._overdue_before(probe, hop, now_s)) is not None:
                return HopState(hop, HopColour.UNKNOWN, f"nothing comes through {before}")
        return HopState(hop, HopColour.UNKNOWN, self._why_unknown(hop))

    def _overdue_before(self, probe: _Probe, hop: Hop, now_s: float) -> Hop | None:
        """The hop before, or one before that, at which a probe is overdue."""
        before = PARENT[hop]
        while before is not None:
            due_s = self._due_s(probe, before) if before in probe.hops else None
            if due_s is not None and probe.hops[before].whole_s is None and now_s > due_s:
                return before
            before = PARENT[before]
        return None

    def _why_unknown(self, hop: Hop) -> str:
        parent = PARENT[hop]
        if not any(hop in probe.hops for probe in self._probes.values()):
            return "nothing was sent that is to show here"
        return "nothing is due yet" if parent is None else f"nothing has come through {parent}"

    def _due_s(self, probe: _Probe, hop: Hop) -> float | None:
        """Until when a probe has to be whole at a hop; None while it is not whole at the one before."""
        begin_s: float | None = probe.sent_s
        parent = PARENT[hop]
        # a hop that is not watched passes on the time of the one before it
        while parent is not None and parent not in probe.hops:
            parent = PARENT[parent]
        if parent is not None:
            begin_s = probe.hops[parent].whole_s
        return None if begin_s is None else begin_s + self._limits_s[hop]

    def _counts(self, probe: _Probe, hop: Hop, now_s: float) -> HopCounts:
        at, due_s = probe.hops[hop], self._due_s(probe, hop)
        late = at.whole_s is not None and due_s is not None and at.whole_s > due_s
        lost = len(at.missing) if now_s - probe.sent_s > self._lost_after_s else 0
        seen = len(at.seen)
        return HopCounts(seen, seen if late else 0, lost, at.doubled, at.count if at.wrong else 0)


def _fault(number: int, at: ProbeAtHop) -> str:
    """What is wrong with what came."""
    if at.wrong:
        return f"probe {number}: {at.wrong}"
    return f"probe {number}: {at.doubled} came twice" if at.doubled else ""
