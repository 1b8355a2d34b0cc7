"""Pulsar's side: each message that is handed over has exactly one receipt, also when the client cannot take it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.cli import problems
from gateway.engine import Produce
from gateway.pulsar_producer import PulsarProducer, Sealing
from tests.gateway.sides import FakePulsar
from tests.gateway.strategies import settings
from waybill.identity.errors import SealingKeyError, Unsealable
from waybill.identity.sealing import Unsealer
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarToken


def produce(token: int, *, refused: bool = False, device: str = "d1") -> Produce:
    return Produce(token, refused, device, b"payload", {"device": device})


def at_once(work: Callable[[], None]) -> None:
    work()


def send_now(producer: PulsarProducer, *messages: Produce) -> None:
    for message in messages:
        producer.send(message)
    producer.flush_due(0.0)


def open_now(producer: PulsarProducer) -> None:
    producer.start_opening()
    producer.try_finish_opening()


class Side:
    def __init__(self) -> None:
        self.pulsar, self.wakes = FakePulsar(), 0
        self.options: list[dict[str, Any]] = []
        self.producer = PulsarProducer(settings(), self._wake, self._client, at_once, pulsar_tenant="fleet")

    def open(self) -> None:
        open_now(self.producer)
        self.wakes = 0

    def _wake(self) -> None:
        self.wakes += 1

    def _client(self, *address: Any, **options: Any) -> FakePulsar:
        self.options.append(options)
        return self.pulsar(*address, **options)


@pytest.fixture
def side() -> Side:
    return Side()


def test_a_producer_that_is_gone_wants_to_be_opened_again_and_one_of_dead_letters_does_not_stop_the_batches(
    side: Side,
) -> None:
    side.open()
    side.producer.send(produce(1, refused=True))
    side.pulsar.answer(0, "AlreadyClosed")
    side.producer.take_receipts()
    assert not side.producer.wants_reopening
    send_now(side.producer, produce(2))
    side.pulsar.answer(0, "AlreadyClosed")
    side.producer.take_receipts()
    assert not side.producer.is_open
    side.open()
    send_now(side.producer, produce(3))
    assert len(side.pulsar.waiting) == 1


def test_of_a_group_that_pulsar_never_takes_each_message_is_tried_alone_and_only_the_bad_one_fails_for_good(
    side: Side,
) -> None:
    side.open()
    send_now(side.producer, *map(produce, (1, 2, 3)))
    side.pulsar.answer(0, "MessageTooBig")
    receipts = side.producer.take_receipts()
    assert [(receipt.token, receipt.is_permanent, receipt.ok) for receipt in receipts] == [
        (token, False, False) for token in (1, 2, 3)
    ]
    send_now(side.producer, *map(produce, (1, 2, 3)))
    assert [len(message.before) for message in side.pulsar.waiting] == [0, 0, 0]
    side.pulsar.answer(1, "MessageTooBig")
    side.pulsar.answer(0)
    side.pulsar.answer(0)
    permanent = {receipt.token: receipt.is_permanent for receipt in side.producer.take_receipts()}
    assert permanent == {1: False, 2: True, 3: False}


def test_each_partition_has_a_producer_and_a_device_keeps_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side()
    monkeypatch.setattr(side.pulsar, "get_topic_partitions", lambda topic: [f"{topic}-partition-{n}" for n in (0, 1)])
    side.open()
    for token in range(40):
        side.producer.send(produce(token, device=f"d{token % 10}"))
    side.producer.flush_due(0.0)
    messages = [it for last in side.pulsar.waiting for it in (*last.before, last)]
    topics_of: dict[str, set[str]] = {}
    for message in messages:
        topics_of.setdefault(message.properties["device"], set()).add(message.topic)
    assert len(messages) == 40
    assert all(len(topics) == 1 for topics in topics_of.values())
    assert len({topic for topics in topics_of.values() for topic in topics}) == 2


def test_an_encrypted_connection_checks_the_name_of_its_host() -> None:
    opened: list[PulsarAccess] = []

    def client(_: str, access: PulsarAccess, **__: Any) -> FakePulsar:
        opened.append(access)
        return FakePulsar()

    address = {
        "tenant": "fleet",
        "service_url": "pulsar+ssl://pulsar:6651",
        "access": {"token": "secret", "tls_ca": "/ca.pem"},
    }
    open_now(PulsarProducer(settings(pulsar=address), lambda: None, client, at_once, pulsar_tenant="fleet"))
    (access,) = opened
    assert access.tls_validate_hostname
    assert access.tls_ca == Path("/ca.pem")
    assert PulsarToken(access)() == "secret"


KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def public_key(folder: Path) -> Path:
    file = folder / "acme.pub"
    file.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return file


def message(tenant: str, *, refused: bool = False) -> Produce:
    return Produce(1, refused, "d1", b"a batch", {"tenant": tenant, "device": "d1", "region": "eu"})


@pytest.mark.parametrize("refused", [False, True])
def test_a_message_of_a_tenant_with_a_key_opens_with_that_key_alone(tmp_path: Path, refused: bool) -> None:
    served = settings(tenants={"acme": {"sealing_key": public_key(tmp_path)}, "other": {}})
    sent = Sealing(served).sealed(message("acme", refused=refused))
    assert b"a batch" not in sent.payload
    assert Unsealer([KEY]).unseal(sent.payload, "acme", served.region) == b"a batch"
    with pytest.raises(Unsealable):
        Unsealer([X25519PrivateKey.generate()]).unseal(sent.payload, "acme", served.region)


def test_a_key_that_cannot_be_used_is_named_before_the_gateway_starts(tmp_path: Path) -> None:
    served = settings(tenants={"acme": {"sealing_key": tmp_path / "none.pub"}})
    with pytest.raises(SealingKeyError, match=r"none\.pub"):
        Sealing(served)
    (problem,) = problems(served)
    assert problem.startswith("tenants.acme.sealing_key: ")
    assert "none.pub" in problem
