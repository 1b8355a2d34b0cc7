"""What was sent and what arrived at each hop, and what that says about the hop. Pure: the caller passes the time.

A *probe* is one scripted drive. At each hop it has *items* that are known beforehand: records, events, a quantity, an
amount. A hop has `limit_s` from the moment at which all items of the probe were at the hop before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from gateway.canary.config import PARENT, Hop, ProbeItem

RECENT: Final = 3
"""A hop is green only if its last three due probes are whole: one that loses every second probe never is."""
_NOBODY: Mapping[Hop, str] = {}


class HopColour(StrEnum):
    GREEN = "green"
    """The newest due probe arrived whole, once, in time and with the right content."""
    RED = "red"
    """It did not."""
    UNKNOWN = "unknown"
    """No probe was due yet, none passed the hop before, or the expected result is unknown."""
    NOT_WATCHED = "not watched"
    """The settings leave the hop out."""


@dataclass(frozen=True, slots=True)
class HopState:
    hop: Hop
    colour: HopColour
    reason: str = ""


@dataclass(slots=True)
class HopCounts:
    """Items at one hop. Delayed items are consumed, too. Wrong: items of probes with a wrong or doubled item."""

    consumed: int = 0
    delayed: int = 0
    lost: int = 0
    wrong: int = 0

    @property
    def level(self) -> float | None:
        """The service level, (consumed - delayed) / (consumed + lost); None: nothing was due.

        An item that never reached the hop before is not due here, so a level falls only at the hop with the fault.
        """
        due = self.consumed + self.lost
        return (self.consumed - self.delayed) / due if due else None


class ProbeAtHop:
    """The missing and the seen items (time in s) of one probe at one hop.

    `whole_s`: when its last item was seen. `wrong`, `unknown`: the reason, or "".
    """

    __slots__ = ("doubled", "items", "missing", "seen", "unknown", "whole_s", "wrong")

    def __init__(self, items: Iterable[ProbeItem]) -> None:
        self.items = frozenset(items)
        self.missing = set(self.items)
        self.seen: dict[ProbeItem, float] = {}
        self.doubled = 0
        self.wrong = self.unknown = ""
        self.whole_s: float | None = None

    def try_see(self, item: ProbeItem, now_s: float) -> bool:
        """Whether the item was missing until now."""
        if item not in self.missing:
            return False
        self.missing.discard(item)
        self.seen[item] = now_s
        if not self.missing:
            self.whole_s = now_s
        return True

    @property
    def fault(self) -> str:
        """What is wrong with the items that arrived, or ""."""
        return self.wrong or (f"{self.doubled} are there twice" if self.doubled else "")


@dataclass(slots=True)
class Probe:
    """One drive: its begin and end (s since 1970), and what arrived at each watched hop."""

    number: int
    begins_s: float
    ends_s: float
    hops: dict[Hop, ProbeAtHop]


class CanaryLedger:
    """The newest `most` probes of one vehicle.

    `limits_s`: the watched hops and their limits. An item that is missing for longer than `lost_after_s` counts as
    lost until it arrives. No hop is green when the newest probe is older than `stale_after_s`.
    """

    def __init__(
        self, limits_s: Mapping[Hop, float], lost_after_s: float, stale_after_s: float, most: int = 1_000
    ) -> None:
        self.limits_s = dict(limits_s)
        self._lost_after_s, self._stale_after_s, self._most = lost_after_s, stale_after_s, most
        self._probes: OrderedDict[int, Probe] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probes)

    def __contains__(self, number: int) -> bool:
        return number in self._probes

    @property
    def numbers(self) -> list[int]:
        return [*self._probes]

    def sent_since(self, since_s: float) -> int:
        return sum(probe.begins_s >= since_s for probe in self._probes.values())

    def send(self, number: int, items: Mapping[Hop, Iterable[ProbeItem]], begins_s: float, ends_s: float) -> None:
        assert number not in self._probes, "a probe is sent once"
        at = {hop: ProbeAtHop(of_hop) for hop, of_hop in items.items() if hop in self.limits_s}
        self._probes[number] = Probe(number, begins_s, ends_s, at)
        while len(self._probes) > self._most:
            self._probes.popitem(last=False)

    def drop(self, number: int) -> None:
        """Forget a probe that was not sent as a whole."""
        self._probes.pop(number, None)

    def see(self, number: int, hop: Hop, items: Iterable[ProbeItem], now_s: float) -> list[float]:
        """Record items that arrived. Return the latencies (s, from device time) of the new ones.

        Unknown probes and items that do not belong to the probe are ignored.
        """
        at = self._at(number, hop)
        return [] if at is None else [now_s - item.t_ms / 1000 for item in items if at.try_see(item, now_s)]

    def note_doubles(self, number: int, hop: Hop, count: int) -> None:
        """Record items that arrived a second time."""
        if (at := self._at(number, hop)) is not None:
            at.doubled += count

    def judge(self, number: int, hop: Hop, why: str) -> None:
        """Set what is wrong with a probe at a hop; "" clears it."""
        if (at := self._at(number, hop)) is not None:
            at.wrong = why

    def cannot_know(self, number: int, hop: Hop, why: str) -> None:
        """The expected result of a probe at a hop is unknown."""
        if (at := self._at(number, hop)) is not None:
            at.unknown = why

    def is_short(self, number: int, hop: Hop) -> bool:
        """Whether a probe misses items at a hop, or is wrong there."""
        at = self._at(number, hop)
        return at is not None and not at.unknown and bool(at.missing or at.wrong)

    def waiting(self, hop: Hop) -> list[int]:
        """The probes that miss items at a hop or are wrong there, oldest first."""
        return [probe.number for probe, at in self._probes_at(hop) if at.missing or at.wrong]

    def states(self, now_s: float, blind: Mapping[Hop, str] = _NOBODY) -> list[HopState]:
        """The state of each hop. `blind`: hops that cannot be read, and why."""
        return [self._state(hop, now_s, blind.get(hop, "")) for hop in Hop]

    def counts(self, hop: Hop, since_s: float, now_s: float) -> HopCounts:
        """Items of the probes that began since a moment of device time."""
        counts = HopCounts()
        for probe, at in self._probes_at(hop):
            if probe.begins_s < since_s or at.unknown:
                continue
            due_s, seen = self._due_s(probe, hop), len(at.seen)
            is_late = at.whole_s is not None and due_s is not None and at.whole_s > due_s
            counts.consumed += seen
            # half of a drive is of no use, so a probe is late as a whole
            counts.delayed += seen if is_late else 0
            counts.lost += self._lost(probe, hop, now_s)
            counts.wrong += len(at.items) if at.fault and not self._faulty_before(probe, hop) else 0
        return counts

    def latencies(self, hop: Hop, since_s: float) -> list[float]:
        """From device time to the hop (s, ascending), of the probes that began since a moment."""
        seen = (at.seen for probe, at in self._probes_at(hop) if probe.begins_s >= since_s)
        return sorted(at_s - item.t_ms / 1000 for of_probe in seen for item, at_s in of_probe.items())

    def _at(self, number: int, hop: Hop) -> ProbeAtHop | None:
        probe = self._probes.get(number)
        return None if probe is None else probe.hops.get(hop)

    def _probes_at(self, hop: Hop) -> Iterator[tuple[Probe, ProbeAtHop]]:
        return ((probe, probe.hops[hop]) for probe in self._probes.values() if hop in probe.hops)

    def _state(self, hop: Hop, now_s: float, blind: str) -> HopState:
        if hop not in self.limits_s:
            return HopState(hop, HopColour.NOT_WATCHED)
        newest, due = None, 0
        for probe, at in reversed([*self._probes_at(hop)]):
            if (state := self._state_by(probe, at, hop, now_s, blind)) is None:
                continue
            # a late probe is over with the next one that is in time; a missing one is not
            if newest is None or (at.missing and state.colour is HopColour.RED):
                newest = state
            due_s = self._due_s(probe, hop)
            due += due_s is not None and due_s < now_s
            if newest.colour is not HopColour.GREEN or due == RECENT:
                break
        return newest or HopState(hop, HopColour.UNKNOWN, self._why_unknown(hop))

    def _state_by(self, probe: Probe, at: ProbeAtHop, hop: Hop, now_s: float, blind: str) -> HopState | None:
        """What one probe says about a hop; None: nothing yet."""
        due_s, faulty = self._due_s(probe, hop), self._faulty_before(probe, hop)
        if at.unknown:
            return HopState(hop, HopColour.UNKNOWN, at.unknown)
        if at.fault and faulty is not None:
            return HopState(hop, HopColour.UNKNOWN, f"what comes through {faulty} is not right")
        if at.fault:
            return HopState(hop, HopColour.RED, f"probe {probe.number}: {at.fault}")
        if due_s is None:
            before = self._overdue_before(probe, hop, now_s)
            overdue = HopState(hop, HopColour.UNKNOWN, f"probe {probe.number} is overdue at {before}")
            return None if before is None else overdue
        if at.whole_s is None and now_s <= due_s:
            return None
        return self._state_of_due(probe, hop, due_s, now_s, blind)

    def _state_of_due(self, probe: Probe, hop: Hop, due_s: float, now_s: float, blind: str) -> HopState:
        """The state by a probe that is overdue, or that arrived whole, once and right."""
        at = probe.hops[hop]
        if at.whole_s is None:
            overdue = f"{len(at.missing)} of {len(at.items)} items of probe {probe.number} are overdue"
            why = f"; it cannot be read: {blind}" if blind else ""
            return HopState(hop, HopColour.RED, f"{overdue} for {now_s - due_s:.0f} s{why}")
        if at.whole_s > due_s:
            return HopState(hop, HopColour.RED, f"probe {probe.number} came {at.whole_s - due_s:.0f} s too late")
        # what was green an hour ago says nothing about now
        newest = next(reversed(self._probes.values()))
        silent_s, ahead_s = now_s - newest.ends_s, newest.begins_s - now_s
        if silent_s > self._stale_after_s:
            return HopState(hop, HopColour.UNKNOWN, f"no probe was sent for {silent_s:.0f} s")
        if ahead_s > self._stale_after_s:
            why = f"the clock was set back: the newest probe is {ahead_s:.0f} s ahead of it"
            return HopState(hop, HopColour.UNKNOWN, why)
        return HopState(hop, HopColour.GREEN)

    def _overdue_before(self, probe: Probe, hop: Hop, now_s: float) -> Hop | None:
        for before in self._before(probe, hop):
            due_s = self._due_s(probe, before)
            if due_s is not None and probe.hops[before].whole_s is None and now_s > due_s:
                return before
        return None

    def _faulty_before(self, probe: Probe, hop: Hop) -> Hop | None:
        """The first hop at which the fault of a probe appeared: it stays visible at all later ones."""
        faulty = [before for before in self._before(probe, hop) if probe.hops[before].fault]
        return faulty[-1] if faulty else None

    def _why_unknown(self, hop: Hop) -> str:
        if not self._probes:
            return "no probe was sent yet"
        parent = next((one for one in _ancestors(hop) if one in self.limits_s), None)
        is_through = parent is None or any(at.whole_s is not None for _, at in self._probes_at(parent))
        return "nothing is due yet" if is_through else f"no probe has come whole through {parent} yet"

    def _before(self, probe: Probe, hop: Hop) -> Iterator[Hop]:
        """The earlier hops, nearest first, whose results for a probe are known."""
        return (one for one in _ancestors(hop) if one in probe.hops and not probe.hops[one].unknown)

    def _due_s(self, probe: Probe, hop: Hop) -> float | None:
        """When a probe has to be whole at a hop; None while it is not whole at the hop before.

        An earlier hop whose results are unknown still adds its limit.
        """
        before, begin_s = next(self._before(probe, hop), None), probe.ends_s
        if before is not None:
            whole_s = probe.hops[before].whole_s
            if whole_s is None:
                return None
            begin_s = max(whole_s, begin_s)
        limit_s = self.limits_s.get(hop, 0.0)
        for one in _ancestors(hop):
            if one is before:
                break
            limit_s += self.limits_s.get(one, 0.0)
        return begin_s + limit_s

    def _lost(self, probe: Probe, hop: Hop, now_s: float) -> int:
        """Items that were at the hop before and did not arrive here for `lost_after_s`."""
        at, before = probe.hops[hop], next(self._before(probe, hop), None)
        since_s = dict.fromkeys(at.missing, probe.ends_s)
        if before is not None:
            came = probe.hops[before]
            # a record arrives by itself; a result of the whole drive needs all of its records
            whole_s = inf if came.whole_s is None else came.whole_s
            since_s = {item: came.seen.get(item, inf) if item in came.items else whole_s for item in at.missing}
        return sum(now_s - max(one_s, probe.ends_s) > self._lost_after_s for one_s in since_s.values())


def _ancestors(hop: Hop) -> Iterator[Hop]:
    parent = PARENT[hop]
    while parent is not None:
        yield parent
        parent = PARENT[parent]
