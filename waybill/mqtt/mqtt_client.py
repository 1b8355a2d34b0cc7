"""One MQTT 5 session over paho, driven by the thread that owns it. Only this module replaces paho's private methods.

paho reads a packet in three system calls, makes some twenty objects of it, and writes each acknowledgement by itself.
It ends the connection over properties that it does not like, at quadratic cost: one message of one device would stop a
gateway at every redelivery. So this client buffers both directions, and handles PUBLISH and PUBACK itself. paho handles
the rest: a few packets for each connection.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from waybill.daemon.tls import load_key_pair, tls_context
from waybill.mqtt.broker_settings import BrokerSettings, read_password

# Repeated session takeovers, as by a cloned client id.

MANY = 3
"""Consecutive short connections that raise the suspicion."""


class Takeovers:
    """Counts consecutive connections that ended before they lasted `lasting_s`. Pure: the time is an argument.

    Most brokers do not report that another client took the client id. `cause` is the probable cause, in words.
    """

    def __init__(self, cause: str, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self._cause = cause
        self._count = 0
        self._connected_s: float | None = None

    @property
    def is_suspected(self) -> bool:
        return self._count >= MANY

    @property
    def problem(self) -> str:
        """Why connections do not last; "" if it is not suspected."""
        if not self.is_suspected:
            return ""
        return f"the last {self._count} connections ended within {self.lasting_s:g} s, probably because {self._cause}"

    def has_lasted(self, now_s: float) -> bool:
        """Whether there is a connection, and it has lasted long enough."""
        return self._connected_s is not None and now_s - self._connected_s >= self.lasting_s

    def on_connected(self, now_s: float) -> None:
        self._connected_s = now_s

    def on_alive(self, now_s: float) -> None:
        """To be called regularly while there is a connection."""
        if self.has_lasted(now_s):
            self._count = 0

    def on_ended(self, now_s: float, *, is_unexplained: bool = True) -> None:
        """The connection, if there was one, ended. With a known cause it is not counted."""
        self.on_alive(now_s)
        if is_unexplained and self._connected_s is not None and not self.has_lasted(now_s):
            self._count += 1
        self._connected_s = None


# PUBLISH and PUBACK of MQTT 5, tuned for throughput.

LARGEST_PACKET = 0xFFFFFFF
"""Of MQTT itself, in bytes (1.5.5)."""
_MAX_MID = 0xFFFF
_LENGTH = struct.Struct(">H")
_QOS_1, _RETAIN, _DUP = 0x32, 1, 8


class MqttMessage(NamedTuple):
    """A PUBLISH packet. Invalid UTF-8 in its topic is replaced. `missing`: bytes that were not kept.

    `mid`: the packet id, 0 for QoS 0, which is not acknowledged. `retain`: the broker had it before the subscription.
    """

    mid: int
    qos: int
    dup: bool
    topic: str
    payload: bytes
    missing: int = 0
    retain: bool = False


class Publications:
    """Publications of QoS 1 without a PUBACK, in their order."""

    def __init__(self) -> None:
        self._packets: dict[int, bytes] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, mid: int, topic: str, payload: bytes, *, retain: bool) -> bytes:
        """The packet of a new publication with an id of `take_id`."""
        name = topic.encode()
        rest = b"".join((_LENGTH.pack(len(name)), name, _LENGTH.pack(mid), b"\0", payload))
        packet = bytes((_QOS_1 | _RETAIN if retain else _QOS_1, *_digits(len(rest)))) + rest
        self._packets[mid] = packet
        return packet

    def take_id(self) -> int:
        mid = self._last_id % _MAX_MID + 1
        while mid in self._packets:
            mid = mid % _MAX_MID + 1
        self._last_id = mid
        return mid

    def try_answer(self, mid: int) -> bool:
        """Whether a publication with this id waited for its PUBACK."""
        return self._packets.pop(mid, None) is not None

    def again(self) -> Iterator[bytes]:
        """The packets to send on a new connection, marked as repeated (4.4)."""
        for packet in self._packets.values():
            yield bytes((packet[0] | _DUP,)) + packet[1:]


def read_puback(packet: bytes) -> tuple[int, ReasonCode]:
    """The id and the reason of a PUBACK (3.4) without its fixed header. Raises ValueError."""
    if len(packet) < 2:
        raise ValueError("a malformed packet")
    return packet[0] << 8 | packet[1], _reason(packet[2] if len(packet) > 2 else 0)


@cache
def _reason(value: int) -> ReasonCode:
    try:
        return ReasonCode(PacketTypes.PUBACK, identifier=value)
    except KeyError as error:
        raise ValueError(f"a PUBACK with the reason {value}, which there is not") from error


def _digits(length: int) -> Iterator[int]:
    while length > 0x7F:
        yield length & 0x7F | 0x80
        length >>= 7
    yield length


def publish_fault(message: MqttMessage) -> str:
    """Why no broker may send this message; "" if it may."""
    if message.qos > 1:  # nobody subscribes with it
        return f"the broker sent a message of QoS {message.qos}"
    if message.qos and not message.mid:  # it could not be acknowledged
        return "the broker sent a message with the packet id 0"
    return ""


def remaining_length(data: bytes, at: int) -> tuple[int, int]:
    """The end of the length field and the remaining length (1.5.5); 0, 0 if it is not there yet.

    An invalid length is returned as one above LARGEST_PACKET.
    """
    if at + 1 < len(data) and (high := data[at + 1]) < 0x80 <= data[at]:
        return at + 2, data[at] & 0x7F | high << 7  # nearly every batch has a length of two bytes
    length = shift = 0
    for place in range(at, min(at + 4, len(data))):
        digit = data[place]
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            return place + 1, length
        shift += 7
    return (0, 0) if shift < 28 else (at + 4, LARGEST_PACKET + 1)


def read_publish(first: int, packet: bytes, length: int | None = None) -> MqttMessage:
    """The message of an MQTT 5 PUBLISH (3.3): its first byte, and the bytes after the remaining length.

    `length`: that of the packet before it was truncated. The properties are skipped in constant time: no value that a
    publisher sets there matters. Raises ValueError for a packet that ends early.
    """
    whole = len(packet) if length is None else length
    qos = (first >> 1) & 3
    mid = 0
    try:
        offset = topic_end = 2 + (packet[0] << 8 | packet[1])
        if qos:
            mid = packet[offset] << 8 | packet[offset + 1]
            offset += 2
        begin, properties = (offset + 1, packet[offset]) if packet[offset] < 0x80 else remaining_length(packet, offset)
        offset = begin + properties
        # Against what the packet had: of a truncated one the properties may be what is cut off.
        if not begin or offset > whole:
            raise IndexError(offset)
    except IndexError as error:
        raise ValueError(f"a PUBLISH of {whole} bytes ends early") from error
    topic = packet[2:topic_end].decode("utf-8", "replace")
    missing = whole - max(offset, len(packet))
    return MqttMessage(mid, qos, bool(first & _DUP), topic, packet[offset:], missing, bool(first & _RETAIN))


# Options of an MQTT 5 session, and bounds of its buffers.

RECEIVE_BYTES = 1 << 16
TRUNCATED_BYTES = 128 << 10
"""Kept of an oversized packet while it arrives: room for the longest topic."""
TRUNCATED_PAYLOAD_BYTES = 512
"""Kept of the payload of an oversized message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSessionOptions:
    """The options of a session.

    A broker silently drops messages above CONNECT's Maximum Packet Size. With `truncates_larger` none is set: of a
    message above `max_packet_bytes`, TRUNCATED_PAYLOAD_BYTES of the payload and the size of the rest are kept.
    `keeps_session`: without end; else the session ends with its connection. A limit in between may crash Mosquitto
    (docs/security.md). `receive_bytes`: read from the socket at once.
    """

    client_id: str
    keeps_session: bool = False
    receive_maximum: int = 1000
    max_packet_bytes: int = 16 << 20
    truncates_larger: bool = False
    receive_bytes: int = RECEIVE_BYTES


