"""Files of devices held against the registry, as it is read: what is to be done with each, and each fault's place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from waybill.daemon.bounded_file import read_bounded
from waybill.identity.device_file import (
    MAX_DEVICES,
    MAX_DEVICES_FILE_BYTES,
    MAX_FILE_FAULTS,
    DeviceFileFault,
    FileFault,
    PlacedDevice,
    devices_of_toml,
    given_twice,
    serials_given_twice,
)
from waybill.identity.device_file_changes import (
    FileChange,
    FileChangeRefused,
    PlannedChange,
    made_entry,
    planned,
)
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_settings import NotInSettings, OperatorSettings
from waybill.identity.registry import ChangeRefused, Claim, DeviceChange, DeviceEntry, DeviceState
from waybill.identity.standing_change import AsItIs
from waybill.identity.token_files import TokenFiles
from waybill.settings import file_fault, printable


class Registry(Protocol):
    """What is asked of the registry: a session has it."""

    def get(self, name: str) -> DeviceEntry | None:
        """The entry of a device; None: it is not known."""

    def nearest(self, name: str) -> str:
        """Which device may be meant by a name that is not known; "": none."""

    def not_taken(self, name: str) -> str:
        """Why the entry of a device that is not known here is not taken; "": there is none."""

    def refusal(self, entry: DeviceEntry) -> SignatureRefused | None:
        """Why nobody would take an entry from this key."""


class JudgedDevice(NamedTuple):
    """A device of a file, where it stands, and what is to be done with it."""

    place: str
    change: FileChange


class Beginnings(NamedTuple):
    """Where new devices' tokens are written (None: nowhere), and how long they are good."""

    tokens: TokenFiles | None
    life: timedelta


def read_device_files(files: Collection[Path]) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of files, and all that is wrong with them by itself."""
    placed, faults, left = list[PlacedDevice](), list[DeviceFileFault](), MAX_DEVICES_FILE_BYTES
    for file in files:
        # A name may have any characters, and is shown to people.
        name = printable(str(file))
        if len(faults) >= MAX_FILE_FAULTS:
            break
        try:
            # However many files there are: what is read of all is bounded as one is.
            content = read_bounded(file, left)
            left -= len(content)
            text = content.decode("utf-8-sig")
        except (OSError, ValueError) as error:
            faults.append(DeviceFileFault(name, FileFault.UNREADABLE, f"cannot be read: {file_fault(error)}"))
            continue
        found, wrong = devices_of_toml(text, name, MAX_DEVICES - len(placed))
        placed += found
        faults += wrong
        if not found and not wrong:
            # What was to be written and is empty would change nothing, and be called right.
            faults.append(DeviceFileFault(name, FileFault.UNREADABLE, "no device is in it"))
    return placed, [*faults, *islice(given_twice(placed), MAX_FILE_FAULTS)][:MAX_FILE_FAULTS]


def judged(
    placed: Collection[PlacedDevice], registry: Registry, settings: OperatorSettings
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
            change = planned(stated, held)
            # Of a known device they are what they are, whether these settings name them or not.
            if change.held is None and stated.region is not None:
                settings.check_tenant(stated.tenant)
                settings.check_region(stated.region)
        except FileChangeRefused as refused:
            near = registry.nearest(stated.name) if refused.fault is FileFault.NOT_KNOWN else ""
            reason = f"{refused}{f'; did you mean {near}?' if near else ''}"
            faults.append(DeviceFileFault(place, refused.fault, reason))
        except NotInSettings as refused:
            faults.append(DeviceFileFault(place, FileFault.NOT_IN_SETTINGS, f"{stated.name}: {refused}"))
        else:
            found.append(JudgedDevice(place, change))
    return _without_serials_twice(found, faults)


def _without_serials_twice(
    found: list[JudgedDevice], faults: list[DeviceFileFault]
) -> tuple[list[JudgedDevice], list[DeviceFileFault]]:
    # Of new ones alone: two that the registry has already are as they are.
    new = [PlacedDevice(one.place, one.change.stated) for one in found if one.change.what is PlannedChange.EXPECT]
    known = (one.change.held for one in found if one.change.held is not None)
    held = {one.claim.id: one.name for one in known if one.claim is not None and one.state is DeviceState.EXPECTED}
    twice = serials_given_twice(new, held)
    left = [one for one in found if one.change.stated.name not in twice]
    return left, [*faults, *twice.values()][:MAX_FILE_FAULTS]


def entries_of(
    asked: Iterable[JudgedDevice], registry: Registry, change: DeviceChange, beginnings: Beginnings
) -> tuple[list[DeviceEntry], list[DeviceFileFault]]:
    """The entries to publish, in the files' order, for which tokens are written; and why some cannot be."""
    made, faults = list[DeviceEntry](), list[DeviceFileFault]()
    for place, one in asked:
        if len(faults) >= MAX_FILE_FAULTS:
            break
        name = one.stated.name
        try:
            entry = made_entry(one, change, _claim(one, change, beginnings))
        except FileChangeRefused as refused:
            faults.append(DeviceFileFault(place, refused.fault, str(refused)))
        except ChangeRefused as refused:
            faults.append(DeviceFileFault(place, FileFault.NO_WAY, str(refused)))
        else:
            # Asked for each, or a key without a right would be named without a place.
            made.append(entry)
            if no_right := registry.refusal(entry):
                faults.append(DeviceFileFault(place, FileFault.NO_RIGHT, f"{name}: {no_right}"))
    return made, faults


class Turns:
    """Makes each entry again at its turn, from what the registry has then; `judged`: the devices as they were judged.

    Raises FileChangeRefused, by its name, for a device that is no more where it was when the files were judged.
    """

    def __init__(self, judged: Iterable[JudgedDevice], change: DeviceChange, entries: Iterable[DeviceEntry]) -> None:
        self._judged, self._change = {one.change.stated.name: one.change for one in judged}, change
        new = (one for one in entries if self._judged[one.name].held is None)
        self._claims = {one.name: one.claim for one in new if one.claim is not None}

    def is_so(self, name: str, held: DeviceEntry) -> bool:
        """Whether a device is as the file says, and one that is made known here shows the claim that it gets here."""
        try:
            now = planned(self._judged[name].stated, held)
        except FileChangeRefused:
            return False
        if now.what is not PlannedChange.NOTHING:
            return False
        # By its id: who published the same token a moment before dated its end otherwise.
        claim = self._claims.get(name)
        return claim is None or (held.claim is not None and held.claim.id == claim.id)

    def entry(self, name: str, held: DeviceEntry | None) -> DeviceEntry:
        """The entry of a device of which the registry has `held` now."""
        before = self._judged[name]
        if held is not None and self.is_so(name, held):
            raise AsItIs(name)
        now = planned(before.stated, held)
        if now.what is not before.what:
            state = "gone" if held is None else f"{held.state}, version {held.version} by {held.changed_by}"
            raise FileChangeRefused(FileFault.NO_WAY, name, f"it changed meanwhile, and is {state}")
        return made_entry(now, self._change, self._claims.get(name) if held is None else None)


def _claim(one: FileChange, change: DeviceChange, beginnings: Beginnings) -> Claim | None:
    """Of who is expected; else None."""
    if not one.needs_token:
        return None if one.stated.factory is None else Claim(id=one.stated.factory)
    if beginnings.tokens is None:
        why = "it gets a one-time token: say by --tokens FOLDER where that is written"
        raise FileChangeRefused(FileFault.NO_TOKEN, one.stated.name, why)
    return beginnings.tokens.claim(one.stated.name, change.at + beginnings.life)
