"""What every page reads from: the lake, the settings, who looks, and what the address asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from starlette.requests import Request

from cloud_jobs.billing.contracts import Account
from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.maintenance.erasing import log_access
from console.completeness import CompletenessReader
from console.errors import NotThere
from console.fence_rights import FenceRights
from console.fixes import LastFixReader
from console.lake import OpenLake
from console.live import LiveFeed
from console.movements import DayTracksReader
from console.page import Clock
from console.reference import Reference

if TYPE_CHECKING:
    from console.bills import BillReader
    from console.health.reader import HealthReader

_MOST_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `tenants` and `accounts`: what may be seen; None: all of them."""

    name: str
    tenants: frozenset[str] | None = None
    accounts: frozenset[str] | None = None

    @property
    def sees_all(self) -> bool:
        return self.tenants is None and self.accounts is None

    def sees_tenant(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants

    def sees_device(self, device: TenantDevice, account: Account | None) -> bool:
        """Whether a device may be seen, which an account pays for; None: no account does."""
        return self.sees(device, () if account is None else (account.id,))

    def sees(self, device: TenantDevice, payers: Collection[str]) -> bool:
        """Whether a device may be seen that only these accounts pay for. Without any, its tenant must be named."""
        if not self.sees_tenant(device.tenant):
            return False
        if self.accounts is None:
            return True
        return self.accounts.issuperset(payers) if payers else self.tenants is not None

    def sees_account(self, account: Account) -> bool:
        """Whether an account is the viewer's, or has a device of a tenant that is."""
        if self.accounts is not None and self.accounts.isdisjoint((account.id, account.parent or account.id)):
            return False
        return self.tenants is None or any(one.tenant in self.tenants for one in account.devices)

    def require_all(self) -> None:
        """For what tells of the whole platform. Raises NotThere."""
        if not self.sees_all:
            raise NotThere("there is no such page, or you may not see it")

    def require_tenant(self, tenant: str) -> None:
        """Raises NotThere, the same as for a tenant that does not exist."""
        if not self.sees_tenant(tenant):
            raise NotThere(f"there is no tenant {tenant!r}, or you may not see it")


LOCAL = Viewer("local")
"""The viewer of a console on loopback."""


@dataclass(frozen=True, slots=True)
class Query:
    """What an address asks: `path` and `asked` are its parameters, `viewer` is who asks."""

    viewer: Viewer = LOCAL
    path: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> Query:
        viewer = request.scope.get("viewer", LOCAL)
        asked = {name: value[:_MOST_CHARACTERS] for name, value in request.query_params.items() if value}
        return cls(viewer, {name: str(value) for name, value in request.path_params.items()}, asked)

    @property
    def zone(self) -> str:
        return self.asked.get("zone", "")

    def get(self, name: str) -> str:
        """The value of a parameter, or an empty text."""
        return self.asked.get(name, "")

    def state(self, *names: str) -> dict[str, str]:
        """What shows a page again: these parameters and the zone, where they are given."""
        return {name: value for name in (*names, "zone") if (value := self.get(name))}

    def address_with(self, path: str, **changed: str) -> str:
        """The address of this query with some parameters changed; an empty text removes one."""
        asked = {name: value for name, value in {**self.asked, **changed}.items() if value}
        return f"{path}?{urlencode(asked)}" if asked else path


class Console:
    """What all pages share. Any thread may use it. `folder`: of the settings file: a stack's, or None."""

    def __init__(
        self,
        settings: CloudSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        folder: Path | None = None,
    ) -> None:
        self.settings = settings
        self.now = now
        self.lake = OpenLake(settings.tables)
        self.reference = Reference(self.lake)
        self.fences = FenceRights(self)
        self.last_fixes = LastFixReader(self.lake, settings.tracks, settings.console.fix_files)
        self.completeness = CompletenessReader(self.lake)
        self.day_tracks = DayTracksReader(self.lake, settings.tracks)
        self.feed = LiveFeed(settings, self.last_fixes, now)
        self._folder = folder

    @cached_property
    def bills(self) -> BillReader:
        """The register's documents and what they are made of."""
        # rating is imported only for pages that need it
        from console.bills import BillReader  # noqa: PLC0415

        return BillReader(self)

    @cached_property
    def health(self) -> HealthReader:
        """The state of everything that the settings name."""
        # as with bills: the clients of clusters are large
        from console.health.reader import HealthReader  # noqa: PLC0415

        return HealthReader(self.settings, self.lake, self._folder, self.now)

    def clock(self, viewer: Viewer, asked: str = "", own: str = "") -> Clock:
        """The clock of a page: in the zone that is asked for, else its `own`, else that of all accounts which the
        viewer may see, else UTC. Raises ValueError, ZoneInfoNotFoundError, OSError for a zone that does not exist.
        """
        zones = self.reference.zones(viewer.sees_account)
        usual = own or (zones[0] if len(zones) == 1 else "UTC")
        return Clock(ZoneInfo(asked or usual), self.now(), usual, zones)

    def zone_of(self, account: str) -> str:
        """The time zone in which an account is billed; an empty text: unknown."""
        zones = self.reference.zones(lambda one: one.id == account)
        return zones[0] if zones else ""

    def visible(
        self, viewer: Viewer, devices: Iterable[TenantDevice], during: tuple[datetime, datetime] | None = None
    ) -> frozenset[TenantDevice]:
        """The devices that a viewer may see now, or throughout a span: not if another account paid in any of it.

        Raises LakeError, StoreUnavailable.
        """
        start, end = during or (self.now(), self.now() + timedelta(microseconds=1))
        payers = self.reference.payers_during(start, end) if viewer.accounts is not None else {}
        return frozenset(device for device in devices if viewer.sees(device, payers.get(device, ())))

    def log_access(self, viewer: Viewer, command: str, *devices: TenantDevice, **what: object) -> None:
        """Logs in one line that a viewer sees positions of devices. Raises LakeError; then nothing may be shown."""
        if devices:
            log = self.settings.privacy.access_log
            log_access(self.settings.location, log, command, *devices, viewer=viewer.name, **what)

    def log_fleet_access(self, viewer: Viewer, command: str) -> None:
        """Logs that a viewer sees the last positions of all devices that it may see: `*` for those of each tenant."""
        # a tenant that was taken out of the settings may still have records
        tenants = {*self.settings.tenants, *(one.tenant for one in self.completeness.read().streams)}
        self.log_access(
            viewer, command, *(TenantDevice(one, "*") for one in sorted(tenants) if viewer.sees_tenant(one))
        )
