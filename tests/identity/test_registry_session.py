"""One command's use of the registry: how long it may take, whose clock it goes by, and what is signed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from tests.identity.registry_strategies import CERTIFICATE, CHANGE, MOMENT, active, change, expected
from tests.tokens import token_file
from tests.waiting import PATIENCE
from waybill.identity import registry_session
from waybill.identity.change_outcome import ChangeCutShort
from waybill.identity.confirmations import encode_confirmation
from waybill.identity.operator_settings import NotInSettings, OperatorSettings
from waybill.identity.publication_id import PROPERTY, next_publication_id
from waybill.identity.registry import DeviceEntry, DeviceState, enrol, revoke
from waybill.identity.registry_messages import devices_topic, entry_body, tenant_of
from waybill.identity.registry_session import RegistrySession
from waybill.identity.registry_topic import (
    ClockRefused,
    DeviceRegistry,
    PublicationUnknown,
    RegistryReader,
    RegistryRefused,
    RegistryUnreachable,
)
from waybill.identity.tokens import TokenKey
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import AccessRefusal, PulsarAccess

SETTINGS = OperatorSettings(
    service_url="pulsar://nowhere",
    admin_url="http://nowhere",
    regions=("eu", "us"),
    tenants=("acme",),
    unsigned=True,
    operator="bea",
)


class Topic:
    """The registry's topic without a cluster; of `turns` one is taken before each message of a command."""

    def __init__(self, *entries: DeviceEntry) -> None:
        self.messages: list[TopicMessage] = []
        self.readers: list[Reader] = []
        self.newest: str | None = None
        self.turns: Iterator[Callable[[], object]] = iter(())
        self.is_ended = True
        self.ids: Iterator[str] = iter(())
        for entry in entries:
            self.put(entry)

    def put(self, entry: DeviceEntry) -> str:
        drawn = next_publication_id(self.newest, round(time.time() * 1000), 7)
        self.newest = next(self.ids, drawn)
        self.messages.append(TopicMessage(entry.name, entry_body(entry), {PROPERTY: self.newest}, 0))
        for reader in self.readers:
            reader.hear(self.messages[-1])
        return self.newest

    def held(self) -> Mapping[str, DeviceState]:
        """By what stands last of each device, as compaction keeps it."""
        registry: DeviceRegistry[DeviceState] = DeviceRegistry(lambda made, _: made.entry.state)
        for message in {one.key: one for one in self.messages}.values():
            registry.take(message, None)
        return registry.all()


class Reader(RegistryReader[Any]):
    topic: Topic

    def __init__(self, *arguments: Any, tenants: Collection[str], **more: Any) -> None:
        super().__init__(*arguments, tenants=tenants, **more)
        self.tenants = tenants

    @property
    def standing(self) -> TopicStanding:
        # As one that is still reading: more with each look.
        self._count = getattr(self, "_count", 0) + (not self.topic.is_ended and self.is_moving)
        return TopicStanding(was_current=self.topic.is_ended, messages=self._count, problem="busy")

    is_moving = True

    def start(self) -> None:
        self.topic.readers.append(self)
        for message in self.topic.messages:
            self.hear(message)

    def hear(self, message: TopicMessage) -> None:
        if (tenant := tenant_of(message.key or "")) in self.tenants:
            self._take(tenant, message)

    def close(self) -> None:
        pass


def _nothing() -> None:
    return


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()

    class Publisher:
        newest: str | None = None

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def publish(self, entry: DeviceEntry) -> str:
            next(made.turns, _nothing)()
            return made.put(entry)

        def close(self) -> None:
            pass

    monkeypatch.setattr(registry_session, "RegistryReader", type("BoundReader", (Reader,), {"topic": made}))
    monkeypatch.setattr(registry_session, "RegistryPublisher", Publisher)
    monkeypatch.setattr(registry_session, "check_clock", lambda *_: None)
    monkeypatch.setattr(registry_session, "_LOOK_S", 0.001)
    return made


