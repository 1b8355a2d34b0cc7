"""Devices as people write them: TOML with [[device]], each with the state that it is to have. Pure.

    [[device]]
    tenant = "acme"
    device = "bus-1"
    region = "eu"
    state = "expected"

What a file does not name stays as it is. `device_file_changes` says what becomes of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import StrictBool, StringConstraints, ValidationError, model_validator

from waybill.identity.claims import check_factory_serial
from waybill.identity.names import Version, device_name
from waybill.identity.registry import DeviceEntry, DeviceState
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import (
    Settings,
    TomlLines,
    as_read,
    one_line,
    parse_toml,
    problem_text,
    toml_fault,
    without_consequences,
)

MAX_DEVICES_FILE_BYTES: Final = 4 << 20
MAX_DEVICES: Final = 10_000
"""Of all files of a command: what it publishes one by one within minutes."""
MAX_FILE_FAULTS: Final = 100
"""So many faults of a file are named."""
# of each device two brackets, and an equals sign and a comma for each key
_MAX_SIGNS: Final = 20 * MAX_DEVICES
_MAX_KEYS: Final = 20
# the publication says the file's reason as well
_MAX_REASON: Final = 400
# the longest path that a system has, and the reason
_MAX_LINE: Final = 5000
_TABLE: Final = "device"


class FileFault(StrEnum):
    """Why a file of devices is refused: the word in `--json`."""

    UNREADABLE = "unreadable"
    """The file cannot be read, or is no TOML."""
    WRONG_ENTRY = "wrong-entry"
    """A table is no device: a key or a value is wrong."""
    TOO_MANY = "too-many"
    """There are more devices, or files, than a command takes."""
    GIVEN_TWICE = "given-twice"
    """A device, or the factory serial of a new one, stands in the files twice."""
    NOT_BY_FILE = "not-by-file"
    """It is to be moved or replaced: each of these is one command for two devices."""
    NOT_KNOWN = "not-known"
    """The registry has no such device, and nothing makes one known that is to have this state."""
    NOT_TAKEN = "not-taken"
    """The registry has an entry of it that is not taken here, and may be elsewhere."""
    NO_WAY = "no-way"
    """No change leads there from the state that it has."""
    LOCKED_OUT = "locked-out"
    """It is suspended, and the file does not say of which suspension it is the end."""
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
        return one_line(f"{self.place}: {self.reason}", _MAX_LINE)


_Name = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]


class StatedDevice(Settings):
    """A device, and the state that it is to have.

    `region`: whose authority enrols it; needed where it is not known yet. `factory`: the serial in its factory
    certificate; without one who is expected gets a token. `by_hand`: it is new, and may connect without a claim.
    `resumes`: the version at which it was suspended, and is to be let in again.
    """

    tenant: _Name
    device: _Name
    state: DeviceState
    region: _Name | None = None
    factory: str | None = None
    # Not 1, "yes" or "on": whoever writes them may have meant something else.
    by_hand: StrictBool = False
    resumes: Version | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        device_name(self.tenant, self.device)
        if self.factory is not None:
            if self.state is not DeviceState.EXPECTED:
                raise ValueError('`factory` goes with state = "expected"')
            check_factory_serial(self.factory)
        if self.by_hand and self.state is not DeviceState.ACTIVE:
            raise ValueError('`by_hand` goes with state = "active"')
        if self.resumes is not None and self.state is not DeviceState.ACTIVE:
            raise ValueError('`resumes` goes with state = "active"')
        return self

    @property
    def name(self) -> str:
        """`tenant/device`."""
        return f"{self.tenant}/{self.device}"


class PlacedDevice(NamedTuple):
    """A device of a file, and where it stands."""

    place: str
    stated: StatedDevice


def devices_of_toml(text: str, file: str, room: int = MAX_DEVICES) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of a text and all that is wrong with it; `file` names it; `room`: so many devices may be in it."""
    try:
        tables = parse_toml(text, MAX_DEVICES_FILE_BYTES, max_signs=_MAX_SIGNS)
    except ValueError as error:
        at = toml_fault(text, error)
        return [], [DeviceFileFault(f"{file}{at.place}", FileFault.UNREADABLE, at.reason)]
    lines, found, faults = TomlLines(text), list[PlacedDevice](), list[DeviceFileFault]()
    for path, table in _entries(tables):
        line = lines.of(path)
        place = file if line is None else f"{file}:{line}"
        if isinstance(table, dict) and len(table) > _MAX_KEYS:
            # Not judged key by key: each would be one more fault of the same table.
            table = f"{_TABLE}: a device has at most {_MAX_KEYS} keys, and this one {len(table):,}"  # noqa: PLW2901
        if isinstance(table, str):
            faults.append(DeviceFileFault(place, FileFault.WRONG_ENTRY, table))
        elif len(found) >= room:
            why = f"the files of a command have at most {MAX_DEVICES:,} devices"
            faults.append(DeviceFileFault(place, FileFault.TOO_MANY, why))
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
            yield (kind,), f"{one_line(kind, 80)}: no such table; a file of devices has [[{_TABLE}]]"
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
    who = one_line("/".join(named), 80) if all(isinstance(one, str) for one in named) else ""  # type: ignore[arg-type]  # they are
    for detail in without_consequences(error.errors(include_url=False))[:MAX_FILE_FAULTS]:
        line = lines.of((*path, *detail["loc"]))
        reason = f"{who or _TABLE}: {problem_text(StatedDevice, detail, 'key')}"[:_MAX_REASON]
        yield DeviceFileFault(file if line is None else f"{file}:{line}", FileFault.WRONG_ENTRY, reason)


def given_twice(placed: Iterable[PlacedDevice]) -> Iterator[DeviceFileFault]:
    """A fault for each device that stood in the files before, also by a name that reads the same (`12`, `12.0`)."""
    first: dict[tuple[str, str], PlacedDevice] = {}
    for one in placed:
        other = first.setdefault((one.stated.tenant, as_read(one.stated.device)), one)
        if other is not one:
            name, known = one.stated.name, other.stated.name
            same = f"{name} is given twice" if name == known else f"{name} reads the same as {known}"
            yield DeviceFileFault(one.place, FileFault.GIVEN_TWICE, f"{same} ({other.place})")


def serials_given_twice(placed: Iterable[PlacedDevice], held: Mapping[str, str]) -> dict[str, DeviceFileFault]:
    """By its name a fault for each device whose factory serial one before it has, or one of `held` (serial -> whose).

    Whoever has that one certificate would enrol as each of them.
    """
    owners, found = dict(held), dict[str, DeviceFileFault]()
    for place, stated in placed:
        if stated.factory is None:
            continue
        if stated.factory in owners:
            reason = f"{stated.name}: the factory serial {stated.factory} is that of {owners[stated.factory]}"
            found[stated.name] = DeviceFileFault(place, FileFault.GIVEN_TWICE, reason)
        owners.setdefault(stated.factory, f"{stated.name} ({place})")
    return found


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
