"""One MQTT 5 connection, driven by the thread that owns it: no thread of its own, no call-back between threads.

paho reads a packet in three system calls, makes some twenty objects of it, and writes each acknowledgement by itself.
`_BufferedClient` gives it a buffer on both sides and reads PUBLISH packets itself, so that one core takes in more than
twice as much; everything else is paho's public interface.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.config import BrokerSettings, TlsSettings
from edge_agent.errors import LinkClosed, LinkError, LinkRefused
from runtime import load_key_pair

RECEIVE_BYTES = 1 << 16
MAX_PACKETS = 100
MAX_PACKETS_BYTES = 4 << 20
"""Packets handed on by one `poll`, so that its caller looks at the time, and at its memory, in between."""
NEVER_EXPIRES = 0xFFFFFFFF
LARGEST_PACKET = 0xFFFFFFF
"""Of MQTT itself, in bytes (1.5.5)."""
RECEIVE_MAXIMUM = 65_535
"""Of a broker that names none (3.2.2.3.3)."""
TRUNCATED_BYTES = 128 << 10
"""Kept of a packet that is too large while it comes: room for the longest topic."""
TRUNCATED_PAYLOAD_BYTES = 512
"""Kept of the payload of a message that is too large."""
MAX_PASSWORD_CHARACTERS = 65_535
SESSION_TAKEN_OVER = 0x8E
"""Of a DISCONNECT (3.14.2.1)."""
HEADERS_BYTES = {socket.AF_INET: 40, socket.AF_INET6: 60}
"""IP and TCP headers of one segment, without options."""


class MqttMessage(NamedTuple):
    """A PUBLISH packet. Its topic is text: what is no UTF-8 in it is replaced. `missing`: bytes that were not kept."""

    mid: int
    qos: int
    dup: bool
    topic: str
    payload: bytes
    missing: int = 0


OnMessage = Callable[[MqttMessage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSessionOptions:
    """What a connection asks of its broker.

    A broker silently drops what is larger than CONNECT's Maximum Packet Size. With `truncates_larger` none is set:
    of a packet larger than `max_packet_bytes` the first TRUNCATED_PAYLOAD_BYTES of the payload and the size of the rest
    are kept.
    """

    client_id: str
    session_expiry_s: int = NEVER_EXPIRES
    receive_maximum: int = 1000
    max_packet_bytes: int = 16 << 20
    truncates_larger: bool = False


class _BufferedClient(Client):
    """paho's client with a buffer between it and the socket, and a short way for messages.

    A packet larger than `max_packet_bytes` is not read where the broker was told not to send it, else cut.
    """

    def __init__(self, options: MqttSessionOptions, **kwargs: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, **kwargs)
        self._max_packet_bytes = options.max_packet_bytes
        self._truncates_larger = options.truncates_larger
        self._is_truncating = False
        self.messages: list[MqttMessage] = []
        self._unread = b""
        self._at = 0
        self._outgoing = bytearray()
        self.delivered_bytes = 0
        self.is_closed_by_broker = False

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > self._max_packet_bytes:
            if not self._truncates_larger or self._in_packet["command"] & 0xF0 != PacketTypes.PUBLISH << 4:
                raise OSError(errno.EMSGSIZE, "a packet larger than the broker was told to send")
            self._is_truncating = True
        if self._is_truncating:
            del self._in_packet["packet"][TRUNCATED_BYTES:]
        if self._at >= len(self._unread):
            self._unread, self._at = self._receive(), 0
            if not self._unread:
                return b""
        chunk = self._unread[self._at : self._at + bufsize]
        self._at += len(chunk)
        return chunk

    def _receive(self) -> bytes:
        try:
            received = super()._sock_recv(RECEIVE_BYTES)
        except ConnectionError:
            self.is_closed_by_broker = True
            raise
        self.is_closed_by_broker = not received
        return received

    def _sock_send(self, buf: bytes | bytearray) -> int:
        self._outgoing += buf
        return len(buf)

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            message = read_publish(self._in_packet["command"], bytes(self._in_packet["packet"]))
            if self._is_truncating:
                self._is_truncating = False
                cut = self._in_packet["remaining_length"] - len(self._in_packet["packet"])
                begin = message.payload[:TRUNCATED_PAYLOAD_BYTES]
                message = message._replace(payload=begin, missing=cut + len(message.payload) - len(begin))
        except (IndexError, struct.error):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if message.qos > 1 or bool(message.qos) != bool(message.mid):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.messages.append(message)
        self.delivered_bytes += len(message.payload)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    @property
    def has_unread(self) -> bool:
        """Whether bytes wait that were received and not yet read."""
        return self._at < len(self._unread)

    @property
    def has_outgoing(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._outgoing)

    def flush(self) -> None:
        """Sends what the socket takes now. Raises OSError."""
        while self._outgoing:
            try:
                sent = super()._sock_send(memoryview(self._outgoing)[:RECEIVE_BYTES].tobytes())
            except BlockingIOError:
                return
            del self._outgoing[:sent]


class MqttSession:
    """A connection from `open` to the LinkError that ends it, or `close`. Only `wake` is for other threads."""

    def __init__(self, broker: BrokerSettings, options: MqttSessionOptions, on_message: OnMessage) -> None:
        self._broker = broker
        self._options = options
        self._on_message = on_message
        self._client = self._new_client()
        self._ended: str | None = None
        self._connack: ReasonCode | None = None
        self.max_packet_bytes = LARGEST_PACKET
        """The largest packet that the broker takes, as it said when it answered CONNECT."""
        self._is_open = False
        self.session_present = False
        """Whether the broker knew the session: it may deliver again what it has no acknowledgement for."""
        self._receive_maximum = RECEIVE_MAXIMUM
        self._takes_qos_1 = True
        self._to_publish: deque[tuple[str, bytes]] = deque()
        self._unacked = 0
        self._pending_subscriptions = 0
        self._subscribed_by_s = 0.0
        self._topics: dict[int, str] = {}
        self._published: list[tuple[str, ReasonCode]] = []
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._poll = select.poll()

    def open(self) -> None:
        """Connects and waits for the broker's answer, together within the time-out. Raises LinkError.

        Messages that came with the answer are handed on by the next `poll`: look at `session_present` first.
        """
        deadline_s = time.monotonic() + self._broker.connect_timeout_s
        try:
            self._client.connect(
                self._broker.host,
                self._broker.port,
                keepalive=self._broker.keepalive_s,
                clean_start=False,
                properties=self._connect_properties(),
            )
        except (OSError, ValueError) as error:
            raise LinkError(f"{self._broker.host}:{self._broker.port}: {error}") from error
        self._register()
        self._wait_for(lambda: self._connack is not None, deadline_s, "no answer to CONNECT")
        assert self._connack is not None
        if self._connack.is_failure:
            raise LinkRefused(f"{self._broker.host}:{self._broker.port} refused: {self._connack}")
        if not self._takes_qos_1:
            raise LinkRefused(f"{self._broker.host}:{self._broker.port} takes no QoS 1")
        self._is_open = True

    def subscribe(self, topic: str) -> None:
        """Asks for a subscription with QoS 1. A `poll` raises LinkError if it is refused or not answered in time."""
        self._client.subscribe(topic, options=SubscribeOptions(qos=1))
        self._pending_subscriptions += 1
        self._subscribed_by_s = time.monotonic() + self._broker.connect_timeout_s

    @property
    def is_subscribed(self) -> bool:
        """Whether every subscription was granted."""
        return self._pending_subscriptions == 0

    def publish(self, topic: str, payload: bytes) -> None:
        """Publishes with QoS 1, in a `poll`, as soon as fewer are unanswered than the broker's Receive Maximum."""
        self._to_publish.append((topic, payload))
        self._publish_waiting()

    def take_publish_results(self) -> list[tuple[str, ReasonCode]]:
        """The broker's answers since the last call, each with the topic that was published to."""
        answered, self._published = self._published, []
        return answered

    def acknowledge(self, mid: int) -> None:
        """Queues the PUBACK of a message; it is sent by the next `poll`. A message of QoS 0 has the id 0, and none."""
        if mid:
            self._client.ack(mid, 1)

    def poll(self, timeout_s: float) -> None:
        """Sends what waits, then waits for bytes and hands on the messages in them. Raises LinkError."""
        self._flush()
        if self._is_open and self._client.messages:
            self._deliver()
            timeout_s = 0
        if self._client.has_unread:
            self._read()
            timeout_s = 0
        timeout_ms = max(0, int(timeout_s * 1000 + 0.999))
        for descriptor, events in self._poll.poll(timeout_ms):
            if descriptor == self._wake_out.fileno():
                self._drain_wake()
            elif events & ~select.POLLOUT:
                self._read()
        self._client.loop_misc()
        self._publish_waiting()
        if self._pending_subscriptions and time.monotonic() > self._subscribed_by_s:
            raise LinkError(f"{self._broker.host}:{self._broker.port}: no answer to SUBSCRIBE")
        self._flush()

    def wake(self) -> None:
        """Makes a waiting `poll` return. Any thread may call this."""
        with suppress(OSError):
            self._wake_in.send(b"\0")

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) by this connection, with headers and repetitions, as the kernel counted them."""
        sock = self._client.socket()
        return _counted_bytes(sock) if isinstance(sock, socket.socket) else (0, 0)

    def close(self) -> None:
        """Says goodbye if it can; never raises."""
        with suppress(OSError, LinkError, ValueError):
            self._client.disconnect()
            self._client.flush()
        sock = self._client.socket()
        if sock is not None:
            with suppress(OSError):
                sock.close()
        self._wake_out.close()
        self._wake_in.close()

    def _new_client(self) -> _BufferedClient:
        client = _BufferedClient(
            self._options,
            client_id=self._options.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = self._broker.connect_timeout_s
        client.max_inflight_messages_set(0)
        client.max_queued_messages_set(0)
        if self._broker.username is not None:
            client.username_pw_set(self._broker.username, self._password())
        if self._broker.tls is not None:
            client.tls_set_context(tls_context(self._broker.tls))
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        # An event loop of its own is registered, so paho queues packets instead of writing each at once.
        client.on_socket_register_write = lambda *_: None
        client.on_socket_unregister_write = lambda *_: None
        return client

    def _password(self) -> str | None:
        if self._broker.password_file is None:
            return None
        try:
            return read_password(self._broker.password_file)
        except (OSError, ValueError) as error:
            raise LinkError(f"password file cannot be read: {error}") from error

    def _connect_properties(self) -> Properties:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._options.session_expiry_s
        properties.ReceiveMaximum = self._options.receive_maximum
        if not self._options.truncates_larger:
            properties.MaximumPacketSize = self._options.max_packet_bytes
        return properties

    def _register(self) -> None:
        sock = self._client.socket()
        if sock is None:
            raise LinkError("the connection ended at once")
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._descriptor = sock.fileno()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(self._wake_out.fileno(), select.POLLIN)

    def _wait_for(self, done: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
        while not done():
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise LinkError(f"{self._broker.host}:{self._broker.port}: {otherwise}")
            self.poll(remaining_s)

    def _read(self) -> None:
        enough = self._client.delivered_bytes + MAX_PACKETS_BYTES
        self._read_packets()
        for _ in range(MAX_PACKETS):
            if not self._client.has_unread or self._ended is not None or self._client.delivered_bytes >= enough:
                break
            self._read_packets()
        self._check_end()

    def _read_packets(self) -> None:
        try:
            self._client.loop_read()
        except Exception as error:
            # paho raises a dozen kinds for packets that are not what they should be; none of them may end the thread.
            raise LinkError(f"{self._broker.host}:{self._broker.port}: unreadable packet: {error!r}") from error
        if self._is_open:
            self._deliver()

    def _deliver(self) -> None:
        messages, self._client.messages = self._client.messages, []
        for message in messages:
            self._on_message(message)

    def _publish_waiting(self) -> None:
        while self._to_publish and self._unacked < self._receive_maximum:
            self._unacked += 1
            topic, payload = self._to_publish.popleft()
            self._topics[self._client.publish(topic, payload, qos=1).mid] = topic

    def _flush(self) -> None:
        self._check_end()
        if self._client.want_write():
            self._client.loop_write()
        try:
            self._client.flush()
        except ConnectionError as error:
            raise LinkClosed(f"the broker closed the connection: {error}") from error
        except OSError as error:
            raise LinkError(f"connection lost while sending: {error}") from error
        self._check_end()
        wanted = select.POLLIN | (select.POLLOUT if self._client.has_outgoing else 0)
        self._poll.modify(self._descriptor, wanted)

    def _check_end(self) -> None:
        if self._ended is not None or self._client.socket() is None:
            kind = LinkClosed if self._client.is_closed_by_broker else LinkError
            raise kind(f"{self._broker.host}:{self._broker.port}: {self._ended or 'connection lost'}")

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass

    def _on_connect(self, _client: Client, _data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._connack = reason
        self.session_present = bool(flags.session_present)
        self.max_packet_bytes = getattr(properties, "MaximumPacketSize", LARGEST_PACKET)
        self._receive_maximum = getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM)
        self._takes_qos_1 = getattr(properties, "MaximumQoS", 1) > 0

    def _on_subscribe(self, _c: Client, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        self._pending_subscriptions -= 1
        refused = [str(code) for code in reasons if code.value != 1]
        if refused:
            self._ended = f"subscription refused: {', '.join(refused)}"

    def _on_publish(self, _c: Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        self._published.append((self._topics.pop(mid, ""), reason))
        self._unacked -= 1

    def _on_disconnect(self, _c: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.value == SESSION_TAKEN_OVER:
            self._client.is_closed_by_broker = True
            self._ended = f"another client with the id {self._options.client_id!r} took the session over"
        elif self._client.is_closed_by_broker:
            self._ended = "the broker closed the connection"
        else:
            self._ended = f"connection ended: {reason}"


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """What a connection with these certificates needs. Raises LinkError."""
    try:
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.certificate is not None:
            load_key_pair(context, tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        raise LinkError(f"certificates cannot be loaded: {error}") from error
    return context


def read_password(file: Path) -> str:
    """The first line of a password file. Raises OSError, ValueError."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline(MAX_PASSWORD_CHARACTERS).partition("\n")[0]


def read_publish(first: int, packet: bytes) -> MqttMessage:
    """A PUBLISH packet of MQTT 5 after its length (3.3). Raises IndexError or struct.error when it is cut off."""
    qos = (first >> 1) & 3
    (length,) = struct.unpack_from(">H", packet)
    at = 2 + length
    mid = 0
    if qos:
        (mid,) = struct.unpack_from(">H", packet, at)
        at += 2
    properties = shift = 0
    while True:
        digit = packet[at]
        at += 1
        properties |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            break
    topic = packet[2 : 2 + length].decode("utf-8", "replace")
    return MqttMessage(mid, qos, bool(first & 8), topic, packet[at + properties :])


def _counted_bytes(sock: socket.socket) -> tuple[int, int]:
    """(sent, received) with TCP and IP headers, from the kernel; (0, 0) where it does not count."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except (OSError, AttributeError):
        return (0, 0)
    if len(info) < 208:
        return (0, 0)
    received, segments_out, segments_in = *struct.unpack_from("=Q", info, 128), *struct.unpack_from("=II", info, 136)
    (sent,) = struct.unpack_from("=Q", info, 200)
    headers = HEADERS_BYTES.get(sock.family, 40)
    return sent + headers * segments_out, received + headers * segments_in
