"""Fences and accounts in force, as the lake has them; parsed again only when the table changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import shapely

from cloud_jobs.billing.contracts import Account
from cloud_jobs.billing.contracts.prices import ANY_ZONE
from cloud_jobs.billing.contracts.published import usable_contract
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.reference.tables import in_force
from console.lake import OpenLake
from geo.reference.in_force import RefusedVersion, usable_fence
from geo.spatial import Fence, Gate

_FIRST_MS: Final = round(datetime(1, 1, 2, tzinfo=UTC).timestamp() * 1000)


class FenceVersion(NamedTuple):
    """A published version of a fence or gate. `begin`: None: always. `until`: when it ends, by its own date or as the
    next version begins; or None.

    `geometry`: GeoJSON in degrees, with the shape of a corridor or circle worked out. `properties`: as published.
    `number`: of the id among all ids; it gives the colour on maps.
    """

    id: str
    begin: datetime | None
    until: datetime | None
    made: Fence | Gate
    geometry: dict[str, Any]
    properties: dict[str, Any]
    published_by: str | None
    reason: str | None
    number: int = 0

    @property
    def is_gate(self) -> bool:
        return isinstance(self.made, Gate)

    @property
    def name(self) -> str:
        """What people call it: the property `name`, or its id."""
        name = self.properties.get("name")
        return name if isinstance(name, str) and name.strip() else self.id

    def holds_at(self, moment: datetime) -> bool:
        return (self.begin is None or self.begin <= moment) and (self.until is None or moment < self.until)


class AccountVersion(NamedTuple):
    """A published version of an account, from `begin` until the next version."""

    begin: datetime
    until: datetime | None
    account: Account


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """What one version of the table says. `refused`: publications that cannot be used.

    `zones`: the fences and gates that each tariff names, in any version.
    """

    fences: tuple[FenceVersion, ...]
    accounts: tuple[AccountVersion, ...]
    refused: tuple[RefusedVersion, ...]
    zones: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Reference:
    """The reference data of a lake. Methods raise LakeError; a lake without publications has none."""

    def __init__(self, lake: OpenLake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._known: tuple[int, ReferenceState] | None = None

    def state(self) -> ReferenceState:
        if not self._lake.has("reference"):
            return ReferenceState((), (), ())
        version = self._lake.version("reference")
        with self._lock:
            if self._known is None or self._known[0] != version:
                self._known = version, _state(self._lake)
            return self._known[1]

    def accounts_at(self, moment: datetime) -> dict[str, Account]:
        """The accounts in force at a moment by id."""
        return {
            one.account.id: one.account
            for one in self.state().accounts
            if one.begin <= moment
            and (one.until is None or moment < one.until)
            and (one.account.effective_until is None or moment < one.account.effective_until)
        }

    def account_of(self, moment: datetime) -> dict[TenantDevice, Account]:
        """The account that pays for each device at a moment."""
        return {
            one.of_device: account
            for account in self.accounts_at(moment).values()
            for one in account.devices
            if one.begin <= moment and (one.end is None or moment < one.end)
        }

    def payers_during(self, start: datetime, end: datetime) -> dict[TenantDevice, set[str]]:
        """The accounts that pay for each device at any time from `start` until before `end`."""
        found: dict[TenantDevice, set[str]] = {}
        for version in self.state().accounts:
            for one in version.account.devices:
                begin = max(version.begin, one.begin)
                ends = (version.until, version.account.effective_until, one.end)
                last = min((moment for moment in ends if moment is not None), default=None)
                if begin < end and (last is None or max(begin, start) < last):
                    found.setdefault(one.of_device, set()).add(version.account.id)
        return found

    def zones(self, which: Callable[[Account], bool]) -> tuple[str, ...]:
        """The time zones of the payers of some accounts, each account as it was published last."""
        newest = {one.account.id: one.account for one in self.state().accounts}
        payers = {one.parent or name for name, one in newest.items() if which(one)}
        found = (newest.get(payer) for payer in payers)
        return tuple(sorted({one.payer.time_zone for one in found if one is not None and one.payer is not None}))


def _state(lake: OpenLake) -> ReferenceState:
    rows = lake.rows("reference").to_pylist()
    fences, refused = fence_versions(row for row in rows if row["kind"] == "fence")
    accounts = in_force((row for row in rows if row["kind"] == "account"), usable_contract)
    tariffs = in_force((row for row in rows if row["kind"] == "tariff"), usable_contract)
    zones: dict[str, frozenset[str]] = {}
    for tariff in (held.made for held in tariffs.held if isinstance(held.made, Tariff)):
        named = frozenset(zone for *_, zone in tariff.zones()) - {"", ANY_ZONE}
        zones[tariff.id] = zones.get(tariff.id, frozenset()) | named
    made = [held.made for held in accounts.held if isinstance(held.made, Account)]
    until = _next_begins([(one.id, round(one.effective_from.timestamp() * 1e6)) for one in made], _of_us)
    return ReferenceState(
        fences,
        tuple(AccountVersion(one.effective_from, end, one) for one, end in zip(made, until, strict=True)),
        (*refused, *accounts.refused, *tariffs.refused),
        zones,
    )


def fence_versions(
    publications: Iterable[dict[str, Any]],
) -> tuple[tuple[FenceVersion, ...], tuple[RefusedVersion, ...]]:
    """The versions of fences and gates in rows of the reference table, and the rows that cannot be used."""
    fences = in_force(publications, lambda _, body: usable_fence(body))
    numbers = {name: at for at, name in enumerate(sorted({held.row["id"] for held in fences.held}))}
    nexts = _next_begins([(held.row["id"], held.begin) for held in fences.held], _of_ms)
    versions = tuple(
        _fence_version(held.row, held.made, _begin(held.made), until)._replace(number=numbers[held.row["id"]])
        for held, until in zip(fences.held, nexts, strict=True)
    )
    return versions, tuple(fences.refused)


def _next_begins(versions: list[tuple[str, int]], moment: Callable[[int], datetime]) -> list[datetime | None]:
    """For each version, ordered by id and begin, when the next one of its id begins."""
    following = [*versions[1:], *[("", 0)] * bool(versions)]
    return [
        moment(begin) if name == this else None for (this, _), (name, begin) in zip(versions, following, strict=True)
    ]


def _begin(made: Fence | Gate) -> datetime | None:
    """None: it was always in force, which the engine writes as a number that no calendar has."""
    begin = made.effective_from_ms
    return None if begin is None or begin < _FIRST_MS else _of_ms(begin)


def _of_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _of_us(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)


def _fence_version(
    row: dict[str, Any], made: Fence | Gate, begin: datetime | None, until: datetime | None
) -> FenceVersion:
    feature = json.loads(row["body"])
    given = (feature.get("properties") or {}).get("effective_until")
    own = datetime.fromisoformat(given) if given is not None else None
    until = min((end for end in (own, until) if end is not None), default=None)
    geometry = feature["geometry"] if isinstance(made, Gate) else json.loads(shapely.to_geojson(made.shape))
    return FenceVersion(
        row["id"], begin, until, made, geometry, feature.get("properties") or {}, row["published_by"], row["reason"]
    )
