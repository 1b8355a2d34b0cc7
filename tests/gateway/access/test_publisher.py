"""What is displaced in the registry is published again: all of it, and nothing newer waits for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pulsar
import pytest

from gateway.access import publisher as module
from gateway.access.access_key import AccessKey
from gateway.access.core import Confirmation
from gateway.access.publisher import AGAIN_AT_ONCE, AccessPublisher
from gateway.access.registry_cache import RegistryCache
from gateway.access.revocation import LISTS_TOPIC, MAX_LIST_BYTES, RevocationList
from gateway.config import RegistrySettings
from tests.waiting import wait_until
from waybill.identity.confirmations import CONFIRMATIONS_TOPIC
from waybill.identity.registry_messages import devices_topic
from waybill.pulsar.compacted_topic import TopicMessage

NOW = datetime(2026, 11, 1, tzinfo=UTC)


class Displaced(RegistryCache):
    def __init__(self, *names: str) -> None:
        self.names = [*names]

    def take_due(self, tenant: str, limit: int) -> list[str]:
        taken = [name for name in self.names if name.startswith(f"{tenant}/")][:limit]
        self.names = [name for name in self.names if name not in {*taken}]
        return taken

    def put_back(self, names: list[str]) -> None:
        self.names += names

    def message(self, name: str) -> TopicMessage | None:
        return TopicMessage(name, b"entry", {}, 0)


class Cluster:
    """Keeps what is sent, in order; the first sends of a device fail."""

    def __init__(self, failures: int, without: str = "") -> None:
        self.sent: list[tuple[str, str]] = []
        self.failures, self.without = failures, without
        self.error: Exception = ValueError("no right")

    def __call__(self, *_: Any, **__: Any) -> Cluster:
        return self

    def create_producer(self, topic: str, **_: Any) -> Producer:
        if topic == self.without:
            raise self.error
        return Producer(self, topic)

    def close(self) -> None:
        pass


class Producer:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic

    def is_connected(self) -> bool:
        return True

    def send(self, _: bytes, *, partition_key: str, properties: dict[str, str] | None = None) -> None:
        if self._topic == devices_topic("acme") and self._cluster.failures:
            self._cluster.failures -= 1
            raise ValueError("the cluster is away")
        self._cluster.sent.append((self._topic, partition_key))

    def close(self) -> None:
        pass


def test_thousands_that_are_displaced_at_once_are_all_published_again_and_a_confirmation_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(failures=2)
    monkeypatch.setattr(module, "open_pulsar_client", cluster)
    names = [f"acme/bus-{number}" for number in range(3000)]
    settings = RegistrySettings(service_url="pulsar://nowhere:1", tenants=("acme", "zeta"), unsigned=True)
    made = AccessPublisher(settings, "eu", AccessKey(settings, "eu", None), Displaced(*names))
    made.confirm([Confirmation("acme/stolen", "an id")], 1.0)
    made.start()
    wait_until(lambda: len(cluster.sent) >= len(names) + 1, 20)
    made.close()
    assert sorted(key for topic, key in cluster.sent if topic == devices_topic("acme")) == sorted(names)
    assert [topic for topic, _ in cluster.sent].index(CONFIRMATIONS_TOPIC) <= AGAIN_AT_ONCE


def test_what_cannot_be_published_of_one_kind_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(failures=0, without=LISTS_TOPIC)
    monkeypatch.setattr(module, "open_pulsar_client", cluster)
    settings = RegistrySettings(service_url="pulsar://nowhere:1", tenants=("acme", "zeta"), unsigned=True)
    made = AccessPublisher(settings, "eu", AccessKey(settings, "eu", None))
    made.publish_list(RevocationList("an authority", 1, NOW, NOW, b"pem", b"", frozenset({1})))
    made.start()
    wait_until(lambda: made.problem, 20)
    for number in range(3):
        made.confirm([Confirmation("acme/stolen", "an id")], 1.0)
        wait_until(lambda: len(cluster.sent) > number, 20)  # noqa: B023 - it is asked in this turn
    assert made.problem == "revocation lists are not published: no right"
    cluster.without = ""
    wait_until(lambda: len(cluster.sent) == 4, 20)
    wait_until(lambda: not made.problem, 20)
    made.close()
    assert [topic for topic, _ in cluster.sent] == [*[CONFIRMATIONS_TOPIC] * 3, LISTS_TOPIC]


def test_a_revocation_list_that_is_too_large_holds_up_nothing_else_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(failures=0)
    monkeypatch.setattr(module, "open_pulsar_client", cluster)
    settings = RegistrySettings(service_url="pulsar://nowhere:1", tenants=("acme", "zeta"), unsigned=True)
    made = AccessPublisher(settings, "eu", AccessKey(settings, "eu", None))
    small = RevocationList("an authority", 1, NOW, NOW, b"pem", b"", frozenset({1}))
    large = small._replace(number=2, pem=b"x" * (MAX_LIST_BYTES + 1), serials=frozenset(range(70_000)))
    made.publish_list(small)
    made.publish_list(large)
    made.confirm([Confirmation("acme/stolen", "an id")], 1.0)
    made.start()
    wait_until(lambda: len(cluster.sent) >= 1, 20)
    assert "70000 certificates" in made.problem
    made.publish_list(small._replace(number=3))
    wait_until(lambda: len(cluster.sent) >= 2, 20)
    made.close()
    assert [topic for topic, _ in cluster.sent] == [CONFIRMATIONS_TOPIC, LISTS_TOPIC]
    assert made.problem == ""


def test_a_tenant_that_keeps_its_topic_to_itself_is_named_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, topic = Cluster(failures=0, without=devices_topic("zeta")), devices_topic("zeta")
    cluster.error = pulsar.ProducerBusy("exclusive")
    monkeypatch.setattr(module, "open_pulsar_client", cluster)
    settings = RegistrySettings(service_url="pulsar://nowhere:1", tenants=("acme", "zeta"), unsigned=True)
    displaced = Displaced("zeta/bus-1")
    made = AccessPublisher(settings, "eu", AccessKey(settings, "eu", None), displaced)
    made.start()
    wait_until(lambda: made.topics_held[topic] > 0, 20)
    assert f"another producer has {topic} for itself alone" in made.problem
    displaced.names.append("acme/bus-1")
    made.confirm([Confirmation("acme/stolen", "an id")], 1.0)
    wait_until(lambda: len(cluster.sent) == 2, 20)
    cluster.without = ""
    wait_until(lambda: (topic, "zeta/bus-1") in cluster.sent and not made.problem, 20)
    made.close()
    assert set(cluster.sent) == {
        (CONFIRMATIONS_TOPIC, "eu"),
        (devices_topic("acme"), "acme/bus-1"),
        (topic, "zeta/bus-1"),
    }
    assert set(made.topics_held) == {topic}
