"""How far topics of alerts are read: to what is there, whatever the clocks of those that published it say."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from cloud_jobs.verdicts import subscription
from cloud_jobs.verdicts.subscription import AlertSubscription, ReceivedAlerts
from waybill.pulsar import pulsar_positions as silence
from waybill.pulsar.pulsar_client import PulsarAccess

TOPIC = "persistent://acme/alerts-eu/alerts"


@dataclass
class ScriptedTopic:
    """A topic and its only consumer. `ahead_s`: of the clock by which each message says when it was published: those
    that are there a second ago, and those that come as they come."""

    ahead_s: float
    bodies: list[int] = field(default_factory=list)
    grows: bool = False
    taken: int = 0
    connected: bool = True
    withholds: bool = False
    is_silent: bool = False
    there: int = 0

    def __post_init__(self) -> None:
        self.there, self._made_s = len(self.bodies), time.time()

    def is_connected(self) -> bool:
        return self.connected

    def get_last_message_id(self) -> Any:
        assert self.connected, "it would be waited for"
        if self.is_silent:
            raise pulsar.Timeout("no answer")
        return _Id(len(self.bodies) - 1)

    def receive(self, timeout_millis: int) -> Any:
        if self.grows:
            self.bodies.append(len(self.bodies))
        if self.taken == len(self.bodies) or self.withholds:
            time.sleep(timeout_millis / 1000)
            raise pulsar.Timeout("nothing came")
        self.taken += 1
        published_s = self._made_s - 1 if self.taken <= self.there else time.time()
        return _Message(self.taken - 1, round((published_s + self.ahead_s) * 1000))

    def acknowledge(self, _: Any) -> None:
        pass

    def redeliver_unacknowledged_messages(self) -> None:
        self.taken = 0

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Id:
    number: int

    def ledger_id(self) -> int:
        return 3

    def entry_id(self) -> int:
        return self.number

    def batch_index(self) -> int:
        return -1


@dataclass(frozen=True)
class _Message:
    number: int
    published_ms: int

    def message_id(self) -> _Id:
        return _Id(self.number)

    def data(self) -> bytes:
        return b"%d" % self.number

    def publish_timestamp(self) -> int:
        return self.published_ms


def reading(
    topic: ScriptedTopic | dict[str, ScriptedTopic],
    monkeypatch: pytest.MonkeyPatch,
    clock: Callable[[], float] = time.monotonic,
) -> AlertSubscription:
    partitions = {TOPIC: topic} if isinstance(topic, ScriptedTopic) else topic

    class Client:
        def get_topic_partitions(self, _: str) -> list[str]:
            return [*partitions]

        def subscribe(self, name: str, *_: Any, **__: Any) -> ScriptedTopic:
            # what was withheld comes to whoever subscribes anew
            partitions[name].withholds = False
            return partitions[name]

        def close(self) -> None:
            pass

    monkeypatch.setattr(subscription, "open_pulsar_client", lambda *_, **__: Client())
    return AlertSubscription(["pulsar://hq"], PulsarAccess(), {TOPIC: "acme"}, "verdicts", clock=clock)


def count(received: ReceivedAlerts) -> int:
    assert received.is_all
    return len(received.messages)


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_all_that_is_there_is_taken_whatever_the_clock_of_its_region_says(
    ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ScriptedTopic(ahead_s, bodies=[*range(100)])
    assert count(reading(topic, monkeypatch).receive(1_000, time.time())) == 100


def test_of_each_partition_all_is_taken_and_a_new_one_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    there, after_s = {f"{TOPIC}-partition-0": ScriptedTopic(3600.0, bodies=[*range(100)], grows=True)}, 0.0
    alerts = reading(there, monkeypatch, lambda: time.monotonic() + after_s)
    assert 100 <= count(alerts.receive(10_000, time.time())) <= 101
    alerts.acknowledge()
    there[f"{TOPIC}-partition-1"] = ScriptedTopic(-3600.0, bodies=[*range(40)])
    after_s = subscription.RETRY_S
    received = alerts.receive(10_000, time.time())
    assert received.is_all
    assert len(received.messages) >= 40
    assert {one.topic for one in received.messages} == {TOPIC}


def test_a_topic_that_gives_nothing_of_what_there_is_is_named_and_subscribed_to_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, now_s = ScriptedTopic(0.0, bodies=[*range(3)]), 0.0
    alerts = reading(topic, monkeypatch, lambda: now_s + time.monotonic())
    assert count(alerts.receive(10)) == 3
    alerts.acknowledge()
    topic.withholds = True
    topic.bodies += [3, 4]
    said = []
    for _ in range(3):
        received = alerts.receive(10)
        said.append(received.unread.get(TOPIC))
        assert received.messages == []
        now_s += silence.ASK_S
    assert said == [None, None, silence.WITHHELD], "once it may be on its way"
    received = alerts.receive(10)
    assert (len(received.messages), received.unread) == (2, {})
