"""A broker and a Pulsar that do only what the test says, and a gateway's loop between them with the test's clock."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pulsar

from gateway.service import GatewayLoop
from tests.gateway.strategies import settings
from tests.waiting import deadline_s
from waybill.daemon.signals import WakeUp
from waybill.record import Ack, IntervalSet, decode_ack, parse_device_topic, read_header

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ = 1, 3, 4, 8, 10, 12
SUCCESS, NO_SUBSCRIBER, NOT_AUTHORIZED = 0x00, 0x10, 0x87


class Published(NamedTuple):
    topic: str
    payload: bytes
    mid: int
    retain: bool

    @property
    def device(self) -> str:
        parsed = parse_device_topic(self.topic)
        assert parsed is not None
        return parsed.device

    @property
    def ack(self) -> Ack:
        return decode_ack(self.payload)


class FakeBroker:
    """MQTT 5 over one connection. `turn` takes what has come; `heard` is in the order in which the gateway sent it."""

    def __init__(self, *, receive_maximum: int = 100, greets: bool = True) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._receive_maximum, self.greets = receive_maximum, greets
        self._socket: socket.socket | None = None
        self._bytes = bytearray()
        self._mids = 0
        self.connections = 0
        self.is_subscribed = False
        self.suback = b"\x01\x01"
        self.heard: list[Published | int | None] = []
        """Publications, the message ids of PUBACKs, and None for the end of a connection."""

    @property
    def acks(self) -> list[Published]:
        return [it for it in self.heard if isinstance(it, Published)]

    @property
    def pubacks(self) -> list[int]:
        return [it for it in self.heard if isinstance(it, int)]

    def turn(self) -> None:
        if select.select([self._listener], [], [], 0)[0]:
            self.hang_up()
            self._socket, _ = self._listener.accept()
            self.connections += 1
        while self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            try:
                received = self._socket.recv(1 << 16)
            except ConnectionError:
                received = b""
            if not received:
                self.hang_up()
                return
            self._bytes += received
            while (packet := self._next_packet()) is not None:
                self._handle(*packet)

    def deliver(self, topic: str, payload: bytes, qos: int = 1) -> int:
        """Sends a message to the gateway; its message id, a new one on each connection."""
        self._mids += 1
        mid = struct.pack(">H", self._mids) if qos else b""
        self._send(0x30 | qos << 1, struct.pack(">H", len(topic.encode())) + topic.encode() + mid + b"\x00" + payload)
        return self._mids if qos else 0

    def answer(self, published: Published, reason: int = SUCCESS) -> None:
        self._send(PUBACK << 4, struct.pack(">HB", published.mid, reason))

    def hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self.heard.append(None)
        self._socket, self.is_subscribed, self._mids = None, False, 0
        self._bytes.clear()

    def close(self) -> None:
        self.hang_up()
        self._listener.close()

    def greet(self) -> None:
        self._send(0x20, bytes([self.connections > 1, 0, 3, 0x21]) + struct.pack(">H", self._receive_maximum))

    def _handle(self, command: int, content: bytes) -> None:
        kind = command >> 4
        if kind == CONNECT and self.greets:
            self.greet()
        elif kind == SUBSCRIBE:
            self._send(0x90, content[:2] + b"\x00" + self.suback)
            self.is_subscribed = True
        elif kind == UNSUBSCRIBE:
            self._send(0xB0, content[:2] + b"\x00\x00\x00")
        elif kind == PINGREQ:
            self._send(0xD0, b"")
        elif kind == PUBACK:
            self.heard.append(struct.unpack_from(">H", content)[0])
        elif kind == PUBLISH:
            (length,) = struct.unpack_from(">H", content)
            (mid,) = struct.unpack_from(">H", content, 2 + length)
            assert content[4 + length] == 0, "the gateway sends no properties"
            published = Published(content[2 : 2 + length].decode(), content[5 + length :], mid, bool(command & 1))
            self.heard.append(published)

    def _next_packet(self) -> tuple[int, bytes] | None:
        length = 0
        for at in range(1, min(5, len(self._bytes))):
            length |= (self._bytes[at] & 0x7F) << 7 * (at - 1)
            if not self._bytes[at] & 0x80:
                end = at + 1 + length
                if len(self._bytes) < end:
                    return None
                packet = self._bytes[0], bytes(self._bytes[at + 1 : end])
                del self._bytes[:end]
                return packet
        return None

    def _send(self, command: int, content: bytes) -> None:
        assert self._socket is not None
        length, left = bytearray(), len(content)
        while left > 0x7F:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        with suppress(ConnectionError):
            self._socket.sendall(bytes([command, *length, left]) + content)


class Sent(NamedTuple):
    """A message that was handed to Pulsar's client and has no receipt; `before` it in its batch are these."""

    topic: str
    payload: bytes
    properties: dict[str, str]
    callback: Callable[[Any, Any], None] | None
    before: tuple[Sent, ...] = ()

    def batch_index(self) -> int:
        return len(self.before)


