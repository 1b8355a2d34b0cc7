"""Who may send at all: a real regional broker with certificates and rules, and whoever tries to be somebody else."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import LocalAuthority, TlsFiles
from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.uplink.mqtt import MqttUplink
from gateway.access.enrolment_service import EnrolmentConnection
from gateway.mqtt_connection import MqttConnection
from tests.gateway.strategies import settings as gateway_settings
from tests.system.regional_broker import RegionalBroker
from tests.waiting import deadline_s, wait_until
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import DeviceChannel, device_filter, device_topic, shared_filter

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

OWNER, NEIGHBOUR = ("acme", "bus-1"), ("kaze", "bus-1")


class Participant:
    """A client with a certificate, its answers, and what it got."""

    def __init__(self, broker: RegionalBroker, name: str, files: TlsFiles | None = None, client_id: str = "") -> None:
        own = files or broker.authority.client(name, "eu")
        self.got: list[tuple[str, bytes]] = []
        self.answers: list[str] = []
        self.granted = 0
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        self.client.tls_set(str(broker.authority.file), str(own.certificate), str(own.key))
        self.client.on_message = lambda _, __, message: self.got.append((message.topic, bytes(message.payload)))
        self.client.on_publish = lambda _, __, ___, reason, ____: self.answers.append(str(reason))
        self.client.on_subscribe = lambda *_: setattr(self, "granted", self.granted + 1)
        self.client.connect("127.0.0.1", broker.server.port)
        self.client.loop_start()
        wait_until(self.client.is_connected, 10)

    def subscribe(self, *topics: str) -> None:
        before = self.granted
        self.client.subscribe([(topic, 1) for topic in topics])
        wait_until(lambda: self.granted > before, 10)

    def publish(self, topic: str, content: bytes) -> str:
        before = len(self.answers)
        self.client.publish(topic, content, qos=1)
        wait_until(lambda: len(self.answers) > before, 10)
        return self.answers[-1]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionalBroker]:
    running = RegionalBroker(tmp_path_factory.mktemp("region"))
    yield running
    running.server.stop()


@pytest.fixture
def participants(broker: RegionalBroker) -> Iterator[dict[str, Participant]]:
    found = {name: Participant(broker, name) for name in ("gateway@eu-1", "/".join(OWNER), "/".join(NEIGHBOUR))}
    yield found
    for one in found.values():
        one.close()


def refused_files(broker: RegionalBroker, folder: Path, why: str) -> TlsFiles | None:
    match why:
        case "expired":
            return broker.ending(folder, "acme/bus-1", in_s=-60)
        case "of another authority":
            return LocalAuthority(folder).client("acme/bus-1", "eu")
        case "of a server":
            return broker.authority.server("broker@eu", "eu")
    return None


@pytest.mark.parametrize("why", ["none", "expired", "of another authority", "of a server"])
def test_without_a_certificate_that_is_good_now_nobody_gets_in_and_the_broker_says_so(
    broker: RegionalBroker, tmp_path: Path, why: str
) -> None:
    said = "peer did not return a certificate" if why == "none" else "certificate verify failed"
    before = broker.said(said)
    files = refused_files(broker, tmp_path, why)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    ended: list[object] = []
    connected: list[object] = []
    client.on_disconnect = lambda *facts: ended.append(facts)
    client.on_connect = lambda *facts: connected.append(facts)
    client.tls_set(str(broker.authority.file), *((str(files.certificate), str(files.key)) if files else ()))
    client.connect("127.0.0.1", broker.server.port)
    client.loop_start()
    try:
        wait_until(lambda: ended, 10)
        wait_until(lambda: broker.said(said) > before, 10)
    finally:
        client.loop_stop()
    assert not connected


def test_a_neighbour_can_neither_send_for_a_device_nor_forge_its_acknowledgement_nor_read_it(
    broker: RegionalBroker, participants: dict[str, Participant]
) -> None:
    gateway, owner, neighbour = participants.values()
    batch, ack = (device_topic(*OWNER, channel) for channel in (DeviceChannel.BATCH, DeviceChannel.ACK))
    gateway.subscribe(device_filter(DeviceChannel.BATCH))
    owner.subscribe(ack)
    neighbour.subscribe(batch, ack, "#")
    before = broker.refused_publications()
    assert neighbour.publish(batch, b"not mine") == "Not authorized"
    assert [neighbour.publish(ack, b"forged") for _ in range(3)] == ["Not authorized"] * 3
    assert owner.publish(batch, b"mine") == "Success"
    assert gateway.publish(ack, b"safe") == "Success"
    wait_until(lambda: gateway.got and owner.got, 10)
    # what the neighbour sends itself goes the same way, behind what it must not get
    own = device_topic(*NEIGHBOUR, DeviceChannel.BATCH)
    assert neighbour.publish(own, b"its own") == "Success"
    wait_until(lambda: len(gateway.got) > 1, 10)
    assert gateway.got == [(batch, b"mine"), (own, b"its own")]
    assert owner.got == [(ack, b"safe")]
    assert neighbour.got == []
    wait_until(lambda: broker.refused_publications() - before == {"batch": 1, "ack": 3}, 10)
    assert "Received PUBLISH" not in broker.server.log.read_text(encoding="utf-8")


def test_who_gives_the_client_id_of_another_ends_nobody_s_session(
    broker: RegionalBroker, participants: dict[str, Participant]
) -> None:
    owner = participants["/".join(OWNER)]
    ended: list[object] = []
    owner.client.on_disconnect = lambda *facts: ended.append(facts)
    liar = Participant(broker, "kaze/bus-2", client_id="/".join(OWNER))
    assert liar.publish(device_topic("kaze", "bus-2", DeviceChannel.BATCH), b"x") in {
        "Success",
        "No matching subscribers",
    }
    liar.close()
    assert owner.publish(device_topic(*OWNER, DeviceChannel.BATCH), b"x") in {"Success", "No matching subscribers"}
    assert not ended


def certified(broker: RegionalBroker, name: str) -> dict[str, Any]:
    """How somebody reaches a broker, as settings say it."""
    own = broker.authority.client(name, "eu")
    tls = {"ca": own.ca, "certificate": own.certificate, "key": own.key}
    return {"host": "127.0.0.1", "port": broker.server.port, "tls": tls}


def subscribed_gateway(broker: RegionalBroker, on_message: Callable[[MqttMessage], None]) -> MqttConnection:
    share = {"share_file": broker.authority.share("eu")}
    made = gateway_settings(name="eu-1", mqtt=certified(broker, "gateway@eu-1") | share)
    side = MqttConnection(made, on_message, lambda _: None)
    side.connect()
    turn_until(side, lambda: side.is_subscribed)
    return side


def turn_until(side: MqttConnection, condition: Callable[[], bool]) -> None:
    ends_s = deadline_s(20)
    while not condition():
        assert time.monotonic() < ends_s, side.last_error
        side.read()
        side.write()


def parties(broker: RegionalBroker) -> Iterator[Callable[[], Callable[[], None]]]:
    """Everybody who has a session here, by the code that it runs in the field: each comes, and then leaves."""

    def device(number: int) -> Callable[[], None]:
        settings = UplinkSettings.model_validate({"region": "eu", **certified(broker, f"acme/visitor-{number}")})
        uplink = MqttUplink(DeviceSettings(tenant="acme", id=f"visitor-{number}"), settings)
        uplink.open()
        uplink.poll(0.05)
        return uplink.close

    def gateway() -> Callable[[], None]:
        return subscribed_gateway(broker, lambda _: None).disconnect

    def daemon() -> Callable[[], None]:
        door = EnrolmentConnection(
            BrokerSettings.model_validate(certified(broker, "access@eu")), "access@eu", ("t",), lambda *_: None
        )
        while not door.is_open:
            door.turn(time.monotonic())
        return door.close

    yield from (partial(device, number) for number in range(4))
    yield from (gateway, daemon)


@pytest.mark.nightly
def test_the_broker_outlives_everybody_who_returns_after_it_read_its_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Mosquitto 2.0.11 goes on with a session that it freed, if that had a time to live behind its connection. Freed
    # memory is overwritten, so that it ends by that at once, and not sooner or later.
    monkeypatch.setenv("MALLOC_PERTURB_", "165")
    broker = RegionalBroker(tmp_path)
    process = broker.server.pid
    assert process is not None
    try:
        for _ in range(3):
            for _ in range(2):
                for leave in [come() for come in parties(broker)]:
                    leave()
            # A signal that comes while it reads its files is forgotten, and once a second it ends sessions.
            next_s = time.monotonic() + 1.2
            os.kill(process, signal.SIGHUP)
            while time.monotonic() < next_s:
                broker.server.check_alive()
        assert broker.said("Reloading config") == 3
    finally:
        broker.server.stop()


def test_nobody_who_does_not_know_the_group_of_the_gateways_takes_batches_from_them(broker: RegionalBroker) -> None:
    got: list[MqttMessage] = []
    side = subscribed_gateway(broker, got.append)
    strangers = [Participant(broker, f"kaze/stranger-{number}") for number in range(3)]
    owner = Participant(broker, "/".join(OWNER))
    try:
        for one in strangers:
            groups = [shared_filter(DeviceChannel.BATCH, group) for group in ("gateway", "+", "*")]
            one.subscribe(*groups, "#", "$SYS/#")
        for number in range(40):
            owner.publish(device_topic(*OWNER, DeviceChannel.BATCH), b"%d" % number)
        turn_until(side, lambda: len(got) == 40)
        assert [one.got for one in strangers] == [[], [], []]
        # Nor is the name written where others look: not in the log, nor in what the broker has on disk.
        group = broker.authority.share("eu").read_text().strip()
        process = broker.server.pid
        assert process is not None
        os.kill(process, signal.SIGUSR1)
        wait_until((broker.server.folder / "mosquitto.db").exists, 10)
        files = [file for file in broker.server.folder.rglob("*") if file.is_file()]
        assert [file.name for file in files if group.encode() in file.read_bytes()] == []
    finally:
        side.disconnect()
        for one in (owner, *strangers):
            one.close()


def test_a_tls_session_that_was_closed_in_order_is_not_resumed_after_the_end_of_its_certificate(
    broker: RegionalBroker, tmp_path: Path
) -> None:
    own = broker.ending(tmp_path, "acme/resumer", in_s=3)
    ends = time.time() + 3
    context = ssl.create_default_context(cafile=str(own.ca))
    context.load_cert_chain(str(own.certificate), str(own.key))
    with session_of(broker, context) as secure:
        assert (secure.version(), secure.session_reused) == ("TLSv1.3", False)
        # By close_notify: a server keeps no session that was cut off.
        secure.unwrap()
        session = secure.session
    with session_of(broker, context, session) as secure:
        assert not secure.session_reused
    wait_until(lambda: time.time() > ends + 1, 10)
    with pytest.raises((ssl.SSLError, ConnectionError)), session_of(broker, context, session):
        pytest.fail("a session is resumed whose certificate has ended")


def test_a_broker_speaks_no_tls_1_2_whose_sessions_it_could_not_help_resuming(broker: RegionalBroker) -> None:
    own = broker.authority.client("acme/resumer", "eu")
    context = ssl.create_default_context(cafile=str(own.ca))
    context.load_cert_chain(str(own.certificate), str(own.key))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"), session_of(broker, context):
        pytest.fail("TLS 1.2 is spoken")


@contextmanager
def session_of(
    broker: RegionalBroker, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    """One that the broker has let in; raises SSLError or ConnectionError where it does not."""
    plain = socket.create_connection(("127.0.0.1", broker.server.port), 10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure:
        # A ticket comes behind the handshake, with what is read first.
        secure.sendall(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc")
        if secure.recv(100)[:1] != b"\x20":
            raise ConnectionError("no CONNACK")
        yield secure
