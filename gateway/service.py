"""The gateway's loop: one thread that turns between the broker, Pulsar's receipts and the clock."""

from __future__ import annotations

import heapq
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway.broker_link import BrokerLink
from gateway.config import Drain, GatewaySettings
from gateway.config_results import parse_config_result
from gateway.dead_letters import MAX_ATTEMPTS, last_line
from gateway.devices import DevicesHeard, ListeningClock
from gateway.engine import Engine, NotSent, Produce
from gateway.errors import BrokerUnreachable, PulsarUnreachable, ThreadEnded
from gateway.health import PublicationResults, stall_problem
from gateway.inflight import Delivery
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection, PublishResult
from gateway.pulsar_producer import TOO_BIG, PulsarProducer, Receipt
from gateway.push import PushQueue
from gateway.status import GatewayStatus, SilentDevices
from gateway.status_server import StatusHolder, serve_status
from gateway.validation import UNKNOWN_SENDER, Refusal, Sender, sender_of
from runtime.backoff import Backoff
from runtime.mqtt_client import MqttMessage
from runtime.wakeup import WakeUp
from telemetry import DeviceChannel, encode_ack, parse_device_topic

_TICK_S = 1.0
_SILENT_S = 10.0
"""How often the list of silent devices is made, and what the log suppressed is said."""
_QUIET_S = 0.2
"""When a gateway that leaves has heard nothing for so long, the broker has nothing more for it."""
_INTERNAL = "internal-error"
_LOG = structlog.get_logger("gateway")


