"""`fleet-gateway alerts`: run a region's alert process, check its settings, ask a running one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from gateway.errors import GatewayError, alert_errors_as_messages, last_line
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError
from waybill.settings import SettingsError, load, printable_json

if TYPE_CHECKING:
    from gateway.alerts.config import AlertSettings

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What happens at fences, said at once: a region's alert process."
)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Read the region's batches, and publish alerts of what happens at fences and gates, until SIGTERM.

    Exit status: 0 after SIGTERM; 1 an error; 70 an internal one; 78 for wrong settings.

    Example: fleet-gateway alerts run --config alerts.toml
    """
    from gateway.alerts.config import warnings
    from waybill.daemon.logs import start_logging

    with alert_errors_as_messages("fleet-gateway alerts"):
        settings = _checked_settings(config)
        limit = start_logging(settings.log)
        log = structlog.get_logger("alerts")
        for problem in warnings(settings, config, time.time()):
            log.warning("configuration", problem=problem)
        # Shapely and PROJ take a second, and `check-config` needs neither
        from gateway.alerts.service import AlertService

        try:
            AlertService(settings, lambda: limit.log_suppressed(log)).run()
        except (GatewayError, IdentityError, SettingsError, PulsarAccessError):
            raise
        except Exception as error:
            log.exception("stopped by an internal error", error=last_line(error))
            raise typer.Exit(os.EX_SOFTWARE) from error
        finally:
            limit.log_suppressed(log)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Say whether the file can be used on this machine, and list the mistakes if not.

    Those of the file come first; of the files and places that it names something is said when it has none.

    Exit status: 0 it can; 78 it cannot.

    Example: fleet-gateway alerts check-config --config alerts.toml
    """
    from gateway.alerts.config import warnings

    with alert_errors_as_messages("fleet-gateway alerts"):
        settings = _checked_settings(config)
    for problem in warnings(settings, config, time.time()):
        typer.echo(f"{config}: warning: {problem}", err=True)
    typer.echo(f"{config}: right. Alert process {settings.name}, region {settings.region}")


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show what the process that runs with this file is doing.

    Exit status: 0 it is healthy; 1 it is not, or that is not known, or it does not answer; 78 for wrong settings.

    Example: fleet-gateway alerts status --config alerts.toml
    """
    from rich.console import Console

    from gateway.alerts.config import AlertSettings
    from gateway.alerts.status import alerts_table, read_alerts_status
    from gateway.status_answer import check_answering

    with alert_errors_as_messages("fleet-gateway alerts"):
        settings = load(AlertSettings, config)
        answer = read_alerts_status(settings.status)
        answering = f"alert process {answer.process} of region {answer.region}"
        check_answering(settings.status, answering, f"alert process {settings.name} of region {settings.region}")
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(alerts_table(answer))
    if not answer.healthy:
        raise typer.Exit(1)


def _checked_settings(config: Path) -> AlertSettings:
    from gateway.alerts.config import AlertSettings, problems

    settings = load(AlertSettings, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings
