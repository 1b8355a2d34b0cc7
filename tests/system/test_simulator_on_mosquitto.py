"""The publisher and a real Mosquitto: everything that the fleet makes is held by the brokers, exactly once."""

import io
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import MosquittoBroker
from simulator import BrokerAddress, PublishSettings, drive, generated_scenario, publish
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
HOST = "127.0.0.1"


def test_every_message_is_received_exactly_once_and_stands_in_the_journal(tmp_path: Path) -> None:
    scenario = generated_scenario(seed=5, vehicles=4, regions=("eu", "us"), duration_s=1200, interval_s=5)
    received: list[tuple[str, bytes]] = []
    journal = io.StringIO()
    with ExitStack() as ending:
        brokers = [MosquittoBroker(name, tmp_path / name) for name in ("one", "two")]
        for broker in brokers:
            ending.callback(broker.stop)
            broker.start()
            broker.wait()
            ending.callback(listening(broker, received).loop_stop)
        addresses = {
            vehicle.device: BrokerAddress(HOST, brokers[at % 2].port) for at, vehicle in enumerate(scenario.vehicles)
        }
        summary = publish(drive(scenario), addresses, PublishSettings(speedup=400), journal=journal)
        wait_until(lambda: len(received) >= summary.made)
    assert (summary.complete, summary.maybe_doubled) == (True, 0)
    assert Counter(received) == Counter((message.topic, message.payload) for message in drive(scenario))
    assert len(journal.getvalue().splitlines()) == summary.made == sum(summary.by_device.values())


def listening(broker: MosquittoBroker, received: list[tuple[str, bytes]]) -> mqtt.Client:
    """What an agent is for a broker; it fills the list in paho's thread."""
    client, subscribed = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5), threading.Event()
    client.on_connect = lambda one, *_: one.subscribe("vehicle/#", qos=1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _, __, message: received.append((message.topic, bytes(message.payload)))
    client.connect(HOST, broker.port)
    client.loop_start()
    assert subscribed.wait(10 * PATIENCE)
    return client
