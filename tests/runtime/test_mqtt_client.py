"""A PUBLISH is taken apart whatever a publisher put into it, and what is replaced of paho is there."""

import inspect
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion

from cloud_jobs.pulsar_source import OptionError
from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.feeds import shared_client
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster, TopicName
from deploy.local import LocalAuthority
from waybill.daemon.tls import TlsSettings, check_key_pair, tls_context
from waybill.mqtt.broker_settings import BrokerSettings, is_this_machine, read_password, unusable_files
from waybill.mqtt.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions, read_publish
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import SettingsError, validate

QOS_1 = 0x32


def packet(topic: bytes, payload: bytes, *, mid: int | None = 7, properties: bytes = b"\0") -> bytes:
    packet_id = b"" if mid is None else mid.to_bytes(2, "big")
    return len(topic).to_bytes(2, "big") + topic + packet_id + properties + payload


@given(st.text(max_size=40), st.binary(max_size=300), st.integers(1, 65_535), st.binary(max_size=200), st.booleans())
def test_a_publish_packet_is_read_as_it_was_written(
    topic: str, payload: bytes, mid: int, properties: bytes, dup: bool
) -> None:
    name = topic.encode()
    length = (
        bytes([len(properties)])
        if len(properties) < 128
        else bytes([len(properties) & 127 | 128, len(properties) >> 7])
    )
    packet = len(name).to_bytes(2, "big") + name + mid.to_bytes(2, "big") + length + properties + payload
    first = 0x32 | (8 if dup else 0)
    assert read_publish(first, packet) == MqttMessage(mid, 1, dup, topic, payload)


def test_the_cost_of_four_million_bytes_of_properties_is_that_of_passing_over_them() -> None:
    area = b"\x26\x00\x01a\x00\x01b" * 600_000
    length = bytes(
        [len(area) & 0x7F | 0x80, len(area) >> 7 & 0x7F | 0x80, len(area) >> 14 & 0x7F | 0x80, len(area) >> 21]
    )
    began = time.thread_time()
    assert read_publish(QOS_1, packet(b"t", b"x", properties=length + area)).payload == b"x"
    assert time.thread_time() - began < 0.25  # 0.01 s; a step for each property takes seconds


PRIVATE = {
    "_sock_recv": ["self", "bufsize"],
    "_sock_send": ["self", "buf"],
    "_handle_publish": ["self"],
    "_handle_connack": ["self"],
    "_loop_rc_handle": ["self", "rc"],
    "_packet_read": ["self"],
    "_mid_generate": ["self"],
}
"""What `MqttClient` replaces or calls of paho's private methods, with their parameters."""


@pytest.mark.parametrize(("name", "parameters"), PRIVATE.items())
def test_a_private_method_of_paho_that_is_used_is_there_with_its_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(mqtt.Client, name)).parameters) == parameters


def test_nothing_else_of_paho_s_private_parts_is_used_and_none_of_its_names_is_taken() -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    assert client._in_packet.keys() >= {"command", "packet", "remaining_count", "remaining_length"}
    theirs = {name for name in {*dir(mqtt.Client), *vars(client)} if not name.startswith("__")}
    used = set(re.findall(r"(?:self|super\(\))\.(_\w+)", inspect.getsource(MqttClient))) & theirs
    assert used == PRIVATE.keys() - {"_handle_publish", "_mid_generate"} | {"_in_packet"}
    assert theirs & vars(MqttClient).keys() == PRIVATE.keys() - {"_loop_rc_handle", "_packet_read"} | {"publish"}


