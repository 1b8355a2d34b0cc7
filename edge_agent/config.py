"""The settings of one agent: a frozen, typed tree read from TOML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from edge_agent.mapping.paths import TopicPattern
from edge_agent.mapping.settings import MAX_MAPPINGS, MappingSettings, check_mappings
from waybill.daemon.logs import LogSettings
from waybill.identity.names import device_name
from waybill.mqtt.broker_settings import BrokerSettings, Host, Port, Seconds, is_this_machine
from waybill.record import (
    DEVICE_PATTERN,
    MAX_RECORDS,
    MAX_UNCERTAINTY_MS,
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_FILTER,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    vehicle_filters,
)
from waybill.settings import Settings, name_advice

Name = Annotated[str, StringConstraints(pattern=f"^{DEVICE_PATTERN.pattern}$")]
Level = Annotated[str, StringConstraints(pattern=r"^[^/+#{}\x00]{1,256}$")]
"""One level of a topic, without wildcards."""
TopicFilter = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
UncertaintySeconds = Annotated[float, Field(gt=0, le=MAX_UNCERTAINTY_MS // 1000)]
"""A duration that has to fit into the uncertainty of a record."""
Link = Literal["wifi", "ethernet", "cellular", "satellite"]
MAX_CLASSES = 16
DEVICE_LEVEL = "device"
"""The level of topics that is a device's id, unless its `levels` say otherwise."""


class DeviceSettings(Settings):
    """The device's identity."""

    id: Name
    """Name of the device; its client id at the regional broker is `tenant/id`, as in its certificate."""
    tenant: Name = "default"
    """The owner of the device; the third part of its topics."""
    levels: dict[str, Level] = Field(default_factory=dict, max_length=8)
    """Named levels of the mappings' topics that are this text in the device's own messages; other messages are not
    read."""

    @model_validator(mode="after")
    def _has_a_name_for_a_certificate(self) -> Self:
        device_name(self.tenant, self.id)
        return self


class IntakeSettings(BrokerSettings):
    """The vehicle's own broker."""

    client_id: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")] = "edge-agent"
    """Name of the agent's persistent session at the broker, where each client needs another name."""
    topics: tuple[TopicFilter, ...] = Field(default=(VEHICLE_FILTER,), max_length=64)
    """What to subscribe to, besides the topics of the mappings."""
    receive_maximum: int = Field(default=1000, ge=1, le=65_535)
    """Messages that may be unacknowledged; a redelivery is recognised among so many plus one commit."""


class BufferSettings(Settings):
    """The store on the vehicle's disk."""

    path: Path = Path("/var/lib/edge-agent")
    """Folder of the buffer; created if it is missing."""
    commit_delay_ms: int = Field(default=200, ge=1, le=60_000)
    """A message waits at most this long for its commit (and its PUBACK)."""
    commit_records: int = Field(default=1000, ge=1, le=MAX_RECORDS)
    """A commit starts when this many messages wait."""
    prune_delay_s: Seconds = 5.0
    """Acknowledged records are deleted with the next commit, or after this time."""
    max_bytes: int = Field(default=1 << 30, ge=1 << 16)
    """Quota of all classes together, in bytes of stored batches."""
    free_space_floor_bytes: int = Field(default=64 << 20, ge=0)
    """Space that the agent leaves free on its file system."""


class ClassSettings(Settings):
    """A class of records. Classes are listed in order of priority."""

    name: Name
    """Name of the class, in metrics and in `status`."""
    topics: tuple[str, ...] = Field(min_length=1)
    """MQTT filters; the first class with a filter that fits takes the record."""
    urgent: bool = False
    """Commit at once."""
    links: tuple[Link, ...] = ()
    """Kinds of link it may be sent over; empty: any."""
    max_bytes: int | None = Field(default=None, ge=1 << 12)
    """Quota of this class."""


DEFAULT_CLASSES = (
    ClassSettings(name="urgent", topics=vehicle_filters(VEHICLE_EVENT), urgent=True),
    ClassSettings(name="position", topics=(*vehicle_filters(VEHICLE_POSITION), VEHICLE_CANARY)),
    ClassSettings(name="signal", topics=vehicle_filters(VEHICLE_SIGNAL)),
    ClassSettings(name="other", topics=("#",)),
)


