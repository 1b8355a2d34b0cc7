"""Executes the engine's effects: messages to Pulsar, acknowledgements to devices, PUBACKs to the broker."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import structlog

from gateway.engine import Engine, NotSent, Produce
from gateway.errors import last_line
from gateway.inflight import Delivery, Refusal, Sender
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection, PublishResult
from gateway.pulsar_producer import TOO_BIG, Receipt, TenantProducers
from gateway.push import PushQueue, parse_config_result
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import DeviceChannel, RefusalReason, device_topic, encode_ack, parse_device_topic

MAX_ATTEMPTS = 5
"""Attempts to send a dead letter before it is given up, so that it does not block others."""
_REOPENED_S = 1.0
"""How often a retry checks for a producer."""
_LOG = structlog.get_logger("gateway")


class Forwarder:
    """Sends batches and dead letters to Pulsar, and repeats failed sends.

    `delay_s(attempts)`: the wait before the next attempt. `on_send_failed` gets the reason of a failure.
    """

    def __init__(
        self,
        engine: Engine,
        producer: TenantProducers,
        metrics: GatewayMetrics,
        *,
        delay_s: Callable[[int], float],
        on_send_failed: Callable[[str], None],
    ) -> None:
        self._engine, self._producer, self._metrics = engine, producer, metrics
        self._delay_s, self._on_send_failed = delay_s, on_send_failed
        self._retries: list[tuple[float, int]] = []

    @property
    def next_retry_s(self) -> float | None:
        return self._retries[0][0] if self._retries else None

    def on_message(self, message: MqttMessage, now_s: float) -> None:
        """Forward a batch, or count a device's answer to pushed settings. Never raises."""
        try:
            self._handle_message(message, now_s)
        except Exception as error:  # noqa: BLE001 - whatever one message raises, the next one is served
            refusal = Refusal(RefusalReason.INTERNAL_ERROR, log_internal_error(self._metrics, error))
            self._send(self._engine.dead_letter(message.topic, message.payload, message.mid, refusal, now_s))

    def handle_receipts(self, now_s: float) -> None:
        """Handle Pulsar's answers since the last call. Never raises."""
        persisted = []
        for receipt in self._producer.take_receipts():
            if receipt.token not in self._engine.in_flight:
                continue  # it was abandoned, or a second receipt came when its client was closed
            try:
                if (delivery := self._handle_receipt(receipt, now_s)) is not None:
                    persisted.append(delivery)
            except Exception as error:  # noqa: BLE001 - one batch must not hold up the others
                log_internal_error(self._metrics, error)
                self._engine.abandon(receipt.token)
        if persisted:
            self._metrics.on_persisted(persisted, now_s)

    def retry_due(self, now_s: float) -> None:
        while self._retries and self._retries[0][0] <= now_s:
            token = self._retries[0][1]
            if token not in self._engine.in_flight:  # it was abandoned while it waited
                heapq.heappop(self._retries)
            elif self._producer.is_open_for(self._engine.in_flight.get(token).sender.tenant):
                heapq.heappop(self._retries)
                self._producer.send(self._engine.begin_attempt(token))
            else:
                heapq.heapreplace(self._retries, (now_s + _REOPENED_S, token))

    def _handle_message(self, message: MqttMessage, now_s: float) -> None:
        topic = parse_device_topic(message.topic)
        if topic is not None and topic.channel is DeviceChannel.CONFIG_RESULT:
            sender = Sender(topic.tenant, topic.device)
            outcome, reason = parse_config_result(message.payload)
            _LOG.info("settings answered", sender=sender, outcome=outcome, reason=reason)
            self._metrics.on_config_result(outcome)
            self._engine.acknowledge_only(message.mid)
        else:
            self._send(
                self._engine.on_batch(message.topic, message.payload, message.mid, now_s), topic and topic.tenant
            )

    def _send(self, effect: Produce | NotSent, tenant: str | None = None) -> None:
        if isinstance(effect, Produce):
            self._producer.send(effect)
        elif effect is NotSent.SLOW_DOWN:
            self._metrics.count("batches_slowed_down", self._engine.listed(tenant))
        elif effect is NotSent.NO_ROOM:
            self._metrics.count("qos_0_dropped")

    def _handle_receipt(self, receipt: Receipt, now_s: float) -> Delivery | None:
        """The batch, if this receipt says that one is persisted."""
        if receipt.ok:
            delivery = self._engine.on_persisted(receipt.token, now_s)
            return delivery if delivery.refusal is None else None
        delivery = self._engine.in_flight.get(receipt.token)
        if delivery.refusal is not None and (receipt.is_permanent or delivery.attempts >= MAX_ATTEMPTS):
            # The device still gets its refusal, so that it does not send the batch again.
            self._engine.on_persisted(receipt.token, now_s)
            self._metrics.count("dead_letters_not_kept")
            _LOG.error("Pulsar refused a dead letter", result=receipt.result, topic=delivery.topic)
        elif receipt.is_permanent:
            reason = RefusalReason.TOO_LARGE if receipt.result == TOO_BIG else RefusalReason.NOT_FOR_PULSAR
            refusal = Refusal(reason, f"Pulsar never accepts this message: {receipt.result}")
            self._send(self._engine.refuse(receipt.token, refusal, now_s))
        else:
            self._metrics.count("pulsar_failures", receipt.result)
            self._on_send_failed(f"Pulsar refused a batch: {receipt.result}")
            heapq.heappush(self._retries, (now_s + self._delay_s(delivery.attempts), receipt.token))
        return None


