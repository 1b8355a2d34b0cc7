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

from gateway.admission import ACK_SUFFIX, NOBODY, Refusal, address_of
from gateway.answers import read_answer
from gateway.backoff import Backoff, delay_s
from gateway.broker_link import BrokerLink
from gateway.config import Drain, GatewaySettings
from gateway.dead_letters import MAX_ATTEMPTS, last_line
from gateway.devices import DevicesHeard, ListeningClock
from gateway.engine import Engine, NotSent, Produce
from gateway.errors import BrokerUnreachable, PulsarUnreachable, ThreadEnded
from gateway.health import PublicationResults, stall_problem
from gateway.inflight import Delivery
from gateway.mqtt_side import MqttSide, Published
from gateway.observe import Board, Observatory
from gateway.packets import Inbound
from gateway.pulsar_side import TOO_BIG, PulsarSide, Receipt
from gateway.push import Pushes
from gateway.status import Silent, Status
from gateway.tally import Tally
from gateway.wakeup import WakeUp
from telemetry import encode_ack

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
        self._engine = Engine(settings, jitter=random.random, now_s=now_s, on_refused=self._refused)
        self._pulsar = PulsarSide(settings, self._wake.ring)
        self._mqtt = MqttSide(settings, self._arrived, self._published)
        self._pushes = Pushes(settings.push.folder)
        self._tally = Tally()
        self._devices = DevicesHeard(settings.observe.max_devices)
        self._results = PublicationResults()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._status = Status(gateway=settings.name, region=settings.region, pid=os.getpid(), started_at=started_at)
        self._board = Board(self._status)
        self._retries: list[tuple[float, int]] = []
        self._pulsar_backoff = Backoff(settings.pulsar.retry_max_s, random.random)
        self._link = BrokerLink(settings.name, settings.mqtt, random.random, now_s)
        self._open_at_s = self._tick_at_s = self._silent_at_s = now_s
        self._ended_thread = ""
        self._leave_by_s: float | None = None
        self._arrived_s = now_s
        self._listening = ListeningClock()
        self._trouble = ""

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is in flight within the stop time-out."""
        threading.excepthook = self._thread_ended
        with (
            Observatory(self._settings.observe, self._tally.registry, self._board) as self._observatory,
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
        if self._pushes.are_waiting and self._mqtt.free:
            wanted.append(now_s)
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
        if self._leave_by_s is not None or not self._link.is_due(now_s):
            return
        if not self._pulsar.is_open or not self._engine.taking:
            return
        self._engine.in_flight.renew()
        try:
            self._mqtt.connect()
        except BrokerUnreachable as error:
            self._complain(error)
            self._link.ended(str(error), time.monotonic())
        else:
            self._link.attempted(time.monotonic())

    def _watch_connection(self, now_s: float) -> None:
        if self._mqtt.subscribed:
            if not self._link.is_up:
                self._link.came_up(now_s)
                self._trouble = ""
                _LOG.info("subscribed", host=self._settings.mqtt.host, port=self._settings.mqtt.port)
            return
        lost = self._mqtt.socket is None or bool(self._mqtt.trouble)
        if self._link.in_use and (lost or self._link.is_overdue(now_s)):
            why = self._mqtt.trouble or "the MQTT broker does not answer in time"
            self._tally.connection_failed()
            self._link.ended(why, now_s)
            self._complain(BrokerUnreachable(self._link.problem or why))

    def _arrived(self, message: Inbound) -> None:
        self._arrived_s = now_s = time.monotonic()
        # Whatever becomes of what it sent, it has spoken.
        if (sender := address_of(message.topic)) != NOBODY:
            self._devices.heard(sender, self._listening.total_s)
        if self._leave_by_s is not None and self._leave_by_s - now_s < self._settings.stop_timeout_s / 2:
            return  # the second half of the time is for what was taken; the broker keeps this one
        try:
            self._take(message, now_s)
        except Exception as error:  # noqa: BLE001 - whatever one message raises, the next one is served
            refusal = Refusal(_INTERNAL, self._internal_error(error))
            self._send(self._engine.poisoned(*message, refusal, now_s))

    def _take(self, message: Inbound, now_s: float) -> None:
        if message.topic.endswith("/config-result") and (sender := address_of(message.topic)) != NOBODY:
            answer = read_answer(message.payload)
            _LOG.info("settings answered", sender=sender, outcome=answer.outcome, reason=answer.reason)
            self._tally.answered(answer.outcome)
            self._engine.heard(message.mid)
        else:
            self._send(self._engine.arrived(*message, now_s))

    def _send(self, order: Produce | NotSent) -> None:
        if isinstance(order, Produce):
            self._pulsar.send(order)
        elif order is NotSent.JOINED:
            self._tally.joined()
        elif order is NotSent.NO_ROOM:
            self._tally.unpromised_dropped()

    def _refused(self, delivery: Delivery, kept: bool) -> None:
        assert delivery.refusal is not None
        why = delivery.refusal
        self._tally.refused(why.reason, kept=kept)
        _LOG.warning("refused", reason=why.reason, detail=why.detail, topic=delivery.topic, kept=kept)

    def _published(self, answer: Published) -> None:
        """The broker's answer to what a device was told."""
        # Settings that nobody hears now are kept by the broker until their device comes.
        unheard = answer.unheard and answer.topic.endswith(ACK_SUFFIX)
        self._tally.published(refused=bool(answer.refusal), unheard=unheard)
        self._results.note(answer.refusal, time.monotonic())
        if answer.refusal:
            _LOG.warning("the broker refuses a message to a device", topic=answer.topic, reason=answer.refusal)

    def _settle(self, now_s: float) -> None:
        for receipt in self._pulsar.receipts():
            if receipt.token not in self._engine.in_flight:
                continue
            try:
                self._settle_one(receipt, now_s)
            except Exception as error:  # noqa: BLE001 - one batch must not hold up the others
                self._internal_error(error)
                self._engine.abandon(receipt.token)

    def _settle_one(self, receipt: Receipt, now_s: float) -> None:
        delivery = self._engine.in_flight.get(receipt.token)
        if receipt.ok:
            self._persisted(receipt.token, now_s)
        elif delivery.refusal is not None and (receipt.is_permanent or delivery.attempts >= MAX_ATTEMPTS):
            self._engine.persisted(receipt.token, now_s)
            self._tally.not_kept()
            _LOG.error("Pulsar does not take a dead letter", result=receipt.result, topic=delivery.topic)
        elif receipt.is_permanent:
            reason = "too-large" if receipt.result == TOO_BIG else "not-for-pulsar"
            refusal = Refusal(reason, f"Pulsar never takes this message: {receipt.result}")
            self._send(self._engine.refuse(receipt.token, refusal, now_s))
        else:
            self._failed(receipt, now_s)

    def _persisted(self, token: int, now_s: float) -> None:
        delivery = self._engine.persisted(token, now_s)
        if delivery.refusal is None:
            self._tally.persisted(delivery, now_s)

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
            token = heapq.heappop(self._retries)[1]
            if token in self._engine.in_flight:
                self._pulsar.send(self._engine.produce(token))

    def _tell(self, now_s: float) -> None:
        for tell in self._engine.due(now_s, self._mqtt.free):
            try:
                self._mqtt.publish(tell.device.ack_topic, encode_ack(tell.ack))
                self._tally.acknowledged(tell.ack)
            except Exception as error:  # noqa: BLE001 - the device sends again; the others are told
                self._internal_error(error)
        if self._mqtt.free and (push := self._pushes.next()) is not None:
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
        if self._ended_thread or not self._observatory.serves:
            raise ThreadEnded(self._ended_thread or "the thread that serves the status ended")
        if self._mqtt.socket is not None:
            self._mqtt.keep_alive()
        self._link.lasts(now_s)
        self._listening.turn(now_s, listens=self._is_connected and self._engine.taking)
        if now_s >= self._silent_at_s:
            self._look_for_silence(now_s)
        self._status = self._status_now(now_s)
        self._tally.gauge(self._status)
        self._board.pin(self._status)

    @property
    def _is_connected(self) -> bool:
        return self._mqtt.subscribed and self._pulsar.connected

    def _status_now(self, now_s: float) -> Status:
        in_flight, up = self._engine.in_flight, (self._mqtt.subscribed, self._pulsar.connected)
        leaving = self._leave_by_s is not None
        oldest_s = round(now_s - in_flight.oldest_s, 3) if in_flight.oldest_s is not None else 0.0
        trouble = self._link.problem or self._results.problem(now_s) or stall_problem(oldest_s)
        if not all(up):
            trouble = self._trouble or trouble or "not connected yet"
        now: dict[str, object] = {
            "state": "stopping" if leaving else "running",
            "healthy": not trouble and not leaving,
            "mqtt_connected": up[0],
            "pulsar_connected": up[1],
            "trouble": trouble,
            "in_flight": len(in_flight),
            "in_flight_bytes": in_flight.bytes,
            "oldest_in_flight_s": oldest_s,
            "owed_devices": len(self._engine.ledger),
            "acks_forgotten": self._engine.ledger.forgotten,
            "devices_known": len(self._devices),
            "devices_silent": self._board.silent.count,
            "devices_forgotten": self._devices.forgotten,
        }
        return self._status.model_copy(update={**self._tally.counts, **now})

    def _look_for_silence(self, now_s: float) -> None:
        self._silent_at_s = now_s + _SILENT_S
        after_s = self._settings.observe.silent_after_s
        listened_s = self._listening.total_s
        is_known = self._is_connected and listened_s >= after_s
        count, listed = self._devices.silent(listened_s, after_s) if is_known else (None, ())
        self._board.silent = Silent(
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
        self._tally.internal_error()
        _LOG.error("internal error", error=(said := last_line(error)))
        return said

    def _thread_ended(self, ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread else "unknown"
        self._ended_thread = f"the thread {name} ended with {ended.exc_type.__name__}: {ended.exc_value}"
        self._wake.ring()

    def _complain(self, error: Exception) -> None:
        self._trouble = str(error)
        _LOG.warning("trouble", error=self._trouble)
