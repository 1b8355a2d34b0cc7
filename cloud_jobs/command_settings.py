"""The settings of a command of the jobs, from the file that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from settings import SettingsError, load

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings

__all__ = ["load_settings"]


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
