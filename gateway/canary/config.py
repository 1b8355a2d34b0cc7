"""The settings of a canary, from one TOML file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self

from geographiclib.geodesic import Geodesic
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from cloud_jobs.billing.contracts import CANARY, is_canary
from cloud_jobs.lake.location import Location, S3Access, is_object_store, lake_place
from cloud_jobs.lake.tables import Lake
from edge_agent.config import EnrolmentSettings, UplinkSettings
from waybill.daemon.logs import LogSettings
from waybill.daemon.status_reader import StatusEndpoint
from waybill.identity.names import device_name
from waybill.mqtt.broker_settings import Port
from waybill.pulsar.pulsar_address import ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.record import DEVICE_PATTERN
from waybill.settings import Settings

# The hops of a canary.


class Hop(StrEnum):
    """A place at which a probe is checked."""

    REGION = "region"
    """The regional cluster's topic: the agent, the broker and a gateway work."""
    CENTRE = "centre"
    """The same topic at the centre: replication works."""
    ALERT = "alert"
    """The region's alerts, as they are read at the centre."""
    TABLE = "table"
    """The records: the ingest works."""
    USAGE = "usage"
    """The metered quantities."""
    RATED = "rated"
    """What the canary account owes for them."""


# an alert does not wait for the ingest
PARENT: Final = {
    Hop.REGION: None,
    Hop.CENTRE: Hop.REGION,
    # it comes over the same link
    Hop.ALERT: Hop.CENTRE,
    Hop.TABLE: Hop.CENTRE,
    Hop.USAGE: Hop.TABLE,
    Hop.RATED: Hop.USAGE,
}
"""The hop before each."""

AT_LEAST_ONCE: Final = frozenset({Hop.REGION, Hop.CENTRE, Hop.ALERT})
"""Topics, on which a repeated message is no double."""


class ProbeItem(NamedTuple):
    """An expected result of a probe at a hop: its name and its device time (ms since 1970)."""

    name: str
    t_ms: int


# The route of a probe: a meridian through a square fence, with known results.

QUARTER_MS: Final = 900_000
POSITION: Final = "position"
CANARY_RECORD: Final = "canary"


class ScriptSettings(Settings):
    """Where a canary drives, how fast, and how often.

    The fence is a square of `fence_m` around the place. The drive begins and ends `margin_m` from it. Usage is metered
    by quarters of an hour, so a quarter has a whole number of periods.
    """

    latitude: Annotated[float, Field(ge=-80, le=80)]
    longitude: Annotated[float, Field(ge=-179, le=179)]
    fence_m: float = Field(default=200.0, ge=100, le=2_000, description="length of each side of the fence")
    margin_m: float = Field(default=50.0, ge=50, le=1_000, description="driven before the fence, and after it")
    speed_mps: float = Field(default=25.0, ge=1, le=50)
    fix_interval_s: float = Field(default=1.0, ge=0.2, le=10, description="from one fix to the next")
    period_s: int = Field(default=20, ge=10, le=900, description="from the beginning of a probe to that of the next")


class CanaryFix(NamedTuple):
    after_ms: int
    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True)
class CanaryScript:
    """The drive of each probe, and its expected results."""

    settings: ScriptSettings

    def __post_init__(self) -> None:
        if QUARTER_MS % (self.settings.period_s * 1000):
            raise ValueError("period_s: it must divide a quarter of an hour (900 s)")
        # the rest is for the results of the last fix
        if self.driven_ms > self.settings.period_s * 1000 - 1000:
            raise ValueError("period_s: the drive takes longer than a period; raise speed_mps or period_s")

    @property
    def driven_ms(self) -> int:
        return self._steps * round(self.settings.fix_interval_s * 1000)

    @property
    def inside_mm(self) -> int:
        """The length of a drive inside the fence."""
        south, north = self._latitude(-self.settings.fence_m / 2), self._latitude(self.settings.fence_m / 2)
        return round(
            1000 * float(Geodesic.WGS84.Inverse(south, self.settings.longitude, north, self.settings.longitude)["s12"])
        )

    def begins_ms(self, number: int) -> int:
        """When a probe begins, since 1970: probes are numbered by the clock."""
        return number * self.settings.period_s * 1000

    def number_at(self, t_ms: int) -> int:
        return t_ms // (self.settings.period_s * 1000)

    def quarter_of(self, number: int) -> int:
        """The quarter of an hour of a probe, counted since 1970."""
        return self.begins_ms(number) // QUARTER_MS

    def fixes(self, number: int) -> Iterator[CanaryFix]:
        reach_m, step_ms = self._reach_m, round(self.settings.fix_interval_s * 1000)
        for at in range(self._steps + 1):
            north_m = -reach_m + 2 * reach_m * at / self._steps
            # to and fro, as a jump back would be an impossible speed
            latitude = self._latitude(-north_m if number % 2 else north_m)
            # with the resolution of the wire format, for the comparison
            yield CanaryFix(at * step_ms, round(latitude, 7), round(self.settings.longitude, 7))

    def fence(self) -> list[list[float]]:
        """The ring of the fence for GeoJSON: closed, counter-clockwise, longitude first."""
        # by geodesics, so that the sides are equally long at any latitude
        half_m, place = self.settings.fence_m / 2, self.settings
        south, north = self._latitude(-half_m), self._latitude(half_m)
        half_lon = Geodesic.WGS84.Direct(place.latitude, place.longitude, 90.0, half_m)["lon2"] - place.longitude
        west, east = place.longitude - half_lon, place.longitude + half_lon
        return [[west, south], [east, south], [east, north], [west, north], [west, south]]

    def record_items(self, number: int) -> tuple[ProbeItem, ...]:
        """The records of a probe: its fixes, and a canary record that names it."""
        begins_ms = self.begins_ms(number)
        fixes = (ProbeItem(POSITION, begins_ms + fix.after_ms) for fix in self.fixes(number))
        return (*fixes, ProbeItem(CANARY_RECORD, begins_ms))

    def event_items(self, number: int) -> tuple[ProbeItem, ProbeItem]:
        """The events of a probe: into the fence and out of it, with their interpolated times."""
        begins_ms, driven_ms = self.begins_ms(number), self.driven_ms
        # the speed is constant
        before = self.settings.margin_m / (2 * self._reach_m)
        enter_ms, exit_ms = round(before * driven_ms), round((1 - before) * driven_ms)
        return ProbeItem("enter", begins_ms + enter_ms), ProbeItem("exit", begins_ms + exit_ms)

    def items(self, number: int) -> dict[Hop, tuple[ProbeItem, ...]]:
        records, events = self.record_items(number), self.event_items(number)
        ends_ms = self.begins_ms(number) + self.driven_ms
        rest = {Hop.USAGE: (ProbeItem("usage", ends_ms),), Hop.RATED: (ProbeItem("rated", ends_ms),)}
        return {hop: events if hop is Hop.ALERT else records for hop in Hop} | rest

    @property
    def _reach_m(self) -> float:
        return self.settings.fence_m / 2 + self.settings.margin_m

    @property
    def _steps(self) -> int:
        return max(2, round(2 * self._reach_m / (self.settings.speed_mps * self.settings.fix_interval_s)))

    def _latitude(self, north_m: float) -> float:
        return float(Geodesic.WGS84.Direct(self.settings.latitude, self.settings.longitude, 0.0, north_m)["lat2"])


