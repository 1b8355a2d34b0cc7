"""The broker's side, against a broker that answers as the test says: what it refuses, bounds, and leaves unanswered."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import PushFolder
from gateway.effects import DevicePublisher
from gateway.engine import Engine
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection, PublishResult
from gateway.push import PushQueue
from tests.gateway.sides import NO_SUBSCRIBER, FakeBroker
from tests.gateway.strategies import engine, settings, topic
from tests.identity.makers import operator, operators_file
from tests.waiting import deadline_s
from waybill.identity.signatures import sign_push
from waybill.record import DeviceChannel, device_topic

ACK = topic("d1").replace("batch", "ack")


class Session:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.inbound: list[Any] = []
        self.published: list[PublishResult] = []
        made = settings(mqtt={"host": "127.0.0.1", "port": broker.port}, acks={"window": 3})
        self.side = MqttConnection(made, self.inbound.append, self.published.append)

    def turn(self) -> None:
        self.broker.turn()
        socket = self.side.socket
        if socket is None:
            return
        if select.select([socket], [], [], 0)[0] or self.side.has_buffered:
            self.side.read()
        if self.side.socket is not None and self.side.wants_write:
            self.side.write()
        self.broker.turn()

    def until(self, condition: Callable[[], Any]) -> None:
        ends_s = deadline_s(20)
        while not condition():
            assert time.monotonic() < ends_s, f"it did not happen in time: {self.side.last_error}"
            self.turn()

    def connect(self) -> Session:
        self.side.connect()
        self.until(lambda: self.side.is_subscribed)
        return self


@pytest.fixture
def session() -> Iterator[Session]:
    broker = FakeBroker()
    yield Session(broker)
    broker.close()


def test_a_subscription_that_is_refused_or_granted_without_acknowledgement_is_no_connection(session: Session) -> None:
    for suback, said in ((b"\x01\x87", "refuses a subscription"), (b"\x01\x00", "grants QoS 0 only")):
        session.broker.suback = suback
        session.side.connect()
        session.until(lambda: session.side.last_error)
        assert said in session.side.last_error
        assert "$share" not in session.side.last_error, "who reads it must not learn the group's name"
        assert not session.side.is_subscribed
        assert session.side.free_slots == 0


@pytest.mark.parametrize(("receive_maximum", "free"), [(2, 2), (100, 3)])
def test_publications_are_bounded_by_the_window_and_by_the_broker_and_freed_by_its_answers(
    receive_maximum: int, free: int
) -> None:
    session = Session(FakeBroker(receive_maximum=receive_maximum)).connect()
    assert session.side.free_slots == free
    for _ in range(free):
        session.side.publish(ACK, b"x")
    assert session.side.free_slots == 0
    session.until(lambda: len(session.broker.acks) == free)
    session.broker.answer(session.broker.acks[0])
    session.broker.answer(session.broker.acks[1], NO_SUBSCRIBER)
    session.until(lambda: len(session.published) == 2)
    assert session.published == [PublishResult(ACK, ""), PublishResult(ACK, "")]
    assert session.side.free_slots == 2
    session.broker.close()


class Taking:
    def __init__(self) -> None:
        self.free_slots, self.is_subscribed = 100, True
        self.fails_on = ""
        self.out: list[str | int] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if topic == self.fails_on:
            raise ValueError("a packet that cannot be made")
        self.free_slots -= 1
        self.out.append(topic)

    def puback(self, mid: int) -> None:
        self.out.append(mid)


def publisher(made: Engine, broker: Any, **pushes: Path) -> tuple[DevicePublisher, GatewayMetrics]:
    metrics = GatewayMetrics()
    return DevicePublisher(made, broker, PushQueue(PushFolder(**pushes)), metrics), metrics


def test_files_of_settings_are_looked_at_one_by_one_without_waiting(tmp_path: Path) -> None:
    anna = operator("anna")
    (tmp_path / "fleet").mkdir()
    for number in range(6):
        push = sign_push(anna.key, f"fleet/d{number}", 1, b"[drain]\nwindow = 9\n") if number % 2 else b"wrong"
        (tmp_path / "fleet" / f"d{number}.toml").write_bytes(push)
    broker = Taking()
    operators = operators_file(tmp_path / "operators.toml", anna)
    it, metrics = publisher(engine(), broker, folder=tmp_path, operators=operators)
    for turn in range(6):
        assert it.next_due_s(7.0) == 7.0
        it.publish_due(7.0)
        assert len(broker.out) == (turn + 1) // 2
    assert it.next_due_s(7.0) is None
    assert broker.out == [device_topic("fleet", f"d{number}", DeviceChannel.CONFIG) for number in (1, 3, 5)]
    assert metrics.registry.get_sample_value("waybill_gateway_pushes_total") == 3


@pytest.mark.parametrize(("channel", "counts"), [(DeviceChannel.ACK, (1, 0)), (DeviceChannel.CONFIG, (0, 1))])
def test_what_the_broker_refuses_is_counted_as_what_it_was(channel: DeviceChannel, counts: tuple[int, int]) -> None:
    it, metrics = publisher(engine(), Taking())
    it.on_publish_result(PublishResult(device_topic("fleet", "d1", channel), "not authorized"))
    names = ("acks_refused_total", "pushes_refused_by_broker_total")
    assert tuple(metrics.registry.get_sample_value(f"waybill_gateway_{name}") for name in names) == counts
