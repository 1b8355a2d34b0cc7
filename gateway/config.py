"""Every setting of the gateway, with its unit and bound. `docs/gateway.md` explains each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from waybill.daemon.logs import LogSettings
from waybill.daemon.status_reader import StatusEndpoint
from waybill.identity.broker_conf import read_share
from waybill.identity.registry_messages import RegistryTrust
from waybill.identity.signatures import read_operators
from waybill.mqtt.broker_settings import BrokerSettings, Host, Port, Seconds, is_this_machine
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl, host_names
from waybill.pulsar.pulsar_client import PulsarAccess, token_faults, tokens_ending
from waybill.settings import Settings, SettingsError

# Shared settings of readers of alerts, batches and reference data.

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ValueError(f"{', '.join(twice)} is named twice")
    return names


Words = Annotated[tuple[Word, ...], Field(min_length=1, max_length=64), AfterValidator(_each_once)]
"""Names of tenants or regions, each once, because each has its own reader."""


class ClusterSource(Settings):
    """A Pulsar cluster, and the client's credentials."""

    service_url: ServiceUrl
    access: PulsarAccess = PulsarAccess()
    operation_timeout_s: int = Field(default=5, ge=1, le=120)

    @property
    def is_encrypted(self) -> bool:
        return self.service_url.startswith("pulsar+ssl://")


class ReferenceSource(Settings):
    """Trusted publications: those signed by a key in `operators`, or all with `unsigned`.

    `wait_s`: how long the first reading may take before it counts as a problem.
    """

    operators: Path | None = None
    unsigned: bool = False
    wait_s: float = Field(default=60, gt=0, le=3600)

    @model_validator(mode="after")
    def _signed_or_not(self) -> Self:
        if self.unsigned == (self.operators is not None):
            raise ValueError("name operators, the file of the keys that are trusted, or set unsigned = true")
        return self


# The device registry.


class RegistrySettings(RegistryTrust):
    """The device registry on the region's own cluster. `tenants`: whose devices are known.

    `unknown_devices`: what a gateway does with a device that the registry does not have. `key` and `admin_url` are for
    access daemons: the key that signs enrolments, and the cluster whose clock is compared.
    """

    service_url: ServiceUrl
    tenants: Annotated[tuple[Word, ...], Field(max_length=256)] = ()
    admin_url: AdminUrl | None = None
    access: PulsarAccess = PulsarAccess()
    key: Path | None = None
    unknown_devices: Literal["refuse", "take"] = "refuse"
    max_devices: int = Field(default=1_000_000, ge=1, le=10_000_000)

    @model_validator(mode="after")
    def _has_tenants(self) -> Self:
        if not self.tenants or len({*self.tenants}) < len(self.tenants):
            raise ValueError(
                'tenants: name each tenant whose devices send, once, as tenants = ["acme"]: its devices are '
                "on the topic persistent://TENANT/registry/devices"
            )
        return self


def open_registry(settings: RegistrySettings) -> Iterator[str]:
    """Insecure settings. Entries are signed, but the connection could be read or cut."""
    access = settings.access
    if not settings.service_url.startswith("pulsar+ssl://"):
        yield (
            "registry.service_url: the device registry is read in plain text: use pulsar+ssl:// with"
            f" registry.access.tls_ca, {OPEN_WORD}"
        )
    if settings.admin_url is not None and not settings.admin_url.startswith("https://"):
        yield (
            "registry.admin_url: the token travels in plain text: use https:// with registry.access.tls_ca,"
            f" {OPEN_WORD}"
        )
    if not (access.token or access.token_file or access.tls_certificate):
        yield (
            "registry.access.token_file: no credentials for Pulsar: set it, or registry.access.tls_certificate and"
            f" tls_key, {OPEN_WORD}"
        )
    if settings.unsigned:
        yield f"registry.unsigned: anyone who publishes there can add devices: set registry.operators, {OPEN_WORD}"


# The shared subscription of a region's gateways.

_OPEN = "gateway"


def share_group(settings: Mqtt) -> str:
    """The name of the shared subscription. Raises OSError, and ValueError for a file without a name.

    A broker lets everybody subscribe and gives each message to one member of a group, also to one that may not read it.
    Who knows the name can make batches disappear, so it is a secret.
    """
    return _OPEN if settings.share_file is None else read_share(settings.share_file)


# Checks of the shared settings.

OPEN_WORD = "or say insecure = true at the top"


