"""The connection to the regional broker: one MQTT 5 session, driven by the gateway's own loop."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from gateway.config import GatewaySettings, Tls
from gateway.errors import BrokerUnreachable
from gateway.packets import InboundMessage, read_publish
from runtime import load_key_pair
from telemetry import DeviceChannel, shared_filter

_SUBSCRIPTIONS = (shared_filter(DeviceChannel.BATCH), shared_filter(DeviceChannel.CONFIG_RESULT))
_MAX_READS = 64
_PACKET_OVERHEAD = 16
"""What a PUBLISH has beside topic and payload, at most."""
_NO_SUBSCRIBER = 0x10
_NO_REASON = "Unspecified error"
_ENDED = "the connection to the MQTT broker ended"


class PublishResult(NamedTuple):
    """What the broker answered to one publication. `refusal`: its reason, empty when it took the message.

    `has_no_subscriber`: nobody is subscribed to the topic, and no session waits for it.
    """

    topic: str
    refusal: str
    has_no_subscriber: bool = False


def tls_context(settings: Tls) -> ssl.SSLContext:
    """The context of these files. Raises OSError (which ssl.SSLError is); ValueError for a key with a passphrase."""
    context = ssl.create_default_context(cafile=str(settings.ca))
    if settings.certificate is not None:
        load_key_pair(context, settings.certificate, settings.key)
    return context


class _PassingClient(mqtt.Client):
    """paho's client, which hands a PUBLISH on without decoding its properties.

    paho ends the connection over properties that the broker passes on and that it does not like, and its cost grows
    with their square: one message of one device would stop the gateway, at every redelivery.
    """

    def __init__(self, name: str, on_inbound: Callable[[InboundMessage], None]) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=mqtt.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        self._on_inbound = on_inbound

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            inbound = read_publish(self._in_packet["command"], self._in_packet["packet"])
        except ValueError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._on_inbound(inbound)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class MqttConnection:
    """The shared subscriptions, and publications to devices.

    `on_inbound` and `on_published` are called inside `read`. Manual acknowledgement: `puback` says what is safe. The
    session outlives a lost connection by `session_expiry_s`, so the broker sends again what was not acknowledged.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        on_inbound: Callable[[InboundMessage], None],
        on_published: Callable[[PublishResult], None],
    ) -> None:
        self._settings = settings.mqtt
        self._window = settings.acks.window
        self._free = self._window
        self._max_packet_bytes = 0
        self._on_inbound, self._on_published = on_inbound, on_published
        self._topic_of: dict[int, str] = {}
        self.is_subscribed = False
        self.is_unsubscribed = False
        self.last_error = ""
        self._client = self._new_client(settings.name)

    @property
    def socket(self) -> Any:
        """What to select on; None without a connection."""
        return self._client.socket()

    @property
    def has_buffered(self) -> bool:
        """Whether decrypted bytes wait that no select would show."""
        pending = getattr(self.socket, "pending", None)
        return bool(pending and pending())

    @property
    def wants_write(self) -> bool:
        """Whether packets wait to be sent."""
        return self._client.want_write()

    @property
    def free_slots(self) -> int:
        """How many more acknowledgements the broker takes now: what is unacknowledged is bounded by both sides."""
        return max(0, self._free) if self.is_subscribed else 0

    def connect(self) -> None:
        """Open the connection and send CONNECT; the answer comes by `read`. Raises BrokerUnreachable."""
        self.is_subscribed, self.last_error = False, ""
        try:
            if self._client.host:
                self._client.reconnect()
            else:
                self._first_connect()
        except (OSError, ValueError) as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise BrokerUnreachable(f"the MQTT broker at {where} cannot be reached: {error}") from error

    def read(self) -> None:
        """Take what has arrived, a bounded number of packets, so that receipts get their turn."""
        for _ in range(_MAX_READS):
            if self._client.loop_read() != mqtt.MQTT_ERR_SUCCESS or not self.has_buffered:
                break

    def write(self) -> None:
        """Send what waits, as far as the socket takes it."""
        self._client.loop_write()

    def keep_alive(self) -> None:
        """Send a ping when one is due, and notice a dead connection."""
        self._client.loop_misc()

    def puback(self, mid: int) -> None:
        """Send the PUBACK of a batch. A batch of QoS 0 has no id, and needs none."""
        if mid:
            self._client.ack(mid, 1)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send something to a device, QoS 1; the answer comes by `on_published`. `retain`: the broker keeps it."""
        if self._max_packet_bytes and len(topic.encode()) + len(payload) + _PACKET_OVERHEAD > self._max_packet_bytes:
            self._on_published(PublishResult(topic, f"it takes no packet of more than {self._max_packet_bytes} bytes"))
            return
        self._free -= 1
        self._topic_of[self._client.publish(topic, payload, qos=1, retain=retain).mid] = topic

    def unsubscribe(self) -> None:
        """Leave the shared subscriptions; `is_unsubscribed` once the broker confirms. What it queued still comes."""
        if self.socket is not None:
            self._client.unsubscribe(list(_SUBSCRIPTIONS))

    def disconnect(self, *, keep_session: bool) -> None:
        """Go in good order; a session that is kept holds what was not taken, until its expiry."""
        properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._settings.session_expiry_s if keep_session else 0
        self._client.disconnect(properties=properties)
        self._client.loop_write()

    def _new_client(self, name: str) -> mqtt.Client:
        settings = self._settings
        client = _PassingClient(name, self._on_inbound)
        client.connect_timeout = settings.connect_timeout_s
        client.max_inflight_messages_set(0)  # bounded by `free_slots`: paho's own bound never looks at the broker's
        if settings.username is not None:
            password = settings.password.get_secret_value() if settings.password else None
            client.username_pw_set(settings.username, password)
        if settings.tls is not None:
            client.tls_set_context(tls_context(settings.tls))
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        # With this callback paho queues packets instead of writing each at once: the loop sends them together.
        client.on_socket_register_write = lambda *_: None
        return client

    def _first_connect(self) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = self._settings.receive_maximum
        properties.MaximumPacketSize = self._settings.max_packet_bytes
        properties.SessionExpiryInterval = self._settings.session_expiry_s
        self._client.connect(
            self._settings.host,
            self._settings.port,
            keepalive=self._settings.keepalive_s,
            clean_start=False,
            properties=properties,
        )

    def _on_connect(
        self, client: mqtt.Client, _: Any, __: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self.last_error = f"the MQTT broker refuses the connection: {reason}"
            return
        self._max_packet_bytes = getattr(properties, "MaximumPacketSize", 0)
        theirs = getattr(properties, "ReceiveMaximum", 65_535)
        # Acknowledgements that the old connection left unanswered are sent again by paho and count.
        self._free = min(self._window, theirs) - len(client._out_messages)  # noqa: SLF001 - there is no other way to ask
        client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in _SUBSCRIPTIONS])

    def _on_subscribe(self, _: mqtt.Client, __: Any, ___: int, reasons: list[ReasonCode], ____: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            refused = [str(reason) for reason in reasons if reason.is_failure]
            self.last_error = f"the MQTT broker refuses a subscription of {', '.join(_SUBSCRIPTIONS)}: {refused[0]}"
        elif any(reason.value < 1 for reason in reasons):
            self.last_error = "the MQTT broker grants QoS 0 only: what it sends while the gateway is away would be lost"
        else:
            self.is_subscribed = True

    def _on_unsubscribe(self, *_: Any) -> None:
        self.is_unsubscribed = True

    def _on_disconnect(self, _: mqtt.Client, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
        self.is_subscribed = False
        because = f": {reason}" if str(reason) != _NO_REASON else ", and it did not say why"
        self.last_error = self.last_error or f"{_ENDED}{because}"

    def _on_publish(self, _: mqtt.Client, __: Any, mid: int, reason: ReasonCode, ___: Any) -> None:
        self._free += 1
        topic = self._topic_of.pop(mid, "")
        refusal = str(reason) if reason.is_failure else ""
        self._on_published(PublishResult(topic, refusal, has_no_subscriber=reason.value == _NO_SUBSCRIBER))
