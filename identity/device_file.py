"""Devices as people write them: TOML with [[device]], each with the state that it is to have. Pure.

    [[device]]
    tenant = "acme"
    device = "bus-1"
    region = "eu"
    state = "expected"

What a file does not name stays as it is. `device_file_changes` says what becomes of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import StringConstraints, ValidationError, model_validator

from identity.claims import check_factory_serial
from identity.names import device_name
from identity.registry import DeviceEntry, DeviceState
from settings import Settings, TomlLines, parse_toml, problem_text, toml_fault
from telemetry.record import DEVICE_PATTERN

__all__ = [
    "MAX_DEVICES",
    "MAX_DEVICES_FILE_BYTES",
    "MAX_FILE_FAULTS",
    "DeviceFileFault",
    "FileFault",
    "PlacedDevice",
    "StatedDevice",
    "device_file_text",
    "devices_of_toml",
    "given_twice",
]

MAX_DEVICES_FILE_BYTES: Final = 8 << 20
MAX_DEVICES: Final = 10_000
"""Of one file: what a command publishes one by one within minutes."""
MAX_FILE_FAULTS: Final = 100
"""So many faults of a file are named."""
# the publication says the file's reason as well
_MAX_REASON: Final = 400
_TABLE: Final = "device"


class FileFault(StrEnum):
    """Why a file of devices is refused: the word in `--json`."""

    UNREADABLE = "unreadable"
    """The file cannot be read, or is no TOML."""
    WRONG_ENTRY = "wrong-entry"
    """A table is no device: a key or a value is wrong."""
    TOO_MANY = "too-many"
    """There are more devices than a command takes."""
    GIVEN_TWICE = "given-twice"
    """A device stands in the files twice."""
    NOT_BY_FILE = "not-by-file"
    """It is to be moved or replaced: each of these is one command for two devices."""
    NOT_KNOWN = "not-known"
    """The registry has no such device, and nothing makes one known that is to have this state."""
    NO_WAY = "no-way"
    """No change leads there from the state that it has."""
    OTHER_FACTS = "other-facts"
    """The registry has it with another region or another claim."""
    NOT_IN_SETTINGS = "not-in-settings"
    """There is no such region or tenant."""
    NO_TOKEN = "no-token"  # noqa: S105  # the reason, not a token
    """Its token has no file."""
    NO_RIGHT = "no-right"
    """Nobody would take that change from this key."""


class DeviceFileFault(NamedTuple):
    """What is wrong with a file of devices, and where: `place` is FILE:LINE, as far as known."""

    place: str
    fault: FileFault
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


_Name = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]


class StatedDevice(Settings):
    """A device, and the state that it is to have.

    `region`: whose authority enrols it; needed where it is not known yet. `factory`: the serial in its factory
    certificate; without one who is expected gets a token. `by_hand`: it is new, and may connect without a claim.
    """

    tenant: _Name
    device: _Name
    state: DeviceState
    region: _Name | None = None
    factory: str | None = None
    by_hand: bool = False

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        device_name(self.tenant, self.device)
        if self.factory is not None:
            if self.state is not DeviceState.EXPECTED:
                raise ValueError('`factory` goes with state = "expected"')
            check_factory_serial(self.factory)
        if self.by_hand and self.state is not DeviceState.ACTIVE:
            raise ValueError('`by_hand` goes with state = "active"')
        return self

    @property
    def name(self) -> str:
        """`tenant/device`."""
        return f"{self.tenant}/{self.device}"


class PlacedDevice(NamedTuple):
    """A device of a file, and where it stands."""

    place: str
    stated: StatedDevice


def devices_of_toml(text: str, file: str) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of a text and all that is wrong with it; `file` names it."""
    try:
        tables = parse_toml(text, MAX_DEVICES_FILE_BYTES)
    except ValueError as error:
        at = toml_fault(text, error)
        return [], [DeviceFileFault(f"{file}{at.place}", FileFault.UNREADABLE, at.reason)]
    lines, found, faults = TomlLines(text), list[PlacedDevice](), list[DeviceFileFault]()
    for path, table in _entries(tables):
        line = lines.of(path)
        place = file if line is None else f"{file}:{line}"
        if isinstance(table, str):
            faults.append(DeviceFileFault(place, FileFault.WRONG_ENTRY, table))
        elif len(found) >= MAX_DEVICES:
            faults.append(DeviceFileFault(place, FileFault.TOO_MANY, f"a file has at most {MAX_DEVICES:,} devices"))
            break
        else:
            try:
                found.append(PlacedDevice(place, StatedDevice.model_validate(table)))
            except ValidationError as error:
                faults += _faults(file, path, lines, table, error)
        # One by one: to look for the nearest right word of each of a million faults would take long.
        if len(faults) >= MAX_FILE_FAULTS:
            break
    return found, faults[:MAX_FILE_FAULTS]


def _entries(tables: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any] | str]]:
    """Place and table of each device; a text instead of a table says what is wrong."""
    # A fault of the file's own form comes once, not once for each device.
    for kind, given in tables.items():
        if kind != _TABLE:
            yield (kind,), f"{kind:.80}: no such table; a file of devices has [[{_TABLE}]]"
        elif not isinstance(given, list):
            yield (kind,), f"{kind}: is one table, and a list of them is needed: write [[{_TABLE}]]"
        else:
            for number, one in enumerate(given):
                path = (kind, number)
                yield path, one if isinstance(one, dict) else f"{kind}: a table is needed: write [[{_TABLE}]]"


def _faults(
    file: str, path: tuple[str | int, ...], lines: TomlLines, table: dict[str, Any], error: ValidationError
) -> Iterator[DeviceFileFault]:
    named = [table.get(key) for key in ("tenant", "device")]
    who = "/".join(named) if all(isinstance(one, str) for one in named) else ""  # type: ignore[arg-type]  # they are
    for detail in error.errors(include_url=False)[:MAX_FILE_FAULTS]:
        line = lines.of((*path, *detail["loc"]))
        reason = f"{who[:80] or _TABLE}: {problem_text(StatedDevice, detail, 'key')}"[:_MAX_REASON]
        yield DeviceFileFault(file if line is None else f"{file}:{line}", FileFault.WRONG_ENTRY, reason)


def given_twice(placed: Iterable[PlacedDevice]) -> Iterator[DeviceFileFault]:
    """A fault for each device that stood in the files before."""
    first: dict[str, str] = {}
    for place, stated in placed:
        if stated.name in first:
            reason = f"{stated.name} is given twice ({first[stated.name]})"
            yield DeviceFileFault(place, FileFault.GIVEN_TWICE, reason)
        first.setdefault(stated.name, place)


def device_file_text(entries: Iterable[DeviceEntry]) -> str:
    """A file of these devices as they are, which changes nothing; what moved or was replaced is not in it."""
    parts = list[str]()
    for entry in entries:
        if entry.state in {DeviceState.MOVED, DeviceState.REPLACED}:
            continue
        keys = {"tenant": entry.tenant, "device": entry.device, "region": entry.region, "state": str(entry.state)}
        if entry.state is DeviceState.EXPECTED and entry.claim is not None and not entry.claim.is_token:
            keys["factory"] = entry.claim.id
        # No name, region or serial has a character that a text of TOML writes otherwise.
        parts.append(f"[[{_TABLE}]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    return "\n".join(parts)
