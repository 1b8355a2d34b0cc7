"""Fences, contracts and alert rules in files: read, and checked as where they are used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from cloud_jobs.billing.contracts import StatedContract, contracts_of_toml, usable_contract
from cloud_jobs.errors import CloudError, ReferenceFileError
from geo.alerts import AlertError, usable_rule
from geo.reference.in_force import Usable, usable_fence
from geo.reference.messages import MAX_BYTES, MAX_VALUES, Kind, stated_version
from geo.reference.moments import UNKNOWN_BEGINNING, beginning
from geo.spatial import Fence, FenceError
from geo.spatial.features import Feature, feature_notices, read_features
from geo.spatial.geojson import fence_of, kind_of
from waybill.daemon.bounded_file import read_bounded
from waybill.record import InvalidJson, parse_json
from waybill.settings import as_read, file_fault, printable

FENCES_FILE: Final = "fences.geojson"
"""What a folder of reference data has beside contracts in `*.toml`."""
MAX_FILES: Final = 10_000
MAX_FILE_BYTES: Final = 256 << 20
_TOML_TABLE: Final = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\r?\n)*+[ \t]*\[\[?[ \t]*[A-Za-z_][A-Za-z_.]*[ \t]*\]")
"""A text that begins, behind comments, with the head of a table: no JSON does."""
_PlaceOf = Callable[..., str]
"""Where a version stands in its file, or a part of it, which is named by the keys that lead to it."""


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


class PlacedVersion(NamedTuple):
    """A version and where it stands: its file and place, and those of a part of it.

    `notices`: what it says without being wrong, and may not be meant: a shape that was repaired, a name that is almost
    one that counts.
    """

    place: str
    version: ReferenceVersion
    place_of: Callable[..., str]
    notices: tuple[str, ...] = ()


def read_reference(paths: Iterable[Path]) -> list[ReferenceVersion]:
    """The versions in files, as `read_placed` has them. Raises ReferenceFileError."""
    return [one.version for one in read_placed(paths)]


def read_placed(paths: Iterable[Path]) -> list[PlacedVersion]:
    """The versions in files of any name, and in the files of folders, each once, with its file and place.

    TOML holds contracts; any other file is GeoJSON, and holds fences and gates.
    Raises ReferenceFileError with everything that is wrong, each fault behind its file and place. What versions, each
    right alone, say against each other is for `contracts.check`.
    """
    placed: dict[tuple[Kind, str, str], PlacedVersion] = {}
    readings: dict[tuple[Kind, str], PlacedVersion] = {}
    faults: list[str] = []
    for path in paths:
        files = _files_of(path) if path.is_dir() else [path]
        if not files:
            faults.append(f"{printable(str(path))}: the folder has no {FENCES_FILE}, and no contracts in *.toml")
        for file in files:
            # A name may have any characters, and is shown to people.
            name = printable(str(file))
            for place_of, made, notices in _versions_in(file):
                place = place_of()
                if isinstance(made, str):
                    faults.append(f"{name}{place}: {made}")
                    continue
                one = PlacedVersion(f"{name}{place}", made, partial(_within, name, place_of), notices)
                first = placed.setdefault(_identity(made), one)
                read_first = readings.setdefault((made.kind, as_read(made.id)), one)
                if read_first.version.id != made.id:
                    same = near_equal_fault(made.kind, made.id, read_first.version.id, read_first.place)
                    faults.append(f"{name}{place}: {same}")
                if first.version != made:
                    since = f" from {made.effective_from}" if made.effective_from else ""
                    twice = f"{made.kind} {made.id!r}{since} is given twice, with two contents ({first.place})"
                    faults.append(f"{name}{place}: {twice}")
    if faults:
        raise ReferenceFileError(faults)
    return [*placed.values()]


def near_equal_fault(kind: str, name: str, other: str, where: str) -> str:
    """That two ids read the same, both spelled out; `where` the other one stands."""
    return f"the id of this {kind} is written {name!a}, and {other!a} reads the same ({where})"


def _files_of(folder: Path) -> list[Path]:
    fences = folder / FENCES_FILE
    named = [fences] if fences.exists() else []
    return [*named, *islice(sorted(folder.glob("*.toml")), MAX_FILES)]


def _identity(version: ReferenceVersion) -> tuple[Kind, str, str]:
    begin = beginning(version.kind, version.body)
    return version.kind, version.id, version.effective_from if begin == UNKNOWN_BEGINNING else begin


def _within(file: str, place_of: _PlaceOf, *inner: str | int) -> str:
    return f"{file}{place_of(*inner)}"


class _Read(NamedTuple):
    """A version of a file, or what is wrong with it."""

    place_of: _PlaceOf
    made: ReferenceVersion | str
    notices: tuple[str, ...] = ()


def _versions_in(file: Path) -> Iterator[_Read]:
    """The versions of a file, or what is wrong with them, each with its place."""
    try:
        text = _text_of(file)
        if file.suffix == ".toml":
            yield from _contracts_in(text)
            return
        if _TOML_TABLE.search(text):
            yield _Read(
                _place_is(""), "is not GeoJSON, and looks like TOML: name it .toml to have it read as contracts"
            )
            return
    except (OSError, ValueError) as error:
        yield _Read(_place_is(""), f"cannot be read: {file_fault(error)}")
        return
    yield from map(_fence, read_features(text))


def _text_of(file: Path) -> str:
    """The text of a file. Raises OSError, and ValueError for one that is too large."""
    return read_bounded(file, MAX_FILE_BYTES).decode("utf-8-sig")


def _place_is(place: str) -> _PlaceOf:
    return lambda *_: place


def _contracts_in(text: str) -> Iterator[_Read]:
    found, faults = contracts_of_toml(text)
    for fault in faults:
        yield _Read(_place_is(fault.place), fault.reason)
    for one in found:
        yield _Read(partial(_line, one), _stated(one))


def _line(stated: StatedContract, *inner: str | int) -> str:
    return f":{stated.line_of(*inner)}"


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


def _fence(feature: Feature) -> _Read:
    place = _place_is(f": {feature.place}")
    try:
        made = fence_of(feature)
        version = make_version("fence", feature.value)
    except FenceError as error:
        return _Read(place, str(FenceError(error.reason, fence_id=error.fence_id)))
    except ValueError as error:
        return _Read(place, str(error))
    said = [*(made.notes if isinstance(made, Fence) else ()), *feature_notices(feature.value)]
    notices = tuple(f"{kind_of(made)} {made.id!r}: {one}" for one in said)
    return _Read(place, fault_of("fence", version.body) or version, notices)


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
    except (CloudError, AlertError, FenceError) as error:
        return str(error)
    return ""


def usable(kind: str, body: str) -> Usable[object]:
    """What a text makes, where it is used, and from when it is in force. Raises CloudError, AlertError, FenceError."""
    match kind:
        case "fence":
            return usable_fence(body)
        case "alert_rule":
            return usable_rule(body)
        case _:
            return usable_contract(kind, body)
