"""Publishing an entry: what is surely not published, and of what nobody knows."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from tests.identity.registry_strategies import active
from waybill.identity import registry_topic as registry_publisher
from waybill.identity.registry_messages import devices_topic
from waybill.identity.registry_topic import (
    PublicationUnknown,
    RegistryPublisher,
    RegistryRefused,
    RegistryUnreachable,
)
from waybill.pulsar.pulsar_client import PulsarAccess


class Client:
    """A cluster that gives no producer, or that answers nothing that is sent."""

    def __init__(self, *, has_producer: bool) -> None:
        self._has_producer = has_producer

    def create_producer(self, _: str, **__: object) -> Client:
        if not self._has_producer:
            raise pulsar.ConnectError("no way")
        return self

    def send(self, *_: object, **__: object) -> None:
        raise pulsar.Timeout("no answer")

    def close(self) -> None: ...


@pytest.mark.parametrize("has_producer", [True, False])
def test_what_was_sent_and_not_answered_may_be_published_and_what_was_not_sent_is_not(
    monkeypatch: pytest.MonkeyPatch, *, has_producer: bool
) -> None:
    def opened(*_: Any, **__: Any) -> Client:
        return Client(has_producer=has_producer)

    monkeypatch.setattr(registry_publisher, "open_pulsar_client", opened)
    with RegistryPublisher("pulsar://nowhere", PulsarAccess()) as publisher, pytest.raises(RegistryUnreachable) as lost:
        publisher.publish(active())
    said = "whether acme/bus-1 is published" if has_producer else "acme/bus-1 is not published"
    assert (isinstance(lost.value, PublicationUnknown), str(lost.value).startswith(said)) == (has_producer, True)


class Holding:
    """A cluster in which somebody has the topics of these tenants to himself; a producer that is there loses its."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.sent: list[str] = []

    def create_producer(self, topic: str, **_: object) -> Any:
        if topic in self.held:
            raise pulsar.ProducerBusy("exclusive")
        return HeldProducer(self, topic)

    def close(self) -> None: ...


class HeldProducer:
    def __init__(self, cluster: Holding, topic: str) -> None:
        self._cluster, self._topic = cluster, topic

    def is_connected(self) -> bool:
        return self._topic not in self._cluster.held

    def send(self, *_: object, **__: object) -> None:
        self._cluster.sent.append(self._topic)

    def close(self) -> None: ...


def test_a_topic_that_somebody_took_for_himself_is_refused_at_once_and_those_of_others_take_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, acme, zeta = Holding(), devices_topic("acme"), devices_topic("zeta")
    monkeypatch.setattr(registry_publisher, "open_pulsar_client", lambda *_, **__: cluster)
    with RegistryPublisher("pulsar://nowhere", PulsarAccess()) as publisher:
        publisher.publish(active())
        cluster.held.add(acme)
        with pytest.raises(RegistryRefused, match=f"another producer has {acme} for itself alone"):
            publisher.publish(active())
        publisher.publish(active("zeta"))
        cluster.held.clear()
        publisher.publish(active())
        assert (cluster.sent, publisher.topics_held) == ([acme, zeta, acme], {acme: 1})
