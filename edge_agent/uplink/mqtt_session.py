"""One MQTT 5 connection, driven by the thread that owns it."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from paho.mqtt.client import Client
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_agent.errors import LinkClosed, LinkError
from waybill.daemon.signals import WakeUp
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import LARGEST_PACKET, RECEIVE_MAXIMUM, MqttClient, MqttMessage, MqttSessionOptions

# Reasons why a broker refuses a connection, and what an installer can do. Pure.

_SHOW: Final = "`waybill device show TENANT/DEVICE`"
_NOT_AUTHORISED: Final = (
    "not authorised: the one-time token, user name or password is wrong, used or expired, or the device is suspended "
    f"or revoked; ask the operator ({_SHOW}), who can issue a new token (`waybill device expect --again`)"
)
_TURNED_AWAY: Final = (
    "if the broker accepted this certificate before, the device is suspended or revoked, or the broker is not ready "
    f"yet; if this continues, ask the operator ({_SHOW})"
)
_VERSION: Final = "it does not speak MQTT 5: check host and port"
_BUSY: Final = "it is busy or not ready; the agent tries again"
_ADVICE: Final = {
    0x84: _VERSION,
    0x85: "it refuses the client id: check device.id and device.tenant",
    0x86: _NOT_AUTHORISED,
    0x87: _NOT_AUTHORISED,
    0x88: _BUSY,
    0x89: _BUSY,
    0x8A: "this client is banned there; ask the operator",
    0x8C: "it requires another login method: check username, password_file and tls",
    0x9F: _BUSY,
}
"""The meaning of a CONNACK's code and what to do (MQTT 5, 3.2.2.2)."""
_ENDED_BY_THE_BROKER: Final = (
    "EOF occurred",
    "ALERT",
    " alert ",
    "Connection reset",
    "the broker closed the connection",
)
"""How a refused client certificate shows with TLS 1.3: an alert, or the end of the connection before it."""


def claim_refusal(problem: str) -> str:
    """What to do when a claim got no connection; "" if the problem says it already."""
    if _SHOW in problem:
        return ""
    if "CERTIFICATE_VERIFY_FAILED" in problem:
        return "the broker's certificate is not of the authority in enrolment.ca, or this device's clock is wrong"
    if "[Errno" in problem or "timed out" in problem:
        return "the claim was not checked: see enrolment.host and port, and the network"
    # A broker ends a connection with an unknown password, some without a reason.
    return (
        f"the broker refuses a claim that is used, expired or unknown: {_SHOW} shows what is expected, and "
        "`waybill device expect --again` issues another claim"
    )


SESSION_TAKEN_OVER = 0x8E
"""Reason code of a DISCONNECT (3.14.2.1)."""
HEADERS_BYTES = {socket.AF_INET: 40, socket.AF_INET6: 60}
"""IP and TCP headers of one segment, without options."""


OnMessage = Callable[[MqttMessage], None]


