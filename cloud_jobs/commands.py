"""How a command loads and checks its settings."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from waybill.settings import SettingsError, load

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings


# Messages of a job that stops on purpose.


def load_settings(path: Path) -> CloudSettings:
    """The settings of a command; what is wrong with them is a line each on standard error, and exit status 78.

    The folders that they name are those beside the file, wherever the command is called.
    """
    # Imported when a command runs: `--help` needs none of what the settings are made of.
    from cloud_jobs.config import CloudSettings

    try:
        return load(CloudSettings, path).beside(path.parent)
    except SettingsError as error:
        raise settings_refused(error) from error


def load_checked_settings(path: Path, *, with_life: bool = False) -> CloudSettings:
    """As `load_settings`; also wrong are files that the settings name and that cannot be used on this machine.

    `with_life`: a token that has ended is wrong, too; a job reads its file again.
    """
    from cloud_jobs.config import problems
    from waybill.pulsar.pulsar_client import token_faults

    settings = load_settings(path)
    found = problems(settings)
    if found := [*found, *(token_faults({"access": settings.access}, time.time()) if with_life else [])]:
        raise settings_refused(SettingsError(str(path), found))
    return settings


def settings_refused(error: SettingsError) -> typer.Exit:
    """Says what is wrong with settings, a line each, and gives the exit that follows."""
    typer.echo("\n".join(error.lines), err=True)
    return typer.Exit(os.EX_CONFIG)
