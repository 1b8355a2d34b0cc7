"""A connection ends by `on_disconnect` and never by an exception, and begins anew with nothing of the old one."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions

CONNACK = b"\x20\x03\x00\x00\x00"
MESSAGE = b"\x32\x08\x00\x01t\x00\x07\x00ab"


class Listener:
    """A broker's socket, handled by hand."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> socket.socket:
        """The next connection, after its CONNECT."""
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
        """Waits for bytes and reads them."""
        sock = self.client.socket()
        assert sock is not None
        assert self.client.has_unread or select.select([sock.fileno()], [], [], 10)[0]
        self.client.receive(self.messages.append, has_room=has_room)


def test_a_packet_larger_than_the_broker_may_send_ends_the_connection_before_it_is_read(
    listener: Listener,
) -> None:
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
