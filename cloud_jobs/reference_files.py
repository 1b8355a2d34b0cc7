"""Fences and contracts in files: read, and checked as where they are used."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from cloud_jobs.billing import Account, BadReference, parse, usable_account, usable_tariff
from cloud_jobs.billing.contracts import StatedContract, contracts_of_toml, usable_contract
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
"""What a folder of reference data has, all of it or some; without the lists of JSON all contracts in `*.toml`."""
MAX_FILES: Final = 10_000
MAX_FILE_BYTES: Final = 256 << 20
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
    """The versions in files, as `read_placed` has them. Raises ReferenceFileError."""
    return [version for _, version in read_placed(paths)]


def read_placed(paths: Iterable[Path]) -> list[tuple[str, ReferenceVersion]]:
    """The versions in files of any name, and in the files of folders (`FILES`), each once, with its file and place.

    GeoJSON holds fences and gates; TOML holds contracts; a list of JSON objects holds tariffs (with `prices`) and
    accounts (with `vehicles`) of the former form.
    Raises ReferenceFileError with everything that is wrong, each fault behind its file and place; if each version alone
    is right, with what the versions say against each other.
    """
    placed: dict[tuple[Kind, str, str], tuple[str, ReferenceVersion]] = {}
    faults: list[str] = []
    for path in paths:
        files = _files_of(path) if path.is_dir() else [path]
        if not files:
            faults.append(f"{path}: the folder has none of {', '.join(FILES)}, and no contracts in *.toml")
        for file in files:
            for place, made in _versions_in(file):
                if isinstance(made, str):
                    faults.append(f"{file}{place}: {made}")
                    continue
                first, there = placed.setdefault(_identity(made), (f"{file}{place}", made))
                if there != made:
                    since = f" from {made.effective_from}" if made.effective_from else ""
                    faults.append(
                        f"{file}{place}: {made.kind} {made.id!r}{since} is given twice, with two contents ({first})"
                    )
    # an account may lack only the tariff that has a fault
    faults = faults or [*_contradictions([*placed.values()])]
    if faults:
        raise ReferenceFileError(faults)
    return [*placed.values()]


def _files_of(folder: Path) -> list[Path]:
    named = [folder / name for name in FILES if (folder / name).exists()]
    if any(path.suffix == ".json" for path in named):
        return named
    return [*named, *islice(sorted(folder.glob("*.toml")), MAX_FILES)]


def warnings(versions: Collection[ReferenceVersion]) -> list[str]:
    """What no bill can be made without, and is in none of the files: it may have been published before."""
    accounts = [parse(Account, version.body) for version in versions if is_former_account(version)]
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
            currencies.setdefault(version.id, {}).setdefault(json.loads(version.body)["currency"], place)
    billed: dict[TenantDevice, tuple[str, str]] = {}
    for place, version in placed:
        if is_former_account(version):
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
        text = _text_of(file)
        if file.suffix == ".toml":
            yield from _contracts_in(text)
            return
        bodies = None if file.suffix == ".geojson" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        yield "", f"cannot be read: {error}"
        return
    if not isinstance(bodies, list):
        yield from ((f": {feature.place}", _fence(feature)) for feature in read_features(text))
        return
    for number, body in enumerate(bodies, start=1):
        kinds = [kind for member, kind in _MEMBERS.items() if isinstance(body, dict) and member in body]
        place = f": entry {number}"
        yield (
            (place, _checked(kinds[0], body))
            if len(kinds) == 1
            else (place, "is neither a tariff (an object with prices) nor an account (one with vehicles)")
        )


def _text_of(file: Path) -> str:
    """The text of a file. Raises OSError, and ValueError for one that is too large."""
    with file.open("rb") as opened:
        # one byte more than is allowed shows that there are too many
        read = opened.read(MAX_FILE_BYTES + 1)
    if len(read) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes; write several files")
    return read.decode("utf-8-sig")


def _contracts_in(text: str) -> Iterator[tuple[str, ReferenceVersion | str]]:
    found, faults = contracts_of_toml(text)
    for fault in faults:
        where = "".join(f":{number}" for number in (fault.line, fault.column) if number)
        yield where, fault.reason
    for one in found:
        yield f":{one.line}", _stated(one)


def _stated(stated: StatedContract) -> ReferenceVersion | str:
    body = stated.made.model_dump(mode="json", exclude_defaults=True)
    try:
        return make_version(cast("Kind", stated.kind), body)
    except ValueError as error:
        return str(error)


def counts_text(counts: Mapping[Kind, int]) -> str:
    """How many versions there are of each kind, for reading: `2 accounts, 1 legal entity`."""
    words = {kind: kind.replace("_", " ") for kind in counts}
    several = {kind: f"{one.removesuffix('y')}ies" if one.endswith("y") else f"{one}s" for kind, one in words.items()}
    return ", ".join(f"{counts[kind]} {(words if counts[kind] == 1 else several)[kind]}" for kind in sorted(counts))


def is_former_account(version: ReferenceVersion) -> bool:
    """Whether it is an account in the form that the bill reads until the register does."""
    return version.kind == "account" and "vehicles" in json.loads(version.body)


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
        case "tariff" | "account":
            return _usable_in_either_form(kind, body)
        case _:
            return usable_contract(kind, body)


def _usable_in_either_form(kind: str, body: str) -> Usable[object]:
    """A tariff or an account, also in the form that the bill reads until the register does."""
    if kind == "account" and '"vehicles"' in body:
        return usable_account(body)
    try:
        return usable_contract(kind, body)
    except BadReference:
        if kind == "tariff":
            with suppress(CloudError):
                return usable_tariff(body)
        raise
