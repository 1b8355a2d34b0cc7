"""Devices as people write them: TOML with [[device]], each with the state that it is to have.

    [[device]]
    tenant = "acme"
    device = "bus-1"
    region = "eu"
    state = "expected"

What a file does not name stays as it is. What becomes of a device that it names:

    in the file   not known        expected   active    suspended   ended
    expected      expect           -          -         refused     refused
    active        by hand, if so   refused    -         resume, if so   refused
    suspended     refused          suspend    suspend   -           refused
    revoked       refused          revoke     revoke    revoke      - if it is revoked

A device that was expected and is enrolled by now is as the file says: a file may be published again at any time. A file
resumes a device only by the version of the suspension that it ends: one that was written before somebody locked the
device out lets nobody in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import StrictBool, StringConstraints, ValidationError, model_validator

from waybill.daemon.bounded_file import read_bounded
from waybill.identity.claims import check_factory_serial
from waybill.identity.errors import IdentityError
from waybill.identity.names import Version, device_name
from waybill.identity.operator_settings import NotInSettings, OperatorSettings
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, DeviceState, expect, resume, revoke, suspend
from waybill.identity.registry_session import Make, RegistrySession
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import (
    Settings,
    TomlLines,
    file_fault,
    one_line,
    parse_toml,
    printable,
    problem_text,
    toml_fault,
    without_consequences,
)

MAX_DEVICES_FILE_BYTES: Final = 4 << 20
MAX_DEVICES: Final = 10_000
"""Of all files of a command: what it publishes one by one within minutes."""
MAX_FILE_FAULTS: Final = 100
"""So many faults of files are named."""
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


class FileChangeRefused(IdentityError):
    """What a file asks of a device leads nowhere from where that is."""

    def __init__(self, fault: FileFault, device: str, why: str) -> None:
        super().__init__(f"{device}: {why}")
        self.fault = fault


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
            check_factory_serial(self.factory)
        given = (("factory", self.factory, "expected"), ("by_hand", self.by_hand, "active"))
        for key, value, state in (*given, ("resumes", self.resumes, "active")):
            if value and self.state != state:
                raise ValueError(f'`{key}` goes with state = "{state}"')
        return self

    @property
    def name(self) -> str:
        """`tenant/device`."""
        return f"{self.tenant}/{self.device}"


class PlacedDevice(NamedTuple):
    """A device of a file, and where it stands."""

    place: str
    stated: StatedDevice


def read_device_files(files: Collection[Path]) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of files, and all that is wrong with them by itself."""
    placed, faults, left = list[PlacedDevice](), list[DeviceFileFault](), MAX_DEVICES_FILE_BYTES
    for file in files:
        # A name may have any characters, and is shown to people.
        name = printable(str(file))
        try:
            # However many files there are: what is read of all is bounded as one is.
            content = read_bounded(file, left)
            left -= len(content)
            found, wrong = devices_of_toml(content.decode("utf-8-sig"), name, MAX_DEVICES - len(placed))
        except (OSError, ValueError) as error:
            faults.append(DeviceFileFault(name, FileFault.UNREADABLE, f"cannot be read: {file_fault(error)}"))
            continue
        placed, faults = placed + found, faults + wrong
        if not found and not wrong:
            # What was to be written and is empty would change nothing, and be called right.
            faults.append(DeviceFileFault(name, FileFault.UNREADABLE, "no device is in it"))
    first: dict[str, str] = {}
    for place, stated in placed:
        if stated.name in first:
            reason = f"{stated.name} is given twice ({first[stated.name]})"
            faults.append(DeviceFileFault(place, FileFault.GIVEN_TWICE, reason))
        first.setdefault(stated.name, place)
    return placed, faults[:MAX_FILE_FAULTS]