class Service:
    """One gateway process. `reload` gives the drain settings anew when SIGHUP comes.

    `suppressed`: how many log lines of each kind were not written since it was asked last.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        reload: Callable[[], Drain],
        suppressed: Callable[[], dict[str, int]] = dict,
    ) -> None:
        now_s = time.monotonic()
        self._settings, self._reload, self._suppressed = settings, reload, suppressed
        self._wake = WakeUp()
        self._engine = Engine(settings, jitter=random.random, on_refused=self._on_refused)
        self._pulsar = PulsarProducer(settings, self._wake.wake)
        self._mqtt = MqttConnection(settings, self._on_message, self._on_publish_result)
        self._pushes = PushQueue(settings.push.folder)
        self._metrics = GatewayMetrics()
        self._devices = DevicesHeard(settings.status.max_devices)
        self._results = PublicationResults()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._status = GatewayStatus(
            gateway=settings.name, region=settings.region, pid=os.getpid(), started_at=started_at
        )
        self._status_holder = StatusHolder(self._status)
        self._retries: list[tuple[float, int]] = []
        self._pulsar_backoff = Backoff(settings.pulsar.backoff_first_s, settings.pulsar.backoff_max_s, random.random)
        self._link = BrokerLink(settings.name, settings.mqtt, random.random, now_s)
        self._open_at_s = self._tick_at_s = self._silent_at_s = now_s
        self._ended_thread = ""
        self._stop_by_s: float | None = None
        self._arrived_s = now_s
        self._listening = ListeningClock()
        self._last_error = ""

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is in flight within the stop time-out."""
        threading.excepthook = self._on_thread_ended
        with (
            serve_status(self._settings.status, self._metrics.registry, self._status_holder) as self._status_server,
            self._wake.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals,
        ):
            _LOG.info("started", gateway=self._settings.name, region=self._settings.region)
            try:
                while not self._is_finished(time.monotonic()):
                    self._handle_signals(signals)
                    self._run_once()
                self._mqtt.disconnect(keep_session=not self._is_drained)
            finally:
                self._pulsar.close()
            left = len(self._engine.in_flight)
            _LOG.info("stopped", in_flight=left, note="the broker sends them again" if left else "")

    def _run_once(self) -> None:
        now_s = time.monotonic()
        self._open_pulsar(now_s)
        self._connect_mqtt(now_s)
        readable, writable = self._wait(now_s)
        if self._wake.socket in readable:
            self._wake.clear()
        now_s = time.monotonic()
        if self._mqtt.socket is not None and self._mqtt.socket in readable:
            self._mqtt.read()
        self._handle_receipts(now_s)
        self._retry(now_s)
        self._send_acks(now_s)
        if self._mqtt.socket is not None and (writable or self._mqtt.wants_write):
            self._mqtt.write()
        self._watch_connection(now_s)
        if now_s >= self._tick_at_s:
            self._tick(now_s)

    def _wait(self, now_s: float) -> tuple[list[Any], list[Any]]:
        wanted = [
            at
            for at in (self._engine.acks.next_s if self._mqtt.free_slots else None, self._tick_at_s)
            if at is not None
        ]
        if self._retries:
            wanted.append(self._retries[0][0])
        if self._pushes.has_waiting and self._mqtt.free_slots:
            wanted.append(now_s)
        longest_s = _TICK_S if self._stop_by_s is None else _QUIET_S / 2
        timeout_s = max(0.0, min(min(wanted) - now_s, longest_s))
        readers: list[Any] = [self._wake.socket]
        writers: list[Any] = []
        socket = self._mqtt.socket
        if socket is not None:
            if self._engine.has_room:
                readers.append(socket)
                timeout_s = 0.0 if self._mqtt.has_buffered else timeout_s
            if self._mqtt.wants_write:
                writers.append(socket)
        readable, writable, _ = select.select(readers, writers, [], timeout_s)
        if socket is not None and self._mqtt.has_buffered and self._engine.has_room:
            readable.append(socket)
        return readable, writable

    def _open_pulsar(self, now_s: float) -> None:
        if self._pulsar.is_open or now_s < self._open_at_s or self._stop_by_s is not None:
            return
        try:
            self._pulsar.open()
        except PulsarUnreachable as error:
            self._log_error(error)
            self._open_at_s = time.monotonic() + self._pulsar_backoff.next_delay_s()
        else:
            self._pulsar_backoff.reset()
            _LOG.info("pulsar is open", topic=self._settings.topic(self._settings.pulsar.batches))

    def _connect_mqtt(self, now_s: float) -> None:
        """Connect once there is a producer: without one nothing may be taken."""
        if self._stop_by_s is not None or not self._link.is_due(now_s):
            return
        if not self._pulsar.is_open or not self._engine.has_room:
            return
        self._engine.in_flight.on_reconnect()
        try:
            self._mqtt.connect()
        except BrokerUnreachable as error:
            self._log_error(error)
            self._link.on_ended(str(error), time.monotonic())
        else:
            self._link.on_attempt(time.monotonic())

    def _watch_connection(self, now_s: float) -> None:
        if self._mqtt.is_subscribed:
            if not self._link.is_up:
                self._link.on_connected(now_s)
                self._last_error = ""
                _LOG.info("subscribed", host=self._settings.mqtt.host, port=self._settings.mqtt.port)
            return
        lost = self._mqtt.socket is None or bool(self._mqtt.last_error)
        if self._link.is_in_use and (lost or self._link.is_overdue(now_s)):
            why = self._mqtt.last_error or "the MQTT broker does not answer in time"
            self._metrics.on_connection_failed()
            self._link.on_ended(why, now_s)
            self._log_error(BrokerUnreachable(self._link.problem or why))

    def _on_message(self, message: MqttMessage) -> None:
        self._arrived_s = now_s = time.monotonic()
        # Whatever becomes of what it sent, the device is not silent.
        if (sender := sender_of(message.topic)) != UNKNOWN_SENDER:
            self._devices.on_heard(sender, self._listening.total_s)
        if self._stop_by_s is not None and self._stop_by_s - now_s < self._settings.stop_timeout_s / 2:
            return  # the second half of the time is for what was taken; the broker keeps this one
        try:
            self._handle_message(message, now_s)
        except Exception as error:  # noqa: BLE001 - whatever one message raises, the next one is served
            refusal = Refusal(_INTERNAL, self._internal_error(error))
            self._send(self._engine.dead_letter(message.topic, message.payload, message.mid, refusal, now_s))

    def _handle_message(self, message: MqttMessage, now_s: float) -> None:
        topic = parse_device_topic(message.topic)
        if topic is not None and topic.channel is DeviceChannel.CONFIG_RESULT:
            sender = Sender(topic.tenant, topic.device)
            answer = parse_config_result(message.payload)
            _LOG.info("settings answered", sender=sender, outcome=answer.outcome, reason=answer.reason)
            self._metrics.on_config_result(answer.outcome)
            self._engine.acknowledge_only(message.mid)
        else:
            self._send(self._engine.on_batch(message.topic, message.payload, message.mid, now_s))

    def _send(self, effect: Produce | NotSent) -> None:
        if isinstance(effect, Produce):
            self._pulsar.send(effect)
        elif effect is NotSent.JOINED:
            self._metrics.on_joined()
        elif effect is NotSent.NO_ROOM:
            self._metrics.on_qos_0_dropped()

    def _on_refused(self, delivery: Delivery, kept: bool) -> None:
        assert delivery.refusal is not None
        why = delivery.refusal
        self._metrics.on_refused(why.reason, kept=kept)
        _LOG.warning("refused", reason=why.reason, detail=why.detail, topic=delivery.topic, kept=kept)

    def _on_publish_result(self, answer: PublishResult) -> None:
        """The broker's answer to a message for a device."""
        # Settings that nobody hears now are kept by the broker until their device comes.
        topic = parse_device_topic(answer.topic)
        is_ack = topic is not None and topic.channel is DeviceChannel.ACK
        has_no_subscriber = answer.has_no_subscriber and is_ack
        self._metrics.on_publish_result(refused=bool(answer.refusal), has_no_subscriber=has_no_subscriber)
        self._results.add(answer.refusal, time.monotonic())
        if answer.refusal:
            _LOG.warning("the broker refuses a message to a device", topic=answer.topic, reason=answer.refusal)

    def _handle_receipts(self, now_s: float) -> None:
        for receipt in self._pulsar.take_receipts():
            if receipt.token not in self._engine.in_flight:
                continue
            try:
                self._handle_receipt(receipt, now_s)
            except Exception as error:  # noqa: BLE001 - one batch must not hold up the others
                self._internal_error(error)
                self._engine.abandon(receipt.token)

    def _handle_receipt(self, receipt: Receipt, now_s: float) -> None:
        delivery = self._engine.in_flight.get(receipt.token)
        if receipt.ok:
            self._on_persisted(receipt.token, now_s)
        elif delivery.refusal is not None and (receipt.is_permanent or delivery.attempts >= MAX_ATTEMPTS):
            self._engine.on_persisted(receipt.token, now_s)
            self._metrics.on_dead_letter_lost()
            _LOG.error("Pulsar does not take a dead letter", result=receipt.result, topic=delivery.topic)
        elif receipt.is_permanent:
            reason = "too-large" if receipt.result == TOO_BIG else "not-for-pulsar"
            refusal = Refusal(reason, f"Pulsar never takes this message: {receipt.result}")
            self._send(self._engine.refuse(receipt.token, refusal, now_s))
        else:
            self._on_failed(receipt, now_s)

    def _on_persisted(self, token: int, now_s: float) -> None:
        delivery = self._engine.on_persisted(token, now_s)
        if delivery.refusal is None:
            self._metrics.on_persisted(delivery, now_s)

    def _on_failed(self, receipt: Receipt, now_s: float) -> None:
        attempts = self._engine.in_flight.get(receipt.token).attempts
        self._metrics.on_pulsar_failed(receipt.result)
        self._last_error = f"Pulsar did not take a batch: {receipt.result}"
        at_s = now_s + self._pulsar_backoff.delay_s(attempts)
        heapq.heappush(self._retries, (at_s, receipt.token))

    def _retry(self, now_s: float) -> None:
        while self._retries and self._retries[0][0] <= now_s:
            if not self._pulsar.is_open:
                at_s = now_s + _TICK_S
                heapq.heapreplace(self._retries, (at_s, self._retries[0][1]))
                continue
            token = heapq.heappop(self._retries)[1]
            if token in self._engine.in_flight:
                self._pulsar.send(self._engine.next_attempt(token))

    def _send_acks(self, now_s: float) -> None:
        for message in self._engine.take_due_acks(now_s, self._mqtt.free_slots):
            try:
                self._mqtt.publish(message.sender.topic(DeviceChannel.ACK), encode_ack(message.ack))
                self._metrics.on_acked(message.ack)
            except Exception as error:  # noqa: BLE001 - the device sends again; the others get theirs
                self._internal_error(error)
        if self._mqtt.free_slots and (push := self._pushes.take_next()) is not None:
            self._mqtt.publish(push.sender.topic(DeviceChannel.CONFIG), push.text, retain=True)
            self._metrics.on_pushed()
        if self._mqtt.is_subscribed:
            for mid in self._engine.release():
                self._mqtt.puback(mid)

    def _handle_signals(self, signals: set[int]) -> None:
        if signal.SIGHUP in signals:
            signals.discard(signal.SIGHUP)
            self._engine.drain.reconfigure(self._reload())
            self._pushes.load()
        if signals and self._stop_by_s is None:
            self._arrived_s = now_s = time.monotonic()
            self._stop_by_s = now_s + self._settings.stop_timeout_s
            self._mqtt.unsubscribe()
            _LOG.info("stopping", in_flight=len(self._engine.in_flight))

    def _is_finished(self, now_s: float) -> bool:
        if self._stop_by_s is None:
            return False
        quiet = now_s - self._arrived_s >= _QUIET_S
        return (quiet and self._is_drained) or not self._mqtt.is_subscribed or now_s >= self._stop_by_s

    @property
    def _is_drained(self) -> bool:
        return self._engine.is_idle and self._mqtt.is_unsubscribed and not self._mqtt.wants_write

    def _tick(self, now_s: float) -> None:
        self._tick_at_s = now_s + _TICK_S
        if self._ended_thread or not self._status_server.is_serving:
            raise ThreadEnded(self._ended_thread or "the thread that serves the status ended")
        if self._mqtt.socket is not None:
            self._mqtt.keep_alive()
        self._link.on_alive(now_s)
        self._listening.update(now_s, listens=self._is_connected and self._engine.has_room)
        if now_s >= self._silent_at_s:
            self._update_silent(now_s)
        self._status = self._status_now(now_s)
        self._metrics.set_gauges(self._status)
        self._status_holder.set(self._status)

    @property
    def _is_connected(self) -> bool:
        return self._mqtt.is_subscribed and self._pulsar.is_connected

    def _status_now(self, now_s: float) -> GatewayStatus:
        in_flight, up = self._engine.in_flight, (self._mqtt.is_subscribed, self._pulsar.is_connected)
        is_stopping = self._stop_by_s is not None
        oldest_s = round(now_s - in_flight.oldest_s, 3) if in_flight.oldest_s is not None else 0.0
        problem = self._link.problem or self._results.problem(now_s) or stall_problem(oldest_s)
        if not all(up):
            problem = self._last_error or problem or "not connected yet"
        now: dict[str, object] = {
            "state": "stopping" if is_stopping else "running",
            "healthy": not problem and not is_stopping,
            "mqtt_connected": up[0],
            "pulsar_connected": up[1],
            "last_error": problem,
            "in_flight": len(in_flight),
            "in_flight_bytes": in_flight.bytes,
            "oldest_in_flight_s": oldest_s,
            "pending_acks": len(self._engine.acks),
            "acks_forgotten": self._engine.acks.forgotten,
            "devices_known": len(self._devices),
            "devices_silent": self._status_holder.silent.count,
            "devices_forgotten": self._devices.forgotten,
        }
        return self._status.model_copy(update={**self._metrics.counts, **now})

    def _update_silent(self, now_s: float) -> None:
        self._silent_at_s = now_s + _SILENT_S
        after_s = self._settings.status.silent_after_s
        listened_s = self._listening.total_s
        is_known = self._is_connected and listened_s >= after_s
        count, listed = self._devices.list_silent(listened_s, after_s) if is_known else (None, ())
        self._status_holder.silent = SilentDevices(
            after_s=after_s,
            since=self._status.started_at,
            listening_s=round(listened_s, 1) if self._is_connected else None,
            known=len(self._devices),
            count=count,
            forgotten=self._devices.forgotten,
            listed=listed,
        )
        if suppressed := self._suppressed():
            _LOG.warning("log lines suppressed", kinds=suppressed)

    def _internal_error(self, error: Exception) -> str:
        """Count and log what must not stop the others; what is said of it."""
        self._metrics.on_internal_error()
        _LOG.error("internal error", error=(said := last_line(error)))
        return said

    def _on_thread_ended(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread else "unknown"
        self._ended_thread = f"the thread {name} ended with {ended.exc_type.__name__}: {ended.exc_value}"
        self._wake.wake()

    def _log_error(self, error: Exception) -> None:
        self._last_error = str(error)
        _LOG.warning("not connected", error=self._last_error)
