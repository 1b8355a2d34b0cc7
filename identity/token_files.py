"""One-time tokens of many devices, each in its file: FOLDER/TENANT/DEVICE.token."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from identity.claims import EnrolmentToken, make_token, read_token
from identity.device_file import FileFault
from identity.device_file_changes import FileChangeRefused
from identity.errors import NameRefused
from identity.registry import Claim, first_fault
from runtime import read_bounded
from runtime.durable_file import create_durably
from settings import file_fault

__all__ = ["TokenFiles"]

_MAX_BYTES: Final = 1 << 10


class TokenFiles:
    """Makes tokens. One whose file is there already is taken again: a command that was killed may be given again.

    That is safe for a device that the registry does not know: its token was never published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Path] = []

    def claim(self, name: str, until: datetime) -> Claim:
        """The claim of a device, by a token that is in its file then. Raises FileChangeRefused."""
        file = self._folder / f"{name}.token"
        try:
            token = self._token(file)
            return Claim(id=token.id, password_hash=token.password_hash, until=until)
        except OSError as error:
            why = f"its token cannot be written to {file}: {file_fault(error)}"
        except NameRefused as error:
            why = f"{file} is there already, and cannot be used: {error}"
        except ValidationError as error:
            why = first_fault(error)
        raise FileChangeRefused(FileFault.NO_TOKEN, name, why)

    def forget(self) -> None:
        """Takes away what was made here: a token that was never published opens nothing."""
        for file in self._made:
            file.unlink(missing_ok=True)

    def _token(self, file: Path) -> EnrolmentToken:
        token = make_token()
        # Others on this machine are not even to see whose tokens there are.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if create_durably(file, token.text.get_secret_value().encode() + b"\n", mode=0o600):
            self._made.append(file)
            return token
        # Never overwritten: by another use of the folder it may have been handed out.
        try:
            return read_token(read_bounded(file, _MAX_BYTES).decode().removesuffix("\n"))
        except ValueError as error:
            raise NameRefused(str(error)) from error
