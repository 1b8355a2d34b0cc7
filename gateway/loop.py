"""The gateway's loop: one thread that turns between the broker, Pulsar's receipts and the clock."""

from __future__ import annotations

import math
import random
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from gateway.config import Drain, GatewaySettings
from gateway.connections import Connections
from gateway.effects import DevicePublisher, Forwarder, log_refusal
from gateway.engine import Engine
from gateway.health import PublicationResults
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import MqttConnection, PublishResult
from gateway.pulsar_producer import InBackground, NewClient, in_thread, new_client
from gateway.push import PushQueue
from gateway.registry_check import RegistryCheck
from gateway.status_report import StatusReporter
from gateway.tenant_producers import TenantProducers
from waybill.daemon.wakeup import WakeUp
from waybill.mqtt.mqtt_client import MqttMessage

_TICK_S = 1.0
_TURN_S = 0.002
"""A turn begins so long after the last one began at the earliest: one batch by itself costs twice what it costs among
ten."""
_QUIET_S = 0.2
"""When a gateway that leaves has heard nothing for so long, the broker has nothing more for it."""
_CLOSE_S = 0.5
"""So long closing the client, and an attempt to open one, may keep a gateway that has finished."""
_LOG = structlog.get_logger("gateway")

Select = Callable[[list[Any], list[Any], list[Any], float], tuple[list[Any], list[Any], list[Any]]]


class Shutdown:
    """When a gateway that was asked to stop has finished. It has `timeout_s` for it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._end_s: float | None = None
        self._heard_s = 0.0

    @property
    def is_begun(self) -> bool:
        """Whether it was asked to stop."""
        return self._end_s is not None

    def begin(self, now_s: float) -> None:
        """It is asked to stop."""
        self._heard_s, self._end_s = now_s, now_s + self._timeout_s

    def try_take_message(self, now_s: float) -> bool:
        """A message came; whether it is still taken. The second half of the time is for what was taken before."""
        self._heard_s = now_s
        return self._end_s is None or self._end_s - now_s >= self._timeout_s / 2

    def is_over(self, now_s: float, *, is_drained: bool, is_connected: bool) -> bool:
        """Whether to end now: all is finished, or nothing more can be."""
        if self._end_s is None:
            return False
        is_quiet = now_s - self._heard_s >= _QUIET_S
        return (is_quiet and is_drained) or not is_connected or now_s >= self._end_s


class GatewayLoop:
    """What a gateway does, step by step. `wake` interrupts its waiting. The rest is injected by tests.

    `log_suppressed` says in the log which lines it left out.
    """

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
        results = PublicationResults()
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
        self._pushes = PushQueue(settings.push, self.metrics.on_push_refused)
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
            delay_s=self._connections.retry_delay_s,
            on_send_failed=self._connections.on_send_failed,
        )
        self._publisher = DevicePublisher(self._engine, self._mqtt, self._pushes, self.metrics, results)
        self._reporter = StatusReporter(
            settings,
            self._engine,
            self._connections,
            self.metrics,
            results=results,
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
        # The wait took time: what is due is judged by the clock after it.
        self._turned_s = now_s = self._clock()
        if self._mqtt.socket is not None and self._mqtt.socket in readable:
            self._mqtt.read(lambda: self._engine.has_room)
        self._connections.finish_opening()
        # In this order a receipt that is there now leaves as an acknowledgement and a PUBACK in the same turn.
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
        """Go by these drain settings, and push all settings for devices again."""
        self._engine.drain.reconfigure(drain)
        self._pushes.load()

    def stop(self) -> None:
        """Take nothing new, and finish what was taken."""
        if not self._shutdown.is_begun:
            self._shutdown.begin(self._clock())
            # From here on the broker gives the messages of the shared subscription to other gateways.
            self._mqtt.unsubscribe()
            _LOG.info("stopping", in_flight=len(self._engine.in_flight))

    @property
    def is_finished(self) -> bool:
        """Whether it was asked to stop, and need not turn again."""
        return self._shutdown.is_over(self._clock(), is_drained=self._is_drained, is_connected=self._mqtt.is_subscribed)

    def disconnect(self) -> None:
        """Leave the broker; what was taken and is not acknowledged is sent again by its devices."""
        self._mqtt.disconnect()

    def close(self) -> int:
        """Close Pulsar's client; how many batches are still in flight."""
        if self._registry_check is not None:
            self._registry_check.reader.close()
        self._pulsar.close(_CLOSE_S)
        return len(self._engine.in_flight)

    @property
    def _is_drained(self) -> bool:
        # A PUBACK that is not written yet counts: without it the broker sends that batch again.
        return self._engine.is_idle and self._mqtt.is_unsubscribed and not self._mqtt.wants_write

    def _wait(self, now_s: float) -> tuple[list[Any], list[Any]]:
        due = (
            self._publisher.next_due_s(now_s),
            self._forwarder.next_retry_s,
            self._pulsar.next_due_s,
            self._tick_at_s,
        )
        # The end of a quiet time shows on no socket: it is looked for twice in each.
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
        self._reporter.on_message(message.topic)
        if self._shutdown.try_take_message(now_s):
            self._forwarder.on_message(message, now_s)

    def _on_publish_result(self, answer: PublishResult) -> None:
        self._publisher.on_publish_result(answer, self._clock())
