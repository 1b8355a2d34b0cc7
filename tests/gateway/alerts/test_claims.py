"""Processes that claim partitions: each has one owner, what is free is taken soon, and they end up with even shares."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from deploy.local import free_port
from gateway.alerts.config import AlertSettings
from gateway.alerts.evaluation import LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.owner import PartitionOwner
from gateway.alerts.sharing import (
    GIVE_WAIT_S,
    REST_S,
    Claims,
    Presence,
    PresenceMessage,
    decode_presence,
)
from tests.examples import examples
from tests.gateway.alerts.scripted_partition import RULES
from tests.waiting import wait_until
from waybill.pulsar.pulsar_positions import EntryPosition
from waybill.settings import validate

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

    def start(self, name: str) -> None:
        draw, presence = random.Random(f"{self.seed} {name}").random, Presence(name, ACME)
        self.processes[name] = one = Process(name, Claims(presence, draw, self.now_s), presence)
        one.claims.add(self.partitions)

    def share(self, name: str) -> None:
        self.owners |= dict.fromkeys(self.partitions, name)
        self.processes[name].held |= {*self.partitions}

    def kill(self, name: str) -> None:
        del self.processes[name]
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != name}

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TURN_S)):
            self.now_s += TURN_S
            for one in self.processes.values():
                self._hear(one)
                self._give(one)
                for partition in one.claims.due(one.held, one.ready, self.now_s):
                    self._try(one, partition)

    def _hear(self, one: Process) -> None:
        for other in self.processes.values():
            ready = frozenset(other.ready) if self.stands_by else None
            said = PresenceMessage(
                instance=other.name, tenants=ACME, acknowledged=dict.fromkeys(other.held), ready=ready
            )
            one.presence.note(said, self.now_s)
        if self.stands_by:
            taken = set(one.claims.taken(one.held, self.now_s))
            for name in sorted(taken):
                if one.presence.is_standby(name, len(one.held), self.now_s):
                    one.followed_s.setdefault(name, self.now_s)
                elif name not in one.ready or one.presence.is_ready_elsewhere(name, self.now_s):
                    one.followed_s.pop(name, None)
            followed = {name for name, since_s in one.followed_s.items() if self.now_s - since_s >= READY_S}
            one.ready = followed - one.held

    def _give(self, one: Process) -> None:
        partition = one.presence.to_give(sorted(one.held), len(one.held), self.now_s)
        if partition is not None:
            one.presence.on_changed(self.now_s)
            one.held.discard(partition)
            del self.owners[partition]
            one.claims.on_given(partition, self.now_s)

    def _try(self, one: Process, partition: str) -> None:
        is_taken = partition in self.owners
        one.claims.on_answer(partition, self.now_s, is_taken=is_taken)
        if not is_taken:
            one.presence.forget_owner(partition)
            one.followed_s.pop(partition, None)
            self.owners[partition] = one.name
            one.held.add(partition)
            one.presence.on_changed(self.now_s)

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


def alert_settings(port: int) -> AlertSettings:
    table = {
        "name": "eu-1",
        "region": "eu",
        "insecure": True,
        "tenants": ["acme"],
        "pulsar": {"service_url": f"pulsar://127.0.0.1:{port}", "operation_timeout_s": 1},
        "fences": {"unsigned": True},
    }
    return validate(AlertSettings, table, "alerts.toml")


@pytest.mark.timeout(60)
def test_a_process_whose_cluster_does_not_answer_from_the_start_says_so_once() -> None:
    owner = PartitionOwner(alert_settings(free_port()), lambda: RULES, LiveEvents, AlertMetrics())
    with capture_logs() as logs:
        owner.start()
        wait_until(lambda: "batches are not known" in owner.problem)
        first = owner.turned_s
        # it looked again
        wait_until(lambda: owner.turned_s > first + 2)
        owner.close()
    assert [one["event"] for one in logs].count("partitions not known") == 1


PROCESS_NAMES = tuple(f"acme/p{number}" for number in range(8))
AT = EntryPosition(3, 9)
TEXTS = st.text(max_size=20)
SAID = st.builds(
    PresenceMessage,
    instance=TEXTS,
    tenants=st.frozensets(TEXTS),
    acknowledged=st.dictionaries(TEXTS, st.none() | st.builds(EntryPosition, st.integers(-1, 9), st.integers(-1, 9))),
    ready=st.none() | st.frozensets(TEXTS),
)


def says(
    name: str, *held: str, ready: frozenset[str] | None = frozenset(), tenants: frozenset[str] = ACME
) -> PresenceMessage:
    acknowledged = dict.fromkeys(held, AT)
    return PresenceMessage(instance=name, tenants=tenants, acknowledged=acknowledged, ready=ready)


def hears(name: str, *others: PresenceMessage) -> Presence:
    one = Presence(name, ACME)
    for said in others:
        one.note(said, 0.0)
    return one


@given(SAID)
def test_what_a_process_says_is_what_the_others_hear(said: PresenceMessage) -> None:
    assert decode_presence(said.model_dump_json().encode()) == said
    assert decode_presence(said.model_dump_json().encode()[:-1]) is None


@given(
    st.lists(st.sampled_from(PROCESS_NAMES), unique=True, max_size=8),
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
)
def test_each_partition_with_an_owner_has_one_standby_that_is_not_its_owner(held: list[str], owner: list[int]) -> None:
    processes = {
        f"n{number}": says(f"n{number}", *(name for name in held if owner[PROCESS_NAMES.index(name)] == number))
        for number in range(5)
    }
    heard = {mine: hears(mine, *(said for other, said in processes.items() if other != mine)) for mine in processes}
    for name in PROCESS_NAMES:
        # what a process holds itself it does not ask for: nobody says of it that another holds it
        standbys = [mine for mine, one in heard.items() if one.is_standby(name, processes[mine].held, 1.0)]
        assert len(standbys) == (name in held)
        assert all(name not in processes[mine].acknowledged for mine in standbys)


def test_what_another_process_is_ready_for_is_given_to_it() -> None:
    one = hears("mine", says("other", ready=frozenset({"acme/p1"})))
    assert one.to_give(["acme/p0", "acme/p1", "acme/p2"], 3, 1.0) == "acme/p1"
    assert one.to_give(["acme/p0", "acme/p1", "acme/p2"], 1, 1.0) is None


def test_one_is_given_only_after_a_while_where_the_other_is_ready_for_none() -> None:
    one = Presence("mine", ACME)
    for second in range(int(GIVE_WAIT_S)):
        one.note(says("other"), second)
        assert one.to_give(["acme/p0", "acme/p1"], 2, second) is None
    one.note(says("other"), GIVE_WAIT_S)
    assert one.to_give(["acme/p0", "acme/p1"], 2, GIVE_WAIT_S) == "acme/p1"


def test_who_reads_none_of_our_tenants_is_passed_over_and_none_is_given_to_whom_may_not_read_it() -> None:
    ours, theirs = (f"persistent://{tenant}/telemetry-eu/batches-partition-0" for tenant in ("acme", "beta"))
    one = Presence("mine", ["acme", "beta"])
    one.note(says("stranger", ready=None, tenants=frozenset(["zeta"])), 0.5)
    assert one.others(1.0) == []
    one.note(says("poor", ready=None), 0.5)
    assert len(one.others(1.0)) == 1
    assert one.to_give([theirs], 5, 1.0) is None
    assert one.to_give([ours, theirs], 5, 1.0) == ours
    assert one.owed([ours, theirs], 1, (), 1.0) == {theirs}
    one.note(says("poor"), 0.5)
    one.note(says("owner", ours, theirs), 0.5)
    assert not one.is_standby(ours, 1, 1.0), "the other one holds less"
    assert one.is_standby(theirs, 1, 1.0), "the other one may not read it"
