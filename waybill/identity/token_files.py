"""Claims of new devices: from the options of a command, and one-time tokens in their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from pydantic import ValidationError

from waybill.daemon.durable_file import create_durably
from waybill.identity.claims import EnrolmentToken, check_factory_serial, make_token, read_token
from waybill.identity.command_session import EXIT_REFUSED, CommandFailed
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim, first_fault
from waybill.settings import file_fault, read_file


def may_be_published(ended: typer.Exit | typer.BadParameter) -> bool:
    """Whether an entry may have been published before a command ended."""
    return not isinstance(ended, CommandFailed | typer.BadParameter) and ended.exit_code != EXIT_REFUSED


@contextmanager
def claim_option(token_file: Path | None, factory: str | None, *, by_hand: bool, days: float) -> Iterator[Claim | None]:
    """The claim of a command's options; None: by hand. A token is written to a new file. Raises typer.BadParameter.

    If the command publishes nothing, the file is removed.
    """
    if (token_file is not None) + (factory is not None) + by_hand != 1:
        raise typer.BadParameter("say one of --token-file, --factory and --by-hand: how it gets its certificate")
    token, claim = make_token(), None
    try:
        if factory is not None:
            check_factory_serial(factory)
            claim = Claim(id=factory)
        if token_file is not None:
            claim = _claim(token, datetime.now(UTC) + timedelta(days=days))
            if not create_durably(token_file, _content(token), mode=0o600):
                raise NameRefused(f"{token_file} is there already: a token is written to a new file")
    except OSError as error:
        raise typer.BadParameter(f"--token-file {token_file} cannot be written: {file_fault(error)}") from error
    except (NameRefused, OverflowError, ValidationError) as error:
        raise typer.BadParameter(first_fault(error) if isinstance(error, ValidationError) else str(error)) from error
    try:
        yield claim
    except (typer.Exit, typer.BadParameter) as ended:
        if token_file is not None and not may_be_published(ended):
            _remove(token_file, token)
        raise


class TokenFiles:
    """Tokens of many devices, in FOLDER/TENANT/DEVICE.token.

    A file that is there already is used again: a command that was interrupted may be repeated.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Path, EnrolmentToken]] = {}

    def claim(self, name: str, until: datetime) -> Claim:
        """The claim of a device, with its token in the file. Raises NameRefused, which names the file."""
        file, token = self._folder / f"{name}.token", make_token()
        try:
            for folder in (self._folder, file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if create_durably(file, _content(token), mode=0o600):
                self._made[name] = file, token
            else:
                token = read_token(read_file(file).decode().removesuffix("\n"))
        except (OSError, ValueError) as error:
            raise NameRefused(f"its token cannot be kept in {file}: {file_fault(error)}") from error
        return _claim(token, until)

    def remove_made(self, names: Iterable[str] | None = None) -> None:
        """Remove the new tokens of these devices (None: all) that were never published."""
        for name in self._made if names is None else self._made.keys() & {*names}:
            _remove(*self._made[name])


def _claim(token: EnrolmentToken, until: datetime) -> Claim:
    return Claim(id=token.id, password_hash=token.password_hash, until=until)


def _content(token: EnrolmentToken) -> bytes:
    return token.text.get_secret_value().encode() + b"\n"


def _remove(file: Path, token: EnrolmentToken) -> None:
    with suppress(OSError):
        if file.read_bytes() == _content(token):
            file.unlink()
