"""Where the device registry is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.source_settings import Word
from waybill.identity.registry_messages import RegistryTrust
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess


class RegistrySettings(RegistryTrust):
    """The region's own cluster: the registry is replicated to every one. `tenants`: whose devices are known.

    `unknown_devices`: what a gateway does with a device that the registry does not have. `key`: with which an access
    daemon signs what it enrols; a gateway needs none. `admin_url`: of the same cluster, with whose clock an access
    daemon compares its own; a gateway asks it nothing.
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


def open_registry(settings: RegistrySettings) -> Iterator[tuple[str, str]]:
    """What lets others in or read along, by key: entries are signed, but the way to the cluster is not safe."""
    access = settings.access
    if not settings.service_url.startswith("pulsar+ssl://"):
        yield "service_url", "the device registry is read in plain text: use pulsar+ssl:// with registry.access.tls_ca"
    if settings.admin_url is not None and not settings.admin_url.startswith("https://"):
        yield "admin_url", "the token travels in plain text: use https:// with registry.access.tls_ca"
    if not (access.token or access.token_file or access.tls_certificate):
        yield "access.token_file", "Pulsar is shown nothing: set it, or registry.access.tls_certificate and tls_key"
    if settings.unsigned:
        yield "unsigned", "anybody who publishes there says who may connect: set registry.operators"
