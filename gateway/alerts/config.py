"""Every setting of the alert process, with its unit and bound. `docs/alerts.md` explains each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.source_settings import ClusterSource, ReferenceSource, Word, Words
from geo.spatial import PublishedEventSettings, TrackSettings
from waybill.daemon.logs import LogSettings
from waybill.mqtt.broker_settings import Port
from waybill.settings import Settings

__all__ = ["AlertEndpoint", "AlertSettings", "AlertSource"]


class AlertSource(ClusterSource):
    """The region's own cluster. Topics are `{tenant}/telemetry-{region}/batches` and `{tenant}/alerts-{region}/alerts`.

    `tenant`: one Pulsar tenant for all; none: each tenant's own, by its name.
    """

    tenant: Word | None = None
    subscription: Word = "alerts"
    send_timeout_s: float = Field(default=10, gt=0, le=600)


class AlertEndpoint(Settings):
    """Where metrics, health and status are served, loopback unless said otherwise."""

    host: str = "127.0.0.1"
    port: Port = 9467


class ReportedTracks(TrackSettings):
    """What a track is made of where places are taken as they are reported.

    A cleaned place needs fixes of the next minutes, and an alert does not wait for them.
    """

    rule: Literal["every_fix"] = "every_fix"


class AlertSettings(Settings):
    """One alert process. `name` distinguishes it from the others of its region, which share the load with it.

    `insecure`: it may run without TLS, authentication and signed fences; without this word it does not start so.
    """

    name: Word
    region: Word
    insecure: bool = False
    tenants: Words
    pulsar: AlertSource
    fences: ReferenceSource
    sealing_keys: Path | None = None
    batching_delay_ms: int = Field(default=5, ge=1, le=1000)
    rewind_s: float = Field(default=900, ge=0, le=604_800)
    standby: bool = True
    max_lag_s: float = Field(default=30, gt=0, le=3_153_600_000)
    stop_timeout_s: float = Field(default=10, gt=0, le=120)
    tracks: ReportedTracks = ReportedTracks()
    events: PublishedEventSettings = PublishedEventSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    status: AlertEndpoint = AlertEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _late_is_seen(self) -> Self:
        # what is older than that is not said, and a process that says nothing for that must not be healthy
        if self.max_lag_s > self.evaluation.max_age_s:
            raise ValueError(
                f"max_lag_s is {self.max_lag_s:g} and evaluation.max_age_s {self.evaluation.max_age_s:g}: "
                "a process that is so late says nothing any more; make max_lag_s no larger"
            )
        return self

    @model_validator(mode="after")
    def _takeover_knows_of_stays(self) -> Self:
        if self.rewind_s < self._longest_s:
            raise ValueError(
                f"rewind_s is {self.rewind_s:g}: who takes a partition over would not know since when a device is at a "
                "place, and raise alerts again, or none; make it at least the longer of events.dwell_s and "
                f"events.min_stay_s, and {self.rewind_needed_s:g} for devices that are silent for tracks.max_gap_s"
            )
        return self

    @property
    def _longest_s(self) -> float:
        return max(self.events.dwell_s or 0.0, self.events.min_stay_s)

    @property
    def rewind_needed_s(self) -> float:
        """How far back who takes a partition over has to read, so that nothing is raised again that was raised.

        The first fix that is read comes at most a gap after that, the last one at most a gap before what is new, and a
        visit between these two is a dwell as the whole one was.
        """
        return 2 * self.tracks.max_gap_s + self._longest_s

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
