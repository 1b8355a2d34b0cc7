"""A standby that takes over says what one says that reads all again: nothing is missed, and nothing comes of before."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.alerts.owner import TURN_S, StandbyPartitions
from gateway.alerts.partition_evaluation import MAX_MESSAGES
from gateway.alerts.sharing import Presence, PresenceMessage
from gateway.alerts.standby import MAX_BEHIND_S, PAUSE_S, PartitionStandby
from tests.examples import examples
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix, cut, drives
from tests.gateway.alerts.scripted_partition import (
    NAME,
    ScriptedMessage,
    ScriptedTopic,
    messages_of,
    partition_state,
    served,
    standby_of,
)
from tests.waiting import wait_until
from waybill.pulsar.pulsar_positions import EntryPosition


def interleaved(one: Sequence[Sequence[LiveFix]], other: Sequence[Sequence[LiveFix]]) -> list[Sequence[LiveFix]]:
    """The batches of two devices as they come, each device's in its order."""
    marked = [(part[0].t_ms, number, part) for number, parts in enumerate((one, other)) for part in parts]
    return [part for *_, part in sorted(marked, key=lambda each: each[:2])]


@st.composite
def topics(draw: st.DrawFn) -> ScriptedTopic:
    """What two devices send while they drive, in batches of a few fixes."""
    sizes = st.lists(st.integers(1, 4), max_size=20)
    ways = [cut(draw(drives(device, most=30)), draw(sizes)) for device in ("bus-1", "bus-2")]
    return ScriptedTopic(messages_of(interleaved(*ways)))


def straight(batches: int = 12, publish_ms: int = NOON) -> ScriptedTopic:
    fixes = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, -0.002 + 0.0004 * at) for at in range(2 * batches)]
    return ScriptedTopic(messages_of(cut(fixes, [2] * (batches - 1)), publish_ms))


@given(topics(), st.data())
@settings(deadline=None, max_examples=examples(40))
def test_a_standby_that_takes_over_says_what_one_says_that_reads_all_again(
    topic: ScriptedTopic, data: st.DataObject
) -> None:
    count = len(topic.messages)
    looked = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
    # also one before what the standby took, as after a crash of the broker
    first = data.draw(st.integers(0, count - 1))
    silences = data.draw(st.integers(0, 2))
    anew = served(topic, first, silences=silences)
    again = served(topic, first, standby_of(topic, looked).made, silences=silences)
    assert again.said == anew.said
    assert again.consumer.acknowledged[-1] is anew.consumer.acknowledged[-1] is topic.messages[-1]


def test_the_one_that_takes_over_reads_only_what_the_standby_had_not_yet() -> None:
    topic = straight()
    made = standby_of(topic, [3, 8]).made
    assert made is not None
    assert made.position.entry == 7, "it stays before the entry that the owner named"
    topic.read = 0
    again = served(topic, 10, made)
    # two that the owner acknowledged after that, and a look at the first that it had not
    assert topic.read <= 3
    assert again.said == served(topic, 10).said != []


def test_a_state_that_is_already_behind_what_is_left_is_made_anew() -> None:
    topic = straight()
    made = standby_of(topic, [11]).made
    topic.read = 0
    again = served(topic, 2, made)
    assert topic.read >= 2
    assert again.said == served(topic, 2).said != []


def test_it_is_ready_once_it_has_all_that_is_acknowledged_and_not_before() -> None:
    topic = ScriptedTopic([ScriptedMessage(at, -1, b"", NOON) for at in range(MAX_MESSAGES + 2)])
    one = standby_of(topic, [])
    one._acknowledged = lambda: EntryPosition(7, MAX_MESSAGES + 1)
    reader = topic.create_reader(NAME, None)
    one.turn(reader)
    assert not one.is_ready
    assert one.made is not None
    assert one.made.position.entry == MAX_MESSAGES - 1
    assert one.turn(reader) == PAUSE_S
    assert one.is_ready


def test_one_that_falls_behind_its_owner_is_not_ready_until_it_has_all_again() -> None:
    count = 2 * MAX_MESSAGES + 2
    topic = ScriptedTopic([ScriptedMessage(at, -1, b"", NOON) for at in range(count)])
    now_s, until = [100.0], [EntryPosition(7, 2)]
    one = PartitionStandby(partition_state(), topic, lambda: until[-1], lambda: now_s[-1])
    reader = topic.create_reader(NAME, None)
    one.turn(reader)
    assert (one.is_ready, one.behind_s) == (True, 0.0)
    until.append(EntryPosition(7, count))
    for passed_s, is_ready in ((MAX_BEHIND_S, True), (1.0, False)):
        now_s.append(now_s[-1] + passed_s)
        one.turn(reader)
        assert one.is_ready is is_ready
    assert one.behind_s == MAX_BEHIND_S + 1.0
    one.turn(reader)
    assert (one.is_ready, one.behind_s) == (True, 0.0)


FIXES = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, 0.0004 * at) for at in range(8)]


class Process:
    def __init__(self) -> None:
        self.topic = ScriptedTopic(messages_of([[one] for one in FIXES]))
        self.presence = Presence("mine", ["acme"])
        self.standbys = StandbyPartitions(self.topic, self.presence, lambda _: partition_state())
        self.now_s = 1000.0

    def hears(self, name: str, *held: str, ready: tuple[str, ...] = ()) -> None:
        at = EntryPosition(7, 6)
        said = PresenceMessage(
            instance=name,
            tenants=frozenset(["acme"]),
            acknowledged=dict.fromkeys(held, at),
            ready=frozenset(ready),
        )
        self.presence.note(said, self.now_s)

    def turn(self, held: int = 0, seconds: float = TURN_S) -> list[str]:
        self.standbys.turn([NAME], held, self.now_s)
        self.now_s += seconds
        return self.standbys.names


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    one = Process()
    # the threads of standbys ask at the same time as we
    monkeypatch.setattr("gateway.alerts.owner.time.monotonic", lambda: one.now_s)
    yield one
    monkeypatch.undo()
    one.standbys.close()


def test_one_that_another_holds_is_followed_until_it_is_ours_and_its_state_is_handed_over(process: Process) -> None:
    process.hears("owner", NAME)
    assert process.turn() == [NAME]
    wait_until(lambda: process.standbys.ready == [NAME])
    hand_over = process.standbys.take(NAME)
    assert process.standbys.names == []
    made = hand_over()
    assert made is not None
    assert made.position.entry == 5
    assert process.standbys.take(NAME)() is None


def test_one_for_which_another_is_chosen_now_is_followed_until_that_one_is_ready(process: Process) -> None:
    process.hears("owner", NAME)
    process.turn()
    wait_until(lambda: process.standbys.ready == [NAME])
    process.hears("owner", NAME)
    process.hears("poorer")
    assert process.turn(held=1) == [NAME]
    process.hears("poorer", ready=(NAME,))
    assert process.turn(held=1) == []
