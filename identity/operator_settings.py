"""What `waybill device` needs to know: where the registry is, who speaks, and which regions have to confirm."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from identity.registry_trust import RegistryTrust
from runtime.pulsar_client import PulsarAccess
from settings import load

__all__ = ["OPERATOR_SETTINGS", "OperatorSettings", "read_operator_settings"]

OPERATOR_SETTINGS = "operator.toml"
"""In the folder of a local stack."""

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]


class OperatorSettings(RegistryTrust):
    """`service_url`: any cluster, the registry is replicated to all. `key`: the private key that signs changes.

    `operator`: who is recorded where no trusted key has a name; the user's name.
    """

    service_url: Annotated[str, StringConstraints(pattern=r"^pulsar(\+ssl)?://[^\s/]+/?$")]
    regions: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=100)]
    key: Path | None = None
    operator: _Name = Field(default_factory=getpass.getuser)
    access: PulsarAccess = PulsarAccess()


def read_operator_settings(file: Path | None) -> OperatorSettings:
    """The settings of a file; None: those of the local stack, in $WAYBILL_STACK or var/local. Raises SettingsError."""
    return load(OperatorSettings, file or Path(os.environ.get("WAYBILL_STACK") or "var/local") / OPERATOR_SETTINGS)
