"""Errors of the commands about alerts as messages, with the exit status of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from gateway.errors import GatewayError
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError
from waybill.settings import SettingsError

__all__ = ["alert_errors_as_messages"]


@contextmanager
def alert_errors_as_messages(program: str) -> Iterator[None]:
    """Of `program`: 78 for wrong settings, 1 for whatever else the packages raise."""
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except (GatewayError, IdentityError, PulsarAccessError) as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(1) from error