def file_problems(pulsar: ClusterSource, table: str, reference: ReferenceSource) -> Iterator[str]:
    """Files that cannot be used. `table`: name of the reference data's settings."""
    for field, fault in pulsar.access.file_faults():
        yield f"pulsar.access{field and f'.{field}'}: {fault}"
    if reference.operators is not None:
        try:
            read_operators(reference.operators)
        except SettingsError as error:
            yield f"{table}.operators: {'; '.join(error.lines)}"


def open_cluster(pulsar: ClusterSource, what: str) -> Iterator[str]:
    """Insecure settings of a cluster that carries `what`."""
    access = pulsar.access
    if not pulsar.is_encrypted:
        yield f"pulsar.service_url: {what} travel in plain text: use pulsar+ssl://, {OPEN_WORD}"
    if not (access.token or access.token_file or access.tls_certificate):
        yield f"pulsar.access.token_file: no credentials: set it, or tls_certificate and tls_key, {OPEN_WORD}"


def travels_in_plain_text(pulsar: ClusterSource, what: str) -> Iterator[str]:
    """A warning if `what` leaves this machine unencrypted."""
    hosts = host_names(pulsar.service_url)
    if not pulsar.is_encrypted and not all(map(is_this_machine, hosts)):
        yield f"pulsar.service_url: {what} travel to {', '.join(hosts)} in plain text; use pulsar+ssl://"


def open_status(host: str) -> Iterator[str]:
    """A warning if other machines can read the status."""
    if not is_this_machine(host):
        yield f"status.host: everybody who reaches {host} reads the status"


def access_secrets(pulsar: ClusterSource, config: Path) -> list[tuple[Path | None, str]]:
    """The files with a client's secrets, each with its content. `config`: the settings file."""
    access = pulsar.access
    return [(config if access.token else None, "token"), (access.token_file, "token"), (access.tls_key, "key")]


def ending_tokens(pulsar: ClusterSource, now_s: float) -> list[str]:
    """A token that no cluster accepts now, or not for long. A daemon runs all the same and reads its file again."""
    accesses = {"pulsar.access": pulsar.access}
    return [*token_faults(accesses, now_s), *tokens_ending(accesses, now_s)]


def open_secrets(files: Iterable[tuple[Path | None, str]]) -> Iterator[str]:
    """A warning for each file that others can read. A file of another user, as in Kubernetes, we read by its group."""
    for file, secret in files:
        if file is None:
            continue
        about = file.stat()
        if about.st_mode & (0o044 if about.st_uid == os.geteuid() else 0o004):
            yield f"{file}: others can read the {secret} in it; chmod 600"


BACKOFF_FIRST_S = 0.2
"""First wait between two attempts to connect."""
BATCHES, REFUSED = "batches", "refused"
"""Names of the topics in a tenant's namespace."""
MAX_TENANTS = 64
"""Each has its own connection to Pulsar."""
PUBLISH_BYTES = 128 << 10
"""Generous size of topic and properties of a PUBLISH."""


class Mqtt(BrokerSettings):
    """The regional broker. `receive_maximum`: batches in flight, which are received and not yet in Pulsar.

    `share_file`: its first line is the secret name of the group in which the gateways of a region share batches.
    """

    host: Host
    backoff_max_s: Seconds = 15
    share_file: Path | None = None
    receive_maximum: int = Field(default=256, ge=1, le=10_000)
    max_packet_bytes: int = Field(default=8 << 20, ge=64 << 10, le=64 << 20)
    max_in_flight_bytes: int = Field(default=64 << 20, ge=1 << 20)

    @model_validator(mode="after")
    def _shares_in_secret(self) -> Self:
        if self.tls is not None and self.tls.certificate is not None and self.share_file is None:
            raise ValueError(
                "with tls.certificate a share_file is needed, one for all gateways of the region: "
                "`waybill pki issue` writes it next to the certificate, as `share`"
            )
        return self


class Pulsar(ClusterSource):
    """The regional cluster. Topics are `persistent://{tenant}/{namespace}/batches` and `.../refused`.

    `tenant`: one Pulsar tenant for all; None: each tenant's own, by its name.
    """

    tenant: Word | None = None
    namespace: Word | None = None
    send_timeout_s: float = Field(default=30, gt=0, le=600)
    backoff_max_s: Seconds = 15
    batching_max_messages: int = Field(default=256, ge=1, le=10_000)


