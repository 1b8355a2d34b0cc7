"""One gateway process: its loop, its status server, its signals and its threads."""

from __future__ import annotations

import math
import os
import random
import select
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from gateway.config import BACKOFF_FIRST_S, BATCHES, Drain, GatewaySettings, Mqtt
from gateway.effects import DevicePublisher, Forwarder, log_refusal
from gateway.engine import Engine
from gateway.errors import BrokerUnreachable, GatewayError
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection, PublishResult
from gateway.pulsar_producer import InBackground, NewClient, TenantProducers, in_thread, new_client
from gateway.push import PushQueue
from gateway.registry_check import RegistryCheck
from gateway.status import STALLED_AFTER_S, GatewayStatus, StatusHolder
from waybill.daemon.backoff import Backoff
from waybill.daemon.service import ThreadWatch, serve_status
from waybill.daemon.signals import WakeUp
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.pulsar.pulsar_client import TokenWatch

_TAKEN_OVER = "Session taken over"


class BrokerLink:
    """When to connect to the broker, and why connections do not last. `jitter` gives numbers between 0 and 1.

    A connection counts as good when it has lasted twice `backoff_max_s`. One that ends sooner counts as a failed
    attempt, so that two gateways of one name, which take the session from each other, slow down.
    """

    def __init__(self, name: str, settings: Mqtt, jitter: Callable[[], float], now_s: float) -> None:
        self._name, self._timeout_s, self._lasting_s = name, settings.connect_timeout_s, 2 * settings.backoff_max_s
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, jitter)
        self._connect_at_s = self._connected_s = now_s
        self._answer_by_s: float | None = None
        self.is_up = False
        self.problem = ""
        """Why connections do not last; empty while they do, as far as is known."""

    @property
    def is_in_use(self) -> bool:
        return self.is_up or self._answer_by_s is not None

    def is_due(self, now_s: float) -> bool:
        return not self.is_in_use and now_s >= self._connect_at_s

    def on_attempt(self, now_s: float) -> None:
        """CONNECT was sent."""
        self._answer_by_s = now_s + self._timeout_s

    def is_overdue(self, now_s: float) -> bool:
        """Whether the answer to CONNECT did not come in time."""
        return self._answer_by_s is not None and now_s > self._answer_by_s

    def on_connected(self, now_s: float) -> None:
        self.is_up, self._answer_by_s, self._connected_s = True, None, now_s

    def on_alive(self, now_s: float) -> None:
        """To be called about once a second while it is up."""
        if self.is_up and now_s - self._connected_s >= self._lasting_s:
            self._backoff.reset()
            self.problem = ""

    def on_ended(self, reason: str, now_s: float) -> None:
        """An attempt failed, or the connection ended."""
        # It may have become good since the last look; then this is no failed attempt.
        self.on_alive(now_s)
        if _TAKEN_OVER in reason:
            self.problem = (
                "another client with this name took over the session: each gateway needs a name of its own, and this"
                f" one is {self._name!r}"
            )
        self.is_up, self._answer_by_s = False, None
        self._connect_at_s = now_s + self._backoff.take_delay_s()


# Both connections of a gateway: opened, watched and explained.

_LOG = structlog.get_logger("gateway")