class DrainSettings(Settings):
    """How waiting records are sent."""

    live_s: Seconds = 30.0
    """A record younger than this is live; older ones are backlog."""
    backlog_share: float = Field(default=0.25, ge=0, le=1)
    """Share of the bytes sent that the backlog gets while live data waits too."""
    window: int = Field(default=16, ge=2, le=1024)
    """Batches that may be unacknowledged. The backlog leaves one in four of them to live data."""
    batch_records: int = Field(default=2000, ge=1, le=MAX_RECORDS)
    """Small neighbouring batches are merged up to this many records."""
    merge_below_records: int = Field(default=250, ge=0)
    """A stored batch with at least this many records is sent unchanged."""
    ack_timeout_s: Seconds = 30.0
    """A batch that is not acknowledged within this time is sent again."""
    max_pause_s: float = Field(default=600.0, gt=0, le=3600)
    """The longest pause that a gateway may request for all but urgent classes."""
    heartbeat_s: float = Field(default=300.0, ge=60, le=86_400)
    """A heartbeat is sent after this time without a head statement."""
    max_refusals: int = Field(default=6, ge=1, le=100)
    """A batch refused this often, while others are accepted, is halved; a single record becomes a dead letter."""
    refusal_backoff_s: Seconds = 10.0
    """A refused batch is tried again alone after this time, which doubles with each refusal up to an hour."""


class LinkSettings(Settings):
    """Rate limit and data plan."""

    link: Link | None = None
    """The kind of link in use, unless `link_file` names another."""
    link_file: Path | None = None
    """File whose first word is the kind of link in use now, written by the operating system."""
    bytes_per_s: int | None = Field(default=None, ge=100)
    """Rate limit, in bytes on the wire a second."""
    burst_bytes: int = Field(default=256 << 10, ge=1024)
    """Bytes that may be sent at once after silence."""
    bytes_per_day: int | None = Field(default=None, ge=1000)
    """Data plan for a UTC day."""
    bytes_per_month: int | None = Field(default=None, ge=1000)
    """Data plan for a UTC month."""
    plan_reserve: float = Field(default=0.1, ge=0, lt=1)
    """Share of the plan that only urgent classes may use."""


class TimeSettings(Settings):
    """The sensors' clocks."""

    grace_s: UncertaintySeconds = 300.0
    """How much older than its arrival a message may be; the agent states its head up to this long ago."""


class StatusSettings(Settings):
    """The loopback endpoint for metrics and health."""

    port: int = Field(default=9465, ge=0, le=65_535)
    """Port on 127.0.0.1 for `/metrics`, `/health` and `/status`; 0: none."""


class UplinkSettings(BrokerSettings):
    """One region to deliver to. The first in the list is preferred."""

    region: Name
    """Name of the region."""

    @model_validator(mode="after")
    def _has_host(self) -> Self:
        if "host" not in self.model_fields_set:
            raise ValueError("an uplink needs host: without one it would lead to this machine")
        return self


