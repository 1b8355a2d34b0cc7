"""Processes that claim partitions: each has one owner, what is free is taken soon, and they end up with even shares."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.alerts.claims import RETRY_S, Claims, ClaimState
from gateway.alerts.presence import Presence, decode_presence, encode_presence

TURN_S = 0.1
TAKEN_OVER_S = 4.5
"""And half a second for the state."""
NAMES = tuple(f"p{number}" for number in range(12))


@dataclass
class Process:
    """As the owner of partitions goes about it, on a clock and a broker that are ours."""

    name: str
    claims: Claims
    presence: Presence
    held: set[str] = field(default_factory=set)


@dataclass
class Region:
    """The exclusive subscriptions of a region, and the processes that are there."""

    partitions: tuple[str, ...]
    seed: int
    now_s: float = 0.0
    owners: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str) -> None:
        draw = random.Random(f"{self.seed} {name}").random
        self.processes[name] = one = Process(name, Claims(draw), Presence(name))
        one.claims.add(self.partitions, self.now_s)

    def kill(self, name: str) -> None:
        del self.processes[name]
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != name}

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TURN_S)):
            self.now_s += TURN_S
            for one in self.processes.values():
                self._hear(one)
                self._give(one)
                self._claim(one)

    def _hear(self, one: Process) -> None:
        for other in self.processes.values():
            one.presence.note(other.name, len(other.held), self.now_s)

    def _give(self, one: Process) -> None:
        if one.presence.is_to_give(len(one.held), self.now_s):
            one.presence.on_changed(self.now_s)
            partition = min(one.held)
            one.held.discard(partition)
            del self.owners[partition]
            one.claims.on_given(partition, self.now_s)

    def _claim(self, one: Process) -> None:
        partition = one.claims.due(self.now_s)
        if partition is None:
            return
        if partition in self.owners:
            yields = not one.presence.comes_first(len(one.held), self.now_s)
            one.claims.on_taken(partition, self.now_s, yields=yields)
        else:
            self.owners[partition] = one.name
            one.held.add(partition)
            yields = not one.presence.comes_first(len(one.held), self.now_s)
            one.claims.on_held(partition, self.now_s, yields=yields)
            one.presence.on_changed(self.now_s)
        assert one.claims.of_state(ClaimState.HELD) == sorted(one.held)

    def lost_after(self, seconds: float) -> set[str]:
        """The partitions without an owner that nobody takes within so long. They may be given on then."""
        lost = set(self.partitions) - set(self.owners)
        for _ in range(round(seconds / TURN_S)):
            self.run(TURN_S)
            lost -= set(self.owners)
        return lost

    @property
    def shares(self) -> list[int]:
        return sorted(len(one.held) for one in self.processes.values())


@settings(max_examples=200, phases=[Phase.explicit, Phase.generate])
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000), st.data())
def test_whoever_comes_and_goes_every_partition_has_an_owner_soon_and_shares_differ_by_one_at_most(
    partitions: int, count: int, seed: int, data: st.DataObject
) -> None:
    region = Region(NAMES[:partitions], seed)
    for number in range(count):
        region.start(f"n{number}")
        region.run(data.draw(st.sampled_from([0.0, 0.3, 5.0])))
    region.run(50)
    assert set(region.owners) == set(region.partitions)
    assert region.shares[-1] - region.shares[0] <= 1
    if count > 1:
        killed = data.draw(st.sampled_from(sorted(region.processes)))
        region.kill(killed)
        # Nobody may think any more that the dead one, which held fewer, comes first.
        assert region.lost_after(TAKEN_OVER_S) == set()
        region.run(40)
        assert set(region.owners) == set(region.partitions)
        assert region.shares[-1] - region.shares[0] <= 1


def test_shares_that_are_even_stay_with_whoever_has_them() -> None:
    region = Region(NAMES[:8], 1)
    for number in range(3):
        region.start(f"n{number}")
    region.run(60)
    before = dict(region.owners)
    region.run(600)
    assert region.owners == before


def test_a_partition_that_cannot_be_tried_is_tried_again() -> None:
    claims = Claims(lambda: 0.0)
    claims.add(["p"], 0.0)
    assert claims.due(0.0) == "p"
    claims.on_failed("p", 0.0)
    assert claims.due(RETRY_S - 0.01) is None
    assert claims.due(RETRY_S) == "p"
    assert claims.of_state(ClaimState.UNKNOWN) == ["p"]


def test_one_that_has_said_nothing_for_a_while_is_not_there() -> None:
    known = Presence("mine")
    known.note("mine", 5, 0.0)
    known.note("other", 0, 0.0)
    assert (known.others(1.0), known.others(10.0)) == ([0], [])


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b'{"instance": 1, "held": 2}', b'{"instance": "a"}']))
def test_what_is_no_message_of_a_process_is_none(data: bytes) -> None:
    assert decode_presence(data) is None
    assert decode_presence(encode_presence("a", 3)) == ("a", 3)
