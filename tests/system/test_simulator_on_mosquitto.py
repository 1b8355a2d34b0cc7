"""The publisher and a real Mosquitto: everything that the fleet makes is held by the brokers, exactly once."""

import io
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from deploy.local import MosquittoBroker
from simulator import (
    BrokerAddress,
    PublishSettings,
    Scenario,
    VehicleMessage,
    drive,
    generated_scenario,
    publish,
)
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
HOST = "127.0.0.1"


class AgentListener:
    """What an agent is for a broker: a persistent session on vehicle/#. `received` fills in paho's thread."""

    def __init__(self, port: int, name: str) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.redelivered = 0
        self._subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"agent-{name}", protocol=mqtt.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe("vehicle/#", qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._receive
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        self._client.connect(HOST, port, clean_start=False, properties=properties)
        self._client.loop_start()
        assert self._subscribed.wait(10 * PATIENCE)

    def _receive(self, client: mqtt.Client, data: object, message: mqtt.MQTTMessage) -> None:
        self.received.append((message.topic, bytes(message.payload)))
        self.redelivered += message.dup

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def wait_for(listeners: list[AgentListener], count: int) -> None:
    wait_until(lambda: sum(len(listener.received) for listener in listeners) >= count)


def heard(listeners: list[AgentListener]) -> Counter[tuple[str, bytes]]:
    return Counter(message for listener in listeners for message in list(listener.received))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, MosquittoBroker]]:
    running = {name: MosquittoBroker(name, tmp_path / name) for name in ("one", "two")}
    try:
        for broker in running.values():
            broker.start()
        for broker in running.values():
            broker.wait()
        yield running
    finally:
        for broker in running.values():
            broker.stop()


def small(**changes: Any) -> Scenario:
    return generated_scenario(seed=5, vehicles=4, regions=("eu", "us"), duration_s=1200, interval_s=5, **changes)


def spread(scenario: Scenario, brokers: dict[str, MosquittoBroker]) -> dict[str, BrokerAddress]:
    ports = [broker.port for broker in brokers.values()]
    return {vehicle.device: BrokerAddress(HOST, ports[i % 2]) for i, vehicle in enumerate(scenario.vehicles)}


def said(messages: Iterator[VehicleMessage]) -> Counter[tuple[str, bytes]]:
    return Counter((message.topic, message.payload) for message in messages)


def test_every_message_is_received_exactly_once_and_stands_in_the_journal(
    brokers: dict[str, MosquittoBroker],
) -> None:
    scenario = small()
    listeners = [AgentListener(broker.port, name) for name, broker in brokers.items()]
    journal = io.StringIO()
    try:
        settings = PublishSettings(speedup=400)
        summary = publish(drive(scenario), spread(scenario, brokers), settings, journal=journal)
        wait_for(listeners, summary.made)
    finally:
        for listener in listeners:
            listener.close()
    received = Counter(message for listener in listeners for message in listener.received)
    assert summary.complete
    assert summary.maybe_doubled == 0
    assert received == said(drive(scenario))
    assert len(journal.getvalue().splitlines()) == summary.made
    assert summary.made == sum(summary.by_device.values())


@pytest.mark.nightly
def test_the_broker_may_be_restarted_and_nothing_is_missing(brokers: dict[str, MosquittoBroker]) -> None:
    """A stopped broker saves its sessions; at most what was under way may be there, or be delivered, twice."""
    scenario = small()
    listeners = [AgentListener(broker.port, name) for name, broker in brokers.items()]

    def restart() -> None:
        brokers["one"].stop()
        brokers["one"].start()
        brokers["one"].wait()

    stop = threading.Timer(1.0, restart)
    stop.start()
    try:
        settings = PublishSettings(speedup=300)
        summary = publish(drive(scenario), spread(scenario, brokers), settings)
        made = said(drive(scenario))
        wait_until(lambda: not made - heard(listeners))  # some may come twice: their number alone says nothing
    finally:
        stop.join()
        for listener in listeners:
            listener.close()
    received = heard(listeners)
    assert summary.complete
    assert summary.reconnects >= 1
    assert not made - received
    redelivered = sum(listener.redelivered for listener in listeners)
    assert (received - made).total() <= summary.maybe_doubled + redelivered
