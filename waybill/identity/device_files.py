"""Device files: TOML with [[device]], each with the state that the device is to have.

    [[device]]
    tenant = "acme"
    device = "bus-1"
    region = "eu"
    state = "expected"

Devices that a file does not name stay unchanged. What happens to a device that it names:

    in the file   unknown            expected   active    suspended    ended
    expected      expect             -          -         refused      refused
    active        with `by_hand`     refused    -         `resumes`    refused
    suspended     refused            suspend    suspend   -            refused
    revoked       refused            revoke     revoke    revoke       - if it is revoked

A device that was expected and is enrolled by now needs no change, so a file may be published again at any time. A file
resumes a device only with the version of that suspension: a file that was written before cannot undo it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, StrictBool, StringConstraints, model_validator

from waybill.identity.claims import check_factory_serial
from waybill.identity.errors import IdentityError
from waybill.identity.names import Version, device_name
from waybill.identity.operator_settings import OperatorSettings
from waybill.identity.registry import (
    ChangeRefused,
    Claim,
    DeviceChange,
    DeviceEntry,
    DeviceState,
    expect,
    resume,
    revoke,
    suspend,
    way_out,
)
from waybill.identity.registry_session import Make, RegistrySession
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import Settings, SettingsError, load

MAX_DEVICES: Final = 10_000
"""Of a file: one command publishes so many within minutes."""
MAX_FILE_FAULTS: Final = 100

_Name = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]


class StatedDevice(Settings):
    """A device, and the state that it is to have.

    `region`: whose authority enrols it; needed for a new device. `factory`: the serial in its factory certificate;
    an expected device without one gets a token. `by_hand`: a new device that may connect without a claim.
    `resumes`: the version at which it was suspended, if it is to be let in again.
    """

    tenant: _Name
    device: _Name
    state: DeviceState
    region: _Name | None = None
    factory: str | None = None
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
        return f"{self.tenant}/{self.device}"


class DeviceFile(Settings):
    device: Annotated[tuple[StatedDevice, ...], Field(min_length=1, max_length=MAX_DEVICES)]


def read_device_file(file: Path) -> tuple[StatedDevice, ...]:
    """The devices of a file, each name and factory serial once. Raises SettingsError."""
    stated = load(DeviceFile, file).device
    names = Counter(one.name for one in stated)
    # Whoever has the certificate with this serial could enrol as each of them.
    serials = Counter(f"the factory serial {one.factory}" for one in stated if one.factory is not None)
    if twice := [what for what, count in (names + serials).items() if count > 1]:
        raise SettingsError(str(file), [f"{what} is given twice" for what in twice[:MAX_FILE_FAULTS]])
    return stated


class PlannedChange(StrEnum):
    NOTHING = "nothing"
    EXPECT = "expect"
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
"""By the wanted state and the present state."""
_OF_REGISTRY: Final[dict[PlannedChange, Callable[[DeviceEntry, DeviceChange], DeviceEntry]]] = {
    PlannedChange.SUSPEND: suspend,
    PlannedChange.RESUME: resume,
    PlannedChange.REVOKE: revoke,
}


def planned(stated: StatedDevice, held: DeviceEntry | None) -> PlannedChange:
    """What is to be done so that a device is as stated. Raises ChangeRefused."""
    if held is None:
        # Only with `by_hand`: a typo in the name of a device to resume must not make a new one that may connect.
        if stated.state is not DeviceState.EXPECTED and not stated.by_hand:
            advice = 'write state = "expected", or `by_hand = true` beside state = "active", for a new one'
            raise _refused(stated, held, f"the registry has no such device: {advice}")
        if stated.region is None:
            raise _refused(stated, held, "it is new: name the region that enrols it by `region`")
        return PlannedChange.EXPECT
    if stated.region not in {None, held.region}:
        raise _refused(stated, held, f"the registry has it in region {held.region}, and a file does not change that")
    claim = None if held.claim is None else held.claim.id
    if held.state is DeviceState.EXPECTED and stated.factory not in {None, claim}:
        raise _refused(stated, held, "it is expected with another claim: see `waybill device expect --again`")
    what = _CHANGES[stated.state].get(held.state)
    if what is None:
        raise _refused(stated, held, f"a file cannot make it {stated.state}: it is {held.state}{way_out(held)}")
    if what is PlannedChange.RESUME and stated.resumes != held.version:
        by = f"it is suspended, version {held.version} by {held.changed_by}"
        raise _refused(stated, held, f"{by}: write `resumes = {held.version}` to let it in")
    return what


def _refused(stated: StatedDevice, held: DeviceEntry | None, why: str) -> ChangeRefused:
    return ChangeRefused(stated.name, None if held is None else held.state, "", why)


class FileChange(NamedTuple):
    """A device of a file, what is to be done with it, and its entry in the registry."""

    stated: StatedDevice
    what: PlannedChange
    held: DeviceEntry | None

    @property
    def is_change(self) -> bool:
        return self.what is not PlannedChange.NOTHING

    @property
    def needs_token(self) -> bool:
        return self.what is PlannedChange.EXPECT and self.stated.factory is None and not self.stated.by_hand

    def make(self, change: DeviceChange, claim: Claim | None) -> Make:
        """Makes the entry to publish at its turn, by the registry's entry then. `claim`: of an expected device."""

        def made(held: DeviceEntry | None) -> DeviceEntry | None:
            now = planned(self.stated, held)
            if now is PlannedChange.NOTHING:
                # Another command may have registered the device a moment before, with another token.
                is_ours = claim is None or (held is not None and held.claim is not None and held.claim.id == claim.id)
                if is_ours:
                    return None
            if now is not self.what:
                raise _refused(self.stated, held, "another command changed it meanwhile")
            if held is not None:
                return _OF_REGISTRY[now](held, change)
            stated = self.stated
            assert stated.region is not None
            return expect(stated.tenant, stated.device, region=stated.region, claim=claim, change=change)

        return made


def judged(
    stated: Collection[StatedDevice], registry: RegistrySession, settings: OperatorSettings
) -> tuple[list[FileChange], list[str]]:
    """What is to be done with each device, in the file's order, and what the registry or the settings do not allow."""
    changes, faults = list[FileChange](), list[str]()
    for one in stated:
        try:
            held = registry.get(one.name)
            if held is None and one.region is not None:
                settings.check_region(one.region)
            changes.append(FileChange(one, planned(one, held), held))
        except IdentityError as refused:
            faults.append(f"{one.name}: {refused}")
    return changes, faults


def change_lines(changes: Sequence[FileChange]) -> list[str]:
    """A line for each change, and one that counts the devices without a change."""
    lines = [
        f"{one.stated.name}: {one.what} ({'new' if one.held is None else one.held.state} -> {one.stated.state})"
        for one in changes
        if one.is_change
    ]
    return [*lines, f"{len(changes) - len(lines)} devices without a change"]
