"""The status of a gateway, and how to read it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict
from rich.table import Table

from gateway.status_answer import facts_table, moment_text, read_answer
from waybill.daemon.service import STUCK_AFTER_S
from waybill.daemon.status_reader import StatusEndpoint

STALLED_AFTER_S = 60.0
"""A gateway with a batch that waits longer for Pulsar's receipt is not healthy."""


class StatusHolder:
    """The newest status. The loop sets it, the server's threads read it."""

    def __init__(self, status: GatewayStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = (status, clock())

    def set(self, status: GatewayStatus) -> None:
        # One assignment, so that other threads see the status with its own time.
        self._current = (status, self._clock())

    @property
    def status(self) -> GatewayStatus:
        return self._current[0]

    @property
    def is_alive(self) -> bool:
        """Whether the loop has set a status recently."""
        return self._clock() - self._current[1] < STUCK_AFTER_S


class GatewayStatus(BaseModel):
    """One moment of a gateway. Counts are since `started_at` (ISO 8601); the metrics have more.

    `healthy`: MQTT and Pulsar are connected, connections last and batches move; `last_error` says why not.
    `registry_current`: whether the device registry is read to its end; None without one.
    `registry_unreachable_since_s`: seconds since 1970, None while it is read.
    """

    model_config = ConfigDict(frozen=True)

    gateway: str
    region: str
    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool = False
    mqtt_connected: bool = False
    pulsar_connected: bool = False
    last_error: str = ""
    in_flight: int = 0
    in_flight_bytes: int = 0
    oldest_in_flight_s: float = 0.0
    pending_acks: int = 0
    batches_persisted: int = 0
    records_persisted: int = 0
    batches_refused: int = 0
    tenants_stuck: tuple[str, ...] = ()
    acks_published: int = 0
    pulsar_failures: int = 0
    dead_letters_not_kept: int = 0
    internal_errors: int = 0
    registry_current: bool | None = None
    registry_unreachable_since_s: float | None = None
    registry_devices: int = 0
    registry_entries_refused_by: dict[str, int] = {}
    registry_last_refused: str = ""


def read_status(settings: StatusEndpoint) -> GatewayStatus:
    """Ask the gateway that runs with these settings. Raises NoAnswer."""
    return read_answer(settings, "status", GatewayStatus, "no gateway")


def status_table(status: GatewayStatus) -> Table:
    facts = status.model_dump()
    since_s = facts.pop("registry_unreachable_since_s")
    if since_s is not None:
        facts["registry_unreachable_since"] = moment_text(since_s)
    if status.registry_current is None:
        facts["registry_current"] = "no registry"
    return facts_table(f"fleet-gateway {status.gateway}", [(name.replace("_", " "), facts[name]) for name in facts])