class FakePulsar:
    """Takes the place of `pulsar.Client` and its producers: what is sent waits until the test answers."""

    def __init__(self) -> None:
        self.is_up = True
        self.tried = self.opened = 0
        self.waiting: list[Sent] = []
        self.kept: list[Sent] = []
        self.sent = 0
        self.raises: Exception | None = None

    def __call__(self, *_: Any, **__: Any) -> FakePulsar:
        self.tried += 1
        if not self.is_up:
            raise pulsar.ConnectError("nobody there")
        self.opened += 1
        return self

    def create_producer(self, topic: str, **_: Any) -> FakeProducer:
        return FakeProducer(self, topic)

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [topic]

    def close(self) -> None:
        """As the client does: whatever waits fails."""
        while self.waiting:
            self.answer(0, "AlreadyClosed")

    def answer(self, index: int = 0, result: str = "Ok") -> Sent:
        message = self.waiting.pop(index)
        if result == "Ok":
            self.kept += [*message.before, message]
        assert message.callback is not None, "the last of a batch has a callback"
        message.callback(getattr(pulsar.Result, result), message)
        return message

    def persisted(self, device: str) -> IntervalSet:
        batches = (it for it in self.kept if it.topic.endswith("/batches") and it.properties["device"] == device)
        return IntervalSet(pair for it in batches for pair in read_header(it.payload).seqs.ranges)


class FakeProducer:
    def __init__(self, side: FakePulsar, topic: str) -> None:
        self._side, self._topic = side, topic
        self._open: list[Sent] = []
        self._producer = self

    def is_connected(self) -> bool:
        return self._side.is_up

    def send_async(self, message: Any, callback: Callable[[Any, Any], None] | None) -> None:
        properties = message.properties()
        assert message.partition_key() == properties["device"]
        if self._side.raises is not None:
            raise self._side.raises
        self._side.sent += 1
        self._open.append(Sent(self._topic, message.data(), properties, callback))

    def flush_async(self, _: None) -> None:
        """Sends the batch: what is not flushed stays."""
        if self._open:
            *before, last = self._open
            self._side.waiting.append(last._replace(before=tuple(before)))
            self._open.clear()


def without_waiting(
    readers: list[Any], writers: list[Any], others: list[Any], _: float
) -> tuple[list[Any], list[Any], list[Any]]:
    """`select.select` that looks and does not wait: the clock is the test's."""
    return select.select(readers, writers, others, 0)


class Region:
    """A loop, its broker and its Pulsar. `now_s` is the loop's time: it passes when the test says so.

    Messages to Pulsar go one by one, unless the test says otherwise.
    """

    def __init__(self, broker: FakeBroker | None = None, pulsar_side: FakePulsar | None = None, **changes: Any) -> None:
        self.now_s = 1000.0
        self.broker, self.pulsar, self.wake = broker or FakeBroker(), pulsar_side or FakePulsar(), WakeUp()
        mqtt = {"host": "127.0.0.1", "port": self.broker.port, "receive_maximum": 8} | changes.pop("mqtt", {})
        pulsar = {"service_url": "pulsar://127.0.0.1:6650", "batching_max_messages": 1} | changes.pop("pulsar", {})
        self.loop = GatewayLoop(
            settings(mqtt=mqtt, pulsar=pulsar, **changes),
            self.wake,
            clock=lambda: self.now_s,
            jitter=lambda: 0.5,
            select=without_waiting,
            client=self.pulsar,
            in_background=lambda work: work(),
        )

    def turn(self, times: int = 4) -> None:
        for _ in range(times):
            self.loop.run_once()
            self.broker.turn()

    def until(self, condition: Callable[[], Any], step_s: float = 0.0, bound_s: float = 20.0) -> None:
        """Turns until it is so; `step_s` of the loop's time pass with each turn. A socket may take a moment."""
        ends_s = deadline_s(bound_s)
        while not condition():
            assert time.monotonic() < ends_s, "it did not happen in time"
            self.now_s += step_s
            self.turn(1)

    def connect(self) -> Region:
        self.until(lambda: self.status.mqtt_connected, step_s=0.1)
        return self

    @property
    def status(self) -> Any:
        return self.loop.status_holder.status

    def close(self) -> None:
        self.loop.close()
        self.broker.close()
        self.wake.close()
