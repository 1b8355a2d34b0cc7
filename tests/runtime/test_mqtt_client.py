"""A PUBLISH is taken apart whatever a publisher put into it, and what is replaced of paho is there."""

from __future__ import annotations

import inspect
import re
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion

from deploy.local import LocalAuthority
from waybill.daemon.tls import TlsSettings
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions, read_publish

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


@given(st.integers(0, 255), st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_value_error(command: int, content: bytes) -> None:
    try:
        message = read_publish(command, content)
    except ValueError:
        return
    assert len(message.payload) <= len(content)
    assert message.missing == 0


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
