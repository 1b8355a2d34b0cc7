"""What was sent, what has shown where, and what that says of each hop. Pure: the time is handed in.

A *probe* is one scripted drive. At each hop it has *items* that are known beforehand: its records, its events, its
quantity, its amount. A hop has `limit_s` from the moment at which all items of the probe were at the hop before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final

from deploy.canary.hops import PARENT, Hop, ProbeItem
from deploy.canary.probe_at_hop import HopColour, HopCounts, HopState, Probe, ProbeAtHop

__all__ = ["NOT_WATCHED", "CanaryLedger"]

NOT_WATCHED: Final = "not watched"
"""Of a hop that the settings leave out nothing is known, and nothing is asked."""
RECENT: Final = 3
"""So many probes that were due have to be whole before a hop is green: where every second one is lost, it never is."""
_NOBODY: Mapping[Hop, str] = {}


class CanaryLedger:
    """The newest `most` probes of one vehicle.

    `limits_s`: how long each hop that is watched may take. What did not come `lost_after_s` after it was sent is
    counted as lost; it may still come, and is delayed then. A hop of which the newest probe was sent longer than
    `stale_after_s` ago is not green.
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
            counts = self._counts(probe, hop, now_s)
            news, at.taken = news + counts.growth(at.taken), at.taken.highest(counts)
        return news

    def _at(self, number: int, hop: Hop) -> ProbeAtHop | None:
        probe = self._probes.get(number)
        return None if probe is None else probe.hops.get(hop)

    def _probes_at(self, hop: Hop) -> Iterator[tuple[Probe, ProbeAtHop]]:
        return ((probe, probe.hops[hop]) for probe in self._probes.values() if hop in probe.hops)

    def _state(self, hop: Hop, now_s: float, blind: str) -> HopState:
        if hop not in self._limits_s:
            return HopState(hop, HopColour.UNKNOWN, NOT_WATCHED)
        newest, due = None, 0
        for at, state, due_s in self._known(hop, now_s, blind):
            # the newest probe of which anything can be said
            newest = newest or state
            if newest.colour is not HopColour.GREEN or due == RECENT:
                break
            due += due_s < now_s
            # one that came late is over when the next one does not; one that never came is not
            if at.missing and state.colour is HopColour.RED:
                return state
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
            return HopState(hop, HopColour.RED, f"probe {probe.number}: {at.fault}")
        due_s = self._due_s(probe, hop)
        # what came past the hop before is whole here once it is there
        if at.whole_s is not None and due_s is not None:
            return self._state_of_whole(probe, hop, at.whole_s, due_s, now_s)
        if due_s is not None and now_s > due_s:
            missing = f"{len(at.missing)} of {at.count} of probe {probe.number}"
            why = f"; it cannot be looked at: {blind}" if blind else ""
            return HopState(hop, HopColour.RED, f"{missing} are missing since {now_s - due_s:.0f} s{why}")
        if due_s is None and (before := self._overdue_before(probe, hop, now_s)) is not None:
            return HopState(hop, HopColour.UNKNOWN, f"nothing comes through {before}")
        return None

    def _state_of_whole(self, probe: Probe, hop: Hop, whole_s: float, due_s: float, now_s: float) -> HopState:
        """What a probe says that came whole, once and right."""
        if whole_s > due_s:
            return HopState(hop, HopColour.RED, f"probe {probe.number} came {whole_s - due_s:.0f} s too late")
        # what was green an hour ago says nothing of now
        silent_s = now_s - next(reversed(self._probes.values())).ends_s
        if silent_s > self._stale_after_s:
            return HopState(hop, HopColour.UNKNOWN, f"no probe was sent for {silent_s:.0f} s")
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
        parent = PARENT[hop]
        if not self._probes:
            return "no probe was sent yet"
        return "nothing is due yet" if parent is None else f"nothing has come through {parent}"

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
        # a probe is late as a whole: half of a drive is of no use
        late = at.whole_s is not None and at.whole_s > self._latest_s(probe, hop)
        lost = len(at.missing) if now_s - probe.ends_s > self._lost_after_s else 0
        seen = len(at.seen)
        wrong = at.count if at.wrong else 0
        return HopCounts(seen, seen if late else 0, lost, at.doubled, wrong, at.repeated)


def _line(hop: Hop, before: Hop | None) -> Iterator[Hop]:
    """A hop and those before it, as far as one that is not among them; None: all."""
    one: Hop | None = hop
    while one is not None and one is not before:
        yield one
        one = PARENT[one]
