"""The settings of each job, of Spark, of the status and of the metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from waybill.daemon.bounded_file import read_secret
from waybill.mqtt.broker_settings import Host, Port
from waybill.settings import PathElsewhere, Settings, file_fault

# Spark: local or a cluster by its master URL.

_MASTER: Final = re.compile(
    r"local|local\[(?:\d+|\*)(?:,\d+)?\]|spark://[^\s,/:]+:\d+(?:,[^\s,/:]+:\d+)*|yarn|k8s://\S+", re.ASCII
)
_SIZE: Final = r"^\d+[mg]$"
_OF_EXECUTORS: Final = ("executor_memory", "executor_cores", "max_cores", "python", "secret_file")
_LEAST_SECRET: Final = 16
_MAX_SECRET_BYTES: Final = 4096

SPARK_NAMES: Final[Mapping[str, str]] = {
    "master": "spark.master",
    "driver_memory": "spark.driver.memory",
    "driver_host": "spark.driver.host",
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
    "max_cores": "spark.cores.max",
    "shuffle_partitions": "spark.sql.shuffle.partitions",
}
"""Spark's names of settings."""


class SparkSettings(Settings):
    """How Spark runs. `master` is Spark's URL; sizes are Spark's, such as `700m` or `4g`.

    With `local[N]` there are no executors: the driver computes, and listens on loopback only.
    """

    master: str = "local[2]"
    driver_memory: str = Field(default="1g", pattern=_SIZE)
    driver_host: str | None = Field(
        default=None, min_length=1, description="the name or address at which executors reach the driver"
    )
    executor_memory: str | None = Field(default=None, pattern=_SIZE, description="heap of one executor")
    executor_cores: int | None = Field(default=None, ge=1, le=1024, description="tasks that an executor runs at once")
    max_cores: int | None = Field(
        default=None, ge=1, le=100_000, description="most cores that a job takes of a standalone cluster"
    )
    python: PathElsewhere | None = Field(
        default=None, min_length=1, description="the interpreter of Spark's Python processes, on every machine"
    )
    secret_file: Path | None = Field(
        default=None, description="the secret that a standalone cluster and its jobs share, in a file of mode 600"
    )
    shuffle_partitions: int = Field(default=2, ge=1, le=100_000)
    extra: dict[str, str] = Field(default_factory=dict, description="any further Spark settings, by their own names")

    @field_validator("master")
    @classmethod
    def _master_is_one(cls, master: str) -> str:
        if not _MASTER.fullmatch(master):
            raise ValueError(
                f"{master!r} is not a Spark master: use local[N], spark://HOST:PORT, yarn or k8s://ADDRESS"
            )
        return master

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        owned = {name: field for field, name in SPARK_NAMES.items()}
        found = [f"extra: {key} is set by {owned[key]}" for key in self.extra if key in owned]
        found += [f"extra: {key} is not a Spark setting" for key in self.extra if not key.startswith("spark.")]
        useless = [name for name in _OF_EXECUTORS if is_local(self.master) and getattr(self, name) is not None]
        if useless:
            found.append(f"{', '.join(useless)}: with {self.master} there are no executors")
        if found:
            raise ValueError("; ".join(found))
        return self

    def secret(self) -> str | None:
        """The content of `secret_file`, or None. Raises ValueError for an unusable file."""
        if self.secret_file is None:
            return None
        try:
            text = read_secret(self.secret_file, _MAX_SECRET_BYTES).strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"secret_file: {self.secret_file}: {file_fault(error)}") from None
        if len(text) < _LEAST_SECRET:
            raise ValueError(f"secret_file: {self.secret_file}: it has fewer than {_LEAST_SECRET} characters")
        return text

    def is_open(self) -> bool:
        """Whether a standalone cluster runs code of anyone who reaches its master."""
        asked = self.secret_file is not None or self.extra.get("spark.authenticate") == "true"
        return bool(standalone_addresses(self.master)) and not asked


