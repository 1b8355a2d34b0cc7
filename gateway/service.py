"""The gateway's loop: one thread that turns between the broker, Pulsar's receipts and the clock."""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway.admission import Refusal, address_of
from gateway.backoff import Backoff, delay_s
from gateway.config import Drain, GatewaySettings
from gateway.engine import Engine
from gateway.errors import BrokerUnreachable, PulsarUnreachable
from gateway.mqtt_side import MqttSide
from gateway.observe import Board, Observatory
from gateway.pulsar_side import TOO_BIG, PulsarSide, Receipt
from gateway.push import Pushes
from gateway.status import Status
from gateway.tally import Tally
from gateway.wakeup import WakeUp
from telemetry import encode_ack

_TICK_S = 1.0
_QUIET_S = 0.2
"""When a gateway that leaves has heard nothing for so long, the broker has nothing more for it."""
_LOG = structlog.get_logger("gateway")


class Service:
    """One gateway process. `reload` gives the drain settings anew when SIGHUP comes."""

    def __init__(self, settings: GatewaySettings, reload: Callable[[], Drain]) -> None:
        now_s = time.monotonic()
        self._settings, self._reload = settings, reload
        self._wake = WakeUp()
        self._engine = Engine(settings, jitter=random.random, now_s=now_s)
        self._pulsar = PulsarSide(settings, self._wake.ring)
        self._mqtt = MqttSide(settings, self._arrived)
        self._pushes = Pushes(settings.push.folder)
        self._tally = Tally()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._status = Status(gateway=settings.name, region=settings.region, pid=os.getpid(), started_at=started_at)
        self._board = Board(self._status)
        self._retries: list[tuple[float, int]] = []
        self._pulsar_backoff = Backoff(settings.pulsar.retry_max_s, random.random)
        self._mqtt_backoff = Backoff(settings.mqtt.reconnect_max_s, random.random)
        self._open_at_s = self._connect_at_s = now_s
        self._answer_by_s: float | None = None
        self._was_up = False
        self._tick_at_s = now_s
        self._leave_by_s: float | None = None
        self._arrived_s = now_s
        self._trouble = ""

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is in flight within the stop time-out."""
        with (
            Observatory(self._settings.observe, self._tally.registry, self._board),
            self._wake.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals,
        ):
            _LOG.info("started", gateway=self._settings.name, region=self._settings.region)
            try:
                while not self._finished(time.monotonic()):
                    self._heed(signals)
                    self._turn()
                self._mqtt.disconnect(keep_session=not self._nothing_left)
            finally:
                self._pulsar.close()
            left = len(self._engine.in_flight)
            _LOG.info("stopped", in_flight=left, note="the broker sends them again" if left else "")

    def _turn(self) -> None:
        now_s = time.monotonic()
        self._open_pulsar(now_s)
        self._connect_mqtt(now_s)
        readable, writable = self._wait(now_s)
        if self._wake.socket in readable:
            self._wake.silence()
        now_s = time.monotonic()
        if self._mqtt.socket is not None and self._mqtt.socket in readable:
            self._mqtt.read()
        self._settle(now_s)
        self._retry(now_s)
        self._tell(now_s)
        if self._mqtt.socket is not None and (writable or self._mqtt.wants_write):
            self._mqtt.write()
        self._watch_connection(now_s)
        if now_s >= self._tick_at_s:
            self._tick(now_s)

    def _wait(self, now_s: float) -> tuple[list[Any], list[Any]]:
        wanted = [
            at for at in (self._engine.ledger.next_s if self._mqtt.free else None, self._tick_at_s) if at is not None
        ]
        if self._retries:
            wanted.append(self._retries[0][0])
        longest_s = _TICK_S if self._leave_by_s is None else _QUIET_S / 2
        timeout_s = max(0.0, min(min(wanted) - now_s, longest_s))
        readers: list[Any] = [self._wake.socket]
        writers: list[Any] = []
        socket = self._mqtt.socket
        if socket is not None:
            if self._engine.taking:
                readers.append(socket)
                timeout_s = 0.0 if self._mqtt.buffered else timeout_s
            if self._mqtt.wants_write:
                writers.append(socket)
        readable, writable, _ = select.select(readers, writers, [], timeout_s)
        if socket is not None and self._mqtt.buffered and self._engine.taking:
            readable.append(socket)
        return readable, writable

    def _open_pulsar(self, now_s: float) -> None:
        if self._pulsar.is_open or now_s < self._open_at_s or self._leave_by_s is not None:
            return
        try:
            self._pulsar.open()
        except PulsarUnreachable as error:
            self._complain(error)
            self._open_at_s = time.monotonic() + self._pulsar_backoff.failed()
        else:
            self._pulsar_backoff.succeeded()
            _LOG.info("pulsar is open", topic=self._settings.topic(self._settings.pulsar.batches))

    def _connect_mqtt(self, now_s: float) -> None:
        """Connect once there is a producer: without one nothing may be taken."""
        if self._answer_by_s is not None or self._was_up or self._leave_by_s is not None:
            return
        if now_s < self._connect_at_s or not self._pulsar.is_open or not self._engine.taking:
            return
        self._engine.in_flight.renew()
        try:
            self._mqtt.connect()
        except BrokerUnreachable as error:
            self._complain(error)
            self._connect_at_s = time.monotonic() + self._mqtt_backoff.failed()
        else:
            self._answer_by_s = time.monotonic() + self._settings.mqtt.connect_timeout_s

    def _watch_connection(self, now_s: float) -> None:
        if self._mqtt.subscribed:
            if not self._was_up:
                self._was_up, self._answer_by_s, self._trouble = True, None, ""
                self._mqtt_backoff.succeeded()
                _LOG.info("subscribed", host=self._settings.mqtt.host, port=self._settings.mqtt.port)
            return
        overdue = self._answer_by_s is not None and now_s > self._answer_by_s
        lost = self._mqtt.socket is None or bool(self._mqtt.trouble)
        if (self._was_up or self._answer_by_s is not None) and (lost or overdue):
            self._was_up, self._answer_by_s = False, None
            self._tally.connection_failed()
            self._complain(BrokerUnreachable(self._mqtt.trouble or "the MQTT broker does not answer in time"))
            self._connect_at_s = now_s + self._mqtt_backoff.failed()

    def _arrived(self, topic: str, payload: bytes, mid: int) -> None:
        self._arrived_s = now_s = time.monotonic()
        if self._leave_by_s is not None and self._leave_by_s - now_s < self._settings.stop_timeout_s / 2:
            return  # the second half of the time is for what was taken; the broker keeps this one
        if topic.endswith("/config-result"):
            self._answered(topic, payload, mid)
            return
        order = self._engine.arrived(topic, payload, mid, now_s)
        if order is None:
            self._tally.joined()
        else:
            self._pulsar.send(order)

    def _answered(self, topic: str, payload: bytes, mid: int) -> None:
        """What a device says of the settings that were pushed to it."""
        try:
            answer = json.loads(payload)
            outcome, reason = str(answer["outcome"]), str(answer.get("reason", ""))[:500]
        except (ValueError, TypeError, KeyError, AttributeError):
            outcome, reason = "unknown", repr(payload[:100])
        _LOG.info("settings answered", sender=address_of(topic), outcome=outcome, reason=reason)
        self._tally.answered(outcome)
        self._engine.heard(mid)

    def _settle(self, now_s: float) -> None:
        for receipt in self._pulsar.receipts():
            if receipt.token not in self._engine.in_flight:
                continue
            if receipt.ok:
                self._persisted(receipt.token, now_s)
            elif receipt.result == TOO_BIG and self._engine.in_flight.get(receipt.token).refusal is None:
                refusal = Refusal("too-large", "Pulsar takes no message of this size")
                self._pulsar.send(self._engine.refused_by_pulsar(receipt.token, refusal))
            else:
                self._failed(receipt, now_s)

    def _persisted(self, token: int, now_s: float) -> None:
        delivery = self._engine.persisted(token, now_s)
        self._tally.persisted(delivery, now_s)
        if delivery.refusal is not None:
            why = delivery.refusal
            _LOG.warning("refused", sender=delivery.sender, reason=why.reason, detail=why.detail)

    def _failed(self, receipt: Receipt, now_s: float) -> None:
        attempts = self._engine.in_flight.get(receipt.token).attempts
        self._tally.pulsar_failed(receipt.result)
        self._trouble = f"Pulsar did not take a batch: {receipt.result}"
        at_s = now_s + delay_s(attempts, self._settings.pulsar.retry_max_s, random.random())
        heapq.heappush(self._retries, (at_s, receipt.token))

    def _retry(self, now_s: float) -> None:
        while self._retries and self._retries[0][0] <= now_s:
            if not self._pulsar.is_open:
                at_s = now_s + _TICK_S
                heapq.heapreplace(self._retries, (at_s, self._retries[0][1]))
                continue
            self._pulsar.send(self._engine.produce(heapq.heappop(self._retries)[1]))

    def _tell(self, now_s: float) -> None:
        for tell in self._engine.due(now_s, self._mqtt.free):
            for ack in tell.acks:
                self._mqtt.publish(tell.device.ack_topic, encode_ack(ack))
                self._tally.acknowledged(ack)
        while self._mqtt.free and (push := self._pushes.next()) is not None:
            self._mqtt.publish(push.device.config_topic, push.text, retain=True)
            self._tally.pushed()
        if self._mqtt.subscribed:
            for mid in self._engine.release():
                self._mqtt.puback(mid)

    def _heed(self, signals: set[int]) -> None:
        if signal.SIGHUP in signals:
            signals.discard(signal.SIGHUP)
            self._engine.drain.change(self._reload(), time.monotonic())
            self._pushes.load()
        if signals and self._leave_by_s is None:
            self._arrived_s = now_s = time.monotonic()
            self._leave_by_s = now_s + self._settings.stop_timeout_s
            self._mqtt.leave()
            _LOG.info("stopping", in_flight=len(self._engine.in_flight))

    def _finished(self, now_s: float) -> bool:
        if self._leave_by_s is None:
            return False
        quiet = now_s - self._arrived_s >= _QUIET_S
        return (quiet and self._nothing_left) or not self._mqtt.subscribed or now_s >= self._leave_by_s

    @property
    def _nothing_left(self) -> bool:
        return self._engine.idle and self._mqtt.has_left and not self._mqtt.wants_write

    def _tick(self, now_s: float) -> None:
        self._tick_at_s = now_s + _TICK_S
        if self._mqtt.socket is not None:
            self._mqtt.keep_alive()
        in_flight, up = self._engine.in_flight, (self._mqtt.subscribed, self._pulsar.connected)
        leaving = self._leave_by_s is not None
        now: dict[str, object] = {
            "state": "stopping" if leaving else "running",
            "healthy": all(up) and not leaving,
            "mqtt_connected": up[0],
            "pulsar_connected": up[1],
            "trouble": "" if all(up) else self._trouble,
            "in_flight": len(in_flight),
            "in_flight_bytes": in_flight.bytes,
            "oldest_in_flight_s": round(now_s - in_flight.oldest_s, 3) if in_flight.oldest_s is not None else 0.0,
            "owed_devices": len(self._engine.ledger),
        }
        self._status = self._status.model_copy(update={**now, **self._tally.counts})
        self._tally.gauge(self._status)
        self._board.pin(self._status)

    def _complain(self, error: Exception) -> None:
        self._trouble = str(error)
        _LOG.warning("trouble", error=self._trouble)
