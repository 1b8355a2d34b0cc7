"""Files of devices held against the registry, as it is read: what is to be done with each, and each fault's place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from identity.device_file import (
    MAX_DEVICES_FILE_BYTES,
    DeviceFileFault,
    FileFault,
    PlacedDevice,
    devices_of_toml,
    given_twice,
)
from identity.device_file_changes import FileChange, FileChangeRefused, made_entry, planned
from identity.errors import SignatureRefused
from identity.operator_settings import NotInSettings, OperatorSettings
from identity.registry import ChangeRefused, Claim, DeviceChange, DeviceEntry
from identity.token_files import TokenFiles
from runtime import read_bounded
from settings import file_fault

__all__ = ["Beginnings", "Registry", "entries_of", "judged", "read_device_files"]


class Registry(Protocol):
    """What is asked of the registry: a session has it."""

    def get(self, name: str) -> DeviceEntry | None:
        """The entry of a device; None: it is not known."""

    def nearest(self, name: str) -> str:
        """Which device may be meant by a name that is not known; "": none."""

    def refusal(self, entry: DeviceEntry) -> SignatureRefused | None:
        """Why nobody would take an entry from this key."""


class Beginnings(NamedTuple):
    """Where new devices' tokens are written (None: nowhere), and how long they are good."""

    tokens: TokenFiles | None
    life: timedelta


def read_device_files(files: Iterable[Path]) -> tuple[list[PlacedDevice], list[DeviceFileFault]]:
    """The devices of files, and all that is wrong with them by itself."""
    placed, faults = list[PlacedDevice](), list[DeviceFileFault]()
    for file in files:
        try:
            text = read_bounded(file, MAX_DEVICES_FILE_BYTES).decode("utf-8-sig")
        except (OSError, ValueError) as error:
            why = file_fault(error) if isinstance(error, OSError) else str(error)
            faults.append(DeviceFileFault(str(file), FileFault.UNREADABLE, f"cannot be read: {why}"))
            continue
        found, wrong = devices_of_toml(text, str(file))
        placed += found
        faults += wrong
    return placed, [*faults, *given_twice(placed)]


def judged(
    placed: Collection[PlacedDevice], registry: Registry, settings: OperatorSettings
) -> tuple[dict[str, FileChange], list[DeviceFileFault]]:
    """What is to be done with each device, by its place, and what the registry or the settings do not allow."""
    found, faults = dict[str, FileChange](), list[DeviceFileFault]()
    for place, stated in placed:
        try:
            change = planned(stated, registry.get(stated.name))
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
            found[place] = change
    return found, faults


def entries_of(
    asked: Mapping[str, FileChange], registry: Registry, change: DeviceChange, beginnings: Beginnings
) -> tuple[list[DeviceEntry], list[DeviceFileFault]]:
    """The entries to publish, in the files' order, for which tokens are written; and why some cannot be."""
    made, faults = list[DeviceEntry](), list[DeviceFileFault]()
    for place, one in asked.items():
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


def _claim(one: FileChange, change: DeviceChange, beginnings: Beginnings) -> Claim | None:
    """Of who is expected; else None."""
    if not one.needs_token:
        return None if one.stated.factory is None else Claim(id=one.stated.factory)
    if beginnings.tokens is None:
        why = "it gets a one-time token: say by --tokens FOLDER where that is written"
        raise FileChangeRefused(FileFault.NO_TOKEN, one.stated.name, why)
    return beginnings.tokens.claim(one.stated.name, change.at + beginnings.life)
