"""Where the device registry is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from runtime.pulsar_client import PulsarAccess
from settings import Settings


class RegistrySettings(Settings):
    """The region's own cluster: the registry is replicated to every one.

    `unknown_devices`: what a gateway does with a device that the registry does not have.
    """

    service_url: Annotated[str, StringConstraints(pattern=r"^pulsar(\+ssl)?://[^\s/]+/?$")]
    access: PulsarAccess = PulsarAccess()
    unknown_devices: Literal["refuse", "take"] = "refuse"
    max_devices: int = Field(default=1_000_000, ge=1, le=10_000_000)
