"""The settings of a canary, from one TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.lake.location import Location, is_object_store, location_fault
from cloud_jobs.lake.s3_access import S3Access
from cloud_jobs.lake.tables import Lake
from deploy.canary.hops import Hop
from deploy.canary.script import CanaryScript, ScriptSettings
from edge_agent.config import EnrolmentSettings, UplinkSettings
from identity.names import device_name
from runtime.broker_settings import Port
from runtime.logs import LogSettings
from runtime.pulsar_client import PulsarAccess
from settings import Settings
from telemetry import DEVICE_PATTERN

__all__ = [
    "LAKE_HOPS",
    "AgentOfCanary",
    "BrokerOfCanary",
    "CanarySettings",
    "CanaryStatusSettings",
    "HopLimits",
    "WatchedCluster",
]

LAKE_HOPS: Final = frozenset({Hop.TABLE, Hop.COVERAGE, Hop.EVENT, Hop.USAGE, Hop.RATED})
_Name = Annotated[str, StringConstraints(pattern=f"^{DEVICE_PATTERN.pattern}$")]
_Limit = Annotated[float, Field(gt=0, le=86_400)]


def _checked_location(text: str) -> str:
    if fault := location_fault(text):
        raise ValueError(fault)
    return text


class BrokerOfCanary(Settings):
    """The vehicle's own broker."""

    port: Port | None = Field(None, description="of a broker on this machine that runs already; none: one is started")


class AgentOfCanary(Settings):
    """The vehicle's agent, as its own settings have it; it is started in the canary's folder."""

    insecure: bool = Field(False, description="whether it may speak plain text to another machine")
    uplinks: tuple[UplinkSettings, ...] = Field(min_length=1, max_length=16)
    enrolment: EnrolmentSettings | None = None


class WatchedCluster(Settings):
    """A Pulsar cluster whose topics are read, by a role that may do no more than that."""

    service_url: str = Field(pattern=r"^pulsar(\+ssl)?://[^\s/]+$")
    access: PulsarAccess = PulsarAccess()


class HopLimits(Settings):
    """How long each hop may take, in seconds, from when a probe was whole at the hop before it."""

    region: _Limit = 10.0
    acknowledged: _Limit = 10.0
    alert: _Limit = 10.0
    centre: _Limit = 10.0
    table: _Limit = 20.0
    coverage: _Limit = 10.0
    event: _Limit = 30.0
    usage: _Limit = 120.0
    rated: _Limit = 30.0

    def of(self, hop: Hop) -> float:
        """The limit of a hop."""
        return float(getattr(self, hop.value))


class CanaryStatusSettings(Settings):
    """The address for metrics, health and status, on loopback."""

    port: int = Field(9479, ge=0, le=65_535, description="0: none")


class CanarySettings(Settings):
    """Everything that a canary needs to know. Hops that are not in `watched` are unknown."""

    region: _Name
    device: _Name
    tenant: _Name = CANARY
    folder: Path = Field(Path("/var/lib/waybill-canary"), description="the vehicle's disk, and what was sent")
    script: ScriptSettings
    watched: tuple[Hop, ...] = Field(tuple(Hop), min_length=1)
    broker: BrokerOfCanary = BrokerOfCanary()
    agent: AgentOfCanary
    regional: WatchedCluster | None = None
    centre: WatchedCluster | None = None
    lake: Annotated[str, AfterValidator(_checked_location)] | None = Field(
        None, description="where the tables are: a folder, or s3://bucket/prefix"
    )
    object_store: S3Access = S3Access()
    limits: HopLimits = HopLimits()
    lost_after_s: float = Field(300.0, gt=0, le=86_400, description="what did not come by then is counted as lost")
    status: CanaryStatusSettings = CanaryStatusSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # what cannot be driven is said here, and not by the first probe
        CanaryScript(self.script)
        device_name(self.tenant, self.device)
        needs = {
            "regional": (self.regional, {Hop.REGION}),
            "centre": (self.centre, {Hop.CENTRE, Hop.ALERT}),
            "lake": (self.lake, LAKE_HOPS),
        }
        for name, (given, hops) in needs.items():
            if given is None and (wanting := [hop for hop in self.watched if hop in hops]):
                raise ValueError(f"{name}: is needed to look at {', '.join(wanting)}; or leave these out of `watched`")
        # credentials of a bucket for a folder are a mistake in `lake`
        if self.object_store.model_fields_set and not is_object_store(self.lake or ""):
            raise ValueError("object_store is for a lake at s3://bucket/prefix")
        return self

    @property
    def name(self) -> str:
        """The id of the fence, the tariff, the seller and the account of this canary."""
        return f"{CANARY}-{self.region.lower()}"

    @property
    def tables(self) -> Lake:
        """The lake's tables. Raises LocationError."""
        assert self.lake is not None
        return Lake(Location.of(self.lake, self.object_store))

    @property
    def batches_topic(self) -> str:
        """Where the batches of this region's canary are."""
        return f"persistent://{self.tenant}/telemetry-{self.region}/batches"

    @property
    def alerts_topic(self) -> str:
        """Where the alerts about it are."""
        return f"persistent://{self.tenant}/alerts-{self.region}/alerts"