class SendRates(Settings):
    """Long-term rates of a tenant or a device; None: no limit. A batch counts by the rate that it uses most."""

    max_batches_per_s: float | None = Field(default=None, gt=0)
    max_bytes_per_s: float | None = Field(default=None, gt=0)
    max_records_per_s: float | None = Field(default=None, gt=0)

    @property
    def is_limited(self) -> bool:
        return not (self.max_batches_per_s is self.max_bytes_per_s is self.max_records_per_s is None)


class TenantSettings(SendRates):
    """A served fleet operator: its rates, the rates of each of its devices, and its weight.

    `weight`: its share of `drain.max_records_per_s` under load. `sealing_key`: the tenant's public key (PEM, X25519)
    for sealed batches; None: not sealed.
    """

    device: SendRates = SendRates()
    weight: float = Field(default=1, gt=0, le=1000)
    sealing_key: Path | None = None

    @cached_property
    def has_limits(self) -> bool:
        return self.is_limited or self.device.is_limited


class Acks(Settings):
    """How acknowledgements of one device are combined."""

    interval_ms: int = Field(default=50, ge=0, le=5000)
    window: int = Field(default=500, ge=1, le=10_000)


class Drain(Settings):
    """When devices are asked to pause. SIGHUP reloads these settings."""

    max_records_per_s: float = Field(default=0, ge=0)
    burst_records: int = Field(default=10_000, ge=1)
    pause_s: float = Field(default=0, ge=0, le=3600)
    max_pause_s: float = Field(default=60, gt=0, le=3600)


class PushFolder(Settings):
    """Settings for devices. `folder` has one file `{tenant}/{device}.toml` for each device; SIGHUP reads it again.

    Only files that a key in `operators` signed for that device are published.
    """

    folder: Path | None = None
    operators: Path | None = None

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if self.folder is not None and self.operators is None:
            raise ValueError("a folder needs operators, the file of the trusted public keys")
        return self


class GatewayEndpoint(StatusEndpoint):
    port: Port = 9464


class GatewaySettings(Settings):
    """One gateway process. `name` is its MQTT client id, so each gateway of a region needs its own.

    `insecure`: allow missing TLS, authentication and registry.
    """

    name: Word
    region: Word
    insecure: bool = False
    tenants: dict[Word, TenantSettings] = Field(default_factory=dict, max_length=MAX_TENANTS)
    max_batch_bytes: int = Field(default=4 << 20, ge=1024, le=5 << 20)
    stop_timeout_s: float = Field(default=10, gt=0, le=120)
    mqtt: Mqtt
    pulsar: Pulsar
    acks: Acks = Acks()
    drain: Drain = Drain()
    push: PushFolder = PushFolder()
    registry: RegistrySettings | None = None
    status: GatewayEndpoint = GatewayEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mqtt.max_packet_bytes < self.max_batch_bytes + PUBLISH_BYTES:
            raise ValueError(
                f"mqtt.max_packet_bytes must be at least max_batch_bytes + {PUBLISH_BYTES}: "
                "the broker cannot deliver larger batches, and devices would wait forever"
            )
        return self

    @model_validator(mode="after")
    def _serves_somebody(self) -> Self:
        if not self.tenants and self.pulsar.tenant is None:
            raise ValueError(
                "tenants: name each tenant that is served, [tenants.acme]; or pulsar.tenant, where all share one"
            )
        return self

    @model_validator(mode="after")
    def _knows_who_sends(self) -> Self:
        if self.registry is not None and (missing := sorted({*self.tenants} - {*self.registry.tenants})):
            raise ValueError(
                f"registry.tenants: lacks {', '.join(missing)} of [tenants]: all their devices are unknown"
            )
        return self

    @property
    def pulsar_accesses(self) -> dict[str, PulsarAccess]:
        """The gateway's Pulsar credentials, by settings table."""
        found = {"pulsar.access": self.pulsar.access}
        return found if self.registry is None else found | {"registry.access": self.registry.access}

    @property
    def pulsar_tenants(self) -> tuple[str, ...]:
        return (self.pulsar.tenant,) if self.pulsar.tenant is not None else tuple(self.tenants)

    def pulsar_tenant_of(self, tenant: str) -> str:
        return self.pulsar.tenant or tenant

    def topic(self, pulsar_tenant: str, name: str) -> str:
        namespace = self.pulsar.namespace or f"telemetry-{self.region}"
        return f"persistent://{pulsar_tenant}/{namespace}/{name}"