_RECORD_BYTES = 1 << 15
"""More than a TLS record (16 KiB): no decrypted bytes stay in OpenSSL, where no poll would show them."""
MAX_PACKETS = 100
MAX_PACKETS_BYTES = 4 << 20
"""Packets, and their bytes, that one `receive` reads: its caller checks time and memory in between."""
MAX_OTHER_BYTES = 8 << 10
"""Of a packet that is not a PUBLISH. paho takes quadratic time for properties: 300 kB take 6 s."""
NEVER_EXPIRES = 0xFFFFFFFF
RECEIVE_MAXIMUM = 65_535
"""The default of a broker (3.2.2.3.3)."""
_CODES_OF_3 = bytes.maketrans(bytes((2, 3, 4, 5)), bytes((0x85, 0x88, 0x86, 0x87)))  # a CONNACK's, as MQTT 5 has them
NO_MATCHING_SUBSCRIBERS = 0x10
"""A PUBACK (3.4.2.1) for a message without a subscriber."""
SHORT_BYTES = 128 << 10
"""Packets up to this size are read from the buffer, longer ones by paho, piece by piece."""
_PUBACK = PacketTypes.PUBACK
_SHORT = (PacketTypes.PUBLISH, _PUBACK)
_PUBACK_BEGIN = bytes((_PUBACK << 4, 2))


