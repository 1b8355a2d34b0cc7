"""One-time tokens and their files: a token for each new device, which goes to the device and nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from pydantic import ValidationError

from waybill.daemon.durable_file import create_durably
from waybill.identity.claims import EnrolmentToken, check_factory_serial, make_token, read_token
from waybill.identity.command_session import EXIT_ARGUMENTS, EXIT_REFUSED
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim, DeviceEntry, first_fault
from waybill.settings import file_fault, read_file

_NOT_PUBLISHED = (EXIT_ARGUMENTS, EXIT_REFUSED, os.EX_CONFIG)
_SECRET = 0o600


@contextmanager
def claim_option(token_file: Path | None, factory: str | None, *, by_hand: bool, days: float) -> Iterator[Claim | None]:
    """The claim of a command's options; None: by hand. A token is written to its new file. Raises typer.BadParameter.

    Where the command is refused inside, that file does not stay: a token that was never published opens nothing.
    """
    if (token_file is not None) + (factory is not None) + by_hand != 1:
        raise typer.BadParameter("say one of --token-file, --factory and --by-hand: how it gets its certificate")
    try:
        if factory is not None:
            check_factory_serial(factory)
        claim = None if factory is None else Claim(id=factory)
        token = make_token()
        if token_file is not None:
            claim = _claim(token, datetime.now(UTC) + timedelta(days=days))
            # A new file: a token that was handed out already must not be overwritten unseen.
            if not create_durably(token_file, _content(token), mode=_SECRET):
                raise NameRefused(f"{token_file} is there already: a token is written to a new file")
    except OSError as error:
        raise typer.BadParameter(f"--token-file {token_file} cannot be written: {file_fault(error)}") from error
    except (NameRefused, OverflowError, ValidationError) as error:
        raise typer.BadParameter(first_fault(error) if isinstance(error, ValidationError) else str(error)) from error
    try:
        yield claim
    except (typer.Exit, typer.BadParameter) as ended:
        # Of what could not be reached nobody knows whether it was published.
        if token_file is not None and ended.exit_code in _NOT_PUBLISHED:
            _remove(token_file, token)
        raise


class TokenFiles:
    """Tokens of many devices, each in its file FOLDER/TENANT/DEVICE.token.

    One whose file is there already is used again: a command that was killed may be given again. That is safe for a
    device that the registry does not know: its token was never published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Path, EnrolmentToken]] = {}
        self._owners: dict[str, str] = {}

    def add_known(self, entries: Iterable[DeviceEntry]) -> None:
        """These devices have their claims: no other one gets one of these."""
        self._owners |= {entry.claim.id: entry.name for entry in entries if entry.claim is not None}

    def claim(self, name: str, until: datetime) -> Claim:
        """The claim of a device, by a token that is in its file then. Raises NameRefused, which names the file."""
        file = self._folder / f"{name}.token"
        try:
            token = self._token(name, file)
            # A file that was copied: its one token would enrol both.
            if self._owners.setdefault(token.id, name) != name:
                raise NameRefused(f"it is the token of {self._owners[token.id]}")
            return _claim(token, until)
        except (OSError, NameRefused, UnicodeDecodeError) as error:
            why = file_fault(error) if isinstance(error, OSError) else error
            raise NameRefused(f"its token cannot be kept in {file}: {why}") from error

    def remove_made(self, names: Iterable[str] | None = None) -> None:
        """Removes what was made here for these devices (None: all) and was never published."""
        for name in self._made if names is None else self._made.keys() & {*names}:
            _remove(*self._made[name])

    def _token(self, name: str, file: Path) -> EnrolmentToken:
        token = make_token()
        # Others on this machine are not even to see whose tokens there are, nor to put their own in their place.
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, file.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise NameRefused(f"others may write to {folder}: run chmod go= on it, or use another folder")
        if create_durably(file, _content(token), mode=_SECRET):
            self._made[name] = file, token
            return token
        # Never overwritten: by another use of the folder it may have been handed out.
        if not file.is_file() or file.is_symlink():
            raise NameRefused("it is no file")
        return read_token(read_file(file).decode().removesuffix("\n"))


def _claim(token: EnrolmentToken, until: datetime) -> Claim:
    return Claim(id=token.id, password_hash=token.password_hash, until=until)


def _content(token: EnrolmentToken) -> bytes:
    return token.text.get_secret_value().encode() + b"\n"


def _remove(file: Path, token: EnrolmentToken) -> None:
    # One that cannot be removed stays: it opens nothing.
    with suppress(OSError):
        if file.read_bytes() == _content(token):
            file.unlink()