class DevicePublisher:
    """Publishes acknowledgements and settings to devices, as far as the broker takes them."""

    def __init__(
        self,
        engine: Engine,
        broker: MqttConnection,
        pushes: PushQueue,
        metrics: GatewayMetrics,
    ) -> None:
        self._engine, self._broker, self._pushes, self._metrics = engine, broker, pushes, metrics

    def next_due_s(self, now_s: float) -> float | None:
        """When something is due; None if nothing is, or if the broker takes nothing."""
        if not self._broker.free_slots:
            return None
        return now_s if self._pushes.has_waiting else self._engine.next_ack_s

    def publish_due(self, now_s: float) -> None:
        """Publish due acknowledgements and one settings file, then send the PUBACKs of acknowledged batches."""
        for message in self._engine.take_due_acks(now_s, self._broker.free_slots):
            try:
                self._broker.publish(device_topic(*message.sender, DeviceChannel.ACK), encode_ack(message.ack))
                self._metrics.count("acks_published")
            except Exception as error:  # noqa: BLE001 - the device sends again; the others get theirs
                log_internal_error(self._metrics, error)
        # One file a turn, so that thousands of files do not delay acknowledgements.
        if self._broker.free_slots and (push := self._pushes.take_next()) is not None:
            self._broker.publish(device_topic(*push.sender, DeviceChannel.CONFIG), push.text, retain=True)
            self._metrics.count("pushes_published")
        # After the acknowledgements: a broker that had its PUBACK never sends the batch again, so a device without
        # its acknowledgement would have to send it by itself.
        if self._broker.is_subscribed:
            for mid in self._engine.release():
                self._broker.puback(mid)

    def on_publish_result(self, answer: PublishResult) -> None:
        if answer.refusal:
            topic = parse_device_topic(answer.topic)
            is_ack = topic is not None and topic.channel is DeviceChannel.ACK
            self._metrics.count("acks_refused" if is_ack else "pushes_refused_by_broker")
            _LOG.warning("the broker refuses a message to a device", topic=answer.topic, reason=answer.refusal)


def log_refusal(metrics: GatewayMetrics, delivery: Delivery, kept: bool) -> None:
    """Count and log a refused delivery. `kept`: as a dead letter."""
    assert delivery.refusal is not None
    why = delivery.refusal
    metrics.on_refused(why.reason, kept=kept)
    _LOG.warning("refused", reason=why.reason, detail=why.detail, topic=delivery.topic, kept=kept)


def log_internal_error(metrics: GatewayMetrics, error: Exception) -> str:
    """Count and log an internal error; returns the logged line."""
    metrics.count("internal_errors")
    _LOG.error("internal error", error=(said := last_line(error)))
    return said