def test_a_registry_of_any_size_is_read_while_messages_come_and_given_up_when_none_do(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_session, "_SILENCE_S", 0.05)
    shown: list[int] = []
    topic.is_ended = False

    def heard(_: str, count: int) -> None:
        shown.append(count)
        topic.is_ended = count > 200

    with RegistrySession(SETTINGS, on_progress=heard):
        assert len(shown) > 50, "it took many times the time of silence"
    topic.is_ended = False
    monkeypatch.setattr(Reader, "is_moving", False)
    with pytest.raises(RegistryUnreachable, match=r"after 0 messages nothing came for 0\.05 s: busy"):
        RegistrySession(SETTINGS).__enter__()


def test_of_devices_that_are_not_asked_about_nothing_is_judged(topic: Topic) -> None:
    topic.put(active())
    topic.put(active("acme", "bus-2"))
    with RegistrySession(SETTINGS, names={"acme/bus-1"}) as session:
        assert [one.entry.name for one in session.publications()] == ["acme/bus-1"]


def test_a_device_that_was_not_named_at_first_is_read_when_it_is_asked_for(topic: Topic) -> None:
    topic.put(active())
    topic.put(active("acme", "bus-2"))
    with RegistrySession(SETTINGS, names={"acme/bus-1"}) as session:
        found = session.get("acme/bus-2")
        assert found is not None
        assert (found.name, session.get("acme/bus-3")) == ("acme/bus-2", None)
        assert [one.entry.name for one in session.publications()] == ["acme/bus-1"]


