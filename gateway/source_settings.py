"""Parts of the settings of whoever reads alerts or batches from a cluster, and goes by reference data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from waybill.pulsar.pulsar_address import ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings

__all__ = ["ClusterSource", "ReferenceSource", "Word", "Words"]

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ValueError(f"{', '.join(twice)} is named twice")
    return names


Words = Annotated[tuple[Word, ...], Field(min_length=1, max_length=64), AfterValidator(_each_once)]
"""Names of tenants or regions: each once, as each has a reader of its own."""


class ClusterSource(Settings):
    """A Pulsar cluster, and who its client is."""

    service_url: ServiceUrl
    access: PulsarAccess = PulsarAccess()
    operation_timeout_s: int = Field(default=5, ge=1, le=120)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        return self.service_url.startswith("pulsar+ssl://")


class ReferenceSource(Settings):
    """Whose publications are taken: those that a key of the file `operators` signed, or, with `unsigned`, all.

    `wait_s`: so long they may take to be read before the process says that something is wrong.
    """

    operators: Path | None = None
    unsigned: bool = False
    wait_s: float = Field(default=60, gt=0, le=3600)

    @model_validator(mode="after")
    def _signed_or_not(self) -> Self:
        if self.unsigned == (self.operators is not None):
            raise ValueError("name operators, the file of the keys that are trusted, or say unsigned = true")
        return self