LAKE_HOPS: Final = frozenset({Hop.TABLE, Hop.USAGE, Hop.RATED})
_Name = Annotated[str, StringConstraints(pattern=f"^{DEVICE_PATTERN.pattern}$")]
# with the tenant before it, it is an id of contracts
_Device = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,55}$")]
_Limit = Annotated[float, Field(gt=0, le=86_400)]


class AgentOfCanary(Settings):
    """Settings of the vehicle's agent."""

    insecure: bool = Field(False, description="allows plain text to another machine")
    uplinks: tuple[UplinkSettings, ...] = Field(min_length=1, max_length=16)
    enrolment: EnrolmentSettings | None = None


class WatchedCluster(Settings):
    """A Pulsar cluster whose topics are read."""

    service_url: ServiceUrl
    access: PulsarAccess = PulsarAccess()


LIMITS_S: Final = {
    Hop.REGION: 10.0,
    Hop.CENTRE: 10.0,
    Hop.ALERT: 10.0,
    Hop.TABLE: 20.0,
    Hop.USAGE: 120.0,
    Hop.RATED: 30.0,
}
"""The default limits (s), each from when a probe was whole at the hop before."""


class CanaryEndpoint(StatusEndpoint):
    port: Port = 9479


class CanarySettings(Settings):
    """All settings of a canary."""

    region: _Name
    device: _Device
    folder: Path = Field(Path("/var/lib/waybill-canary"), description="the disk of the vehicle")
    script: ScriptSettings
    watched: tuple[Hop, ...] = Field(tuple(Hop), min_length=1)
    agent: AgentOfCanary
    regional: WatchedCluster | None = None
    centre: WatchedCluster | None = None
    lake: Annotated[str, AfterValidator(lake_place)] | None = Field(
        None, description="where the tables are: a folder, or s3://bucket/prefix"
    )
    object_store: S3Access = S3Access()
    limits: dict[Hop, _Limit] = Field({}, description="seconds per hop, where the default is wrong")
    lost_after_s: float = Field(300.0, gt=0, le=86_400, description="after this an item counts as lost")
    status: CanaryEndpoint = CanaryEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # refuse an impossible drive before the first probe
        CanaryScript(self.script)
        device_name(self.tenant, self.device)
        needs = {
            "regional": (self.regional, {Hop.REGION}),
            "centre": (self.centre, {Hop.CENTRE, Hop.ALERT}),
            "lake": (self.lake, LAKE_HOPS),
        }
        for name, (given, hops) in needs.items():
            if given is None and (wanting := [hop for hop in self.watched if hop in hops]):
                raise ValueError(f"{name}: is needed to watch {', '.join(wanting)}; or leave these out of `watched`")
        # credentials of a bucket for a folder are a mistake in `lake`
        if self.object_store.model_fields_set and not is_object_store(self.lake or ""):
            raise ValueError("object_store is for a lake at s3://bucket/prefix")
        return self

    def limit_s(self, hop: Hop) -> float:
        """The limit of a hop, from when a probe was whole at the hop before."""
        return self.limits.get(hop, LIMITS_S[hop])

    @property
    def tenant(self) -> str:
        """The reserved tenant, by which a canary differs from a customer's vehicle."""
        return CANARY

    @property
    def name(self) -> str:
        """The id of this canary's fence, tariff, seller and account, so that two canaries of a region share none."""
        return self.device if is_canary(self.device) else f"{CANARY}-{self.device}"

    @property
    def number_prefix(self) -> str:
        """The prefix of its seller's documents: at most 16 characters."""
        return f"{CANARY.upper()}-{hashlib.sha256(self.name.encode()).hexdigest()[:8].upper()}-"

    @property
    def tables(self) -> Lake:
        """The lake's tables. Raises LocationError."""
        assert self.lake is not None
        return Lake(Location.of(self.lake, self.object_store))

    @property
    def batches_topic(self) -> str:
        return f"persistent://{self.tenant}/telemetry-{self.region}/batches"

    @property
    def alerts_topic(self) -> str:
        return f"persistent://{self.tenant}/alerts-{self.region}/alerts"
