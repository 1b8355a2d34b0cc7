"""Publishing an entry: what is surely not published, and of what nobody knows."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from tests.identity.makers import active, change
from tests.identity.registry_world import Reader, World, world  # noqa: F401 - a fixture
from waybill.identity import registry_topic as registry_publisher
from waybill.identity.operator_settings import NotInSettings, OperatorSettings
from waybill.identity.registry import revoke
from waybill.identity.registry_messages import devices_topic
from waybill.identity.registry_session import Outcome, RegistrySession, as_it_is, exactly
from waybill.identity.registry_topic import PublicationUnknown, RegistryPublisher, RegistryRefused, RegistryUnreachable
from waybill.identity.tokens import TokenKey
from waybill.pulsar.compacted_topic import TopicStanding
from waybill.pulsar.pulsar_client import AccessRefusal, PulsarAccess


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


# ruff: noqa: F811 - a fixture is asked for by its name


SETTINGS = OperatorSettings(
    service_url="pulsar://nowhere",
    admin_url="http://nowhere",
    regions=("eu", "us"),
    tenants=("acme",),
    unsigned=True,
    operator="bea",
)


def test_a_registry_of_any_size_is_read_while_messages_come_and_given_up_when_none_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    world.is_ended = False

    def moving(_: Reader) -> TopicStanding:
        return TopicStanding(was_current=world.is_ended, messages=len(shown), problem="busy")

    def heard(_: str, count: int) -> None:
        shown.append(count)
        world.is_ended = count > 200

    with monkeypatch.context() as reading:
        reading.setattr(Reader, "standing", property(moving))
        with RegistrySession(SETTINGS, on_progress=heard):
            assert len(shown) > 50, "it took many times the time of silence"
    world.is_ended = False
    with pytest.raises(RegistryUnreachable, match=r"after 0 messages nothing came for 0\.05 s: busy"):
        RegistrySession(SETTINGS).__enter__()


def test_only_what_is_asked_about_is_judged(world: World) -> None:
    for name in ("bus-1", "bus-2"):
        world.put(active("acme", name))
    with RegistrySession(SETTINGS, names={"acme/bus-1", "acma/bus-1"}) as session:
        assert [one.entry.name for one in session.publications()] == ["acme/bus-1"]
        with pytest.raises(NotInSettings, match=r"there is no tenant 'acma': .* did you mean 'acme'"):
            session.get("acma/bus-1")


def test_signing_very_many_is_not_quadratic(world: World) -> None:
    names = [f"acme/bus-{number}" for number in range(3000)]
    for name in names:
        world.put(active("acme", name.partition("/")[2]))
    with RegistrySession(SETTINGS) as session:
        began_s = time.process_time()
        outcome = session.change(dict.fromkeys(names, as_it_is))
        assert len(outcome.names(Outcome.DONE)) == 3000
        assert time.process_time() - began_s < 10


def test_what_is_revoked_at_the_very_moment_it_is_signed_is_superseded(world: World) -> None:
    world.put(active())
    world.before["acme/bus-1"] = lambda: world.put(revoke(active(), change()))
    with RegistrySession(SETTINGS) as session:
        outcome = session.change({"acme/bus-1": as_it_is})
    assert (outcome.names(Outcome.SUPERSEDED), world.states) == (["acme/bus-1"], {"bus-1": "revoked"})


def test_every_region_where_a_broker_may_let_a_device_in_is_waited_for(world: World) -> None:
    """Those of the settings, of the device, and whoever ever confirmed anything."""
    entry = active().model_copy(update={"region": "asia"})
    world.confirm("africa", "acme/another", "019e")
    with RegistrySession(SETTINGS) as session:
        outcome = session.change({entry.name: exactly(entry)}, 0.01)
        assert (outcome.confirmed, outcome.missing) == (("eu", "us"), ("africa", "asia"))


def test_confirmations_that_cannot_be_read_to_their_end_confirm_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = TopicStanding(problem="no way")
    monkeypatch.setattr("waybill.identity.registry_session.CompactedTopicReader.standing", lost)
    with RegistrySession(SETTINGS) as session:
        outcome = session.change({active().name: exactly(active())}, 0.01)
    assert (outcome.confirmed, outcome.missing) == ((), ("eu", "us"))
    why = "confirmations cannot be read: pulsar://nowhere: no way"
    assert outcome.devices["acme/bus-1"] == (Outcome.UNCONFIRMED, why, ("eu", "us"))


def test_who_is_not_let_in_hears_so_at_once_with_the_role_the_topic_and_the_right(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = devices_topic("acme")
    refused = TopicStanding(problem="AuthorizationError", refusal=AccessRefusal.NO_RIGHT, topic=where)
    monkeypatch.setattr(Reader, "standing", refused)
    token = TokenKey(ec.generate_private_key(ec.SECP256R1())).token(
        "gateway-us", issuer="https://keys.example", now_s=time.time(), life_s=60
    )
    settings = SETTINGS.model_copy(update={"access": PulsarAccess(token=SecretStr(token))})
    said = "the role gateway-us may not consume persistent://acme/registry/devices"
    with pytest.raises(RegistryRefused, match=said):
        RegistrySession(settings).__enter__()