class CertificateReader:
    """A TLS server that demands a certificate, notes whose serial came, and ends the connection."""

    def __init__(self, authority: LocalAuthority) -> None:
        own = authority.server("broker@eu")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(own.ca))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(own.certificate, own.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def serial_of(self, connect: Callable[[], None]) -> int:
        with ThreadPoolExecutor() as pool:
            shown = pool.submit(self._take)
            connect()
            return shown.result(10)

    def _take(self) -> int:
        plain, _ = self._listener.accept()
        with plain, self._context.wrap_socket(plain, server_side=True) as secure:
            certificate = secure.getpeercert() or {}
            return int(str(certificate["serialNumber"]), 16)

    def close(self) -> None:
        self._listener.close()


def test_a_renewed_certificate_is_shown_at_the_next_connection(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path)
    own, server = authority.client("gateway@eu-1"), CertificateReader(authority)
    settings = BrokerSettings(
        host="127.0.0.1", port=server.port, tls=TlsSettings(ca=own.ca, certificate=own.certificate, key=own.key)
    )
    client = MqttClient(settings, MqttSessionOptions(client_id="x"))
    try:
        first = server.serial_of(client.start)
        renewed = authority.pki.renew(own.certificate.parent, now=datetime.now(UTC), lifetime=timedelta(days=1))
        assert renewed.serial != first
        assert server.serial_of(client.start) == renewed.serial
    finally:
        server.close()


CONNACK = b"\x20\x03\x00\x00\x00"
MESSAGE = b"\x32\x08\x00\x01t\x00\x07\x00ab"


class Listener:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> socket.socket:
        accepted, _ = self._listener.accept()
        accepted.settimeout(10)
        return accepted

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


class Owner:
    """What drives a client: it waits for bytes, and notes what it hears."""

    def __init__(self, port: int, max_packet_bytes: int = 1 << 20) -> None:
        options = MqttSessionOptions(client_id="x", max_packet_bytes=max_packet_bytes)
        self.client = MqttClient(BrokerSettings(port=port), options)
        self.ended: list[str] = []
        self.messages: list[MqttMessage] = []
        self.client.on_disconnect = lambda *about: self.ended.append(str(about[3]))

    def start(self, listener: Listener) -> socket.socket:
        self.client.start()
        self.client.flush()
        other = listener.accept()
        assert other.recv(4096)[:1] == b"\x10"
        other.sendall(CONNACK)
        self.receive()
        return other

    def receive(self, has_room: Callable[[], bool] = lambda: True) -> None:
        sock = self.client.socket()
        assert sock is not None
        assert self.client.has_unread or select.select([sock.fileno()], [], [], 10)[0]
        self.client.receive(self.messages.append, has_room=has_room)


def test_a_packet_larger_than_the_broker_may_send_ends_the_connection_before_it_is_read(listener: Listener) -> None:
    owner = Owner(listener.port, max_packet_bytes=1000)
    other = owner.start(listener)
    other.sendall(b"\x32\xe9\x07" + bytes(1001))
    owner.receive()
    assert (owner.client.socket(), owner.messages, len(owner.ended)) == (None, [], 1)
    other.close()


def test_a_new_connection_has_nothing_of_the_old_one_but_unanswered_publications(listener: Listener) -> None:
    owner = Owner(listener.port)
    other = owner.start(listener)
    other.sendall(MESSAGE + MESSAGE[:5])
    owner.receive()
    owner.client.acknowledge(7)  # was not sent yet, and belongs to the old connection
    owner.client.publish_qos_1("t", b"unanswered")
    other.close()
    owner.receive()
    assert [message.mid for message in owner.messages] == [7]
    again = owner.start(listener)
    again.sendall(MESSAGE)
    owner.receive()
    assert [(message.mid, message.payload) for message in owner.messages] == [(7, b"ab"), (7, b"ab")]
    assert owner.client.unanswered == 1
    owner.client.flush()
    sent = again.recv(4096)
    assert (sent[0] >> 4, b"unanswered" in sent, b"\x40" in sent[:1]) == (3, True, False)
    again.close()


def packets_of(sent: bytes) -> Iterator[tuple[int, int]]:
    """The kind of each packet, all of them short, and the id that it has."""
    while sent:
        at = 4 + int.from_bytes(sent[2:4], "big") if sent[0] >> 4 == 3 else 2
        yield sent[0] >> 4, int.from_bytes(sent[at : at + 2], "big")
        sent = sent[2 + sent[1] :]


def test_packets_go_out_in_the_order_in_which_they_were_asked_for_and_no_two_of_ours_have_one_id(
    listener: Listener,
) -> None:
    """Where a PUBLISH goes before the SUBSCRIBE to its answer, the broker drops the answer."""
    owner = Owner(listener.port)
    other = owner.start(listener)
    for _ in range(3):
        owner.client.subscribe("answers")
        owner.client.publish_qos_1("questions", b"?")
        owner.client.acknowledge(900)
        owner.client.unsubscribe("answers")
        owner.client.publish_qos_1("questions", b"?")
    owner.client.disconnect()
    owner.client.flush()
    sent = b""
    while piece := other.recv(4096):
        sent += piece
    *packets, (last, _) = packets_of(sent)
    assert [kind for kind, _ in packets] == [8, 3, 4, 10, 3] * 3
    assert last == 14
    ids = [number for kind, number in packets if kind != 4]
    assert len(set(ids)) == len(ids)
    other.close()


def with_passphrase(own):
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    own.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    return own


def test_a_key_without_a_passphrase_is_loaded(tmp_path: Path) -> None:
    own = LocalAuthority(tmp_path).client("fleet/eu-0001")
    check_key_pair(own.certificate, own.key)
    with pytest.raises(OSError, match="No such file"):
        check_key_pair(own.certificate, tmp_path / "none")


def test_a_key_with_a_passphrase_is_refused_by_agent_and_gateway_and_the_source(tmp_path: Path) -> None:
    own = with_passphrase(LocalAuthority(tmp_path).client("fleet/eu-0001"))
    with pytest.raises(ValueError, match="has a passphrase"):
        tls_context(TlsSettings(ca=own.ca, certificate=own.certificate, key=own.key))
    files = {"tls_certificate": own.certificate, "tls_key": own.key}
    cluster = SourceCluster(name="hq", service_url="pulsar+ssl://127.0.0.1:1", admin_url="https://127.0.0.1:1")
    with pytest.raises(OptionError, match="has a passphrase"):
        SourceAdmin(cluster, PulsarAccess(**files), 1.0)
    options = PulsarOptions(clusters=(cluster,), topics=(TopicName("t", "n", "x"),), subscription="s", **files)
    with pytest.raises(OptionError, match="has a passphrase"):
        shared_client(cluster, options)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"host": "broker:1883"}, "host"),
        ({"host": "http://broker"}, "host"),
        ({"host": ""}, "host"),
        ({"password_file": "p"}, "username and password_file belong together"),
        ({"tls": {"ca": "a", "key": "k"}}, "certificate and key belong together"),
    ],
)
def test_what_can_never_work_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        validate(BrokerSettings, settings, "x")


