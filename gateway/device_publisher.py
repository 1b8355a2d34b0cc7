"""To the devices: acknowledgements and pushed settings; to the broker: the PUBACKs of what is acknowledged."""

from __future__ import annotations

from typing import Protocol

import structlog

from gateway.engine import Engine
from gateway.errors import last_line
from gateway.health import PublicationResults
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import PublishResult
from gateway.push import PushQueue
from telemetry import DeviceChannel, encode_ack, parse_device_topic

_LOG = structlog.get_logger("gateway")


class Broker(Protocol):
    """What is needed of the broker's side."""

    @property
    def free_slots(self) -> int:
        """How many more publications the broker takes now; 0 without a connection."""

    @property
    def is_subscribed(self) -> bool:
        """Whether there is a connection on which messages come and PUBACKs may go."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send something to a device."""

    def puback(self, mid: int) -> None:
        """Acknowledge a message to the broker."""


class DevicePublisher:
    """Publishes what is due, as far as the broker takes it. `results` learns what the broker answers."""

    def __init__(
        self, engine: Engine, broker: Broker, pushes: PushQueue, metrics: GatewayMetrics, results: PublicationResults
    ) -> None:
        self._engine, self._broker, self._pushes = engine, broker, pushes
        self._metrics, self._results = metrics, results

    def next_due_s(self, now_s: float) -> float | None:
        """When something is to be published; None while there is nothing, or the broker takes nothing."""
        if not self._broker.free_slots:
            return None
        return now_s if self._pushes.has_waiting else self._engine.acks.next_s

    def publish_due(self, now_s: float) -> None:
        """Acknowledgements, one file of settings, then the PUBACKs of all that the devices know."""
        for message in self._engine.take_due_acks(now_s, self._broker.free_slots):
            try:
                self._broker.publish(message.sender.topic(DeviceChannel.ACK), encode_ack(message.ack))
                self._metrics.on_acked(message.ack)
            except Exception as error:  # noqa: BLE001 - the device sends again; the others get theirs
                self._metrics.on_internal_error()
                _LOG.error("internal error", error=last_line(error))
        # One file in a turn: a folder of thousands must not hold up acknowledgements.
        if self._broker.free_slots and (push := self._pushes.take_next()) is not None:
            self._broker.publish(push.sender.topic(DeviceChannel.CONFIG), push.text, retain=True)
            self._metrics.on_pushed()
        # After the acknowledgements: a broker that had its PUBACK never sends the batch again, so a device without
        # its acknowledgement would have to send it by itself.
        if self._broker.is_subscribed:
            for mid in self._engine.release():
                self._broker.puback(mid)

    def on_publish_result(self, answer: PublishResult, now_s: float) -> None:
        """The broker's answer to a message for a device."""
        topic = parse_device_topic(answer.topic)
        # Settings that nobody hears now are kept by the broker until their device comes.
        is_ack = topic is not None and topic.channel is DeviceChannel.ACK
        self._metrics.on_publish_result(
            refused=bool(answer.refusal), has_no_subscriber=answer.has_no_subscriber and is_ack
        )
        self._results.add(answer.refusal, now_s)
        if answer.refusal:
            _LOG.warning("the broker refuses a message to a device", topic=answer.topic, reason=answer.refusal)
