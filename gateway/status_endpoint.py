"""Metrics, health and status of the gateway over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client.registry import CollectorRegistry

from gateway.config import StatusEndpoint
from gateway.errors import AddressTaken
from gateway.status import GatewayStatus, SilentDevices
from waybill.daemon.status_server import HttpAnswer, StatusServer, json_answer, metrics_answer

STUCK_AFTER_S = 60.0
"""A loop that has not turned for so long is no longer alive."""


class StatusHolder:
    """The newest status, set by the loop and read by the server's threads."""

    def __init__(self, status: GatewayStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = (status, clock())
        self.silent = SilentDevices(after_s=0)

    def set(self, status: GatewayStatus) -> None:
        """Set a newer status."""
        # One assignment: the server's threads see the status with its own time.
        self._current = (status, self._clock())

    @property
    def status(self) -> GatewayStatus:
        """The newest status."""
        return self._current[0]

    @property
    def is_alive(self) -> bool:
        """Whether the loop turned lately."""
        return self._clock() - self._current[1] < STUCK_AFTER_S


def serve_status(settings: StatusEndpoint, registry: CollectorRegistry, holder: StatusHolder) -> StatusServer:
    """Serves `/metrics`, `/status`, `/silent`, `/health` (200 only when healthy) and `/alive`. Raises AddressTaken."""

    def current(is_good: bool) -> HttpAnswer:
        return json_answer(holder.status.model_dump_json(indent=2), is_good=is_good)

    routes = {
        "/metrics": lambda: metrics_answer(registry),
        "/status": lambda: current(True),
        "/silent": lambda: json_answer(holder.silent.model_dump_json(indent=2)),
        "/health": lambda: current(holder.status.healthy and holder.is_alive),
        "/alive": lambda: current(holder.is_alive),
    }
    try:
        return StatusServer(settings.host, settings.port, routes)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise AddressTaken(f"status cannot be served on {where}: {error.strerror}; change [status]") from error
