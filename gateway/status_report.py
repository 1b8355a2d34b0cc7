"""What a gateway says of itself while it runs: its status, its gauges, and which devices are silent."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime

from gateway.config import GatewaySettings
from gateway.connections import Connections
from gateway.devices import DevicesHeard, ListeningClock
from gateway.engine import Engine
from gateway.health import PublicationResults, stall_problem
from gateway.metrics import GatewayMetrics
from gateway.registry_check import RegistryCheck
from gateway.status import GatewayStatus, SilentDevices
from gateway.status_endpoint import StatusHolder
from gateway.validation import UNKNOWN_SENDER, sender_of
from waybill.pulsar.token_watch import TokenWatch

_SILENT_S = 10.0
"""How often the list of silent devices is made, and the log says which lines it left out."""


class StatusReporter:
    """Sets the newest status in `holder`. `log_suppressed` says which lines the log left out."""

    def __init__(
        self,
        settings: GatewaySettings,
        engine: Engine,
        connections: Connections,
        metrics: GatewayMetrics,
        *,
        results: PublicationResults,
        log_suppressed: Callable[[], object],
        registry: RegistryCheck | None = None,
    ) -> None:
        self._engine, self._connections, self._metrics, self._results = engine, connections, metrics, results
        self._log_suppressed, self._registry = log_suppressed, registry
        self._tokens = TokenWatch(settings.pulsar_accesses.values())
        self._silent_after_s = settings.status.silent_after_s
        self._devices = DevicesHeard(settings.status.max_devices)
        self._listening = ListeningClock()
        self._silent_at_s: float | None = None
        self._first = GatewayStatus(
            gateway=settings.name,
            region=settings.region,
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            last_error="starting",
        )
        self.holder = StatusHolder(self._first)

    def on_message(self, topic: str) -> None:
        """Something came on this topic. Whatever becomes of it, its device is not silent."""
        if (sender := sender_of(topic)) != UNKNOWN_SENDER:
            self._devices.on_heard(sender, self._listening.total_s)

    def update(self, now_s: float, *, is_stopping: bool) -> None:
        """Make the status anew; to be called once a second or so."""
        self._listening.update(now_s, listens=self._connections.are_up and self._engine.has_room)
        # Less often than the status: it goes through all silent devices.
        if self._silent_at_s is None or now_s >= self._silent_at_s:
            self._silent_at_s = now_s + _SILENT_S
            self.holder.silent = self._silent_devices()
            self._log_suppressed()
        status = self._status(now_s, is_stopping=is_stopping)
        self._metrics.set_gauges(status)
        self.holder.set(status)

    def _status(self, now_s: float, *, is_stopping: bool) -> GatewayStatus:
        in_flight = self._engine.in_flight
        oldest_s = round(now_s - in_flight.oldest_s, 3) if in_flight.oldest_s is not None else 0.0
        problem = self._connections.problem or self._results.problem(now_s) or stall_problem(oldest_s)
        if self._registry is not None:
            # Last: what was read before holds, so it matters less than what keeps batches from moving.
            problem = problem or self._registry.problem
        if not self._connections.are_up:
            problem = self._connections.last_error or problem or "not connected yet"
        # First: whoever shows such a token hears of nothing but time-outs, and what else is wrong follows from it.
        problem = self._tokens.ended or problem or self._tokens.ending
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
            "acks_forgotten": self._engine.acks.forgotten,
            "devices_known": len(self._devices),
            "devices_silent": self.holder.silent.count,
            "devices_forgotten": self._devices.forgotten,
        }
        return self._first.model_copy(
            update={**self._metrics.counts, **now, **(self._registry.facts if self._registry else {})}
        )

    def _silent_devices(self) -> SilentDevices:
        after_s, listened_s = self._silent_after_s, self._listening.total_s
        is_connected = self._connections.are_up
        is_known = is_connected and listened_s >= after_s
        count, listed = self._devices.list_silent(listened_s, after_s) if is_known else (None, ())
        return SilentDevices(
            after_s=after_s,
            since=self._first.started_at,
            listening_s=round(listened_s, 1) if is_connected else None,
            known=len(self._devices),
            count=count,
            forgotten=self._devices.forgotten,
            listed=listed,
        )
