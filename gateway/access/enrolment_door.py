"""One of the two ways on which requests for certificates come: the enrolment broker, or the devices' own broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from paho.mqtt.client import Client
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from waybill.daemon.backoff import Backoff
from waybill.identity.enrolment import MAX_ENROLMENT_BYTES
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions
from waybill.record import FACTORY_MOUNT, EnrolmentChannel, enrolment_requester, enrolment_topic

__all__ = ["EnrolmentDoor", "EnrolmentWay"]

_PACKET_BYTES = MAX_ENROLMENT_BYTES + 1024
_RECEIVE_MAXIMUM = 100
_LOG = structlog.get_logger("access")


class EnrolmentWay(NamedTuple):
    """How a request came, and how its answer goes. `mount`: what the broker has put before the sender's topics."""

    door: EnrolmentDoor
    mount: str = ""

    @property
    def is_factory(self) -> bool:
        """Whether the sender has shown a factory certificate."""
        return self.mount == FACTORY_MOUNT

    def answer(self, sender: str, payload: bytes) -> None:
        """Publishes an answer; lost where there is no connection: who asks, asks again."""
        self.door.publish(f"{self.mount}{enrolment_topic(sender, EnrolmentChannel.ANSWER)}", payload)


class EnrolmentDoor:
    """A connection that is made again and again. Driven by one thread: `socket` is what to select on.

    Requests that come while it is away are asked again by who sent them, so no session is kept.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        name: str,
        topics: tuple[str, ...],
        on_request: Callable[[EnrolmentWay, str, bytes], None],
    ) -> None:
        self._broker, self._name, self._topics, self._on_request = broker, name, topics, on_request
        self._backoff = Backoff(broker.backoff_first_s, broker.backoff_max_s, random.random)
        self._client: MqttClient | None = None
        self._next_s = 0.0
        self.is_open = False
        self.problem = "not connected yet"

    @property
    def socket(self) -> Any:
        """What to select on; None without a connection."""
        return None if self._client is None else self._client.socket()

    @property
    def wants_write(self) -> bool:
        """Whether packets wait to be sent."""
        return self._client is not None and self._client.has_outgoing

    def turn(self, now_s: float) -> None:
        """Connects when it is time, reads what came, and sends what waits."""
        if self.socket is None:
            self._lost(now_s)
            self._connect_due(now_s)
            return
        assert self._client is not None
        self._client.receive(self._receive)
        self._client.loop_misc()
        self._client.flush()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publishes an answer; lost where there is no connection."""
        # Not kept for later: by then the device asks with another nonce.
        if self._client is not None and self.is_open:
            self._client.publish_qos_1(topic, payload)

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.disconnect()
            self._client.flush()
            self._client = None

    def _lost(self, now_s: float) -> None:
        if self._client is None:
            return
        self.problem = self._client.failure or self.problem or "connection lost"
        _LOG.warning("the way to who asks for certificates is lost", broker=self._where, problem=self.problem)
        self._client, self.is_open = None, False
        self._next_s = now_s + self._backoff.take_delay_s()

    def _connect_due(self, now_s: float) -> None:
        if now_s < self._next_s:
            return
        try:
            client = MqttClient(self._broker, self._options)
            client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
            client.start()
            self._client = client
        except (OSError, ValueError) as error:
            self.problem = f"{self._where}: {error}"
            self._next_s = now_s + self._backoff.take_delay_s()

    @property
    def _where(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    @property
    def _options(self) -> MqttSessionOptions:
        return MqttSessionOptions(
            client_id=self._name,
            receive_maximum=_RECEIVE_MAXIMUM,
            max_packet_bytes=_PACKET_BYTES,
        )

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self.problem = f"{self._where} refuses the connection: {reason}"
            return
        client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in self._topics])

    def _on_subscribe(self, _c: Client, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        self.is_open = not any(reason.is_failure for reason in reasons)
        if self.is_open:
            self.problem = ""
            self._backoff.reset()
            _LOG.info("requests for certificates are taken", broker=self._where)

    def _receive(self, message: MqttMessage) -> None:
        assert self._client is not None
        # First: what cannot be handled must not come again.
        self._client.acknowledge(message.mid)
        mount = FACTORY_MOUNT if message.topic.startswith(FACTORY_MOUNT) else ""
        sender = enrolment_requester(message.topic.removeprefix(mount))
        if sender is not None:
            self._on_request(EnrolmentWay(self, mount), sender, message.payload)
