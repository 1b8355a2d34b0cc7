"""What a file of devices asks of the registry: a change of each device, nothing, or a refusal. Pure.

    in the file   not known        expected   active    suspended   ended
    expected      expect           -          -         refused     refused
    active        by hand, if so   refused    -         resume, if so   refused
    suspended     refused          suspend    suspend   -           refused
    revoked       refused          revoke     revoke    revoke      - if it is revoked

The changes are those of `registry`, which has the last word. Who was expected and is enrolled by now is as the file
says: a file may be published again at any time. It resumes a device only by the version of the suspension that it ends:
one that was written before somebody locked the device out lets nobody in.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from waybill.identity.device_file import FileFault, StatedDevice
from waybill.identity.errors import IdentityError
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
)

_EXPECTED, _ACTIVE, _SUSPENDED, _REVOKED = (
    DeviceState.EXPECTED,
    DeviceState.ACTIVE,
    DeviceState.SUSPENDED,
    DeviceState.REVOKED,
)
_TRIAL: Final = DeviceChange(datetime(2026, 1, 1, tzinfo=UTC), "check", "check")
_COMMAND: Final = "a file has no such change: `waybill device {}`"


class PlannedChange(StrEnum):
    """What is to be done with a device."""

    NOTHING = "nothing"
    EXPECT = "expect"
    BY_HAND = "expect by hand"
    SUSPEND = "suspend"
    RESUME = "resume"
    REVOKE = "revoke"


class FileChange(NamedTuple):
    """A device of a file, what is to be done with it, and what the registry has; None: it is not known."""

    stated: StatedDevice
    what: PlannedChange
    held: DeviceEntry | None

    @property
    def needs_token(self) -> bool:
        """Whether a one-time token is to be made for it."""
        return self.what is PlannedChange.EXPECT and self.stated.factory is None

    @property
    def locks_out(self) -> bool:
        """Whether somebody has no session after it."""
        return self.what in {PlannedChange.SUSPEND, PlannedChange.REVOKE}


class FileChangeRefused(IdentityError):
    """What a file asks of a device leads nowhere from where that is."""

    def __init__(self, fault: FileFault, device: str, why: str) -> None:
        super().__init__(f"{device}: {why}")
        self.fault, self.device = fault, device


_CHANGES: Final[dict[tuple[DeviceState, DeviceState], PlannedChange]] = {
    (_EXPECTED, _EXPECTED): PlannedChange.NOTHING,
    (_EXPECTED, _ACTIVE): PlannedChange.NOTHING,
    (_ACTIVE, _ACTIVE): PlannedChange.NOTHING,
    (_ACTIVE, _SUSPENDED): PlannedChange.RESUME,
    (_SUSPENDED, _EXPECTED): PlannedChange.SUSPEND,
    (_SUSPENDED, _ACTIVE): PlannedChange.SUSPEND,
    (_SUSPENDED, _SUSPENDED): PlannedChange.NOTHING,
    (_REVOKED, _EXPECTED): PlannedChange.REVOKE,
    (_REVOKED, _ACTIVE): PlannedChange.REVOKE,
    (_REVOKED, _SUSPENDED): PlannedChange.REVOKE,
    (_REVOKED, _REVOKED): PlannedChange.NOTHING,
}
"""By the state that it is to have, and the one that it has."""
_OF_REGISTRY: Final[dict[PlannedChange, Callable[[DeviceEntry, DeviceChange], DeviceEntry]]] = {
    PlannedChange.SUSPEND: suspend,
    PlannedChange.RESUME: resume,
    PlannedChange.REVOKE: revoke,
}


def planned(stated: StatedDevice, held: DeviceEntry | None) -> FileChange:
    """What is to be done so that a device is as stated. Raises FileChangeRefused."""
    if stated.state in {DeviceState.MOVED, DeviceState.REPLACED}:
        command = "move" if stated.state is DeviceState.MOVED else "replace"
        raise FileChangeRefused(FileFault.NOT_BY_FILE, stated.name, _COMMAND.format(command))
    if held is None:
        return FileChange(stated, _beginning(stated), None)
    # Before its state: what the file says of another device must not change this one.
    _check_facts(stated, held)
    what = _CHANGES.get((stated.state, held.state))
    if what is None:
        raise FileChangeRefused(FileFault.NO_WAY, stated.name, _why_not(stated, held))
    if what is PlannedChange.RESUME and stated.resumes != held.version:
        raise FileChangeRefused(FileFault.LOCKED_OUT, stated.name, _how_to_resume(stated, held))
    if what in _OF_REGISTRY:
        # Tried, since the registry has the last word: a device may be at its last version.
        try:
            _OF_REGISTRY[what](held, _TRIAL)
        except ChangeRefused as refused:
            raise FileChangeRefused(FileFault.NO_WAY, stated.name, str(refused)) from refused
    return FileChange(stated, what, held)


def made_entry(asked: FileChange, change: DeviceChange, claim: Claim | None = None) -> DeviceEntry:
    """The entry to publish; `claim`: of who is expected. Raises ChangeRefused. Not for who stays as it is."""
    stated, what, held = asked
    assert what is not PlannedChange.NOTHING, "who stays as it is has no new entry"
    if what in _OF_REGISTRY:
        assert held is not None, "only one that is known is changed"
        return _OF_REGISTRY[what](held, change)
    assert stated.region is not None, "one that is not known has a region"
    assert (claim is None) == (what is PlannedChange.BY_HAND), "who is expected has a claim"
    return expect(stated.tenant, stated.device, region=stated.region, claim=claim, change=change)


def _beginning(stated: StatedDevice) -> PlannedChange:
    if stated.state is DeviceState.EXPECTED:
        what = PlannedChange.EXPECT
    # By its own word alone: with a slip of the pen in a name a resumed device would become one that may connect.
    elif stated.by_hand:
        what = PlannedChange.BY_HAND
    else:
        advice = 'write state = "expected", or `by_hand = true` beside state = "active", for a new one'
        why = f"the registry has no such device, so it cannot be {stated.state}: {advice}"
        raise FileChangeRefused(FileFault.NOT_KNOWN, stated.name, why)
    if stated.region is None:
        raise FileChangeRefused(FileFault.NOT_KNOWN, stated.name, "it is new: say by its `region` who enrols it")
    return what


def _check_facts(stated: StatedDevice, held: DeviceEntry) -> None:
    if stated.region not in {None, held.region}:
        why = f"the registry has it in region {held.region}, and a file gives it no other"
        raise FileChangeRefused(FileFault.OTHER_FACTS, stated.name, why)
    claim = None if held.claim is None else held.claim.id
    # What an enrolled device once showed does not matter any more.
    if held.state is _EXPECTED and stated.factory is not None and stated.factory != claim:
        why = f"it is expected with the claim {claim}: `waybill device expect --again` gives it another one"
        raise FileChangeRefused(FileFault.OTHER_FACTS, stated.name, why)


def _how_to_resume(stated: StatedDevice, held: DeviceEntry) -> str:
    # Not the reason: it may be as long as the whole message.
    by = f"it is suspended, version {held.version} by {held.changed_by}"
    if stated.resumes is None:
        why = 'and by state = "active" alone a file lets nobody in again'
    else:
        why = f"and the file ends the suspension of version {stated.resumes}"
    return f'{by}, {why}: write state = "suspended", or `resumes = {held.version}` to let it in'


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