class Connections:
    """The connections to the broker and to Pulsar. `random` gives numbers from 0 to 1.

    `before_connect` is called before each connection to the broker, because message ids become invalid.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        mqtt: MqttConnection,
        pulsar: TenantProducers,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        before_connect: Callable[[], None],
    ) -> None:
        self._settings, self._mqtt, self._pulsar, self._metrics = settings, mqtt, pulsar, metrics
        self._clock, self._before_connect = clock, before_connect
        self._link = BrokerLink(settings.name, settings.mqtt, random, clock())
        self.last_error = f"opening Pulsar at {settings.pulsar.service_url}"
        """Why not both are up, or what is waited for; empty once they were."""

    @property
    def is_mqtt_up(self) -> bool:
        return self._mqtt.is_subscribed

    @property
    def is_pulsar_up(self) -> bool:
        """Whether the producer of any tenant's batches is connected now."""
        return self._pulsar.is_connected

    @property
    def are_up(self) -> bool:
        return self.is_mqtt_up and self.is_pulsar_up

    @property
    def problem(self) -> str:
        """Why connections to the broker do not last, or which tenants Pulsar does not serve; "" if all is well."""
        return self._link.problem or self._pulsar.problem

    def open_due(self, now_s: float, *, has_room: bool) -> None:
        """Open what is due. Pulsar first, because nothing is read without a producer."""
        self._pulsar.open_due(now_s)
        self.finish_opening()
        if self._pulsar.is_open and has_room and self._link.is_due(now_s):
            self._connect_mqtt()

    def finish_opening(self) -> None:
        """Use producers whose opening has ended, or log why there are none."""
        for tenant, error in self._pulsar.finish_opening(self._clock):
            if error is not None:
                self._log_error(error)
                continue
            mqtt = self._settings.mqtt
            self.last_error = "" if self.is_mqtt_up else f"connecting to the MQTT broker at {mqtt.host}:{mqtt.port}"
            _LOG.info("pulsar is open", topic=self._settings.topic(tenant, BATCHES))

    def watch(self, now_s: float) -> None:
        """Notice a new subscription, a lost connection, or a missing answer."""
        if self._mqtt.is_subscribed:
            if not self._link.is_up:
                self._link.on_connected(now_s)
                self.last_error = ""
                _LOG.info("subscribed", host=self._settings.mqtt.host, port=self._settings.mqtt.port)
            return
        # After a refused subscription the socket stays open, but nothing comes.
        lost = self._mqtt.socket is None or bool(self._mqtt.last_error)
        if self._link.is_in_use and (lost or self._link.is_overdue(now_s)):
            why = self._mqtt.last_error or "the MQTT broker does not answer in time"
            self._metrics.count("mqtt_failures")
            self._link.on_ended(why, now_s)
            self._log_error(BrokerUnreachable(why))

    def keep_alive(self, now_s: float) -> None:
        """To be called about once a second."""
        if self._mqtt.socket is not None:
            self._mqtt.keep_alive()
        self._link.on_alive(now_s)

    def on_send_failed(self, why: str) -> None:
        self.last_error = why

    def _connect_mqtt(self) -> None:
        # Before CONNECT, because a new session uses the same ids again.
        self._before_connect()
        try:
            self._mqtt.connect()
        except BrokerUnreachable as error:
            self._log_error(error)
            self._link.on_ended(str(error), self._clock())
        else:
            self._link.on_attempt(self._clock())

    def _log_error(self, error: GatewayError) -> None:
        self.last_error = str(error)
        _LOG.warning("not connected", error=self.last_error)


_LOG_SUPPRESSED_S = 10.0
"""How often the log says which lines were suppressed."""


class StatusReporter:
    """Updates the status in `holder`. `log_suppressed` logs which lines were suppressed."""

    def __init__(
        self,
        settings: GatewaySettings,
        engine: Engine,
        connections: Connections,
        metrics: GatewayMetrics,
        *,
        log_suppressed: Callable[[], object],
        registry: RegistryCheck | None = None,
    ) -> None:
        self._engine, self._connections, self._metrics = engine, connections, metrics
        self._log_suppressed, self._registry = log_suppressed, registry
        self._tokens = TokenWatch(settings.pulsar_accesses.values())
        self._log_at_s = -math.inf
        self._first = GatewayStatus(
            gateway=settings.name,
            region=settings.region,
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            last_error="starting",
        )
        self.holder = StatusHolder(self._first)

    def update(self, now_s: float, *, is_stopping: bool) -> None:
        """To be called about once a second."""
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + _LOG_SUPPRESSED_S
            self._log_suppressed()
        status = self._status(now_s, is_stopping=is_stopping)
        self._metrics.set_gauges(status)
        self.holder.set(status)

    def _status(self, now_s: float, *, is_stopping: bool) -> GatewayStatus:
        in_flight = self._engine.in_flight
        oldest_s = round(now_s - in_flight.oldest_s, 3) if in_flight.oldest_s is not None else 0.0
        problem = self._problem(oldest_s)
        now: dict[str, object] = {
            "state": "stopping" if is_stopping else "running",
            "healthy": not problem and not is_stopping,
            "mqtt_connected": self._connections.is_mqtt_up,
            "pulsar_connected": self._connections.is_pulsar_up,
            "last_error": problem,
            "in_flight": len(in_flight),
            "in_flight_bytes": in_flight.bytes,
            "oldest_in_flight_s": oldest_s,
            "tenants_stuck": tuple(sorted(self._engine.stuck)),
            "pending_acks": len(self._engine.acks),
        }
        return self._first.model_copy(
            update={**self._metrics.counts, **now, **(self._registry.facts if self._registry else {})}
        )

    def _problem(self, oldest_in_flight_s: float) -> str:
        """Why the gateway is not healthy; causes come before their effects."""
        if self._tokens.ended:
            return self._tokens.ended
        if not self._connections.are_up:
            return self._connections.last_error or self._connections.problem or "not connected yet"
        if self._connections.problem:
            return self._connections.problem
        if oldest_in_flight_s >= STALLED_AFTER_S:
            return f"a batch has waited {oldest_in_flight_s:.0f} s for Pulsar's receipt"
        if self._registry is not None and self._registry.problem:
            return self._registry.problem
        return self._tokens.ending


