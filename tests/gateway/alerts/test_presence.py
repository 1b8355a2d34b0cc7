"""What alert processes hear of each other: who stands by for what, and which partition is given to whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.sharing import (
    GIVE_WAIT_S,
    Presence,
    PresenceMessage,
    decode_presence,
)
from waybill.pulsar.pulsar_positions import EntryPosition

ACME = frozenset(["acme"])
NAMES = tuple(f"acme/p{number}" for number in range(8))
AT = EntryPosition(3, 9)
TEXTS = st.text(max_size=20)
SAID = st.builds(
    PresenceMessage,
    instance=TEXTS,
    held=st.integers(0, 512),
    tenants=st.frozensets(TEXTS),
    acknowledged=st.dictionaries(TEXTS, st.none() | st.builds(EntryPosition, st.integers(-1, 9), st.integers(-1, 9))),
    ready=st.none() | st.frozensets(TEXTS),
)


def says(
    name: str, *held: str, ready: frozenset[str] | None = frozenset(), tenants: frozenset[str] = ACME
) -> PresenceMessage:
    acknowledged = dict.fromkeys(held, AT)
    return PresenceMessage(instance=name, held=len(held), tenants=tenants, acknowledged=acknowledged, ready=ready)


def hears(name: str, *others: PresenceMessage) -> Presence:
    one = Presence(name, ACME)
    for said in others:
        one.note(said, 0.0)
    return one


@given(SAID)
def test_what_a_process_says_is_what_the_others_hear(said: PresenceMessage) -> None:
    assert decode_presence(said.model_dump_json().encode()) == said
    assert decode_presence(said.model_dump_json().encode()[:-1]) is None


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=8), st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_each_partition_with_an_owner_has_one_standby_that_is_not_its_owner(held: list[str], owner: list[int]) -> None:
    processes = {
        f"n{number}": says(f"n{number}", *(name for name in held if owner[NAMES.index(name)] == number))
        for number in range(5)
    }
    heard = {mine: hears(mine, *(said for other, said in processes.items() if other != mine)) for mine in processes}
    for name in NAMES:
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
    assert one.others(1.0) == [0]
    assert one.to_give([theirs], 5, 1.0) is None
    assert one.to_give([ours, theirs], 5, 1.0) == ours
    assert not one.comes_first(1, 1.0, ours)
    assert one.comes_first(1, 1.0, theirs)
    one.note(says("poor"), 0.5)
    one.note(says("owner", ours, theirs), 0.5)
    assert not one.is_standby(ours, 1, 1.0), "the other one holds less"
    assert one.is_standby(theirs, 1, 1.0), "the other one may not read it"
