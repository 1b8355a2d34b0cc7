"""Loads and checks the settings of a command."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.daemon.stack_folder import registered, stack_settings
from waybill.settings import SettingsError, load

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings


Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        default_factory=stack_settings("cloud.toml"),
        help="The settings, a TOML file. Default: cloud.toml of the local stack in $WAYBILL_STACK or var/local.",
        show_default=False,
    ),
]


@contextmanager
def registered_job(config: Path, command: str, settings: CloudSettings, *, serves: bool = True) -> Iterator[None]:
    """Registers a job in the folder of a local stack, if its settings lie there. `serves`: it serves its health."""
    port = settings.metrics.port_of(command.partition(" ")[0]) if serves else None
    with registered(f"cloud-jobs {command}", config, settings.metrics.host, port or 0):
        yield


def load_settings(path: Path) -> CloudSettings:
    """Loads settings; relative paths in them start at the file's folder.

    Prints each fault and exits with status 78.
    """
    # Imported when a command runs: `--help` needs none of what the settings are made of.
    from cloud_jobs.config import CloudSettings

    try:
        return load(CloudSettings, path).beside(path.parent)
    except SettingsError as error:
        raise settings_refused(error) from error


def load_checked_settings(path: Path, *, with_life: bool = False) -> CloudSettings:
    """As `load_settings`; also checks the files that the settings name on this machine.

    `with_life`: an expired token is a fault.
    """
    from cloud_jobs.config import problems
    from waybill.pulsar.pulsar_client import token_faults

    settings = load_settings(path)
    found = problems(settings)
    if found := [*found, *(token_faults({"access": settings.access}, time.time()) if with_life else [])]:
        raise settings_refused(SettingsError(str(path), found))
    return settings


def settings_refused(error: SettingsError) -> typer.Exit:
    """Prints the faults of settings, and returns the exit."""
    typer.echo("\n".join(error.lines), err=True)
    return typer.Exit(os.EX_CONFIG)
