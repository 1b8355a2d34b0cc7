"""The settings of the metrics of the jobs."""

from __future__ import annotations

from collections import Counter
from typing import Final, Self

from pydantic import Field, model_validator

from waybill.mqtt.broker_settings import Host, Port
from waybill.settings import Settings

_ENDING: Final = "_port"


class MetricsSettings(Settings):
    """Where each command serves its metrics; one without a port does not. All jobs of a machine may share one file."""

    host: Host = "127.0.0.1"
    ingest_port: Port | None = None
    usage_port: Port | None = None
    geofence_port: Port | None = None
    proximity_port: Port | None = None
    verdicts_port: Port | None = None
    maintain_port: Port | None = None
    status_port: Port | None = Field(default=None, description="of `cloud-jobs status --serve`: what the lake says")

    @model_validator(mode="after")
    def _ports_of_their_own(self) -> Self:
        ports = {name: port for name, port in self if name.endswith(_ENDING) and port is not None}
        for port, count in Counter(ports.values()).items():
            if count > 1:
                raise ValueError(f"{' and '.join(name for name in ports if ports[name] == port)} are both {port}")
        return self

    def port_of(self, command: str) -> int | None:
        """The port of a command, such as `ingest`; None: its metrics are not served."""
        port: int | None = getattr(self, command + _ENDING)
        return port
