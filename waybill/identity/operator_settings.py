"""The settings of `waybill device`."""

from __future__ import annotations

import getpass
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from waybill.daemon.stack_folder import stack_advice, stack_file
from waybill.identity.errors import IdentityError
from waybill.identity.registry_messages import RegistryTrust
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import SettingsError, load, name_advice

OPERATOR_SETTINGS = "operator.toml"
"""In the folder of a local stack."""

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]


class OperatorSettings(RegistryTrust):
    """`service_url`: any cluster; the registry is replicated to all. `admin_url`: of the same cluster, for its clock.

    `tenants`: whose devices the commands read. `key`: the private key that signs changes. `operator`: the name that is
    recorded where no trusted key has a name.
    """

    service_url: ServiceUrl
    admin_url: AdminUrl
    regions: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=100)]
    tenants: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=10_000)]
    key: Path | None = None
    operator: _Name = Field(default_factory=getpass.getuser)
    access: PulsarAccess = PulsarAccess()

    def check_region(self, region: str) -> None:
        """Raises NotInSettings: no access daemon would confirm anything for a misspelt region."""
        _check("region", region, self.regions)

    def check_tenant(self, tenant: str) -> None:
        """Raises NotInSettings: a device that is registered for a misspelt tenant has lost its name."""
        _check("tenant", tenant, self.tenants)


class NotInSettings(IdentityError):
    """The operator's settings do not name a region or tenant."""


def _check(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        there = f"`{what}s` of the settings names {', '.join(sorted(known)):.300}; a new one is added there"
        raise NotInSettings(f"there is no {what} {name!r}: {there}{name_advice(name, known)}")


def read_operator_settings(file: Path | None) -> OperatorSettings:
    """The settings of a file; None: those of the local stack, in $WAYBILL_STACK or var/local. Raises SettingsError."""
    source = file or stack_file(OPERATOR_SETTINGS)
    if file is None and not source.exists():
        raise SettingsError(str(source), [f"there is no such file; {stack_advice()}"])
    settings = load(OperatorSettings, source)
    if faults := [f"access{name and '.'}{name}: {fault}" for name, fault in settings.access.file_faults()]:
        raise SettingsError(str(source), faults)
    return settings
