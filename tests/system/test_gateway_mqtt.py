"""The gateway's session with a real Mosquitto: no publisher and no second gateway can end it unnoticed."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from deploy.local import MosquittoBroker, MosquittoSettings
from gateway.mqtt_connection import MqttConnection, PublishResult
from tests.gateway.strategies import settings
from tests.waiting import PATIENCE, deadline_s
from waybill.mqtt.mqtt_client import MqttMessage

pytestmark = [pytest.mark.system, pytest.mark.own_servers]


class BrokerWithRules(MosquittoBroker):
    """A Mosquitto that lets nobody publish below waybill/1/barred."""

    def _lines(self) -> list[str]:
        rules = self.folder / "acl"
        rules.write_text("topic readwrite #\ntopic deny waybill/1/barred/#\n")
        return [*super()._lines(), f"acl_file {rules}"]


class Session:
    """The gateway's side of the broker, turned by hand."""

    def __init__(self, port: int, name: str = "gateway-1", **changes: Any) -> None:
        self.inbound: list[MqttMessage] = []
        self.published: list[PublishResult] = []
        made = settings(name=name, mqtt={"host": "127.0.0.1", "port": port, "receive_maximum": 8, **changes})
        self.side = MqttConnection(made, self.inbound.append, self.published.append)
        self.side.connect()
        self.turn_until(lambda: self.side.is_subscribed)

    def turn_until(self, condition: Callable[[], Any], timeout_s: float = 10) -> None:
        deadline = deadline_s(timeout_s)
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen in time: {self.side.last_error}"
            socket = self.side.socket
            if socket is None:
                return
            readable, _, _ = select.select([socket], [socket] if self.side.wants_write else [], [], 0.02)
            if readable:
                self.side.read()
            if self.side.socket is not None and self.side.wants_write:
                self.side.write()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    # Larger packets than a gateway takes.
    settings = MosquittoSettings(max_packet_mb=8)
    broker = BrokerWithRules("rules", tmp_path_factory.mktemp("rules"), settings=settings)
    broker.start()
    broker.wait(20 * PATIENCE)
    yield broker
    broker.stop()


@pytest.fixture
def session(broker: MosquittoBroker) -> Iterator[Session]:
    made = Session(broker.port)
    yield made
    made.side.disconnect()


@pytest.fixture
def publish(broker: MosquittoBroker) -> Iterator[Callable[..., None]]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="device", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()

    def send(topic: str, payload: bytes, user: Sequence[tuple[str, str]] = (), qos: int = 1) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if user:
            properties.UserProperty = list(user)
        client.publish(topic, payload, qos=qos, properties=properties).wait_for_publish(10)

    yield send
    client.disconnect()
    client.loop_stop()


def test_no_property_that_a_device_sends_ends_the_session_or_delays_it(
    session: Session, publish: Callable[..., None]
) -> None:
    publish("waybill/1/t/d1/batch", b"1", [("a", "\ufeff")])
    publish("waybill/1/t/d1/batch", bytes(1_000_000), [("a", "b")] * 60_000)
    publish("waybill/1/t/d1/batch", b"3")
    began = time.monotonic()
    session.turn_until(lambda: len(session.inbound) == 3)
    assert time.monotonic() - began < 2 * PATIENCE
    assert [len(message.payload) for message in session.inbound] == [1, 1_000_000, 1]
    assert session.side.is_subscribed


def test_odd_topics_arrive_whole_and_what_is_larger_than_a_packet_may_be_does_not(
    broker: MosquittoBroker, publish: Callable[..., None]
) -> None:
    tight = Session(broker.port, "tight", max_packet_bytes=5 << 20)
    long = f"waybill/1/t/{'d' * 65_000}/batch"
    publish("waybill/1/t/d1/batch", bytes(6 << 20))
    publish(long, b"x")
    publish("waybill/1//\ufeff/config-result", b"{}", qos=0)
    tight.turn_until(lambda: len(tight.inbound) == 2)
    assert [(message.topic, bool(message.mid)) for message in tight.inbound] == [
        (long, True),
        ("waybill/1//\ufeff/config-result", False),
    ]
    tight.side.disconnect()
