"""What `waybill device` needs to know: where the registry is, who speaks, and which regions have to confirm."""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr, StringConstraints

from waybill.identity.errors import IdentityError
from waybill.identity.names import nearest
from waybill.identity.registry_messages import RegistryTrust
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import SettingsError, load

OPERATOR_SETTINGS = "operator.toml"
"""In the folder of a local stack."""

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]


class OperatorSettings(RegistryTrust):
    """`service_url`: any cluster, the registry is replicated to all. `key`: the private key that signs changes.

    `admin_url`: of the same cluster; before a change is published its clock is compared with this machine's.
    `tenants`: whose devices are looked after; each has a topic of its own.

    `operator`: who is recorded where no trusted key has a name; the user's name.
    """

    service_url: ServiceUrl
    admin_url: AdminUrl
    regions: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=100)]
    tenants: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=10_000)]
    key: Path | None = None
    operator: _Name = Field(default_factory=getpass.getuser)
    access: PulsarAccess = PulsarAccess()
    _file: str = PrivateAttr("the settings")

    def stand_in(self, file: Path) -> None:
        """Says in which file they stand, for what is refused by them."""
        self._file = str(file)

    def check_region(self, region: str) -> None:
        """Raises NotInSettings for one of which no access daemon is to confirm anything: a device would wait there."""
        self._check("region", region, self.regions)

    def check_tenant(self, tenant: str) -> None:
        """Raises NotInSettings: a device that is given to a tenant by a slip of the pen has lost its name for good."""
        self._check("tenant", tenant, self.tenants)

    def _check(self, what: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            raise NotInSettings(what, name, known, self._file)


class NotInSettings(IdentityError):
    """A region or tenant that the operator's settings do not name; `nearest`: the one that may be meant, or "".

    `file`: where they stand.
    """

    def __init__(self, what: str, name: str, known: Collection[str], file: str = "the settings") -> None:
        self.name, self.nearest = name, nearest(name, known)
        meant = f"did you mean {self.nearest}? " if self.nearest else ""
        super().__init__(
            f"there is no {what} {name!r}: {meant}`{what}s` of {file} names {', '.join(sorted(known)):.300}; "
            "a new one is added there"
        )


def read_operator_settings(file: Path | None) -> OperatorSettings:
    """The settings of a file; None: those of the local stack, in $WAYBILL_STACK or var/local. Raises SettingsError."""
    source = file or Path(os.environ.get("WAYBILL_STACK") or "var/local") / OPERATOR_SETTINGS
    settings = load(OperatorSettings, source)
    settings.stand_in(source)
    # Before anything is asked: what a file lacks no waiting brings.
    if faults := [f"access{name and '.'}{name}: {fault}" for name, fault in settings.access.file_faults()]:
        raise SettingsError(str(source), faults)
    return settings
