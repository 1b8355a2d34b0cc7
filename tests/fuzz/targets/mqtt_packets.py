"""Packets of a broker of every kind, whole and cut, as one connection receives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MAX_PACKETS, MqttClient, MqttSessionOptions

MOST_READS = 64
"""Calls of `receive` for one input: each reads MAX_PACKETS."""


class ReceivingSocket:
    """The received side of a connection: gives its bytes, and then ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, size: int) -> bytes:
        chunk, self._data = self._data[:size], self._data[size:]
        return chunk

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        """Nothing is open."""

    def fileno(self) -> int:
        return -1


def packet(first: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while True:
        digits.append(length & 0x7F | (0x80 if length > 0x7F else 0))
        length >>= 7
        if not length:
            return bytes([first, *digits]) + body


def connack(*users: tuple[str, str], reason: int = 0) -> bytes:
    """The answer to CONNECT, with those user properties."""
    properties = Properties(PacketTypes.CONNACK)
    properties.ReceiveMaximum = 20
    properties.MaximumPacketSize = 1 << 20
    properties.ReasonString = "why"
    for user in users:
        properties.UserProperty = user
    return packet(0x20, bytes([0, reason]) + properties.pack())


def seeds() -> Iterable[bytes]:
    """A usual connection, packets of the other kinds, and lengths and properties that are not as they should be."""
    publish = packet(0x32, b"\x00\x01t\x00\x07\x00payload")
    yield connack() + packet(0x90, b"\x00\x01\x00\x01") + packet(0x40, b"\x00\x01") + publish + packet(0xD0, b"")
    yield connack(("a", "b"), ("c", "d")) + packet(0xE0, b"\x8e\x00")
    yield connack(reason=0x87)
    yield packet(0x40, b"\x00\x01\x10\x00") + packet(0x50, b"\x00\x02\x00") + packet(0x62, b"\x00\x03\x00")
    yield (
        packet(0x90, b"\x00\x01\x05\x1f\x00\x02no\x87") + packet(0xB0, b"\x00\x01\x00\x11") + packet(0xF0, b"\x18\x00")
    )
    yield b"\x30\xff\xff\xff\xff\x01" + publish
    yield b"\x30\xff\xff\xff\x7f" + publish
    yield packet(0x20, b"\x00\x00\x06\x22\x00\x14\x22\x00\x14")
    yield packet(0x20, b"\x00\x00" + b"\xff\xff\x03" + b"\x26\x00\x01a\x00\x01b" * 7_000)
    yield packet(0xE0, b"\x00" + b"\x80" * 200)


def client_of(data: bytes, options: MqttSessionOptions) -> MqttClient:
    """A client that has sent CONNECT, a subscription and a publication, and is about to receive the bytes."""
    client = MqttClient(BrokerSettings(host="127.0.0.1"), options)
    stand_in: Any = ReceivingSocket(data)
    client._sock = stand_in
    client.publish_qos_1("t", b"x")
    return client


def judge(data: bytes) -> None:
    """The bytes are read, or the connection ends and says why; nothing is raised."""
    for truncates in (False, True):
        judge_connection(data, MqttSessionOptions(client_id="c", max_packet_bytes=4096, truncates_larger=truncates))


def judge_connection(data: bytes, options: MqttSessionOptions) -> None:
    client = client_of(data, options)
    ended: list[Any] = []
    client.on_disconnect = lambda *given: ended.append(given)
    for _ in range(MOST_READS):
        client.receive()
        if client.socket() is None:
            break
    if len(data) <= MOST_READS * MAX_PACKETS:
        assert client.socket() is None, "the bytes end, and with them the connection"
    assert bool(ended) == (client.socket() is None)
    for message in client.messages:
        assert len(message.payload) <= len(data)
        message.topic.encode()
