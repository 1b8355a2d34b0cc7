"""`fleet-gateway alerts`: run a region's alert process, check its settings, show its status."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands import checked_settings, errors_as_messages, run_daemon, say_warnings, show
from waybill.daemon.stack_folder import registered
from waybill.settings import load

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Publish live geofence alerts of a region.")
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Read the region's batches and publish alerts of fences and gates until SIGTERM.

    Exit status: 0 after SIGTERM; 1 an error; 70 an internal error; 78 for wrong settings.

    Example: fleet-gateway alerts run --config alerts.toml
    """
    with errors_as_messages("fleet-gateway alerts"):
        # Shapely and PROJ take a second, and other commands need neither
        from gateway.alerts.config import AlertSettings, problems, warnings
        from gateway.alerts.service import AlertService

        settings = checked_settings(AlertSettings, config, problems)
        found = warnings(settings, config, time.time())
        with registered("fleet-gateway alerts run", config, settings.status.host, settings.status.port):
            run_daemon("alerts", settings.log, found, partial(AlertService, settings))


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Exit status: 0 no mistake; 78 wrong settings.

    Example: fleet-gateway alerts check-config --config alerts.toml
    """
    from gateway.alerts.config import AlertSettings, problems, warnings

    with errors_as_messages("fleet-gateway alerts"):
        settings = checked_settings(AlertSettings, config, problems)
    say_warnings(config, partial(warnings, settings, config))
    typer.echo(f"{config}: valid. Alert process {settings.name}, region {settings.region}")


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the status of the alert process that uses this file.

    Exit status: 0 healthy; 1 unhealthy, unknown or no answer; 78 for wrong settings.

    Example: fleet-gateway alerts status --config alerts.toml
    """
    from gateway.alerts.config import AlertSettings
    from gateway.alerts.status import alerts_table, read_alerts_status
    from gateway.status_answer import check_answering

    with errors_as_messages("fleet-gateway alerts"):
        settings = load(AlertSettings, config)
        answer = read_alerts_status(settings.status)
        answering = f"alert process {answer.process} of region {answer.region}"
        check_answering(settings.status, answering, f"alert process {settings.name} of region {settings.region}")
    show(answer, lambda: alerts_table(answer), as_json=as_json, is_good=bool(answer.healthy))
