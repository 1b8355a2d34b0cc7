"""A phone of `waybill try`: what it writes reaches the vehicle's broker, and nothing else does."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import MosquittoBroker, free_port, wait_all
from deploy.trial.phone import USER, PhoneListener
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]
HOST = "127.0.0.1"


class Heard:
    """What comes to the vehicle's broker."""

    def __init__(self, port: int) -> None:
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.client = client("heard")
        subscribed: queue.Queue[bool] = queue.Queue()
        self.client.on_message = lambda _client, _data, one: self.messages.put((one.topic, bytes(one.payload)))
        self.client.on_subscribe = lambda *_: subscribed.put(True)
        self.client.connect(HOST, port)
        self.client.loop_start()
        self.client.subscribe("#", 1)
        subscribed.get(timeout=10 * PATIENCE)

    def next(self) -> tuple[str, bytes]:
        return self.messages.get(timeout=20 * PATIENCE)


def client(name: str) -> mqtt.Client:
    return mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[PhoneListener, Heard]]:
    vehicle = MosquittoBroker("car", tmp_path / "car")
    listener = PhoneListener(address=HOST, port=free_port(), device="try-1")
    phone = listener.server(tmp_path / "phone", vehicle.port)
    vehicle.start()
    wait_all([vehicle])
    phone.start()
    wait_all([phone])
    heard = Heard(vehicle.port)
    yield listener, heard
    heard.client.disconnect()
    heard.client.loop_stop()
    phone.stop()
    vehicle.stop()


def connected(listener: PhoneListener, user: str, password: str) -> Any:
    """The answer of the phone's broker, and the client."""
    answers: queue.Queue[Any] = queue.Queue()
    one = client(f"phone-{user}")
    one.username_pw_set(user, password)
    one.on_connect = lambda _client, _data, _flags, reason, _properties: answers.put(reason)
    one.connect(HOST, listener.port)
    one.loop_start()
    return answers.get(timeout=10 * PATIENCE), one


def test_a_phone_writes_its_own_topics_to_the_vehicle(place: tuple[PhoneListener, Heard]) -> None:
    listener, heard = place
    reason, phone = connected(listener, USER, listener.password)
    assert not reason.is_failure
    phone.publish("vehicle/position", b"not its own", qos=1)
    phone.publish(f"owntracks/{USER}/try-1", b"its own", qos=1)
    assert heard.next() == (f"owntracks/{USER}/try-1", b"its own")
    phone.loop_stop()


def test_without_its_password_nobody_gets_in(place: tuple[PhoneListener, Heard]) -> None:
    listener, _ = place
    reason, other = connected(listener, USER, "guessed")
    assert reason.is_failure
    other.loop_stop()
    wait_until(lambda: not other.is_connected())
