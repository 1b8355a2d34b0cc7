"""Settings of the alert process, and checks before it starts. `docs/alerts.md` explains each setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from gateway.config import (
    OPEN_WORD,
    ClusterSource,
    ReferenceSource,
    Word,
    Words,
    access_secrets,
    ending_tokens,
    file_problems,
    open_cluster,
    open_secrets,
    open_status,
    travels_in_plain_text,
)
from geo.spatial import PublishedEventSettings, TrackSettings
from waybill.daemon.logs import LogSettings
from waybill.daemon.status_reader import StatusEndpoint
from waybill.identity.errors import SealingKeyError
from waybill.identity.sealing import Unsealer
from waybill.mqtt.broker_settings import Port
from waybill.settings import Settings

# Bounds of the evaluation.


MAX_AHEAD_MS: Final = 60_000
"""A fix further ahead of this clock is skipped."""
MAX_FIXES_HELD: Final = 64
"""Fixes kept of a device whose side of a border is undecided."""
KEEP_MS: Final = 5_000
"""A fix that is older than the device's newest by less is still put in its place."""
MAX_LAG_S: Final = 30.0
"""A process that reads batches later than this is not healthy."""
STOP_S: Final = 10.0
"""How long receipts are awaited at SIGTERM."""


class EvaluationSettings(Settings):
    """How old an event may be, and how many devices of a partition are held in memory."""

    max_age_s: float = Field(
        default=300.0,
        ge=MAX_LAG_S,
        le=3_153_600_000,
        description="an older event raises no alert; raise it to replay old data",
    )
    max_devices: int = Field(
        default=200_000, ge=1, le=2_000_000, description="the least recently seen device is dropped for another"
    )


# Checks before the start.


def problems(settings: AlertSettings) -> list[str]:
    """Why the process cannot run with these settings: each line names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: AlertSettings, config: Path, now_s: float) -> list[str]:
    return [
        *_plain_text(settings),
        *_open_secrets(settings, config),
        *ending_tokens(settings.pulsar, now_s),
        *_short_rewind(settings),
    ]


def _short_rewind(settings: AlertSettings) -> Iterator[str]:
    if settings.rewind_s < settings.rewind_needed_s:
        yield (
            f"rewind_s: {settings.rewind_s:g} is enough for devices that report often: after a takeover, a device that "
            f"is silent for up to tracks.max_gap_s may repeat its dwell alert; make it {settings.rewind_needed_s:g}"
        )


def _file_problems(settings: AlertSettings) -> Iterator[str]:
    yield from file_problems(settings.pulsar, "fences", settings.fences)
    try:
        Unsealer.of_folder(settings.sealing_keys)
    except SealingKeyError as error:
        yield f"sealing_keys: {error}"


def _open(settings: AlertSettings) -> Iterator[str]:
    """What lets others read or write without authentication: allowed only with `insecure`."""
    # alerts contain positions, as batches do
    yield from open_cluster(settings.pulsar, "batches and alerts")
    if settings.fences.unsigned:
        yield f"fences.unsigned: anyone who publishes there can raise alerts: set fences.operators, {OPEN_WORD}"


def _plain_text(settings: AlertSettings) -> Iterator[str]:
    yield from travels_in_plain_text(settings.pulsar, "batches and alerts")
    yield from open_status(settings.status.host)


def _open_secrets(settings: AlertSettings, config: Path) -> Iterator[str]:
    keys = settings.sealing_keys
    sealing = [(file, "sealing key") for file in (sorted(keys.glob("*.key")) if keys is not None else ())]
    return open_secrets([*access_secrets(settings.pulsar, config), *sealing])


class AlertSource(ClusterSource):
    """The region's own cluster. Topics are `{tenant}/telemetry-{region}/batches` and `{tenant}/alerts-{region}/alerts`.

    `tenant`: one Pulsar tenant for all; None: each tenant has its own.
    """

    tenant: Word | None = None
    subscription: Word = "alerts"


class AlertEndpoint(StatusEndpoint):
    port: Port = 9467


class ReportedTracks(TrackSettings):
    """Tracks of places as they are reported: a cleaned place needs later fixes, and an alert cannot wait for them."""

    rule: Literal["every_fix"] = "every_fix"


class AlertSettings(Settings):
    """One alert process. The processes of a region share the partitions; `name` is for logs and Pulsar's statistics.

    `insecure`: allows no TLS, no authentication and unsigned fences.
    """

    name: Word
    region: Word
    insecure: bool = False
    tenants: Words
    pulsar: AlertSource
    fences: ReferenceSource
    sealing_keys: Path | None = None
    rewind_s: float = Field(default=900, ge=0, le=604_800)
    standby: bool = True
    tracks: ReportedTracks = ReportedTracks()
    events: PublishedEventSettings = PublishedEventSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    status: AlertEndpoint = AlertEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _takeover_knows_of_stays(self) -> Self:
        if self.rewind_s < self._longest_s:
            raise ValueError(
                f"rewind_s is {self.rewind_s:g}: a new owner would not know how long a device has been at a "
                "place, so it would repeat or miss alerts; make it at least the longer of events.dwell_s and "
                f"events.min_stay_s, and {self.rewind_needed_s:g} for devices that are silent for tracks.max_gap_s"
            )
        return self

    @property
    def _longest_s(self) -> float:
        return max(self.events.dwell_s or 0.0, self.events.min_stay_s)

    @property
    def rewind_needed_s(self) -> float:
        """How far back a new owner has to read so that it raises no alert again.

        The first fix that it reads comes at most one gap later, and the last one at most one gap before new fixes. A
        visit between these two has to be long enough to count as a dwell.
        """
        return 2 * self.tracks.max_gap_s + self._longest_s

    @property
    def pulsar_tenants(self) -> tuple[str, ...]:
        return (self.pulsar.tenant,) if self.pulsar.tenant is not None else self.tenants

    def tenants_of(self, pulsar_tenant: str) -> frozenset[str]:
        return frozenset(self.tenants) if self.pulsar.tenant is not None else frozenset({pulsar_tenant})

    def batches_topic(self, pulsar_tenant: str) -> str:
        return f"persistent://{pulsar_tenant}/telemetry-{self.region}/batches"

    def alerts_topic(self, pulsar_tenant: str) -> str:
        return f"persistent://{pulsar_tenant}/alerts-{self.region}/alerts"

    @property
    def processes_topic(self) -> str:
        """The topic on which the processes of the region announce themselves."""
        return f"persistent://{min(self.pulsar_tenants)}/alerts-{self.region}/processes"
