"""Where the device registry is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from identity.registry_trust import RegistryTrust
from runtime.pulsar_client import PulsarAccess


class RegistrySettings(RegistryTrust):
    """The region's own cluster: the registry is replicated to every one.

    `unknown_devices`: what a gateway does with a device that the registry does not have. `key`: with which an access
    daemon signs what it enrols; a gateway needs none.
    """

    service_url: Annotated[str, StringConstraints(pattern=r"^pulsar(\+ssl)?://[^\s/]+/?$")]
    access: PulsarAccess = PulsarAccess()
    key: Path | None = None
    unknown_devices: Literal["refuse", "take"] = "refuse"
    max_devices: int = Field(default=1_000_000, ge=1, le=10_000_000)