def test_a_token_that_has_ended_is_refused_at_once_and_named(topic: Topic, tmp_path: Path) -> None:
    file = token_file(tmp_path, "fleet-operator", ends_in_s=-1)
    late = SETTINGS.model_copy(update={"access": PulsarAccess(token_file=file)})
    with pytest.raises(RegistryRefused, match=f"^token of fleet-operator in {file} ended at"):
        RegistrySession(late).__enter__()
    token_file(tmp_path, "fleet-operator", ends_in_s=86_400)
    with RegistrySession(late):
        pass


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ClockDiffers("http://nowhere", 90.0), ClockRefused),
        (ClockUnknown("it is away"), RegistryUnreachable),
        (NotLetIn("it is another's"), RegistryRefused),
    ],
)
def test_nothing_is_published_by_a_clock_that_is_wrong_or_cannot_be_compared(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[Exception]
) -> None:
    def refuses(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(registry_session, "check_clock", refuses)
    with RegistrySession(SETTINGS) as session:
        for publish in (lambda: session.publish([active()]), lambda: session.sign(["acme/bus-1"])):
            with pytest.raises(kind, match=str(fault)[:10]):
                publish()
    assert not topic.messages


def test_what_is_published_and_not_taken_does_not_hold(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_session, "_SILENCE_S", 0.05)
    monkeypatch.setattr(Reader, "hear", lambda *_: None)
    with RegistrySession(SETTINGS) as session:
        assert not session.publish([active()]).holds


def test_a_device_that_is_enrolled_while_others_are_signed_is_left_as_it_is_then(topic: Topic) -> None:
    names = [f"bus-{number}" for number in range(3)]
    for name in names:
        topic.put(expected("acme", name))
    enrolled = enrol(expected("acme", "bus-2"), CERTIFICATE, CHANGE)
    topic.turns = iter([_nothing, lambda: topic.put(enrolled)])
    with RegistrySession(SETTINGS) as session:
        assert session.sign([f"acme/{name}" for name in names]).holds
    assert topic.held()["acme/bus-2"] is DeviceState.ACTIVE, "compaction keeps the last message"


def test_a_device_that_is_revoked_at_the_very_moment_is_signed_once_more_as_that(topic: Topic) -> None:
    topic.put(active())
    topic.turns = iter([lambda: topic.put(revoke(active(), change()))])
    with RegistrySession(SETTINGS) as session:
        outcome = session.sign(["acme/bus-1"])
    assert outcome.holds
    assert [one.entry.state for one in outcome.publications] == [DeviceState.REVOKED]
    assert topic.held() == {"acme/bus-1": DeviceState.REVOKED}


def test_signing_very_many_is_not_quadratic(topic: Topic) -> None:
    names = [f"acme/bus-{number}" for number in range(3000)]
    for name in names:
        topic.put(active("acme", name.partition("/")[2]))
    with RegistrySession(SETTINGS) as session:
        began_s = time.process_time()
        assert session.sign(names).holds
        assert time.process_time() - began_s < 10


def test_a_region_that_nobody_confirms_for_is_refused_with_the_nearest_name() -> None:
    SETTINGS.check_region("eu")
    with pytest.raises(NotInSettings, match="did you mean eu") as refused:
        SETTINGS.check_region("eu1")
    assert (refused.value.name, refused.value.nearest) == ("eu1", "eu")


@pytest.mark.usefixtures("topic")
def test_a_device_of_a_tenant_whose_topic_is_not_read_is_refused_by_its_tenant_and_is_not_unknown() -> None:
    refused = pytest.raises(NotInSettings, match="there is no tenant 'acma': did you mean acme")
    with RegistrySession(SETTINGS, names={"acma/bus-1"}) as session, refused:
        session.get("acma/bus-1")


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> list[TopicMessage]:
    """What the confirmations' topic holds; each publication is confirmed by the regions that `confirms` names."""
    held: list[TopicMessage] = []

    class Confirmations:
        def __init__(self, _: str, __: object, ___: str, on_message: Any, *_____: object, **______: object) -> None:
            self._on_message, self.is_running = on_message, False

        standing = TopicStanding(is_current=True, was_current=True)

        def start(self) -> None:
            self.is_running = True
            for message in held:
                self._on_message(message)

        def close(self) -> None:
            pass

    monkeypatch.setattr(registry_session, "CompactedTopicReader", Confirmations)
    return held


def said(region: str, entry: DeviceEntry, publication_id: str) -> TopicMessage:
    return TopicMessage(None, encode_confirmation(region, [(entry.name, publication_id)], 1.0), {}, 0)


def test_a_region_of_the_device_that_the_settings_lack_is_waited_for_and_named(
    topic: Topic, regions: list[TopicMessage]
) -> None:
    entry = active().model_copy(update={"region": "asia"})
    ids = [next_publication_id(None, round(time.time() * 1000), 1)]
    regions += [said(region, entry, ids[0]) for region in ("eu", "us")]
    topic.ids = iter(ids)
    with RegistrySession(SETTINGS) as session:
        outcome = session.publish([entry], 0.01)
        assert (outcome.confirmed, outcome.missing, outcome.unlisted) == (("eu", "us"), ("asia",), ("asia",))
        assert session.not_confirmed(MOMENT) == {"acme/bus-1": "asia has not confirmed it"}


def test_a_region_that_ever_confirmed_anything_is_waited_for(topic: Topic, regions: list[TopicMessage]) -> None:
    entry, ids = active(), [next_publication_id(None, round(time.time() * 1000), 1)]
    regions += [said(region, entry, ids[0]) for region in ("eu", "us")]
    regions.append(said("asia", entry, "another"))
    topic.ids = iter(ids)
    with RegistrySession(SETTINGS) as session:
        outcome = session.publish([entry], 0.01)
        assert (outcome.missing, outcome.unlisted) == (("asia",), ("asia",))
        assert session.not_confirmed(MOMENT) == {"acme/bus-1": "asia has not confirmed it"}


def test_what_cannot_be_read_to_its_end_confirms_nothing(
    topic: Topic, regions: list[TopicMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = TopicStanding(problem="no way")
    monkeypatch.setattr("waybill.identity.registry_session.CompactedTopicReader.standing", lost)
    entry, ids = active(), [next_publication_id(None, round(time.time() * 1000), 1)]
    regions += [said(region, entry, ids[0]) for region in ("eu", "us")]
    topic.ids = iter(ids)
    with RegistrySession(SETTINGS) as session:
        outcome = session.publish([entry], 0.01)
    assert (outcome.confirmed, outcome.missing) == ((), ("eu", "us"))
    assert outcome.why == "confirmations cannot be read: pulsar://nowhere: no way"


def test_who_is_not_let_in_hears_so_at_once_with_the_role_the_topic_and_the_right(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = devices_topic("acme")
    refused = TopicStanding(problem="AuthorizationError", refusal=AccessRefusal.NO_RIGHT, topic=where)
    monkeypatch.setattr(Reader, "standing", refused)
    token = TokenKey(ec.generate_private_key(ec.SECP256R1())).token(
        "gateway-us", issuer="https://keys.example", now_s=time.time(), life_s=60
    )
    settings = SETTINGS.model_copy(update={"access": PulsarAccess(token=SecretStr(token))})
    said = "the role gateway-us may not consume persistent://acme/registry/devices"
    began_s = time.monotonic()
    with pytest.raises(RegistryRefused, match=said):
        RegistrySession(settings).__enter__()
    assert time.monotonic() - began_s < 10 * PATIENCE


def test_the_device_that_may_be_meant_is_found_among_those_that_were_not_asked_about(topic: Topic) -> None:
    topic.put(active("acme", "bus-4"))
    with RegistrySession(SETTINGS, names={"acme/bus-44"}) as session:
        assert (session.get("acme/bus-44"), session.nearest("acme/bus-44")) == (None, "acme/bus-4")


def test_what_is_cut_short_says_what_was_published_before(topic: Topic) -> None:
    def cut() -> None:
        raise RegistryRefused("the right was taken away")

    topic.turns = iter([_nothing, cut])
    with RegistrySession(SETTINGS) as session, pytest.raises(RegistryUnreachable) as broken:
        session.publish([active(), active("acme", "bus-2")])
    assert not isinstance(broken.value, RegistryRefused), "something was changed"
    assert str(broken.value) == "cut short: 1 published, 1 not published: the right was taken away"


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            RegistryUnreachable("not published at pulsar://nowhere"),
            "1 published, 1 not published: not published at pulsar",
        ),
        (
            PublicationUnknown("at pulsar://nowhere"),
            "1 published, of acme/bus-1 nobody knows, 0 not published: at pulsar",
        ),
        (KeyboardInterrupt(), "1 published, of acme/bus-1 nobody knows, 0 not published: interrupted at acme/bus-1"),
    ],
)
def test_who_loses_the_cluster_while_signing_once_more_hears_so_and_what_was_signed_before(
    topic: Topic, lost: BaseException, said: str
) -> None:
    def cut() -> None:
        raise lost

    topic.put(active())
    topic.put(active("acme", "bus-2"))
    topic.turns = iter([lambda: topic.put(revoke(active(), change())), _nothing, cut])
    with RegistrySession(SETTINGS) as session, pytest.raises(ChangeCutShort, match=f"^cut short: {said}") as broken:
        session.sign(["acme/bus-1", "acme/bus-2"])
    outcome = broken.value.outcome
    assert (outcome.holds, outcome.devices["acme/bus-2"].became) == (False, "published")
    assert [one.entry.name for one in outcome.publications] == ["acme/bus-1", "acme/bus-2"]


def test_where_nothing_comes_back_the_lost_cluster_is_named(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.put(active())
    lost = TopicStanding(was_current=True, problem="the connection to the cluster is lost")
    with RegistrySession(SETTINGS) as session:
        monkeypatch.setattr(registry_session, "_SILENCE_S", 0.05)
        monkeypatch.setattr(Reader, "hear", lambda *_: None)
        monkeypatch.setattr(Reader, "standing", lost)
        outcome = session.sign(["acme/bus-1"])
    assert not outcome.holds
    assert "pulsar://nowhere is not read any more: the connection" in outcome.devices["acme/bus-1"].why
