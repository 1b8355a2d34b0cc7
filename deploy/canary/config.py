"""The settings of a canary, from one TOML file."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from cloud_jobs.billing.contracts import CANARY, is_canary
from cloud_jobs.lake.location import Location, S3Access, is_object_store, lake_place
from cloud_jobs.lake.tables import Lake
from deploy.canary.hops import Hop
from deploy.canary.script import CanaryScript, ScriptSettings
from edge_agent.config import EnrolmentSettings, UplinkSettings
from waybill.daemon.logs import LogSettings
from waybill.identity.names import device_name
from waybill.mqtt.broker_settings import Port
from waybill.pulsar.pulsar_address import ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.record import DEVICE_PATTERN
from waybill.settings import Settings

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
_MAX_NAME: Final = 63
"""Of the id of an account, a tariff, a seller."""
_Name = Annotated[str, StringConstraints(pattern=f"^{DEVICE_PATTERN.pattern}$")]
_Limit = Annotated[float, Field(gt=0, le=86_400)]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _short_name(name: str) -> str:
    """A name of a device as an id: in small letters, and short; two names give two ids."""
    return f"{name.lower()[: _MAX_NAME - 9]}-{_digest(name)}"


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

    service_url: ServiceUrl
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
    """Where metrics, health and status are served, loopback unless said otherwise."""

    host: str = Field("127.0.0.1", min_length=1, description="0.0.0.0: a Prometheus of another machine reads them, too")
    port: int = Field(9479, ge=0, le=65_535, description="0: none")


class CanarySettings(Settings):
    """Everything that a canary needs to know. A hop that is not in `watched` is *not watched*: neither green
    nor unknown."""

    region: _Name
    device: _Name
    folder: Path = Field(Path("/var/lib/waybill-canary"), description="the vehicle's disk, and what was sent")
    script: ScriptSettings
    watched: tuple[Hop, ...] = Field(tuple(Hop), min_length=1)
    broker: BrokerOfCanary = BrokerOfCanary()
    agent: AgentOfCanary
    regional: WatchedCluster | None = None
    centre: WatchedCluster | None = None
    lake: Annotated[str, AfterValidator(lake_place)] | None = Field(
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
        # the agent's buffer has record ids alone; which of them are a probe's, another hop shows
        watched = {*self.watched}
        if Hop.ACKNOWLEDGED in watched and not watched & (LAKE_HOPS | {Hop.REGION, Hop.CENTRE}):
            raise ValueError("watched: acknowledged is seen by record ids that show elsewhere: add region or centre")
        # credentials of a bucket for a folder are a mistake in `lake`
        if self.object_store.model_fields_set and not is_object_store(self.lake or ""):
            raise ValueError("object_store is for a lake at s3://bucket/prefix")
        return self

    @property
    def tenant(self) -> str:
        """Of its device: the one that is reserved, since by it a canary is known from a customer's vehicle."""
        return CANARY

    @property
    def name(self) -> str:
        """The id of the fence, the tariff, the seller and the account of this canary: its device's.

        So a second canary of a region takes nothing from the first.
        """
        name = self.device if is_canary(self.device) else f"{CANARY}-{self.device}"
        return name if name == name.lower() and len(name) <= _MAX_NAME else _short_name(name)

    @property
    def number_prefix(self) -> str:
        """Of the documents of its seller: 16 signs at most."""
        prefix = f"{self.name.upper()}-"
        return prefix if re.fullmatch(r"[A-Z0-9-]{1,16}", prefix) else f"{CANARY.upper()}-{_digest(self.name).upper()}-"

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