def is_local(master: str) -> bool:
    return master.startswith("local")


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master in a `spark://` URL; empty for other masters."""
    if not master.startswith("spark://"):
        return []
    pairs = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, _, port in pairs]


# Status.


class CentreLimits(Settings):
    """Limits beyond which the centre is unhealthy."""

    max_lag_s: float = Field(
        default=300,
        gt=0,
        le=86_400 * 30,
        description="longest time that a message may wait for the ingest, or a topic be left out",
    )
    max_behind_s: float = Field(
        default=3600, gt=0, le=86_400 * 30, description="longest time that a commit or a publication may wait for a job"
    )
    max_unmaintained_s: float = Field(
        default=86_400, gt=0, le=86_400 * 30, description="longest time since the last run of the maintenance ended"
    )


# Geofence job.


# Proximity job.


class ProximitySettings(Settings):
    """What an encounter is, how the work is cut, and where encounters are published.

    A lake holds encounters of one distance.
    """

    distance_m: float = Field(default=50.0, gt=0, le=5_000, description="devices this close meet")
    segments_per_task: int = Field(
        default=50_000, ge=100, description="a cell with more is cut into blocks of pairs of groups of devices"
    )
    crowd_devices: int = Field(
        default=100, ge=2, description="a device with more devices around it than this is in a crowd, and meets that"
    )
    topic: str = Field(
        default="persistent://{tenant}/events/encounters", description="where encounters are published, as events are"
    )
    interval_s: float = Field(default=10.0, ge=0.1, le=3600, description="the pause between two runs of --follow")


# Usage job.


class UsageSettings(Settings):
    """How often usage is updated."""

    interval_s: float = Field(default=60.0, ge=0.1, le=3600, description="the pause between two runs of --follow")


# Verdicts.


class VerdictSettings(Settings):
    """Where alerts come from, how long they may be provisional, and where verdicts are published."""

    alerts: tuple[str, ...] = Field(
        default=(),
        description="the topic of alerts of each region; `{tenant}` stands for each of `tenants`; without it those of "
        "the regions whose batches `ingest.topics` has",
    )
    subscription: str = "verdicts"
    topic: str = Field(
        default="persistent://{tenant}/events/verdicts",
        description="where verdicts are published; `{tenant}`: each tenant's to its own",
    )
    max_provisional_s: float = Field(
        default=3600.0,
        ge=1,
        le=31 * 86_400,
        description="from when the centre has an alert: if events are not computed with its record by then, it "
        "is withdrawn as `not_received`, as `not_computed` if only the record is there, or as `incomplete` if records "
        "are missing by which the region may have seen it",
    )
    interval_s: float = Field(default=2.0, ge=0.1, le=3600, description="the pause between two runs of --follow")


# Maintenance.

RETENTIONS: Final = ("erase_positions_after_days", "erase_events_after_days", "erase_quarantine_after_days")
"""The retention of personal data."""


class MaintenanceSettings(Settings):
    """How files are merged, and how long unused files and personal data stay."""

    file_mb: int = Field(default=128, ge=1, le=4096, description="about how big a file of a day that is past becomes")
    memory_mb: int = Field(default=1024, ge=64, le=65_536, description="about what a merge may hold in memory")
    hot_days: int = Field(
        default=2, ge=1, le=400, description="so many days up to today are merged by size only, older ones sorted whole"
    )
    orphan_age_s: float = Field(
        default=4 * MAX_ATTEMPT_S,
        ge=2 * MAX_ATTEMPT_S,
        le=86_400 * 30,
        description="age at which a file that no commit names is deleted",
    )
    removed_files_kept_hours: int = Field(
        default=24, ge=0, le=24 * 400, description="how long a file that was replaced stays for those who still read it"
    )
    history_days: int = Field(
        default=7,
        ge=1,
        le=400,
        description="how long commits in the logs, and coverage that was replaced, stay",
    )
    log_interval_s: float = Field(
        default=3600.0,
        ge=0,
        le=86_400,
        description="how often commits and coverage older than that are deleted: by the ingest's many, a long list",
    )
    erase_positions_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="positions of all devices older than this are erased; none: 400, or `ingest.max_age_days` if more",
    )
    erase_events_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="events, encounters, alerts and verdicts older than this are erased; none: as positions",
    )
    erase_quarantine_after_days: int | None = Field(
        default=None,
        ge=2,
        le=36_500,
        description="what was quarantined longer ago is erased; none: 400, or `ingest.max_age_days` if more",
    )
    erase_after_jobs: bool = Field(
        default=True, description="positions are erased only when usage, and what else was ever derived, covers them"
    )

    @model_validator(mode="after")
    def _removed_before_forgotten(self) -> Self:
        if self.removed_files_kept_hours > self.history_days * 24:
            raise ValueError("removed_files_kept_hours cannot exceed history_days: the log records removed files")
        return self


class MetricsSettings(Settings):
    """Where each command serves its metrics; without a port it serves none."""

    host: Host = "127.0.0.1"
    ingest_port: Port | None = None
    usage_port: Port | None = None
    geofence_port: Port | None = None
    proximity_port: Port | None = None
    verdicts_port: Port | None = None
    maintain_port: Port | None = None
    status_port: Port | None = Field(default=None, description="of `cloud-jobs status --serve`: what the lake says")

    def port_of(self, command: str) -> int | None:
        port: int | None = getattr(self, f"{command}_port")
        return port


class ConsoleGroup(Settings):
    """What the people of a group may see; without a list, everything."""

    tenants: tuple[str, ...] | None = Field(default=None, description="tenants whose devices are shown")
    accounts: tuple[str, ...] | None = Field(default=None, description="accounts whose bills are shown")


class ConsoleAuth(Settings):
    """Sign-in by OpenID Connect (authorization code with PKCE)."""

    issuer: str = Field(pattern=r"^https://\S+$|^http://(?:localhost|127\.0\.0\.1)(?::\d+)?(?:/\S*)?$")
    client_id: str = Field(min_length=1, max_length=200)
    client_secret_file: Path | None = Field(default=None, description="the client's secret, in a file of mode 600")
    base_url: str = Field(pattern=r"^https?://\S+$", description="the address by which browsers call the console")
    scope: str = Field(default="openid email profile", max_length=200)
    groups_claim: str = Field(default="groups", max_length=100, description="claim with the groups of the person")
    groups: dict[str, ConsoleGroup] = Field(min_length=1, description="what each group may see")
    session_h: float = Field(default=8, gt=0, le=24 * 7, description="hours until a person signs in again")

    def client_secret(self) -> str | None:
        """Raises ValueError for a file that cannot be used."""
        if self.client_secret_file is None:
            return None
        try:
            return read_secret(self.client_secret_file, _MAX_SECRET_BYTES).strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"client_secret_file: {self.client_secret_file}: {file_fault(error)}") from None


_HOST_PORT: Final = r"^([A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}$"


class ConsoleSettings(Settings):
    """Where `waybill console` serves its pages, and what its map shows."""

    host: Host = Field(default="127.0.0.1", description="address to listen on; not loopback needs `auth`")
    auth: ConsoleAuth | None = Field(default=None, description="who signs in, and what they may see")
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(default=8090, description="0: any free one")
    names: tuple[Host, ...] = Field(default=(), description="further host names that a browser may call it by")
    basemap: Path | None = Field(
        default=None, description="GeoJSON of lines, or a PMTiles archive, that is drawn under the fleet"
    )
    basemap_credit: str = Field(default="", max_length=200, description="who made the base map; shown on it")
    daemons: tuple[Annotated[str, Field(pattern=_HOST_PORT)], ...] = Field(
        default=(),
        max_length=200,
        description="HOST:PORT of the status of canaries, gateways and other daemons on other machines",
    )
    fix_files: int = Field(
        default=400, ge=1, le=100_000, description="most files that are read at the start to find last fixes"
    )
    live: bool = Field(default=True, description="whether the live map follows the first cluster's topics")
    link_key: Path | None = Field(default=None, description="key that signs shared links, in a file of mode 600")
    revoked_links: Path | None = Field(default=None, description="ids of revoked links; default: a file beside the key")
