"""One-time tokens of many devices, each in its file: FOLDER/TENANT/DEVICE.token."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from waybill.identity.claims import EnrolmentToken, make_token
from waybill.identity.device_file import FileFault
from waybill.identity.device_file_changes import FileChangeRefused
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim, DeviceEntry, first_fault
from waybill.identity.token_file import check_own, create_token_file, remove_token_file, take_token_file
from waybill.settings import file_fault

__all__ = ["TokenFiles"]

_TRIES: Final = 10


class TokenFiles:
    """Makes tokens. One whose file is there already is taken again: a command that was killed may be given again.

    That is safe for a device that the registry does not know: its token was never published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Path, EnrolmentToken]] = {}
        self._names: dict[str, str] = {}

    def note(self, entries: Iterable[DeviceEntry]) -> None:
        """These devices have their claims: no other one gets one of these."""
        for entry in entries:
            if entry.claim is not None:
                self._names.setdefault(entry.claim.id, entry.name)

    def opens(self, entry: DeviceEntry | None) -> bool:
        """Whether a token that is in a file here is the claim of a device, by what the registry has of it."""
        return entry is not None and entry.claim is not None and self._names.get(entry.claim.id) == entry.name

    def claim(self, name: str, until: datetime) -> Claim:
        """The claim of a device, by a token that is in its file then. Raises FileChangeRefused."""
        file = self._folder / f"{name}.token"
        try:
            token = self._token(name, file)
            # A file that was copied: its one token would enrol both.
            if self._names.setdefault(token.id, name) != name:
                raise NameRefused(f"it is the token of {self._names[token.id]}")
            return Claim(id=token.id, password_hash=token.password_hash, until=until)
        except OSError as error:
            why = f"its token cannot be written to {file}: {file_fault(error)}"
        except NameRefused as error:
            why = f"no token can be kept in {file}: {error}"
        except ValidationError as error:
            why = first_fault(error)
        raise FileChangeRefused(FileFault.NO_TOKEN, name, why)

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Takes away what was made here for these devices (None: all): never published, it opens nothing.

        What another command took meanwhile stays: it may be published.
        """
        for name in self._made if names is None else self._made.keys() & {*names}:
            remove_token_file(*self._made[name])

    def _token(self, name: str, file: Path) -> EnrolmentToken:
        token = make_token()
        # Others on this machine are not even to see whose tokens there are, nor to put their own in their place.
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, file.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
            check_own(folder, folder.stat(), stat.S_IWGRP | stat.S_IWOTH)
        for _ in range(_TRIES):
            if create_token_file(file, token):
                self._made[name] = file, token
                return token
            # Never overwritten: by another use of the folder it may have been handed out.
            with suppress(FileNotFoundError):  # removed meanwhile by the command that made it
                return take_token_file(file)
        raise NameRefused("other commands make it and remove it again")
