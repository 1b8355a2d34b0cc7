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

FIRST = AlertTopic("persistent://acme/events/verdicts", "acme", is_verdicts=True)
OTHER = AlertTopic("persistent://acme/alerts-eu/alerts", "acme", is_verdicts=False)


class Cluster:
    """What it answers to whoever subscribes: `refuses` raises, by the name of the topic."""

    def __init__(self) -> None:
        self.refuses: dict[str, Exception] = {}
        self.is_connected = True
        self.subscribed: list[str] = []

    def client(self) -> Any:
        return _Client(self)


class _Client:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def subscribe(self, topic: str, *_: Any, **__: Any) -> Any:
        if (error := self._cluster.refuses.get(topic)) is not None:
            raise error
        self._cluster.subscribed.append(topic)
        return self

    def is_connected(self) -> bool:
        return self._cluster.is_connected

    def receive(self, _: int) -> Any:
        time.sleep(0.01)
        raise pulsar.Timeout("nothing came")

    def close(self) -> None:
        pass


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


@pytest.mark.parametrize("error", [pulsar.AuthorizationError("no"), pulsar.TopicNotFound("no"), pulsar.Timeout("no")])
def test_one_that_is_refused_the_alerts_or_cannot_reach_them_is_no_standby_and_says_why(
    cluster: Cluster, started: Callable[[], AlertIntake], error: Exception
) -> None:
    cluster.refuses[FIRST.name] = error
    one = started()
    wait_until(lambda: type(error).__name__ in one.problems.get(FIRST.name, ""))
    assert not one.is_standby
    # it is the first one that is named
    assert next(iter(one.problems)) == FIRST.name


def test_who_loses_the_connection_for_long_is_a_standby_once_another_one_has_the_alerts(
    cluster: Cluster, started: Callable[[], AlertIntake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "LOST_AFTER_S", 0.3)
    one = started()
    wait_until(lambda: not one.problems)
    # the client tries again by itself, for ever, and does not say that somebody else has it
    cluster.refuses = dict.fromkeys([FIRST.name, OTHER.name], pulsar.ConsumerBusy("another has it"))
    cluster.is_connected = False
    wait_until(lambda: one.is_standby)