# The gateway's loop: one thread for broker, receipts and clock.

_TICK_S = 1.0
_TURN_S = 0.002
"""A turn begins so long after the last one began at the earliest: one batch by itself costs twice what it costs among
ten."""
_QUIET_S = 0.2
"""A stopping gateway assumes that the broker has nothing more after this silence."""
_CLOSE_S = 0.5
"""How long closing the clients may delay the end."""

Select = Callable[[list[Any], list[Any], list[Any], float], tuple[list[Any], list[Any], list[Any]]]


class Shutdown:
    """Whether a gateway that was asked to stop has finished. It has `timeout_s` for it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end_s: float | None = None
        self._heard_s = 0.0

    @property
    def is_begun(self) -> bool:
        return self._end_s is not None

    def begin(self, now_s: float) -> None:
        self._heard_s, self._end_s = now_s, now_s + self._timeout_s

    def try_take_message(self, now_s: float) -> bool:
        """Whether a message is still accepted. The second half of the time is for those that are in flight."""
        self._heard_s = now_s
        return self._end_s is None or self._end_s - now_s >= self._timeout_s / 2

    def is_over(self, now_s: float, *, is_drained: bool, is_connected: bool) -> bool:
        """Whether to end now: all is finished, or nothing more can be."""
        if self._end_s is None:
            return False
        is_quiet = now_s - self._heard_s >= _QUIET_S
        return (is_quiet and is_drained) or not is_connected or now_s >= self._end_s


class GatewayLoop:
    """The gateway's steps. `wake` interrupts its waiting; tests inject the rest."""

    def __init__(
        self,
        settings: GatewaySettings,
        wake: WakeUp,
        *,
        log_suppressed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        select: Select = select.select,
        client: NewClient = new_client,
        in_background: InBackground = in_thread,
    ) -> None:
        self._wake, self._clock, self._select = wake, clock, select
        self.metrics = GatewayMetrics()
        self._registry_check = RegistryCheck(settings.registry) if settings.registry is not None else None
        self._engine = Engine(
            settings,
            jitter=jitter,
            on_refused=partial(log_refusal, self.metrics),
            refusal_of=self._registry_check.refusal_of if self._registry_check is not None else None,
        )
        if self._registry_check is not None:
            self._registry_check.reader.start()
        self._mqtt = MqttConnection(settings, self._on_message, self._on_publish_result)
        self._pulsar = TenantProducers(settings, wake.wake, client, in_background, random=jitter, now_s=clock())
        self._pushes = PushQueue(settings.push, partial(self.metrics.count, "pushes_not_published"))
        self._connections = Connections(
            settings,
            self._mqtt,
            self._pulsar,
            self.metrics,
            clock=clock,
            random=jitter,
            before_connect=self._engine.in_flight.on_reconnect,
        )
        self._forwarder = Forwarder(
            self._engine,
            self._pulsar,
            self.metrics,
            delay_s=Backoff(BACKOFF_FIRST_S, settings.pulsar.backoff_max_s, jitter).delay_s,
            on_send_failed=self._connections.on_send_failed,
        )
        self._publisher = DevicePublisher(self._engine, self._mqtt, self._pushes, self.metrics)
        self._reporter = StatusReporter(
            settings,
            self._engine,
            self._connections,
            self.metrics,
            log_suppressed=log_suppressed,
            registry=self._registry_check,
        )
        self.status_holder = self._reporter.holder
        self._shutdown = Shutdown(settings.stop_timeout_s)
        self._tick_at_s = clock()
        self._turned_s = -math.inf

    def run_once(self) -> None:
        """Wait for the broker, a receipt or the clock, and do what is due."""
        now_s = self._clock()
        if (early_s := self._turned_s + _TURN_S - now_s) > 0:
            self._select([], [], [], early_s)
            now_s = self._clock()
        if not self._shutdown.is_begun:
            self._connections.open_due(now_s, has_room=self._engine.has_room)
        readable, writable = self._wait(now_s)
        if self._wake.socket in readable:
            self._wake.clear()
        # The wait took time, so read the clock again.
        self._turned_s = now_s = self._clock()
        if self._mqtt.socket is not None and self._mqtt.socket in readable:
            self._mqtt.read(lambda: self._engine.has_room)
        self._connections.finish_opening()
        # In this order a receipt leads to its acknowledgement and PUBACK in the same turn.
        self._forwarder.handle_receipts(now_s)
        self._forwarder.retry_due(now_s)
        self._pulsar.flush_due(now_s)
        self._publisher.publish_due(now_s)
        if self._mqtt.socket is not None and (writable or self._mqtt.wants_write):
            self._mqtt.write()
        self._connections.watch(now_s)
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + _TICK_S
            self._connections.keep_alive(now_s)
            self._engine.find_stuck(now_s, self._pulsar.connected)
            self._reporter.update(now_s, is_stopping=self._shutdown.is_begun)

    def reload(self, drain: Drain) -> None:
        """Use these drain settings, and publish all settings of devices again."""
        self._engine.drain.reconfigure(drain)
        self._pushes.load()

    def stop(self) -> None:
        """Accept nothing new, and finish what is in flight."""
        if not self._shutdown.is_begun:
            self._shutdown.begin(self._clock())
            # The broker now gives the messages of the shared subscription to other gateways.
            self._mqtt.unsubscribe()
            _LOG.info("stopping", in_flight=len(self._engine.in_flight))

    @property
    def is_finished(self) -> bool:
        return self._shutdown.is_over(self._clock(), is_drained=self._is_drained, is_connected=self._mqtt.is_subscribed)

    def disconnect(self) -> None:
        """Leave the broker. Devices send unacknowledged batches again."""
        self._mqtt.disconnect()

    def close(self) -> int:
        """Close Pulsar's clients; returns how many batches are still in flight."""
        if self._registry_check is not None:
            self._registry_check.reader.close()
        self._pulsar.close(_CLOSE_S)
        return len(self._engine.in_flight)

    @property
    def _is_drained(self) -> bool:
        # An unwritten PUBACK counts, because without it the broker sends that batch again.
        return self._engine.is_idle and self._mqtt.is_unsubscribed and not self._mqtt.wants_write

    def _wait(self, now_s: float) -> tuple[list[Any], list[Any]]:
        due = (
            self._publisher.next_due_s(now_s),
            self._forwarder.next_retry_s,
            self._pulsar.next_due_s,
            self._tick_at_s,
        )
        # No socket shows the end of a quiet time, so look for it twice in each.
        longest_s = _QUIET_S / 2 if self._shutdown.is_begun else _TICK_S
        timeout_s = max(0.0, min(min(at_s for at_s in due if at_s is not None) - now_s, longest_s))
        readers: list[Any] = [self._wake.socket]
        writers: list[Any] = []
        socket = self._mqtt.socket
        reads_buffer = False
        if socket is not None:
            if self._engine.has_room:  # else nothing is read: the broker keeps what does not fit
                readers.append(socket)
                reads_buffer = self._mqtt.has_buffered
            if self._mqtt.wants_write:
                writers.append(socket)
        readable, writable, _ = self._select(readers, writers, [], 0.0 if reads_buffer else timeout_s)
        if reads_buffer:  # what is buffered, no select shows
            readable.append(socket)
        return readable, writable

    def _on_message(self, message: MqttMessage) -> None:
        now_s = self._clock()
        if self._shutdown.try_take_message(now_s):
            self._forwarder.on_message(message, now_s)

    def _on_publish_result(self, answer: PublishResult) -> None:
        self._publisher.on_publish_result(answer)