class EnrolmentSettings(Settings):
    """How the device gets its certificate and renews it. Its key is made on the device and never leaves it.

    The claim is a one-time token or a factory certificate. Uplinks with `tls` but without a certificate of their own
    use the device's certificate.
    """

    host: Host
    """Name or address of the region's enrolment broker."""
    port: Port = 8884
    """Its TCP port; brokers have one for tokens and one for factory certificates."""
    ca: Path
    """Certificates of the authorities that may have signed the enrolment broker's certificate (PEM).

    The device's own has to be of one of them, too."""
    token_file: Path | None = None
    """File whose first line is the one-time token."""
    certificate: Path | None = None
    """The factory certificate (PEM), instead of a token."""
    key: Path | None = None
    """The private key of the factory certificate (PEM)."""
    folder: Path | None = None
    """Where the device's own certificates and keys are kept; `certificates` in the buffer's folder without it."""
    answer_timeout_s: Seconds = 30.0
    """How long to wait for an answer before the request is repeated."""
    backoff_first_s: Seconds = 5.0
    """The wait after the first attempt that failed; it doubles, with jitter, up to `backoff_max_s`."""
    backoff_max_s: Seconds = 3600.0
    """The longest wait between two attempts."""

    @model_validator(mode="after")
    def _has_one_claim(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: set both or neither")
        if (self.token_file is None) == (self.certificate is None):
            raise ValueError("set either token_file, or certificate and key of the factory")
        return self


class FailoverSettings(Settings):
    """When to change the region."""

    after_s: Seconds = 20.0
    """Go to the next region when this one neither connects nor acknowledges within this time."""
    return_after_s: Seconds = 300.0
    """Probe the preferred region after this time in another one, and return to it if it answers."""


class PushSettings(Settings):
    """Settings that an operator pushes over the region."""

    operators: Path | None = None
    """The file of the operators' public keys that may push settings; without it none are accepted."""
    confirm_s: Seconds = 60.0
    """Pushed settings stay only if a region acknowledges records with them within this time."""


class AgentSettings(Settings):
    """All settings of an agent."""

    device: DeviceSettings
    insecure: bool = False
    """Allows plain text to another machine."""
    intake: IntakeSettings = IntakeSettings()
    mappings: tuple[MappingSettings, ...] = Field(default=(), max_length=MAX_MAPPINGS)
    buffer: BufferSettings = BufferSettings()
    classes: tuple[ClassSettings, ...] = Field(default=DEFAULT_CLASSES, min_length=1, max_length=MAX_CLASSES)
    drain: DrainSettings = DrainSettings()
    link: LinkSettings = LinkSettings()
    time: TimeSettings = TimeSettings()
    uplinks: tuple[UplinkSettings, ...] = Field(min_length=1, max_length=16)
    failover: FailoverSettings = FailoverSettings()
    enrolment: EnrolmentSettings | None = None
    push: PushSettings = PushSettings()
    status: StatusSettings = StatusSettings()
    log: LogSettings = LogSettings()

    @field_validator("mappings")
    @classmethod
    def _mappings_exclude_each_other(cls, mappings: tuple[MappingSettings, ...]) -> tuple[MappingSettings, ...]:
        return check_mappings(mappings)

    @model_validator(mode="after")
    def _levels_are_in_topics(self) -> Self:
        known = {name for one in self.mappings for name in TopicPattern(one.topic).names.values()} | {DEVICE_LEVEL}
        if wrong := next((name for name in self.device.levels if name not in known), None):
            raise ValueError(f"device.levels: no topic of a mapping has a level {wrong!r}{name_advice(wrong, known)}")
        return self

    @field_validator("classes")
    @classmethod
    def _classes_are_whole(cls, classes: tuple[ClassSettings, ...]) -> tuple[ClassSettings, ...]:
        names = [one.name for one in classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        if not any("#" in one.topics for one in classes):
            raise ValueError('no class takes "#": a record without a class would have no place')
        return classes

    @model_validator(mode="after")
    def _certificate_is_shown(self) -> Self:
        shown = any(one.tls and one.tls.certificate is None for one in self.uplinks)
        if self.enrolment is not None and not shown:
            raise ValueError("enrolment: no uplink uses the certificate: one needs tls with ca, and no certificate")
        return self

    @model_validator(mode="after")
    def _is_encrypted(self) -> Self:
        if not self.insecure and (found := next(self.plain_text(), None)):
            raise ValueError(f"{found}, or say insecure = true at the top")
        return self

    def plain_text(self) -> Iterator[str]:
        """Each connection to another machine without encryption: the setting and the remedy."""
        if self.intake.tls is None and not is_this_machine(self.intake.host):
            yield f"intake.tls: plain text to {self.intake.host}: set ca"
        for number, one in enumerate(self.uplinks):
            if one.tls is None and not is_this_machine(one.host):
                yield f"uplinks.{number}.tls: plain text to {one.host}: set ca"

    @field_validator("uplinks")
    @classmethod
    def _regions_differ(cls, uplinks: tuple[UplinkSettings, ...]) -> tuple[UplinkSettings, ...]:
        if len({one.region for one in uplinks}) < len(uplinks):
            raise ValueError("two uplinks have the same region")
        return uplinks