def devices_of_toml(text: str, file: str, room: int = MAX_DEVICES) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of a text and all that is wrong with it; `file` names it; `room`: so many devices may be in it."""
    try:
        tables = parse_toml(text, MAX_DEVICES_FILE_BYTES, max_signs=_MAX_SIGNS)
    except ValueError as error:
        at = toml_fault(text, error)
        return [], [DeviceFileFault(f"{file}{at.place}", FileFault.UNREADABLE, at.reason)]
    lines, found, faults = TomlLines(text), list[PlacedDevice](), list[DeviceFileFault]()

    def place(path: tuple[str | int, ...]) -> str:
        line = lines.of(path)
        return file if line is None else f"{file}:{line}"

    for path, table in _entries(tables):
        if isinstance(table, str):
            faults.append(DeviceFileFault(place(path), FileFault.WRONG_ENTRY, table))
        elif len(found) >= room:
            why = f"the files of a command have at most {MAX_DEVICES:,} devices"
            faults.append(DeviceFileFault(place(path), FileFault.TOO_MANY, why))
            break
        else:
            try:
                found.append(PlacedDevice(place(path), StatedDevice.model_validate(table)))
            except ValidationError as error:
                named = [table.get(key) for key in ("tenant", "device")]
                who = one_line("/".join(map(str, named)), 80) if all(named) else _TABLE
                for detail in without_consequences(error.errors(include_url=False)):
                    reason = f"{who}: {problem_text(StatedDevice, detail, 'key')}"[:_MAX_REASON]
                    faults.append(DeviceFileFault(place((*path, *detail["loc"])), FileFault.WRONG_ENTRY, reason))
        # One by one: to look for the nearest right word of each of a million faults would take long.
        if len(faults) >= MAX_FILE_FAULTS:
            break
    return found, faults[:MAX_FILE_FAULTS]


def _entries(tables: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any] | str]]:
    """Place and table of each device; a text instead of a table says what is wrong."""
    # A fault of the file's own form comes once, not once for each device.
    for kind, given in tables.items():
        if kind != _TABLE:
            yield (kind,), f"{one_line(kind, 80)}: no such table; a file of devices has [[{_TABLE}]]"
        elif not isinstance(given, list):
            yield (kind,), f"{kind}: is one table, and a list of them is needed: write [[{_TABLE}]]"
        else:
            for number, one in enumerate(given):
                fault = "" if isinstance(one, dict) else f"{kind}: a table is needed: write [[{_TABLE}]]"
                # Not judged key by key: each would be one more fault of the same table.
                if not fault and len(one) > _MAX_KEYS:
                    fault = f"{kind}: a device has at most {_MAX_KEYS} keys, and this one {len(one):,}"
                yield (kind, number), fault or one


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


# Changes that a device file asks for.


class PlannedChange(StrEnum):
    """What is to be done with a device."""

    NOTHING = "nothing"
    EXPECT = "expect"
    BY_HAND = "expect by hand"
    SUSPEND = "suspend"
    RESUME = "resume"
    REVOKE = "revoke"


_CHANGES: Final[dict[str, dict[str, PlannedChange]]] = {
    "expected": {"expected": PlannedChange.NOTHING, "active": PlannedChange.NOTHING},
    "active": {"active": PlannedChange.NOTHING, "suspended": PlannedChange.RESUME},
    "suspended": {
        "expected": PlannedChange.SUSPEND,
        "active": PlannedChange.SUSPEND,
        "suspended": PlannedChange.NOTHING,
    },
    "revoked": {
        "expected": PlannedChange.REVOKE,
        "active": PlannedChange.REVOKE,
        "suspended": PlannedChange.REVOKE,
        "revoked": PlannedChange.NOTHING,
    },
}
"""By the state that it is to have, and the one that it has."""
_OF_REGISTRY: Final[dict[PlannedChange, Callable[[DeviceEntry, DeviceChange], DeviceEntry]]] = {
    PlannedChange.SUSPEND: suspend,
    PlannedChange.RESUME: resume,
    PlannedChange.REVOKE: revoke,
}


def planned(stated: StatedDevice, held: DeviceEntry | None) -> PlannedChange:
    """What is to be done so that a device is as stated. Raises FileChangeRefused."""
    if stated.state in {DeviceState.MOVED, DeviceState.REPLACED}:
        command = "move" if stated.state is DeviceState.MOVED else "replace"
        raise FileChangeRefused(
            FileFault.NOT_BY_FILE, stated.name, f"a file has no such change: `waybill device {command}`"
        )
    if held is None:
        return _beginning(stated)
    # Before its state: what the file says of another device must not change this one.
    _check_facts(stated, held)
    what = _CHANGES[stated.state].get(held.state)
    if what is None:
        raise FileChangeRefused(FileFault.NO_WAY, stated.name, _why_not(stated, held))
    if what is PlannedChange.RESUME and stated.resumes != held.version:
        # Not the reason: it may be as long as the whole message.
        by = f"it is suspended, version {held.version} by {held.changed_by}"
        why = 'by state = "active" alone a file lets nobody in again'
        if stated.resumes is not None:
            why = f"the file ends the suspension of version {stated.resumes}"
        advice = f'write state = "suspended", or `resumes = {held.version}` to let it in'
        raise FileChangeRefused(FileFault.LOCKED_OUT, stated.name, f"{by}, and {why}: {advice}")
    return what


def _beginning(stated: StatedDevice) -> PlannedChange:
    # By its own word alone: with a slip of the pen in a name a resumed device would become one that may connect.
    if stated.state is not DeviceState.EXPECTED and not stated.by_hand:
        advice = 'write state = "expected", or `by_hand = true` beside state = "active", for a new one'
        why = f"the registry has no such device, so it cannot be {stated.state}: {advice}"
        raise FileChangeRefused(FileFault.NOT_KNOWN, stated.name, why)
    if stated.region is None:
        raise FileChangeRefused(FileFault.NOT_KNOWN, stated.name, "it is new: say by its `region` who enrols it")
    return PlannedChange.BY_HAND if stated.by_hand else PlannedChange.EXPECT


def _check_facts(stated: StatedDevice, held: DeviceEntry) -> None:
    claim, why = None if held.claim is None else held.claim.id, ""
    if stated.region not in {None, held.region}:
        why = f"the registry has it in region {held.region}, and a file gives it no other"
    # What an enrolled device once showed does not matter any more.
    elif held.state is DeviceState.EXPECTED and stated.factory not in {None, claim}:
        why = f"it is expected with the claim {claim}: `waybill device expect --again` gives it another one"
    if why:
        raise FileChangeRefused(FileFault.OTHER_FACTS, stated.name, why)


def _why_not(stated: StatedDevice, held: DeviceEntry) -> str:
    to = f"it is {held.state}, and cannot be {stated.state} by a file"
    match held.state:
        case DeviceState.EXPECTED:
            return f"{to}: it enrols with its claim"
        case DeviceState.SUSPENDED:
            return f'{to}: write state = "active" and `resumes = {held.version}` to resume it'
        case _ if held.successor:
            return f"{to}: its name has ended, and it goes on as {held.successor}"
        case _:
            return f"{to}: its name has ended, and a name is used once"


class JudgedDevice(NamedTuple):
    """A device of a file, where it stands, what is to be done with it, and what the registry has; None: nothing."""

    place: str
    stated: StatedDevice
    what: PlannedChange
    held: DeviceEntry | None

    @property
    def is_change(self) -> bool:
        """Whether anything is to be done with it."""
        return self.what is not PlannedChange.NOTHING

    @property
    def needs_token(self) -> bool:
        """Whether a one-time token is to be made for it."""
        return self.what is PlannedChange.EXPECT and self.stated.factory is None

    def make(self, change: DeviceChange, claim: Claim | None) -> Make:
        """The entry to publish at its turn, by what the registry has then; `claim`: of one that is expected."""

        def made(held: DeviceEntry | None) -> DeviceEntry | None:
            now = planned(self.stated, held)
            if now is PlannedChange.NOTHING:
                # By its id: one that another command made known a moment before may have another token.
                is_ours = claim is None or (held is not None and held.claim is not None and held.claim.id == claim.id)
                if is_ours:
                    return None
            if now is not self.what:
                state = "gone" if held is None else f"{held.state}, version {held.version} by {held.changed_by}"
                raise FileChangeRefused(FileFault.NO_WAY, self.stated.name, f"it changed meanwhile, and is {state}")
            if held is not None:
                return _OF_REGISTRY[now](held, change)
            assert self.stated.region is not None, "one that is not known has a region"
            tenant, device, region = self.stated.tenant, self.stated.device, self.stated.region
            return expect(tenant, device, region=region, claim=claim, change=change)

        return made


def judged(
    placed: Collection[PlacedDevice], registry: RegistrySession, settings: OperatorSettings
) -> tuple[list[JudgedDevice], list[DeviceFileFault]]:
    """What is to be done with each device, in the files' order, and what the registry or the settings do not allow.

    Each device has its change or its fault; after MAX_FILE_FAULTS the rest is not looked at.
    """
    # A list: two devices may stand on one line, so a place is no key.
    found, faults = list[JudgedDevice](), list[DeviceFileFault]()
    for place, stated in placed:
        if len(faults) >= MAX_FILE_FAULTS:
            break
        try:
            held = registry.get(stated.name)
            if held is None and (why := registry.not_taken(stated.name)):
                raise FileChangeRefused(FileFault.NOT_TAKEN, stated.name, why)
            what = planned(stated, held)
            # Of a known device they are what they are, whether these settings name them or not.
            if held is None and stated.region is not None:
                settings.check_region(stated.region)
        except FileChangeRefused as refused:
            near = registry.nearest(stated.name) if refused.fault is FileFault.NOT_KNOWN else ""
            reason = f"{refused}{f'; did you mean {near}?' if near else ''}"
            faults.append(DeviceFileFault(place, refused.fault, reason))
        except NotInSettings as refused:
            faults.append(DeviceFileFault(place, FileFault.NOT_IN_SETTINGS, f"{stated.name}: {refused}"))
        else:
            found.append(JudgedDevice(place, stated, what, held))
    # Of new ones alone: two that the registry has already are as they are.
    new = [PlacedDevice(one.place, one.stated) for one in found if one.what is PlannedChange.EXPECT]
    known = (one.held for one in found if one.held is not None and one.held.state is DeviceState.EXPECTED)
    twice = serials_given_twice(new, {one.claim.id: one.name for one in known if one.claim is not None})
    return [one for one in found if one.stated.name not in twice], [*faults, *twice.values()][:MAX_FILE_FAULTS]