class Service:
    """One gateway process. `reload` reads the drain settings again at SIGHUP."""

    def __init__(
        self,
        settings: GatewaySettings,
        reload: Callable[[], Drain],
        log_suppressed: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings, self._reload = settings, reload
        self._wake = WakeUp()
        self._loop = GatewayLoop(settings, self._wake, log_suppressed=log_suppressed)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is in flight within the stop timeout."""
        loop = self._loop
        # Also when the status cannot be served: a client of Pulsar that nobody closes aborts the process at its end.
        try:
            self._serve(loop)
        finally:
            left = loop.close()
        # Nothing is lost: devices send them again.
        _LOG.info("stopped", in_flight=left)

    def _serve(self, loop: GatewayLoop) -> None:
        watch, holder, registry = ThreadWatch(self._wake.wake), loop.status_holder, loop.metrics.registry
        with (
            serve_status(self._settings.status, registry, lambda: holder.status, lambda: holder.is_alive) as server,
            self._wake.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals,
        ):
            _LOG.info("started", gateway=self._settings.name, region=self._settings.region)
            while not loop.is_finished:
                self._handle_signals(signals)
                loop.run_once()
                watch.check(server)
            loop.disconnect()

    def _handle_signals(self, signals: set[int]) -> None:
        if signal.SIGHUP in signals:
            signals.discard(signal.SIGHUP)
            self._loop.reload(self._reload())
        if signals:
            self._loop.stop()
