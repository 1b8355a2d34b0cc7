"""The settings of the jobs, from one TOML file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from cloud_jobs.errors import LakeError, LocationError, NobodyTrusted, OtherLake
from cloud_jobs.geofence.event_revisions import GeofenceSettings
from cloud_jobs.job_settings import (
    CentreLimits,
    ConsoleSettings,
    MaintenanceSettings,
    MetricsSettings,
    ProximitySettings,
    SparkSettings,
    UsageSettings,
    VerdictSettings,
)
from cloud_jobs.lake.location import Location, S3Access, is_object_store, lake_place
from cloud_jobs.lake.snapshots import MAX_SEGMENT
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from cloud_jobs.pulsar_source.options import OptionError, PulsarOptions, TopicName
from geo.reference.messages import ANYBODY, ReferenceTrust
from geo.spatial import TrackSettings
from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.identity.errors import SealingKeyError
from waybill.identity.sealing import Unsealer
from waybill.identity.signatures import read_operators
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings, SettingsError

# A checkpoint folder belongs to one lake: a file in it names the lake and the ingest commit.

_NOTE: Final = "of-lake.json"
_TABLE_ID: Final = "table_id"
_COMMIT: Final = "commit"


class CheckpointNote(NamedTuple):
    """The id of the records table, and the number of the newest commit of the ingest; 0: none."""

    table_id: str
    commit: int


@dataclass(frozen=True, slots=True)
class BoundCheckpoints:
    """A folder of checkpoints, and the lake that it belongs to."""

    folder: Path
    lake: Lake

    def check(self) -> None:
        """Raises OtherLake if the checkpoints belong to another lake, or to a later state of this one.

        Without a note they belong to none. Raises LakeError.
        """
        # before the lake is looked at: a commit that is made from here on is no later state
        noted = self._noted()
        if noted is None:
            return
        try:
            found = self._found()
        except LakeError as error:
            raise OtherLake(str(self.folder), str(self.lake.location), f"that cannot be it: {error}") from error
        there, here = counter_of(noted.commit), counter_of(found.commit)
        if noted.table_id != found.table_id:
            raise OtherLake(str(self.folder), str(self.lake.location), "its records are another table")
        if there > here or (there == here and noted.commit != found.commit):
            reason = f"they are of ingest number {there}, and it is at {here}: it was restored from a backup"
            raise OtherLake(str(self.folder), str(self.lake.location), reason)

    def bind(self) -> None:
        """Checks the note, or writes one for this lake. Raises OtherLake, LakeError, OSError."""
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._noted() is None:
            create_durably(self.folder / _NOTE, _content(self._found()))

    def note(self, commit: int) -> None:
        noted = self._noted()
        assert noted is not None, "they are bound before anything is committed"
        replace_durably(self.folder / _NOTE, _content(noted._replace(commit=commit)))

    def _found(self) -> CheckpointNote:
        opened = self.lake.open("records")
        return CheckpointNote(str(opened.metadata().id), newest_number(opened, INGEST) or 0)

    def _noted(self) -> CheckpointNote | None:
        try:
            note = json.loads((self.folder / _NOTE).read_text(encoding="utf-8"))
            return CheckpointNote(str(note[_TABLE_ID]), int(note[_COMMIT]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise OtherLake(str(self.folder), str(self.lake.location), f"{_NOTE} there is damaged: {error}") from error


def _content(noted: CheckpointNote) -> bytes:
    return json.dumps({_TABLE_ID: noted.table_id, _COMMIT: noted.commit}).encode()


TENANT: Final = "{tenant}"
"""Stands for each tenant in the name of a topic."""
TENANT_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
RETENTION_DAYS: Final = 400
"""The default retention: a year of bills, and a month to correct the last one."""
MAX_GAP_S: Final = MAX_SEGMENT.total_seconds()
"""A new fix affects two gaps around it, and all of that is computed again."""


def _text_of_path(given: Any) -> Any:
    return str(given) if isinstance(given, Path) else given


def _full_topic_name(text: str) -> str:
    # As messages name their topic: by any other spelling nobody would find whose batches alone it may have.
    full = str(TopicName.parse(text))
    if (whole := re.sub(r"-partition-[0-9]+$", "", full)) != full:
        raise ValueError(f"{full} is one partition of a topic, and all are read together: write {whole}")
    return full


_FullTopicName = Annotated[str, AfterValidator(_full_topic_name)]


def _alerts_beside(batches: str) -> str:
    """The topic of alerts for a topic of batches; "" if its name has no region."""
    found, count = re.subn(r"/telemetry-([^/]+)/batches$", r"/alerts-\1/alerts", batches)
    return found if count else ""


class ClusterSettings(Settings):
    """A Pulsar cluster that holds the replicated topics."""

    name: str
    service_url: ServiceUrl
    admin_url: AdminUrl


class IngestSettings(Settings):
    """What the ingest reads, and how much at once."""

    topics: tuple[_FullTopicName, ...] = Field(
        default=("persistent://{tenant}/telemetry-eu/batches", "persistent://{tenant}/telemetry-us/batches"),
        min_length=1,
        description="the topic of batches of each region; `{tenant}` stands for each of `tenants`",
    )
    subscription: str = "ingest"
    max_messages_per_trigger: int = Field(default=20_000, ge=1)
    trigger_interval_s: float = Field(
        default=0.1, ge=0, le=3600, description="from the start of a micro-batch to that of the next, at least"
    )
    max_age_days: int = Field(
        default=400,
        ge=1,
        le=36_500,
        description="a device time so long before the record was received is far off; raise it to replay old data",
    )
    restarts: int = Field(
        default=10, ge=0, description="how often in a row a failed query is started again without completing anything"
    )
    restart_wait_s: float = Field(
        default=1.0,
        gt=0,
        le=600,
        description="pause before a query that failed again is started again; grows each time",
    )
    sealing_keys: Path | None = Field(
        None, description="folder of the tenants' private keys, on each executor; without it nothing sealed is opened"
    )
    options: dict[str, str] = Field(
        default_factory=dict, description="any further options of the source `pulsar`, by their own names"
    )

    @model_validator(mode="after")
    def _topics_at_one_place(self) -> Self:
        # Spark takes the names of options in any case.
        for name in self.options:
            if name.lower() in {"topics", "topicspattern"}:
                raise ValueError(f"options.{name}: the topics are those of ingest.topics, each with its tenant")
        return self


class ReferenceSettings(Settings):
    """Whose fences, tariffs and accounts the centre accepts."""

    operators: Path | None = Field(default=None, description="the file of the operators' public keys that are trusted")
    unsigned: bool = Field(default=False, description="accept unsigned publications, in a trusted network")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.unsigned and self.operators is not None:
            raise ValueError("set either operators or unsigned = true, but only one of them")
        return self

    def trust(self) -> ReferenceTrust:
        """The trusted keys. Raises NobodyTrusted."""
        if self.unsigned:
            return ANYBODY
        if self.operators is None:
            raise NobodyTrusted(
                "set reference.operators (file of public keys), or reference.unsigned = true to accept unsigned "
                "publications of fences, tariffs and accounts"
            )
        try:
            return ReferenceTrust(read_operators(self.operators))
        except SettingsError as error:
            raise NobodyTrusted(f"reference.operators: {'; '.join(error.lines)}") from error


class PrivacySettings(Settings):
    """The log of accesses to positions."""

    access_log: Path | None = Field(
        default=None, description="file that names who read positions; none: beside the lake, if that is a folder"
    )


class CloudSettings(Settings):
    """The settings of all jobs. `clusters` are tried in their order."""

    lake: Annotated[str, BeforeValidator(_text_of_path), AfterValidator(lake_place)] = Field(
        description="a folder, or s3://bucket/prefix"
    )
    object_store: S3Access = Field(default=S3Access(), description="how a lake in an object store is reached")
    checkpoints: Path
    clusters: tuple[ClusterSettings, ...] = Field(min_length=1)
    tenants: tuple[Annotated[str, Field(pattern=TENANT_PATTERN)], ...] = Field(
        default=("fleet",), min_length=1, description="the fleet operators, each with topics of its own"
    )
    access: PulsarAccess = Field(
        default=PulsarAccess(), description="who the jobs are towards the clusters, reading and publishing"
    )
    reference: ReferenceSettings = ReferenceSettings()
    ingest: IngestSettings = IngestSettings()
    tracks: TrackSettings = TrackSettings()
    usage: UsageSettings = UsageSettings()
    geofence: GeofenceSettings = GeofenceSettings()
    proximity: ProximitySettings = ProximitySettings()
    verdicts: VerdictSettings = VerdictSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    spark: SparkSettings = Field(default_factory=SparkSettings)
    privacy: PrivacySettings = PrivacySettings()
    status: CentreLimits = CentreLimits()
    metrics: MetricsSettings = MetricsSettings()
    console: ConsoleSettings = ConsoleSettings()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.tracks.max_gap_s > MAX_GAP_S:
            raise ValueError(f"tracks.max_gap_s cannot exceed {MAX_GAP_S:g} s, a day")
        upkeep = self.upkeep
        if (upkeep.erase_events_after_days or 0) < (upkeep.erase_positions_after_days or 0):
            raise ValueError(
                "maintenance.erase_events_after_days must not be less than erase_positions_after_days: events of"
                " positions that are kept are computed again"
            )
        if self.object_store.model_fields_set and not is_object_store(self.lake):
            raise ValueError(
                f"object_store is for a lake at s3://bucket/prefix, and the lake is the folder {self.lake}"
            )
        return self

    @property
    def upkeep(self) -> MaintenanceSettings:
        """The settings of the maintenance with all retentions set.

        By default nothing is erased that the ingest accepts as recent, such as replayed old data.
        """
        given, days = self.maintenance, max(RETENTION_DAYS, self.ingest.max_age_days)
        positions = given.erase_positions_after_days or days
        return given.model_copy(
            update={
                "erase_positions_after_days": positions,
                "erase_events_after_days": given.erase_events_after_days or positions,
                "erase_quarantine_after_days": given.erase_quarantine_after_days or days,
            }
        )

    def beside(self, folder: Path) -> Self:
        """The settings with relative paths resolved in a folder."""
        lake = self.lake if is_object_store(self.lake) else str(folder / self.lake)
        keys, operators = self.ingest.sealing_keys, self.reference.operators
        ingest = self.ingest.model_copy(update={"sealing_keys": keys and folder / keys})
        reference = self.reference.model_copy(update={"operators": operators and folder / operators})
        log, basemap = self.privacy.access_log, self.console.basemap
        privacy = self.privacy.model_copy(update={"access_log": log and folder / log})
        auth = self.console.auth
        if auth and (secret := auth.client_secret_file):
            auth = auth.model_copy(update={"client_secret_file": folder / secret})
        key, revoked = self.console.link_key, self.console.revoked_links
        links = {"link_key": key and folder / key, "revoked_links": revoked and folder / revoked}
        console = self.console.model_copy(update={"basemap": basemap and folder / basemap, "auth": auth, **links})
        paths = {"lake": lake, "checkpoints": folder / self.checkpoints, "privacy": privacy, "console": console}
        return self.model_copy(update={**paths, "ingest": ingest, "reference": reference})

    @property
    def location(self) -> Location:
        """The location of the lake, completed by the environment. Raises LocationError."""
        return Location.of(self.lake, self.object_store)

    @property
    def tables(self) -> Lake:
        return Lake(self.location)

    @property
    def bound_checkpoints(self) -> BoundCheckpoints:
        return BoundCheckpoints(self.checkpoints, self.tables)

    def topics_of(self, template: str) -> dict[str, str | None]:
        """The topics of a setting, each with its tenant; None: any tenant."""
        if TENANT not in template:
            return {template: None}
        return {template.replace(TENANT, tenant): tenant for tenant in self.tenants}

    @property
    def batch_topics(self) -> dict[str, str | None]:
        """The topics that the ingest reads, each with the only tenant it may have; None: any."""
        found = [pair for one in self.ingest.topics for pair in self.topics_of(one).items()]
        # A tenant's last: named a second time, as a topic of all, it is still that tenant's.
        return dict(sorted(found, key=lambda pair: pair[1] is not None))

    @property
    def alert_topics(self) -> dict[str, str | None]:
        """The topics of alerts, each with the only tenant it may have; None: any."""
        named = self.verdicts.alerts or [topic for one in self.ingest.topics if (topic := _alerts_beside(one))]
        found = [pair for one in named for pair in self.topics_of(one).items()]
        return dict(sorted(found, key=lambda pair: pair[1] is not None))

    @property
    def regions_without_alerts(self) -> list[str]:
        """Topics of batches without a derived topic of alerts, if `verdicts.alerts` is empty."""
        return [] if self.verdicts.alerts else [one for one in self.ingest.topics if not _alerts_beside(one)]

    @property
    def service_urls(self) -> tuple[str, ...]:
        return tuple(one.service_url for one in self.clusters)

    @property
    def source_options(self) -> dict[str, str]:
        listed = ",".join(f"{one.name}={one.service_url}|{one.admin_url}" for one in self.clusters)
        return {"clusters": listed, "failoverFile": str(self.checkpoints / "reading-from")} | self._access_options()

    @property
    def left_out_file(self) -> Path:
        """The file of topics that the ingest skips because it cannot read them."""
        return self.checkpoints / "left-out-topics.json"

    def _access_options(self) -> dict[str, str]:
        given = {name: getattr(self.access, name) for name in self.access.model_fields_set}
        if self.access.token is not None:
            # as text a secret is a row of stars
            given["token"] = self.access.token.get_secret_value()
        return {to_camel(name): str(value) for name, value in given.items() if value is not None}


def problems(settings: CloudSettings) -> list[str]:
    """Faults of settings that only this machine shows, one line each: unusable files, options of the source."""
    found = [f"{_key('access', field)}: {fault}" for field, fault in settings.access.file_faults()]
    try:
        _ = settings.location
    except LocationError as error:
        found.append(f"lake: {error}")
    try:
        settings.spark.secret()
    except ValueError as error:
        found.append(f"spark.{error}")
    try:
        Unsealer.of_folder(settings.ingest.sealing_keys)
    except SealingKeyError as error:
        found.append(f"ingest.sealing_keys: {error}")
    try:
        _ = settings.reference.operators and settings.reference.trust()
    except NobodyTrusted as error:
        found.append(str(error))
    given = settings.source_options | {"topics": ",".join(settings.batch_topics)} | settings.ingest.options
    try:
        access = PulsarOptions.parse(given).access()
    except OptionError as error:
        return [*found, f"ingest.options: {error}"]
    if access != settings.access:
        faults = access.file_faults()
        found += [f"{_key('ingest.options', to_camel(field))}: {fault}" for field, fault in faults]
    return found


def _key(table: str, field: str) -> str:
    return f"{table}.{field}" if field else table
