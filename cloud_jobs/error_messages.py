"""What a command says when a job stops on purpose, or its settings cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloud_jobs.errors import CloudError
from settings import SettingsError, load

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings

__all__ = ["cloud_errors_as_messages", "load_settings"]


@contextmanager
def cloud_errors_as_messages(program: str) -> Iterator[None]:
    """A `CloudError` is one line on standard error, which begins with `program`, and exit status 1."""
    try:
        yield
    except CloudError as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(1) from error


def load_settings(path: Path) -> CloudSettings:
    """The settings of a command; what is wrong with them is a line each on standard error, and exit status 2."""
    # Imported when a command runs: `--help` needs none of what the settings are made of.
    from cloud_jobs.config import CloudSettings  # noqa: PLC0415

    try:
        return load(CloudSettings, path)
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(f"{error.source}: {problem}", err=True)
        raise typer.Exit(2) from error
