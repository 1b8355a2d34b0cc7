"""One-time tokens of many devices, each in its file: FOLDER/TENANT/DEVICE.token."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from waybill.daemon.durable_file import alone_in, create_durably
from waybill.identity.claims import EnrolmentToken, make_token, read_token
from waybill.identity.device_file import FileFault
from waybill.identity.device_file_changes import FileChangeRefused
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim, DeviceEntry, first_fault
from waybill.settings import file_fault

# The file of one one-time token: its mode says whether the command that made it may remove it again.

_MAX_BYTES: Final = 1 << 10
_MADE: Final = 0o600
_TAKEN: Final = 0o400


def create_token_file(file: Path, token: EnrolmentToken) -> bool:
    """Whether the token is in its new file; False: there is something already, which stays. Raises OSError."""
    return create_durably(file, _content(token), mode=_MADE)


def take_token_file(file: Path) -> EnrolmentToken:
    """The token of a file that another command made, which does not remove it from now on.

    Raises OSError, and NameRefused for what is no token, or may have been put there by somebody else.
    """
    with alone_in(file.parent):
        # No link is followed, and a pipe is not waited for: who put one there chooses what we would publish.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NameRefused("it is no file")
            check_own(file, found, stat.S_IRWXG | stat.S_IRWXO)
            token = read_token(os.read(descriptor, _MAX_BYTES).decode().removesuffix("\n"))
            os.fchmod(descriptor, _TAKEN)
            return token
        except UnicodeDecodeError as error:
            raise NameRefused(str(error)) from error
        finally:
            os.close(descriptor)


def remove_token_file(file: Path, token: EnrolmentToken) -> None:
    """Removes the file of a token that was made here and never published, unless another command took it meanwhile.

    One that cannot be removed stays: it opens nothing.
    """
    with contextlib.suppress(OSError), alone_in(file.parent):
        found = file.lstat()
        is_as_made = stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IWUSR
        if is_as_made and found.st_size == len(_content(token)) and file.read_bytes() == _content(token):
            file.unlink()


def check_own(path: Path, found: os.stat_result, forbidden: int) -> None:
    """Raises NameRefused for what another user has, or may use in a way that is forbidden."""
    if found.st_uid != os.geteuid():
        raise NameRefused(f"{path} belongs to another user")
    if found.st_mode & forbidden:
        raise NameRefused(f"others may use {path}, by its mode {stat.S_IMODE(found.st_mode):03o}: chmod go= it")


def _content(token: EnrolmentToken) -> bytes:
    return token.text.get_secret_value().encode() + b"\n"


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
