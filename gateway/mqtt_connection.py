"""The connection to the regional broker: one MQTT 5 session, driven by the gateway's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from gateway.config import GatewaySettings, share_group
from gateway.errors import BrokerUnreachable
from waybill.mqtt.mqtt_client import (
    LARGEST_PACKET,
    RECEIVE_MAXIMUM,
    MqttClient,
    MqttMessage,
    MqttSessionOptions,
)
from waybill.record import DeviceChannel, device_filter, shared_filter

_CHANNELS = (DeviceChannel.BATCH, DeviceChannel.CONFIG_RESULT)
_SUBSCRIPTIONS = ", ".join(device_filter(channel) for channel in _CHANNELS)
"""For messages, without the secret group name."""
_RECEIVE_BYTES = 1 << 18
"""Read at once, so that 16 batches of 16 kB share the cost of a turn."""
_PACKET_OVERHEAD = 16
"""Bytes of a PUBLISH besides topic and payload, at most."""
_NO_REASON = "Unspecified error"
_ENDED = "the connection to the MQTT broker ended"


class PublishResult(NamedTuple):
    """The broker's answer to one publication. `refusal`: the reason; "" if it was accepted."""

    topic: str
    refusal: str


class MqttConnection:
    """The shared subscriptions, and publications to devices.

    `on_inbound` and `on_published` are called inside `read`; `puback` acknowledges a message. The session ends with its
    connection: devices send unacknowledged batches again, here or to another gateway.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        on_inbound: Callable[[MqttMessage], None],
        on_published: Callable[[PublishResult], None],
    ) -> None:
        self._settings = settings.mqtt
        group = share_group(settings.mqtt)
        self._filters = [shared_filter(channel, group) for channel in _CHANNELS]
        self._window = settings.acks.window
        self._free = self._window
        self._max_packet_bytes = LARGEST_PACKET
        self._on_inbound, self._on_published = on_inbound, on_published
        self._topic_of: dict[int, str] = {}
        self.is_subscribed = False
        self.is_unsubscribed = False
        self.last_error = ""
        self._client = self._new_client(settings.name)

    @property
    def socket(self) -> Any:
        """The socket for select; None without a connection."""
        return self._client.socket()

    @property
    def has_buffered(self) -> bool:
        """Whether bytes wait that select does not show."""
        return self._client.has_unread

    @property
    def wants_write(self) -> bool:
        return self._client.has_outgoing

    @property
    def free_slots(self) -> int:
        """How many more messages to devices may be sent now, within the bounds of both sides."""
        return max(0, self._free) if self.is_subscribed else 0

    def connect(self) -> None:
        """Open the connection and send CONNECT; `read` gets the answer. Raises BrokerUnreachable."""
        self.is_subscribed, self.last_error = False, ""
        try:
            self._client.start()
        except (OSError, ValueError) as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise BrokerUnreachable(f"the MQTT broker at {where} cannot be reached: {error}") from error

    def read(self, has_room: Callable[[], bool] = lambda: True) -> None:
        """Read a bounded number of packets, while `has_room`."""
        self._client.receive(self._on_inbound, has_room=has_room)

    def write(self) -> None:
        self._client.flush()

    def keep_alive(self) -> None:
        """Send a ping when one is due, and notice a dead connection."""
        self._client.loop_misc()

    def puback(self, mid: int) -> None:
        self._client.acknowledge(mid)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish to a device with QoS 1; `on_published` gets the answer."""
        # A packet above the broker's Maximum Packet Size is a protocol error that ends the connection.
        if len(topic.encode()) + len(payload) + _PACKET_OVERHEAD > self._max_packet_bytes:
            self._on_published(PublishResult(topic, f"its largest packet has {self._max_packet_bytes} bytes"))
            return
        self._free -= 1
        self._topic_of[self._client.publish_qos_1(topic, payload, retain=retain)] = topic

    def unsubscribe(self) -> None:
        """Leave the shared subscriptions. Messages that the broker has queued still come until `is_unsubscribed`."""
        if self.socket is not None:
            self._client.unsubscribe(self._filters)

    def disconnect(self) -> None:
        self._client.disconnect()
        self._client.flush()

    def _new_client(self, name: str) -> MqttClient:
        options = MqttSessionOptions(
            client_id=name,
            receive_maximum=self._settings.receive_maximum,
            max_packet_bytes=self._settings.max_packet_bytes,
            receive_bytes=_RECEIVE_BYTES,
        )
        client = MqttClient(self._settings, options)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_disconnect = self._on_disconnect
        client.on_answer = self._on_answer
        return client

    def _on_connect(self, _: mqtt.Client, __: Any, ___: Any, reason: ReasonCode, properties: Properties | None) -> None:
        if reason.is_failure:
            self.last_error = f"the MQTT broker refuses the connection: {reason}"
            return
        self._max_packet_bytes = getattr(properties, "MaximumPacketSize", LARGEST_PACKET)
        theirs = getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM)
        # The client sends unanswered acknowledgements of the old connection again, so they count.
        self._free = min(self._window, theirs) - self._client.unanswered
        self._client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in self._filters])

    def _on_subscribe(self, _: mqtt.Client, __: Any, ___: int, reasons: list[ReasonCode], ____: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            refused = [str(reason) for reason in reasons if reason.is_failure]
            self.last_error = f"the MQTT broker refuses a subscription of {_SUBSCRIPTIONS}: {refused[0]}"
        elif any(reason.value < 1 for reason in reasons):
            self.last_error = "the MQTT broker grants QoS 0 only: what it sends may be lost"
        else:
            self.is_subscribed = True

    def _on_unsubscribe(self, *_: Any) -> None:
        self.is_unsubscribed = True

    def _on_disconnect(self, _: mqtt.Client, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
        self.is_subscribed = False
        because = ", and it did not say why" if str(reason) == _NO_REASON else f": {reason}"
        because = f": {self._client.failure}" if self._client.failure else because
        # The first reason is the cause of the end.
        self.last_error = self.last_error or f"{_ENDED}{because}"

    def _on_answer(self, mid: int, reason: ReasonCode) -> None:
        self._free += 1
        topic = self._topic_of.pop(mid, "")
        self._on_published(PublishResult(topic, str(reason) if reason.is_failure else ""))
