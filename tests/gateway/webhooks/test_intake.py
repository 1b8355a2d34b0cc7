"""Who has the alerts: a standby is whoever hears that another process has them, and nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from gateway.webhooks import intake
from gateway.webhooks.intake import AlertIntake, AlertTopic
from tests.waiting import wait_until
from waybill.pulsar import pulsar_positions as silence

FIRST = AlertTopic("persistent://acme/events/verdicts", "acme", is_verdicts=True)
OTHER = AlertTopic("persistent://acme/alerts-eu/alerts", "acme", is_verdicts=False)


class Cluster:
    """What it answers to whoever subscribes: `refuses` raises, by the name of the topic."""

    def __init__(self) -> None:
        self.refuses: dict[str, Exception] = {}
        self.is_connected = True
        self.subscribed: list[str] = []
        self.partitions: dict[str, list[str]] = {}
        self.messages: dict[str, list[int]] = {}
        self.withheld: set[str] = set()
        self.acknowledged_to: dict[str, int] = {}
        self.closed: list[str] = []
        self.fails_to_look: Exception | None = None
        self.looks = 0

    def client(self) -> Any:
        return _Client(self)


class _Client:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mine: list[_Consumer] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        self._cluster.looks += 1
        if self._cluster.fails_to_look is not None:
            raise self._cluster.fails_to_look
        return self._cluster.partitions.get(topic, [topic])

    def subscribe(self, topic: str, *_: Any, **__: Any) -> Any:
        if (error := self._cluster.refuses.get(topic)) is not None:
            raise error
        self._cluster.subscribed.append(topic)
        # what was withheld comes to whoever subscribes anew
        self._cluster.withheld.discard(topic)
        self._mine.append(_Consumer(self._cluster, topic))
        return self._mine[-1]

    def close(self) -> None:
        for one in self._mine:
            one.close()


class _Consumer:
    """What it gave is not given again. Of a topic that withholds, nothing comes, and what is there counts."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic, self._is_open = cluster, topic, True

    def close(self) -> None:
        self._cluster.closed += [self._topic] if self._is_open else []
        self._is_open = False

    @property
    def _messages(self) -> list[int]:
        return self._cluster.messages.setdefault(self._topic, [])

    def is_connected(self) -> bool:
        return self._cluster.is_connected

    def receive(self, wait_ms: int) -> Any:
        if self._messages and self._topic not in self._cluster.withheld:
            return _Message(self._topic, self._messages.pop(0))
        time.sleep(min(wait_ms, 100) / 1000)
        raise pulsar.Timeout("nothing came")

    def get_last_message_id(self) -> Any:
        acknowledged_to = self._cluster.acknowledged_to.get(self._topic, -1)
        return _Message(self._topic, max([*self._messages, acknowledged_to]))


class _Message:
    def __init__(self, topic: str, number: int) -> None:
        self._topic, self._number = topic, number

    def message_id(self) -> _Message:
        return self

    def ledger_id(self) -> int:
        return 7

    def entry_id(self) -> int:
        return self._number

    def batch_index(self) -> int:
        return -1

    def data(self) -> bytes:
        return f"{self._topic} {self._number}".encode()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def started(cluster: Cluster) -> Iterator[Callable[[], AlertIntake]]:
    made: list[AlertIntake] = []

    def start() -> AlertIntake:
        made.append(AlertIntake(cluster.client, "notifier", [FIRST, OTHER]))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_who_has_the_first_topic_reads_all(cluster: Cluster, started: Callable[[], AlertIntake]) -> None:
    one = started()
    wait_until(lambda: not one.problems)
    assert not one.is_standby
    assert {*cluster.subscribed} == {FIRST.name, OTHER.name}


def test_a_process_that_hears_that_another_one_has_the_alerts_is_a_standby(
    cluster: Cluster, started: Callable[[], AlertIntake]
) -> None:
    cluster.refuses[FIRST.name] = pulsar.ConsumerBusy("another has it")
    one = started()
    wait_until(lambda: one.is_standby)
    assert cluster.subscribed == []
    cluster.refuses.clear()
    wait_until(lambda: not one.problems)
    assert not one.is_standby


def taken(one: AlertIntake, count: int) -> list[str]:
    return sorted(one.taken.get(timeout=20).data.decode() for _ in range(count))


def test_each_partition_is_read_and_one_that_comes_later_too(
    cluster: Cluster, started: Callable[[], AlertIntake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LOOK_S", 0.2)
    names = [f"{OTHER.name}-partition-{number}" for number in range(3)]
    cluster.partitions[OTHER.name] = names[:2]
    cluster.messages = {name: [0] for name in names}
    one = started()
    assert taken(one, 2) == [f"{name} 0" for name in names[:2]]
    assert one.taken.empty()
    cluster.partitions[OTHER.name] = names
    assert taken(one, 1) == [f"{names[2]} 0"]
    wait_until(lambda: not one.problems)


def test_a_subscription_that_gives_nothing_of_what_there_is_is_named_and_made_anew(
    cluster: Cluster, started: Callable[[], AlertIntake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "ASK_S", 0.05)
    monkeypatch.setattr(intake, "LOST_AFTER_S", 0.3)
    cluster.messages[OTHER.name] = [0]
    one = started()
    assert taken(one, 1) == [f"{OTHER.name} 0"]
    cluster.withheld.add(OTHER.name)
    cluster.messages[OTHER.name].append(1)
    wait_until(lambda: one.problems.get(OTHER.name) == silence.WITHHELD)
    assert taken(one, 1) == [f"{OTHER.name} 1"]
    wait_until(lambda: not one.problems)
    assert cluster.subscribed.count(OTHER.name) == 2


def test_a_tenant_of_whom_nothing_may_be_read_holds_up_no_other(cluster: Cluster) -> None:
    beta = AlertTopic("persistent://beta/alerts-eu/alerts", "beta", is_verdicts=False)
    cluster.messages = {OTHER.name: [0], beta.name: [0]}
    one = AlertIntake(cluster.client, "notifier", [FIRST, OTHER, beta], lambda tenant: tenant != "acme")
    one.start()
    try:
        assert taken(one, 1) == [f"{beta.name} 0"]
        time.sleep(0.3)
        assert one.taken.empty()
        assert not one.problems
    finally:
        one.close()