class MqttClient(Client):
    """paho's client with buffers between it and the socket, and a fast path for messages, which wait in `messages`.

    `start`, `receive`, `flush` and `loop_misc` call `on_connect` and its like, and `on_answer` for publications. A
    connection ends by `on_disconnect`, never by an exception; `failure` says why this side ended it. Messages are
    acknowledged only by `acknowledge` and published only by `publish_qos_1`. A PUBLISH above `max_packet_bytes` ends
    the connection, or is truncated (`truncates_larger`); any other packet above MAX_OTHER_BYTES ends it.
    """

    def __init__(self, broker: BrokerSettings, options: MqttSessionOptions) -> None:
        """Raises OSError and ValueError for certificates and password files that cannot be used."""
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        self._broker, self._options = broker, options
        self._is_truncating = False
        self.messages: list[MqttMessage] = []
        self.on_answer: Callable[[int, ReasonCode], None] = lambda _, __: None
        self._publications = Publications()
        self._has_repeated = False
        self._is_partial = False
        self._longest_short = min(SHORT_BYTES, options.max_packet_bytes)
        self._unread = b""
        self._at = 0
        self._outgoing = bytearray()
        self._taken_bytes = 0
        self.is_closed_by_broker = False
        self.failure = ""
        self.connect_timeout = broker.connect_timeout_s
        self.max_inflight_messages_set(0)  # the owner counts: paho's own bound never looks at the broker's
        if broker.username is not None:
            password = read_password(broker.password_file) if broker.password_file is not None else None
            self.username_pw_set(broker.username, password)
        self._tls = None if broker.tls is None else tls_context(broker.tls)
        if self._tls is not None:
            self.tls_set_context(self._tls)
        # So paho queues its packets, and reports each.
        self.on_socket_register_write = self._fetch_packet
        self.on_socket_unregister_write = lambda *_: None

    def start(self) -> None:
        """Open a connection and send CONNECT; `receive` gets the answer. Raises OSError, ValueError.

        The certificate and its key are read again, so that a renewed one needs no restart; the authorities are not.
        Unacknowledged publications of an earlier connection are sent again.
        """
        # Broker and paho both send again what has no PUBACK, so bytes of the old connection are only in the way.
        self._unread, self._at, self._is_partial, self._is_truncating = b"", 0, False, False
        self._outgoing.clear()
        self.messages.clear()
        self.is_closed_by_broker, self.failure, self._has_repeated = False, "", False
        if self._tls is not None and self._broker.tls is not None and self._broker.tls.certificate is not None:
            # Into the context that paho has: it takes one only once.
            load_key_pair(self._tls, self._broker.tls.certificate, self._broker.tls.key)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = NEVER_EXPIRES if self._options.keeps_session else 0
        properties.ReceiveMaximum = self._options.receive_maximum
        if not self._options.truncates_larger:
            properties.MaximumPacketSize = self._options.max_packet_bytes
        self.connect(
            self._broker.host,
            self._broker.port,
            keepalive=self._broker.keepalive_s,
            clean_start=not self._options.keeps_session,
            properties=properties,
        )
        sock = self.socket()
        # Packets are gathered here already: Nagle would hold back the last of them for a round trip.
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(
        self,
        on_message: Callable[[MqttMessage], None] | None = None,
        *,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """Read what has arrived while there is room, at most MAX_PACKETS.

        Without `on_message` messages wait in `messages`. `has_unread` says whether there is more.
        """
        enough = self._taken_bytes + MAX_PACKETS_BYTES
        # Not by paho's loop_read: it reads as many packets as publications are unanswered, thousands at one call.
        for _ in range(MAX_PACKETS):
            if not self._try_read_short(on_message):
                self._read_packet()
            if self.messages and on_message is not None:
                self.deliver(on_message)
            if not has_room() or self._taken_bytes >= enough or not self.has_unread:
                break

    def deliver(self, on_message: Callable[[MqttMessage], None]) -> None:
        messages, self.messages = self.messages, []
        for message in messages:
            on_message(message)

    def acknowledge(self, mid: int) -> None:
        """Queue the PUBACK of a message; the id 0 (QoS 0) has none."""
        if mid and self.socket() is not None:
            self._outgoing += _PUBACK_BEGIN + _LENGTH.pack(mid)

    def publish_qos_1(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Queue a publication, also without a connection; returns its id for `on_answer`."""
        mid = self._publications.take_id()
        packet = self._publications.add(mid, topic, payload, retain=retain)
        if self._has_repeated:
            self._outgoing += packet
        return mid

    def publish(self, *_: Any, **__: Any) -> NoReturn:
        """Not to be used: paho never sees the PUBACK, and would keep the message."""
        raise NotImplementedError("publish by publish_qos_1")

    def flush(self) -> None:
        """Send as much as the socket takes now."""
        try:
            if self.socket() is not None:
                self._send_outgoing()
        except OSError as error:
            self.is_closed_by_broker = isinstance(error, ConnectionError)
            self._fail(f"connection lost while sending: {error}")

    @property
    def has_unread(self) -> bool:
        """Whether received bytes wait to be read: no poll would show them."""
        return self._at < len(self._unread) and not self._is_partial and self.socket() is not None

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    @property
    def unanswered(self) -> int:
        """The number of publications without a PUBACK, of this connection and earlier ones."""
        return len(self._publications)

    def _fetch_packet(self, *_: Any) -> None:
        # At once: later it would come after what passes paho by, a SUBSCRIBE after the PUBLISH whose answer it is for.
        self.loop_write()

    def _mid_generate(self) -> int:
        # Packets of paho's, and those that pass it by, have ids of one row (2.2.1).
        return self._publications.take_id()

    def _try_read_short(self, on_message: Callable[[MqttMessage], None] | None) -> bool:
        """Read a PUBLISH or PUBACK from the buffer, or more bytes of it. False: paho must read the next packet."""
        if self._in_packet["command"] or self.socket() is None:
            return False
        packet = self._next_short()
        if packet is True or packet is False:
            return packet
        first, content = packet
        try:
            if first >> 4 == _PUBACK:
                self._handle_answer(*read_puback(content))
                return True
            message = read_publish(first, content)
        except ValueError as error:
            self._fail(f"the broker sent {error}")
            return True
        if fault := publish_fault(message):
            self._fail(fault)
        elif on_message is None or self.messages:
            self.messages.append(message)
        else:
            on_message(message)
        return True

    def _next_short(self) -> tuple[int, bytes] | bool:
        """First byte and content of the next packet. False: paho must read it; True: it is not complete yet."""
        while True:
            if (self._is_partial or self._at >= len(self._unread)) and not self._try_fill():
                return True
            data, at = self._unread, self._at
            kind = data[at] >> 4
            begin, length = remaining_length(data, at + 1)
            if kind not in _SHORT or length > (self._longest_short if kind != _PUBACK else MAX_OTHER_BYTES):
                return False
            end = begin + length
            if begin and end <= len(data):
                self._at = end
                self._taken_bytes += end - at
                return data[at], data[begin:end]
            self._is_partial = True

    def _try_fill(self) -> bool:
        """Append arrived bytes to the buffer; whether there were any."""
        try:
            received = self._receive_bytes()
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)
            return False
        self._unread, self._at, self._is_partial = self._unread[self._at :] + received, 0, False
        return True

    def _read_packet(self) -> None:
        if self.socket() is None:
            return
        try:
            code = self._packet_read()
        except Exception as error:  # noqa: BLE001 - paho raises a dozen kinds for packets that are not as they should be
            self._fail(f"unreadable packet: {error!r}")
            return
        if code == MQTTErrorCode.MQTT_ERR_PROTOCOL:
            is_length = len(self._in_packet["remaining_count"]) > 4  # empty again after any packet that was read
            self._note(f"the broker sent {'a length of more than four bytes' if is_length else 'a malformed packet'}")
        if code > MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._loop_rc_handle(code)

    def _note(self, why: str) -> MQTTErrorCode:
        # The first reason is the cause; what paho answers to it follows from it.
        self.failure = self.failure or why
        return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _fail(self, why: str) -> None:
        self._note(why)
        self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho asks for the whole rest of a packet, so its size is known before a byte of it is kept.
        is_publish = self._in_packet["command"] & 0xF0 == PacketTypes.PUBLISH << 4
        most = self._options.max_packet_bytes if is_publish else MAX_OTHER_BYTES
        if bufsize > most:
            if not self._options.truncates_larger or not is_publish:
                self._note(f"the broker sent a packet of {bufsize} bytes, and at most {most} are read")
                raise OSError(errno.EMSGSIZE, self.failure)
            self._is_truncating = True
        if self._is_truncating:
            del self._in_packet["packet"][TRUNCATED_BYTES:]
        if self._at >= len(self._unread):
            self._unread, self._at = self._receive_bytes(), 0
            if not self._unread:
                return b""
        chunk = self._unread[self._at : self._at + bufsize]
        self._at += len(chunk)
        self._taken_bytes += len(chunk)
        return chunk

    def _receive_bytes(self) -> bytes:
        """At least `receive_bytes`, if they have arrived; b"" at the end of the connection."""
        chunks: list[bytes] = []
        size, most = 0, self._options.receive_bytes
        at_once = most if self._broker.tls is None else _RECORD_BYTES
        while size < most:
            try:
                chunk = super()._sock_recv(at_once)
            except BlockingIOError:
                if chunks:
                    break
                raise
            except OSError as error:
                self.is_closed_by_broker = isinstance(error, ConnectionError)
                self._note(f"connection lost while receiving: {error}")
                raise
            if not chunk:
                # Said again by the next call, which has nothing before it.
                self.is_closed_by_broker = not chunks
                break
            chunks.append(chunk)
            size += len(chunk)
            if self._broker.tls is None:
                break
        # A TLS record holds as little as one packet: a turn of the loop for each would cost more than the packet.
        return b"".join(chunks)

    def _sock_send(self, buf: bytes | bytearray) -> int:
        self._outgoing += buf
        if buf[0] == PacketTypes.DISCONNECT << 4:  # paho closes the socket as soon as it has handed this over
            self._send_outgoing()
        return len(buf)

    def _send_outgoing(self) -> None:
        while self._outgoing:
            try:
                sent = super()._sock_send(memoryview(self._outgoing)[:RECEIVE_BYTES].tobytes())
            except BlockingIOError:
                return
            del self._outgoing[:sent]

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet
        try:
            message = read_publish(packet["command"], bytes(packet["packet"]), packet["remaining_length"])
        except ValueError as error:
            return self._note(f"the broker sent {error}")
        if self._is_truncating:
            self._is_truncating = False
            begin = message.payload[:TRUNCATED_PAYLOAD_BYTES]
            message = message._replace(payload=begin, missing=message.missing + len(message.payload) - len(begin))
        if fault := publish_fault(message):
            return self._note(fault)
        self.messages.append(message)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_connack(self) -> MQTTErrorCode:
        self._in_packet["packet"][1:2] = self._in_packet["packet"][1:2].translate(_CODES_OF_3)
        if (code := super()._handle_connack()) == MQTTErrorCode.MQTT_ERR_SUCCESS and not self._has_repeated:
            self._has_repeated = True
            self._outgoing += b"".join(self._publications.again())
        return code

    def _handle_answer(self, mid: int, reason: ReasonCode) -> None:
        if self._publications.try_answer(mid):
            self.on_answer(mid, reason)
