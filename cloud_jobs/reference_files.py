"""Fences, tariffs and accounts in files: read, and checked as where they are used."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_jobs.billing import Account, Tariff, parse, usable_account, usable_tariff
from cloud_jobs.errors import CloudError, ReferenceFileError
from cloud_jobs.in_force import Usable
from cloud_jobs.lake.beginning import UNKNOWN_BEGINNING, beginning
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.published_fences import usable_fence
from cloud_jobs.reference_messages import MAX_BYTES, MAX_VALUES, Kind, stated_version
from geo.spatial import FenceError
from geo.spatial.features import Feature, read_features
from geo.spatial.geojson import fence_of
from telemetry import InvalidJson, parse_json

FILES = ("fences.geojson", "tariffs.json", "accounts.json")
"""What a folder of reference data has, all of it or some."""
_MEMBERS: dict[str, Kind] = {"prices": "tariff", "vehicles": "account"}


@dataclass(frozen=True, slots=True)
class ReferenceVersion:
    """One version of one thing: `body` is its JSON text."""

    kind: Kind
    id: str
    effective_from: str
    body: str

    @property
    def key(self) -> str:
        """Its name in the compacted topic."""
        return f"{self.id}@{self.effective_from}"


def read_reference(paths: Iterable[Path]) -> list[ReferenceVersion]:
    """The versions in files of any name, and in the files of folders (`FILES`), each once.

    GeoJSON holds fences and gates; a list of JSON objects holds tariffs (with `prices`) and accounts (with `vehicles`).
    Raises ReferenceFileError with everything that is wrong, each fault behind its file and place; if each version alone
    is right, with what the versions say against each other.
    """
    placed: dict[tuple[Kind, str, str], tuple[str, ReferenceVersion]] = {}
    faults: list[str] = []
    for path in paths:
        files = [path / name for name in FILES if (path / name).exists()] if path.is_dir() else [path]
        if not files:
            faults.append(f"{path}: the folder has none of {', '.join(FILES)}")
        for file in files:
            for place, made in _versions_in(file):
                if isinstance(made, str):
                    faults.append(f"{file}: {place}: {made}" if place else f"{file}: {made}")
                elif placed.setdefault(_identity(made), (f"{file}: {place}", made))[1] != made:
                    since = f" from {made.effective_from}" if made.effective_from else ""
                    faults.append(f"{file}: {place}: {made.kind} {made.id!r}{since} is given twice, with two contents")
    # an account may lack only the tariff that has a fault
    faults = faults or [*_contradictions([*placed.values()])]
    if faults:
        raise ReferenceFileError(faults)
    return [version for _, version in placed.values()]


def warnings(versions: Collection[ReferenceVersion]) -> list[str]:
    """What no bill can be made without, and is in none of the files: it may have been published before."""
    accounts = [parse(Account, version.body) for version in versions if version.kind == "account"]
    there = {version.id for version in versions if version.kind == "tariff"}
    return [
        f"account {account.id!r} has tariff {account.tariff!r}, which is not in these files; it must be published too"
        for account in accounts
        if account.tariff not in there
    ]


def _identity(version: ReferenceVersion) -> tuple[Kind, str, str]:
    begin = beginning(version.kind, version.body)
    return version.kind, version.id, version.effective_from if begin == UNKNOWN_BEGINNING else begin


def _contradictions(placed: Sequence[tuple[str, ReferenceVersion]]) -> Iterator[str]:
    """What accounts and tariffs, each right alone, say against each other: no bill, or two, would come of it."""
    currencies: dict[str, dict[str, str]] = {}
    for place, version in placed:
        if version.kind == "tariff":
            currencies.setdefault(version.id, {}).setdefault(parse(Tariff, version.body).currency, place)
    billed: dict[TenantDevice, tuple[str, str]] = {}
    for place, version in placed:
        if version.kind == "account":
            account = parse(Account, version.body)
            yield from (f"{place}: account {account.id!r} {fault}" for fault in _tariff_faults(account, currencies))
            for vehicle in account.vehicles:
                first, there = billed.setdefault(vehicle.of_device, (account.id, place))
                if first != account.id:
                    yield (
                        f"{place}: vehicle {vehicle.device!r} of tenant {vehicle.tenant!r}, of account"
                        f" {account.id!r}, is also one of {first!r} ({there}); both would be billed"
                    )


def _tariff_faults(account: Account, currencies: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    # files without any tariff leave those that were published before
    if currencies and account.tariff not in currencies:
        yield f"has tariff {account.tariff!r}, which is not in these files; there are: {', '.join(sorted(currencies))}"
    for currency, there in currencies.get(account.tariff, {}).items():
        if currency != account.currency:
            yield f"pays in {account.currency}, and its tariff {account.tariff!r} is in {currency} ({there})"


def _versions_in(file: Path) -> Iterator[tuple[str, ReferenceVersion | str]]:
    """The versions of a file, or what is wrong with them, each with its place."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        bodies = None if file.suffix == ".geojson" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        yield "", f"cannot be read: {error}"
        return
    if not isinstance(bodies, list):
        yield from ((feature.place, _fence(feature)) for feature in read_features(text))
        return
    for number, body in enumerate(bodies, start=1):
        kinds = [kind for member, kind in _MEMBERS.items() if isinstance(body, dict) and member in body]
        place = f"entry {number}"
        yield (
            (place, _checked(kinds[0], body))
            if len(kinds) == 1
            else (place, "is neither a tariff (an object with prices) nor an account (one with vehicles)")
        )


def _fence(feature: Feature) -> ReferenceVersion | str:
    try:
        fence_of(feature)
    except FenceError as error:
        return str(FenceError(error.reason, fence_id=error.fence_id))
    return _checked("fence", feature.value)


def _checked(kind: Kind, body: dict[str, Any]) -> ReferenceVersion | str:
    try:
        version = make_version(kind, body)
    except ValueError as error:
        return str(error)
    return fault_of(kind, version.body) or version


def make_version(kind: Kind, body: dict[str, Any]) -> ReferenceVersion:
    """A version as it can be published. Raises ValueError for what would be refused where it arrives."""
    name, begin = stated_version(kind, body)
    if not name:
        raise ValueError(f"a {kind} has no id")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        parse_json(text.encode(), max_bytes=MAX_BYTES, max_values=MAX_VALUES)
    except (InvalidJson, ValueError) as error:
        raise ValueError(f"the {kind} {name!r} cannot be published: {error}") from error
    return ReferenceVersion(kind, name, begin, text)


def fault_of(kind: Kind, body: str) -> str:
    """Why the text of a version cannot be used, by the jobs or by the bill; "": it can."""
    try:
        usable(kind, body)
    except (CloudError, FenceError) as error:
        return str(error)
    return ""


def usable(kind: str, body: str) -> Usable[object]:
    """What a text makes, where it is used, and from when it is in force. Raises CloudError, FenceError."""
    match kind:
        case "fence":
            return usable_fence(body)
        case "tariff":
            return usable_tariff(body)
        case _:
            return usable_account(body)
