"""For which partitions a process stands by: those it is chosen for, and no longer than until another is ready."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.alerts.owner import TURN_S, StandbyPartitions
from gateway.alerts.sharing import Presence, PresenceMessage
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix
from tests.gateway.alerts.scripted_partition import NAME, ScriptedTopic, messages_of, partition_state
from tests.waiting import wait_until
from waybill.pulsar.pulsar_positions import EntryPosition

FIXES = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, 0.0004 * at) for at in range(8)]


class Process:
    """One that hears others, on a clock of ours."""

    def __init__(self) -> None:
        self.topic = ScriptedTopic(messages_of([[one] for one in FIXES]))
        self.presence = Presence("mine", ["acme"])
        self.standbys = StandbyPartitions(self.topic, self.presence, lambda _: partition_state())
        self.now_s = 1000.0

    def hears(self, name: str, *held: str, ready: tuple[str, ...] = ()) -> None:
        at = EntryPosition(7, 6)
        said = PresenceMessage(
            instance=name,
            held=len(held),
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
