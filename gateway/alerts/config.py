"""Every setting of the alert process, with its unit and bound. `docs/alerts.md` explains each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from gateway.alerts.evaluation_settings import EvaluationSettings
from geo.spatial import PublishedEventSettings, TrackSettings
from runtime.broker_settings import Port
from runtime.logs import LogSettings
from runtime.pulsar_client import PulsarAccess
from settings import Settings

__all__ = ["AlertEndpoint", "AlertSettings", "AlertSource", "FenceSettings"]

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
MAX_TENANTS = 64


class AlertSource(Settings):
    """The region's own cluster. Topics are `{tenant}/telemetry-{region}/batches` and `{tenant}/alerts-{region}/alerts`.

    `tenant`: one Pulsar tenant for all; none: each tenant's own, by its name.
    """

    service_url: Annotated[
        str, StringConstraints(pattern=r"^pulsar(\+ssl)?://[^\s/,:@]+(:\d{1,5})?(,[^\s/,:@]+(:\d{1,5})?)*/?$")
    ]
    access: PulsarAccess = PulsarAccess()
    tenant: Word | None = None
    subscription: Word = "alerts"
    operation_timeout_s: int = Field(default=5, ge=1, le=120)
    send_timeout_s: float = Field(default=10, gt=0, le=600)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.service_url.startswith("pulsar+ssl://")


class FenceSettings(Settings):
    """Whose fences are taken: those that a key of the file `operators` signed, or, with `unsigned`, all.

    `wait_s`: so long they may take to be read before the process says that something is wrong.
    """

    operators: Path | None = None
    unsigned: bool = False
    wait_s: float = Field(default=60, gt=0, le=3600)

    @model_validator(mode="after")
    def _signed_or_not(self) -> Self:
        if self.unsigned == (self.operators is not None):
            raise ValueError("name operators, the file of the keys that are trusted, or say unsigned = true")
        return self


class AlertEndpoint(Settings):
    """Where metrics, health and status are served, loopback unless said otherwise."""

    host: str = "127.0.0.1"
    port: Port = 9467


class AlertSettings(Settings):
    """One alert process. `name` distinguishes it from the others of its region, which share the load with it.

    `insecure`: it may run without TLS, authentication and signed fences; without this word it does not start so.
    """

    name: Word
    region: Word
    insecure: bool = False
    tenants: tuple[Word, ...] = Field(min_length=1, max_length=MAX_TENANTS)
    pulsar: AlertSource
    fences: FenceSettings
    sealing_keys: Path | None = None
    window_ms: int = Field(default=25, ge=1, le=1000)
    rewind_s: float = Field(default=900, ge=0, le=86_400)
    stop_timeout_s: float = Field(default=10, gt=0, le=120)
    tracks: TrackSettings = TrackSettings()
    events: PublishedEventSettings = PublishedEventSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    status: AlertEndpoint = AlertEndpoint()
    log: LogSettings = LogSettings()

    @property
    def pulsar_tenants(self) -> tuple[str, ...]:
        """The Pulsar tenants whose batches are read."""
        return (self.pulsar.tenant,) if self.pulsar.tenant is not None else self.tenants

    def tenants_of(self, pulsar_tenant: str) -> frozenset[str]:
        """Whose batches the topics of a Pulsar tenant may have."""
        return frozenset(self.tenants) if self.pulsar.tenant is not None else frozenset({pulsar_tenant})

    def batches_topic(self, pulsar_tenant: str) -> str:
        """Where batches come."""
        return f"persistent://{pulsar_tenant}/telemetry-{self.region}/batches"

    def alerts_topic(self, pulsar_tenant: str) -> str:
        """Where alerts go."""
        return f"persistent://{pulsar_tenant}/alerts-{self.region}/alerts"

    @property
    def processes_topic(self) -> str:
        """Where the alert processes of the region hear of each other: beside the alerts of the first tenant."""
        return f"persistent://{min(self.pulsar_tenants)}/alerts-{self.region}/processes"