def test_the_password_is_the_first_line_and_one_that_is_empty_or_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "password"
    broker = BrokerSettings(username="u", password_file=file)
    assert "cannot be read" in next(unusable_files("mqtt", broker))
    file.write_text("\nsecret\n")
    assert list(unusable_files("mqtt", broker)) == ["mqtt.password_file: its first line is empty"]
    file.write_text("secret \nmore\n")
    assert list(unusable_files("mqtt", broker)) == []
    assert read_password(file) == "secret "


def test_files_of_tls_are_named_one_by_one(tmp_path: Path) -> None:
    tls = TlsSettings(ca=tmp_path / "ca", certificate=tmp_path / "c", key=tmp_path / "k")
    (tmp_path / "ca").write_text("no certificate")
    found = list(unusable_files("mqtt", BrokerSettings(tls=tls)))
    assert [line.partition(":")[0] for line in found] == ["mqtt.tls.certificate", "mqtt.tls.key"]
    only_ca = BrokerSettings(tls=TlsSettings(ca=tmp_path / "ca"))
    assert "mqtt.tls: certificates cannot be loaded" in next(unusable_files("mqtt", only_ca))


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("b", False)]
)
def test_this_machine_is_a_loopback_address_or_its_usual_name(host: str, here: bool) -> None:
    assert is_this_machine(host) is here
