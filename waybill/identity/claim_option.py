"""How a device gets its certificate, as a command hears it: by a token that is made here, its factory, or by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from pydantic import ValidationError

from waybill.identity.claims import EnrolmentToken, check_factory_serial, make_token
from waybill.identity.command_session import EXIT_ARGUMENTS, EXIT_REFUSED
from waybill.identity.errors import NameRefused
from waybill.identity.registry import Claim, first_fault
from waybill.identity.token_files import create_token_file, remove_token_file
from waybill.settings import file_fault

_NOT_PUBLISHED = (EXIT_ARGUMENTS, EXIT_REFUSED, os.EX_CONFIG)


@contextmanager
def claim_option(token_file: Path | None, factory: str | None, *, by_hand: bool, days: float) -> Iterator[Claim | None]:
    """The claim; None: by hand. A token is written to its new file. Raises typer.BadParameter.

    Where the command is refused inside, that file does not stay: a token that was never published opens nothing.
    """
    if (token_file is not None) + (factory is not None) + by_hand != 1:
        raise typer.BadParameter("say one of --token-file, --factory and --by-hand: how it gets its certificate")
    if token_file is None:
        yield _factory_claim(factory)
        return
    token, claim = _token_claim(days)
    _write(token_file, token)
    try:
        yield claim
    except (typer.Exit, typer.BadParameter) as ended:
        # Of what could not be reached nobody knows whether it was published.
        if ended.exit_code in _NOT_PUBLISHED:
            remove_token_file(token_file, token)
        raise


def _factory_claim(factory: str | None) -> Claim | None:
    if factory is None:
        return None
    try:
        check_factory_serial(factory)
    except NameRefused as error:
        raise typer.BadParameter(str(error)) from error
    return Claim(id=factory)


def _token_claim(days: float) -> tuple[EnrolmentToken, Claim]:
    try:
        token, until = make_token(), datetime.now(UTC) + timedelta(days=days)
        return token, Claim(id=token.id, password_hash=token.password_hash, until=until)
    except OverflowError as error:
        raise typer.BadParameter(str(error)) from error
    except ValidationError as error:
        raise typer.BadParameter(first_fault(error)) from error


def _write(token_file: Path, token: EnrolmentToken) -> None:
    # A new file: a token that was handed out already must not be overwritten unseen.
    try:
        is_new = create_token_file(token_file, token)
    except OSError as error:
        raise typer.BadParameter(f"--token-file {token_file} cannot be written: {file_fault(error)}") from error
    if not is_new:
        raise typer.BadParameter(f"{token_file} is there already: a token is written to a new file")
