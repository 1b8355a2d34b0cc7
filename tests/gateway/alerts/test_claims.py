"""Processes that claim partitions: each has one owner, what is free is taken soon, and they end up with even shares."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.alerts.owner import MAX_PARTITIONS
from gateway.alerts.sharing import (
    MAX_TRIES,
    REST_S,
    Claims,
    ClaimState,
    Presence,
    PresenceMessage,
)
from tests.examples import examples

TURN_S = 0.1
TAKEN_OVER_S = 4.5
"""And half a second for the state."""
READY_S = 8.0
"""So long one reads before it could go on."""
ACME = frozenset(["acme"])
NAMES = tuple(f"acme/p{number}" for number in range(12))


@dataclass
class Process:
    """As the owner of partitions goes about it, on a clock and a broker that are ours."""

    name: str
    claims: Claims
    presence: Presence
    held: set[str] = field(default_factory=set)
    followed_s: dict[str, float] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)


@dataclass
class Region:
    """The exclusive subscriptions of a region, and the processes that are there."""

    partitions: tuple[str, ...]
    seed: int
    stands_by: bool = False
    now_s: float = 0.0
    owners: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    tried: int = 0

    def start(self, name: str) -> None:
        draw = random.Random(f"{self.seed} {name}").random
        self.processes[name] = one = Process(name, Claims(draw), Presence(name, ACME))
        one.claims.add(self.partitions, self.now_s)

    def share(self, *names: str) -> None:
        """The partitions are shared evenly, as after a long time."""
        for number, partition in enumerate(self.partitions):
            owner = self.processes[names[number % len(names)]]
            self.owners[partition] = owner.name
            owner.held.add(partition)
            for one in self.processes.values():
                if one is owner:
                    one.claims.on_held(partition, self.now_s)
                else:
                    one.claims.on_taken(partition, self.now_s)

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
            ready = frozenset(other.ready) if self.stands_by else None
            said = PresenceMessage(
                instance=other.name,
                held=len(other.held),
                tenants=ACME,
                acknowledged=dict.fromkeys(other.held),
                ready=ready,
            )
            one.presence.note(said, self.now_s)
        if self.stands_by:
            taken = set(one.claims.of_state(ClaimState.TAKEN))
            for name in sorted(taken):
                if one.presence.is_standby(name, len(one.held), self.now_s):
                    one.followed_s.setdefault(name, self.now_s)
                elif name not in one.ready or one.presence.is_ready_elsewhere(name, self.now_s):
                    one.followed_s.pop(name, None)
            one.ready = {name for name in taken if self.now_s - one.followed_s.get(name, self.now_s) >= READY_S}

    def _give(self, one: Process) -> None:
        partition = one.presence.to_give(sorted(one.held), len(one.held), self.now_s)
        if partition is not None:
            one.presence.on_changed(self.now_s)
            one.held.discard(partition)
            del self.owners[partition]
            one.claims.on_given(partition, self.now_s)

    def _claim(self, one: Process) -> None:
        def yields(partition: str) -> bool:
            return not one.presence.comes_first(len(one.held), self.now_s, partition)

        one.claims.probe(one.presence.held_by_others(self.now_s), one.ready, self.now_s, yields)
        for partition in one.claims.due(self.now_s):
            self.tried += 1
            self._try(one, partition)
        assert one.claims.of_state(ClaimState.HELD) == sorted(one.held)

    def _try(self, one: Process, partition: str) -> None:
        is_ready = partition in one.ready
        if partition in self.owners:
            yields = not is_ready and not one.presence.comes_first(len(one.held), self.now_s, partition)
            one.claims.on_taken(partition, self.now_s, yields=yields)
            return
        yields = not one.presence.comes_first(len(one.held) + 1, self.now_s, partition)
        one.claims.hasten(one.presence.held_with(partition), self.now_s, yields=yields and not is_ready)
        if self._leaves(one, partition):
            one.claims.on_left(partition, self.now_s)
        else:
            one.followed_s.pop(partition, None)
            self.owners[partition] = one.name
            one.held.add(partition)
            one.claims.on_held(partition, self.now_s, yields=yields, is_ours=is_ready)
            one.presence.on_changed(self.now_s)

    def _leaves(self, one: Process, partition: str) -> bool:
        others = partition not in one.ready and one.presence.is_ready_elsewhere(partition, self.now_s)
        return others and one.claims.may_leave(partition, self.now_s)

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


@settings(max_examples=examples(80), phases=[Phase.explicit, Phase.generate])
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000), st.booleans(), st.data())
def test_whoever_comes_and_goes_every_partition_has_an_owner_soon_and_shares_differ_by_one_at_most(
    partitions: int, count: int, seed: int, stands_by: bool, data: st.DataObject
) -> None:
    region = Region(NAMES[:partitions], seed, stands_by)
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


@settings(max_examples=examples(25), phases=[Phase.explicit, Phase.generate])
@given(st.integers(2, 5), st.integers(0, 10_000))
def test_the_partitions_of_one_that_is_killed_go_to_those_that_have_their_state(count: int, seed: int) -> None:
    region = Region(NAMES[:6], seed, stands_by=True)
    for number in range(count):
        region.start(f"n{number}")
    region.run(50)
    lost = {name for name, owner in region.owners.items() if owner == "n0"}
    region.kill("n0")
    for _ in range(round(TAKEN_OVER_S / TURN_S)):
        free = lost - set(region.owners)
        ready = {name: set(one.ready) for name, one in region.processes.items()}
        region.run(TURN_S)
        taken = {name: region.owners[name] for name in free & set(region.owners)}
        assert all(name in ready[owner] for name, owner in taken.items())
    assert lost <= set(region.owners)


@pytest.mark.parametrize(
    ("partitions", "count", "stands_by"),
    [
        *((13, count, stands_by) for count in (2, 3, 4) for stands_by in (False, True)),
        (64, 2, False),
        (64, 4, True),
        (200, 3, False),
        (MAX_PARTITIONS, 2, False),
        (MAX_PARTITIONS, 2, True),
    ],
)
def test_one_that_is_killed_is_replaced_as_soon_however_many_partitions_there_are(
    partitions: int, count: int, stands_by: bool
) -> None:
    region = Region(tuple(f"acme/p{number}" for number in range(partitions)), 1, stands_by)
    names = [f"n{number}" for number in range(count)]
    for name in names:
        region.start(name)
    region.share(*names)
    region.run(READY_S + 5)
    assert set(region.owners) == set(region.partitions)
    before = region.tried
    region.run(10)
    # what a cluster is asked meanwhile: each costs it an answer
    assert region.tried - before <= 10 * count * MAX_TRIES * 1.5
    region.kill(names[0])
    assert region.lost_after(TAKEN_OVER_S) == set()


def test_what_is_given_of_many_partitions_is_found_before_who_gave_it_takes_it_back() -> None:
    region = Region(tuple(f"acme/p{number}" for number in range(100)), 1)
    for name in ("n0", "n1"):
        region.start(name)
    region.share("n0")
    region.run(2 + 12 * (REST_S + 1))
    assert 8 <= region.shares[0] <= 20


def test_shares_that_are_even_stay_with_whoever_has_them() -> None:
    region = Region(NAMES[:8], 1)
    for number in range(3):
        region.start(f"n{number}")
    region.run(60)
    before = dict(region.owners)
    region.run(600)
    assert region.owners == before
