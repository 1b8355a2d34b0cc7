"""How a device gets its certificate, as a command hears it: by a token that is made here, its factory, or by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer
from pydantic import ValidationError

from identity.claims import check_factory_serial, make_token
from identity.errors import NameRefused
from identity.registry import Claim, first_fault
from runtime.durable_file import create_durably
from settings import file_fault

__all__ = ["claim_of"]


def claim_of(token_file: Path | None, factory: str | None, *, by_hand: bool, days: float) -> Claim | None:
    """The claim; None: by hand. A token is written to its new file. Raises typer.BadParameter."""
    if (token_file is not None) + (factory is not None) + by_hand != 1:
        raise typer.BadParameter("say one of --token-file, --factory and --by-hand: how it gets its certificate")
    try:
        if factory is not None:
            check_factory_serial(factory)
            return Claim(id=factory)
        if token_file is None:
            return None
        token, until = make_token(), datetime.now(UTC) + timedelta(days=days)
        claim = Claim(id=token.id, password_hash=token.password_hash, until=until)
    except (NameRefused, OverflowError) as error:
        raise typer.BadParameter(str(error)) from error
    except ValidationError as error:
        raise typer.BadParameter(first_fault(error)) from error
    # A new file: a token that was handed out already must not be overwritten unseen.
    try:
        is_new = create_durably(token_file, token.text.get_secret_value().encode() + b"\n", mode=0o600)
    except OSError as error:
        raise typer.BadParameter(f"--token-file {token_file} cannot be written: {file_fault(error)}") from error
    if not is_new:
        raise typer.BadParameter(f"{token_file} is there already: a token is written to a new file")
    return claim