class MqttSession:
    """A connection from `open` to `close` or to the LinkError that ends it. Other threads may only call `wake`."""

    def __init__(self, broker: BrokerSettings, options: MqttSessionOptions, on_message: OnMessage) -> None:
        self._broker = broker
        self._options = options
        self._on_message = on_message
        self._client = self._new_client()
        self._ended: str | None = None
        self._connack: ReasonCode | None = None
        self.max_packet_bytes = LARGEST_PACKET
        """The largest packet that the broker accepts, from its CONNACK."""
        self._is_open = False
        self.session_present = False
        """Whether the broker knew the session, so that it may deliver unacknowledged messages again."""
        self._receive_maximum = RECEIVE_MAXIMUM
        self._takes_qos_1 = True
        self._to_publish: deque[tuple[str, bytes]] = deque()
        self._unacked = 0
        self._pending_subscriptions = 0
        self._watching: set[int | None] = set()
        self._unsubscribing: dict[int | None, str] = {}
        self.kept_topics: set[str] = set()
        """Topics of `unsubscribe` that the broker has not confirmed, or refused."""
        self._subscribed_by_s = 0.0
        self._topics: dict[int, str] = {}
        self._published: list[tuple[str, ReasonCode]] = []
        self._wake_up = WakeUp()
        self._poll = select.poll()

    def open(self) -> None:
        """Connects and waits for the broker's answer, within the timeout. Raises LinkError.

        The next `poll` delivers messages that came with the answer: check `session_present` first.
        """
        try:
            self._connect()
        except LinkError as error:
            shows_certificate = self._broker.tls is not None and self._broker.tls.certificate is not None
            if shows_certificate and any(sign in str(error) for sign in _ENDED_BY_THE_BROKER):
                raise type(error)(f"{error}; {_TURNED_AWAY}") from error
            raise
        assert self._connack is not None
        if self._connack.is_failure:
            raise self._refused(self._connack)
        if not self._takes_qos_1:
            raise LinkError(f"{self._address} does not accept QoS 1")
        self._is_open = True

    def _connect(self) -> None:
        deadline_s = time.monotonic() + self._broker.connect_timeout_s
        try:
            self._client.start()
        except (OSError, ValueError) as error:
            raise self._error(str(error)) from error
        self._register()
        self._wait_for(lambda: self._connack is not None, deadline_s, "no answer to CONNECT")

    def subscribe(self, topic: str, *, takes_retained: bool = True) -> None:
        """Subscribes with QoS 1. `poll` raises LinkError if the broker refuses or does not answer in time.

        Without `takes_retained` the broker is asked not to send retained messages (3.8.3.1). Only messages sent because
        they were retained have `retain` set.
        """
        handling = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE if takes_retained else SubscribeOptions.RETAIN_DO_NOT_SEND
        options = SubscribeOptions(qos=1, retainAsPublished=False, retainHandling=handling)
        self._client.subscribe(topic, options=options)
        self._pending_subscriptions += 1
        self._subscribed_by_s = time.monotonic() + self._broker.connect_timeout_s

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription that the resumed session has. `poll` raises LinkError without an answer in time."""
        _, mid = self._client.unsubscribe(topic)
        self._unsubscribing[mid] = topic
        self.kept_topics.add(topic)
        self._subscribed_by_s = time.monotonic() + self._broker.connect_timeout_s

    def watch(self, topic: str, qos: int = 0) -> None:
        """Subscribes to a topic that no sensor uses; a refusal is ignored."""
        _, mid = self._client.subscribe(topic, options=SubscribeOptions(qos=qos))
        self._watching.add(mid)

    @property
    def is_subscribed(self) -> bool:
        """Whether every subscription was granted, and every `unsubscribe` answered."""
        return self._pending_subscriptions == 0 and not self._unsubscribing

    def publish(self, topic: str, payload: bytes) -> None:
        """Publishes with QoS 1, in a `poll`, as soon as the broker's Receive Maximum allows it."""
        self._to_publish.append((topic, payload))
        self._publish_waiting()

    def take_publish_results(self) -> list[tuple[str, ReasonCode]]:
        """The broker's answers since the last call, each with its topic."""
        answered, self._published = self._published, []
        return answered

    def acknowledge(self, mid: int) -> None:
        """Queues the PUBACK for the next `poll`. QoS 0 messages have the id 0 and get none."""
        self._client.acknowledge(mid)

    def poll(self, timeout_s: float) -> None:
        """Sends what waits, then waits for bytes and delivers the messages in them. Raises LinkError."""
        self._flush()
        # They came with the answer to CONNECT, before the caller knew whether the session was resumed.
        if self._is_open and self._client.messages:
            self._client.deliver(self._on_message)
            timeout_s = 0
        if self._client.has_unread:
            self._read()
            timeout_s = 0
        # Rounded up: a wait of less than a millisecond would turn into a loop that does not wait.
        timeout_ms = max(0, int(timeout_s * 1000 + 0.999))
        for descriptor, events in self._poll.poll(timeout_ms):
            if descriptor == self._wake_up.socket.fileno():
                self._wake_up.clear()
            # Also after an error or a hang-up: reading shows what it was.
            elif events & ~select.POLLOUT:
                self._read()
        # paho sends its PINGREQ, and misses its answer, only here.
        self._client.loop_misc()
        self._publish_waiting()
        if not self.is_subscribed and time.monotonic() > self._subscribed_by_s:
            raise self._error("no answer to SUBSCRIBE or UNSUBSCRIBE")
        self._flush()

    def wake(self) -> None:
        """Ends a waiting `poll`. Any thread may call this."""
        self._wake_up.wake()

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on this connection with headers and repetitions, as counted by the kernel."""
        sock = self._client.socket()
        return _counted_bytes(sock) if isinstance(sock, socket.socket) else (0, 0)

    def close(self) -> None:
        """Disconnects if possible; never raises."""
        with suppress(OSError, ValueError):
            self._client.disconnect()
            self._client.flush()
        sock = self._client.socket()
        if sock is not None:
            with suppress(OSError):
                sock.close()
        self._wake_up.close()

    @property
    def _address(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    def _refused(self, connack: ReasonCode) -> LinkError:
        return LinkError(f"{self._address} refused: {_ADVICE.get(connack.value, connack)}")

    def _error(self, text: str) -> LinkError:
        return LinkError(f"{self._address}: {text}")

    def _new_client(self) -> MqttClient:
        try:
            client = MqttClient(self._broker, self._options)
        except (OSError, ValueError) as error:
            raise self._error(f"certificates or password file cannot be loaded: {error}") from error
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_answer = self._on_answer
        client.on_disconnect = self._on_disconnect
        return client

    def _register(self) -> None:
        sock = self._client.socket()
        if sock is None:
            raise LinkError("the connection ended at once")
        self._descriptor = sock.fileno()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(self._wake_up.socket.fileno(), select.POLLIN)

    def _wait_for(self, done: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
        while not done():
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise self._error(otherwise)
            self.poll(remaining_s)

    def _read(self) -> None:
        self._client.receive(self._on_message if self._is_open else None)
        self._check_end()

    def _publish_waiting(self) -> None:
        while self._to_publish and self._unacked < self._receive_maximum:
            self._unacked += 1
            topic, payload = self._to_publish.popleft()
            self._topics[self._client.publish_qos_1(topic, payload)] = topic

    def _flush(self) -> None:
        self._check_end()
        self._client.flush()
        self._check_end()
        # Only while something waits: a socket nearly always takes more, and no poll would wait.
        wanted = select.POLLIN | (select.POLLOUT if self._client.has_outgoing else 0)
        self._poll.modify(self._descriptor, wanted)

    def _check_end(self) -> None:
        # What paho makes of the broker's closing afterwards is not the cause.
        if self._connack is not None and self._connack.is_failure:
            raise self._refused(self._connack)
        if self._ended is not None or self._client.socket() is None:
            kind = LinkClosed if self._client.is_closed_by_broker else LinkError
            raise kind(f"{self._address}: {self._ended or 'connection lost'}")

    def _on_connect(self, _client: Client, _data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._connack = reason
        self.session_present = bool(flags.session_present)
        # paho sets only those properties that the CONNACK had.
        self.max_packet_bytes = getattr(properties, "MaximumPacketSize", LARGEST_PACKET)
        self._receive_maximum = getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM)
        self._takes_qos_1 = getattr(properties, "MaximumQoS", 1) > 0

    def _on_subscribe(self, _c: Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        if mid in self._watching:
            self._watching.discard(mid)
            return
        self._pending_subscriptions -= 1
        refused = [str(code) for code in reasons if code.value != 1]
        if refused:
            self._ended = f"subscription refused: {', '.join(refused)}"

    def _on_unsubscribe(self, _c: Client, _data: Any, mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        topic = self._unsubscribing.pop(mid, None)
        # A refusal ends nothing: messages that come twice are better than none.
        if topic is not None and not any(code.is_failure for code in reasons):
            self.kept_topics.discard(topic)

    def _on_answer(self, mid: int, reason: ReasonCode) -> None:
        self._published.append((self._topics.pop(mid, ""), reason))
        self._unacked -= 1

    def _on_disconnect(self, _c: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.value == SESSION_TAKEN_OVER:
            self._client.is_closed_by_broker = True
            self._ended = (
                f"the session of {self._options.client_id!r} was taken over: another client has this id; or, if the "
                "region refuses the next connection, the device was suspended or revoked"
            )
        elif self._client.is_closed_by_broker:
            self._ended = "the broker closed the connection"
        else:
            self._ended = self._client.failure or f"connection ended: {reason}"


def _counted_bytes(sock: socket.socket) -> tuple[int, int]:
    """(sent, received) with TCP and IP headers, from the kernel; (0, 0) if it does not count."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except (OSError, AttributeError):
        return (0, 0)
    # `struct tcp_info`: bytes_received, segs_out and segs_in, bytes_sent; before Linux 4.19 it ends earlier.
    if len(info) < 208:
        return (0, 0)
    received, segments_out, segments_in = *struct.unpack_from("=Q", info, 128), *struct.unpack_from("=II", info, 136)
    (sent,) = struct.unpack_from("=Q", info, 200)
    headers = HEADERS_BYTES.get(sock.family, 40)
    return sent + headers * segments_out, received + headers * segments_in
