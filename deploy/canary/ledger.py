"""What was sent, what has shown where, and what that says of each hop. Pure: the time is handed in.

A *probe* is one scripted drive. At each hop it has *items* that are known beforehand: its records, its events, its
quantity, its amount. A hop has `limit_s` from the moment at which all items of the probe were at the hop before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from deploy.canary.config import PARENT, Hop, ProbeItem

# One probe, its results at a hop, and their text.


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


RECENT: Final = 3
"""So many probes that were due have to be whole before a hop is green: where every second one is lost, it never is."""
_NOBODY: Mapping[Hop, str] = {}


class _Reached(NamedTuple):
    """Of the items that are missing at a hop."""

    lost: int
    not_reached: int


class _OwnFault(NamedTuple):
    """What is wrong and what is twice at a hop by its own fault; the first hop before it that was faulty already."""

    wrong: str
    doubled: int
    faulty_before: Hop | None

    @property
    def fault(self) -> str:
        """In words; "": nothing."""
        return self.wrong or (f"{self.doubled} are there twice" if self.doubled else "")


class CanaryLedger:
    """The newest `most` probes of one vehicle.

    `limits_s`: how long each hop that is watched may take. What did not come `lost_after_s` after it was at the hop
    before (at the first one: after it was sent) is counted as lost; it may still come, and is delayed then. A hop of
    which the newest probe was sent longer than `stale_after_s` ago is not green.
    """

    def __init__(
        self, limits_s: Mapping[Hop, float], lost_after_s: float, stale_after_s: float, most: int = 1_000
    ) -> None:
        self._limits_s, self._lost_after_s, self._stale_after_s = dict(limits_s), lost_after_s, stale_after_s
        self._most = most
        self._probes: OrderedDict[int, Probe] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probes)

    def __contains__(self, number: int) -> bool:
        return number in self._probes

    @property
    def numbers(self) -> list[int]:
        """The probes that are kept, oldest first."""
        return [*self._probes]

    def limit_s(self, hop: Hop) -> float | None:
        """How long a hop may take; None: it is not watched."""
        return self._limits_s.get(hop)

    def sent_since(self, since_s: float) -> int:
        """How many of the probes that are kept began since a moment."""
        return sum(probe.begins_s >= since_s for probe in self._probes.values())

    def send(self, number: int, items: Mapping[Hop, Iterable[ProbeItem]], begins_s: float, ends_s: float) -> None:
        """A probe is sent, from one moment to another; its items at each hop that is watched."""
        assert number not in self._probes, "a probe is sent once"
        at = {hop: ProbeAtHop(of_hop) for hop, of_hop in items.items() if hop in self._limits_s}
        self._probes[number] = Probe(number, begins_s, ends_s, at)
        # a canary runs for years
        while len(self._probes) > self._most:
            self._probes.popitem(last=False)

    def drop(self, number: int) -> None:
        """A probe was not sent as a whole: nothing is known of it."""
        self._probes.pop(number, None)

    def see(self, number: int, hop: Hop, items: Iterable[ProbeItem], now_s: float) -> list[float]:
        """Items of a probe have shown at a hop; the latencies (s, from their device time) of those that are new.

        Of a probe that is not kept, and of items that are not its own, nothing is noted.
        """
        at = self._at(number, hop)
        return [] if at is None else [now_s - item.t_ms / 1000 for item in items if at.try_see(item, now_s)]

    def note_doubles(self, number: int, hop: Hop, count: int) -> None:
        """So many more items of a probe are there a second time."""
        if (at := self._at(number, hop)) is not None:
            at.doubled += count

    def note_repeats(self, number: int, hop: Hop, count: int) -> None:
        """So many messages came again, as they may."""
        if (at := self._at(number, hop)) is not None:
            at.repeated += count

    def judge(self, number: int, hop: Hop, why: str) -> None:
        """What shows of a probe at a hop is not what it should be; "": it is right after all."""
        if (at := self._at(number, hop)) is not None:
            at.wrong = why

    def cannot_know(self, number: int, hop: Hop, why: str) -> None:
        """Nobody can say what a probe should show at a hop."""
        if (at := self._at(number, hop)) is not None:
            at.unknown = why

    def is_short(self, number: int, hop: Hop) -> bool:
        """Whether something of a probe that has to show at a hop has not, or is wrong there."""
        at = self._at(number, hop)
        return at is not None and not at.unknown and bool(at.missing or at.wrong)

    def waiting(self, hop: Hop) -> list[int]:
        """The probes of which something is still to show at a hop, or is wrong there, oldest first."""
        return [probe.number for probe, at in self._probes_at(hop) if at.missing or at.wrong]

    def states(self, now_s: float, blind: Mapping[Hop, str] = _NOBODY) -> list[HopState]:
        """What can be said of each hop now. `blind`: the hops that cannot be looked at, and why."""
        return [self._state(hop, now_s, blind.get(hop, "")) for hop in Hop]

    def counts(self, hop: Hop, since_s: float, until_s: float, now_s: float) -> HopCounts:
        """What became of the items of the probes that began in a span of device time."""
        # by device time: what was late counts in the minute in which it was made
        within = (one for one in self._probes_at(hop) if since_s <= one[0].begins_s < until_s)
        return sum((self._counts(probe, hop, now_s) for probe, _ in within), HopCounts())

    def latencies(self, hop: Hop, since_s: float) -> list[float]:
        """From device time to the hop, of the items of the probes that began since a moment, ascending."""
        seen = (at.seen for probe, at in self._probes_at(hop) if probe.begins_s >= since_s)
        return sorted(at_s - item.t_ms / 1000 for of_probe in seen for item, at_s in of_probe.items())

    def take_news(self, hop: Hop, now_s: float) -> HopCounts:
        """What is to be added to totals since the last call: of each count what it has grown by."""
        news = HopCounts()
        for probe, at in self._probes_at(hop):
            # nearly always: a canary that is up for hours asks this of a thousand probes, once a second
            if (counts := self._counts(probe, hop, now_s)) == at.taken:
                continue
            news, at.taken = news + counts.growth(at.taken), at.taken.highest(counts)
        return news

    def _at(self, number: int, hop: Hop) -> ProbeAtHop | None:
        probe = self._probes.get(number)
        return None if probe is None else probe.hops.get(hop)

    def _probes_at(self, hop: Hop) -> Iterator[tuple[Probe, ProbeAtHop]]:
        return ((probe, probe.hops[hop]) for probe in self._probes.values() if hop in probe.hops)

    def _state(self, hop: Hop, now_s: float, blind: str) -> HopState:
        if hop not in self._limits_s:
            return HopState(hop, HopColour.NOT_WATCHED)
        newest, due, is_green = None, 0, False
        for at, state, due_s in self._known(hop, now_s, blind):
            # the newest probe of which anything can be said
            newest = newest or state
            # of whom nobody can say what should be there, nobody can say that it came
            if at.unknown:
                continue
            if due == RECENT:
                break
            # one that came late is over when the next one does not; one that never came is not
            if at.missing and state.colour is HopColour.RED:
                return state
            is_green |= state.colour is HopColour.GREEN
            if not is_green:
                break
            due += due_s < now_s
        return newest or HopState(hop, HopColour.UNKNOWN, self._why_unknown(hop))

    def _known(self, hop: Hop, now_s: float, blind: str) -> Iterator[tuple[ProbeAtHop, HopState, float]]:
        """What each probe says of a hop that says anything yet, and until when it had to be there, newest first."""
        for probe, at in reversed([*self._probes_at(hop)]):
            if (state := self._state_by(probe, at, hop, now_s, blind)) is not None:
                due_s = self._due_s(probe, hop)
                yield at, state, inf if due_s is None else due_s

    def _state_by(self, probe: Probe, at: ProbeAtHop, hop: Hop, now_s: float, blind: str) -> HopState | None:
        """What one probe says of a hop; None: nothing yet."""
        if at.unknown:
            return HopState(hop, HopColour.UNKNOWN, at.unknown)
        if at.fault:
            return self._state_of_faulty(probe, hop)
        due_s = self._due_s(probe, hop)
        # what came past the hop before is whole here once it is there
        if at.whole_s is not None and due_s is not None:
            return self._state_of_whole(probe, hop, at.whole_s, due_s, now_s)
        if due_s is not None and now_s > due_s:
            overdue = f"{len(at.missing)} of {at.count} items of probe {probe.number} are overdue"
            why = f"; it cannot be looked at: {blind}" if blind else ""
            return HopState(hop, HopColour.RED, f"{overdue} for {now_s - due_s:.0f} s{why}")
        if due_s is None and (before := self._overdue_before(probe, hop, now_s)) is not None:
            return HopState(hop, HopColour.UNKNOWN, f"probe {probe.number} is overdue at {before}")
        return None

    def _state_of_faulty(self, probe: Probe, hop: Hop) -> HopState:
        """What a probe says of which something is there twice or wrong."""
        own = self._own(probe, hop)
        if own.fault:
            return HopState(hop, HopColour.RED, f"probe {probe.number}: {own.fault}")
        return HopState(hop, HopColour.UNKNOWN, f"what comes through {own.faulty_before} is not right")

    def _state_of_whole(self, probe: Probe, hop: Hop, whole_s: float, due_s: float, now_s: float) -> HopState:
        """What a probe says that came whole, once and right."""
        if whole_s > due_s:
            return HopState(hop, HopColour.RED, f"probe {probe.number} came {whole_s - due_s:.0f} s too late")
        # what was green an hour ago says nothing of now
        newest = next(reversed(self._probes.values()))
        silent_s, ahead_s = now_s - newest.ends_s, newest.begins_s - now_s
        if silent_s > self._stale_after_s:
            return HopState(hop, HopColour.UNKNOWN, f"no probe was sent for {silent_s:.0f} s")
        if ahead_s > self._stale_after_s:
            why = f"the clock was set back: the newest probe is {ahead_s:.0f} s ahead of it"
            return HopState(hop, HopColour.UNKNOWN, why)
        return HopState(hop, HopColour.GREEN)

    def _overdue_before(self, probe: Probe, hop: Hop, now_s: float) -> Hop | None:
        """The hop before, or one before that, at which a probe is overdue."""
        before = self._before(probe, hop)
        # the nearest one that is overdue is the one to look at
        while before is not None:
            due_s = self._due_s(probe, before)
            if due_s is not None and probe.hops[before].whole_s is None and now_s > due_s:
                return before
            before = self._before(probe, before)
        return None

    def _why_unknown(self, hop: Hop) -> str:
        if not self._probes:
            return "no probe was sent yet"
        parent = PARENT[hop]
        # one that nobody watches lets through what comes before it
        while parent is not None and parent not in self._limits_s:
            parent = PARENT[parent]
        is_through = parent is None or any(at.whole_s is not None for _, at in self._probes_at(parent))
        return "nothing is due yet" if is_through else f"no probe has come whole through {parent} yet"

    def _before(self, probe: Probe, hop: Hop) -> Hop | None:
        """The nearest hop before that says something of a probe."""
        parent = PARENT[hop]
        while parent is not None and (parent not in probe.hops or probe.hops[parent].unknown):
            parent = PARENT[parent]
        return parent

    def _due_s(self, probe: Probe, hop: Hop) -> float | None:
        """Until when a probe has to be whole at a hop; None while it is not whole at the one before.

        A hop before of which nothing is known has its time all the same.
        """
        before, begin_s = self._before(probe, hop), probe.ends_s
        if before is not None:
            whole_s = probe.hops[before].whole_s
            if whole_s is None:
                return None
            begin_s = max(whole_s, begin_s)
        return begin_s + sum(self._limits_s.get(one, 0.0) for one in _line(hop, before))

    def _latest_s(self, probe: Probe, hop: Hop) -> float:
        """Until when a probe has to be whole at a hop, by the nearest hop before it at which it is whole."""
        before = PARENT[hop]
        while before is not None and (before not in probe.hops or probe.hops[before].whole_s is None):
            before = PARENT[before]
        whole_s = None if before is None else probe.hops[before].whole_s
        begin_s = probe.ends_s if whole_s is None else max(whole_s, probe.ends_s)
        return begin_s + sum(self._limits_s.get(one, 0.0) for one in _line(hop, before))

    def _counts(self, probe: Probe, hop: Hop, now_s: float) -> HopCounts:
        at = probe.hops[hop]
        if at.unknown:
            return HopCounts()
        # what is whole and right within the limit of this hop alone is in time, wherever it came from
        if at.whole_s is not None and not at.fault and at.whole_s <= probe.ends_s + self._limits_s[hop]:
            return HopCounts(consumed=at.count, repeated=at.repeated)
        # a probe is late as a whole: half of a drive is of no use
        late = at.whole_s is not None and at.whole_s > self._latest_s(probe, hop)
        reached = self._reached(probe, hop, now_s)
        own, seen = self._own(probe, hop), len(at.seen)
        return HopCounts(
            consumed=seen,
            delayed=seen if late else 0,
            lost=reached.lost,
            doubled=own.doubled,
            wrong=at.count if own.wrong else 0,
            repeated=at.repeated,
            not_reached=reached.not_reached,
        )

    def _reached(self, probe: Probe, hop: Hop, now_s: float) -> _Reached:
        """How many of the missing items are lost here, and how many never came to the hop before."""
        at, before = probe.hops[hop], self._before(probe, hop)
        if before is None:
            is_over = now_s - probe.ends_s > self._lost_after_s
            return _Reached(len(at.missing) if is_over else 0, 0)
        came = probe.hops[before]
        # a record comes by itself; what follows from a whole drive needs all of it
        came_s = {item: came.whole_s if item not in came.items else came.seen.get(item) for item in at.missing}
        lost = sum(
            one_s is not None and now_s - max(one_s, probe.ends_s) > self._lost_after_s for one_s in came_s.values()
        )
        is_over = now_s - probe.ends_s > self._lost_after_s
        return _Reached(lost, sum(one_s is None for one_s in came_s.values()) if is_over else 0)

    def _own(self, probe: Probe, hop: Hop) -> _OwnFault:
        """What is wrong at a hop that was not at one before: a fault stays in what follows from it."""
        at, faulty, doubled_before = probe.hops[hop], None, 0
        before = self._before(probe, hop)
        while before is not None:
            other = probe.hops[before]
            faulty = before if other.fault else faulty
            doubled_before = max(doubled_before, other.doubled)
            before = self._before(probe, before)
        # what was twice already is no double of this hop; only what has been added is
        return _OwnFault("" if faulty else at.wrong, max(0, at.doubled - doubled_before), faulty)


def _line(hop: Hop, before: Hop | None) -> Iterator[Hop]:
    """A hop and those before it, as far as one that is not among them; None: all."""
    one: Hop | None = hop
    while one is not None and one is not before:
        yield one
        one = PARENT[one]
