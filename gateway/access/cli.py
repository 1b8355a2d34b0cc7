"""`fleet-gateway access`: run a region's access daemon, make its broker's first files, ask a running one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
import typer

from gateway.access.checks import ended_tokens, problems, warnings
from gateway.access.config import AccessSettings
from gateway.errors import GatewayError
from waybill.identity.errors import IdentityError, OperatorKeyRefused
from waybill.settings import SettingsError, load, printable, printable_json

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Who may have a session on a region's broker, by the registry."
)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Keep the broker's rules, revocation lists and sessions as the device registry says, until SIGTERM.

    Example: fleet-gateway access run --config access.toml
    """
    from gateway.access.daemon import AccessDaemon
    from waybill.daemon.logs import start_logging
    from waybill.daemon.signals import stop_on_signals

    with _errors_as_messages(), stop_on_signals() as stop:
        settings = _checked_settings(config)
        start_logging(settings.log)
        now = datetime.now(UTC)
        for problem in (*warnings(settings, now), *ended_tokens(settings, now)):
            structlog.get_logger("access").warning("configuration", problem=problem)
        AccessDaemon(settings).run(stop)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Say whether the file can be used on this machine, and list the mistakes if not.

    Those of the file come first; of the files and places that it names something is said when it has none.

    Example: fleet-gateway access check-config --config access.toml
    """
    with _errors_as_messages():
        settings, now = _checked_settings(config), datetime.now(UTC)
        # Nothing is heard with such a token; a daemon that runs waits for another one.
        if ended := ended_tokens(settings, now):
            raise SettingsError(str(config), ended)
    for problem in warnings(settings, now):
        typer.echo(f"{config}: warning: {problem}", err=True)
    typer.echo(f"{config}: right. Access daemon of the region {settings.region}")


@app.command()
def prepare(*, config: ConfigOption) -> None:
    """Make the files that the brokers need to start, where they are missing, and write their configuration (`server`).

    Example: fleet-gateway access prepare --config access.toml
    """
    from gateway.access.daemon import AccessDaemon

    with _errors_as_messages():
        AccessDaemon(_checked_settings(config)).prepare()


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show what the daemon that runs with this file is doing; exit status 1 when it is not healthy.

    Example: fleet-gateway access status --config access.toml
    """
    from rich.console import Console

    from gateway.access.status import read_access_status
    from gateway.access.status_table import status_table
    from gateway.status_answer import check_answering

    with _errors_as_messages():
        settings = load(AccessSettings, config)
        answer = read_access_status(settings.status)
        answering, asked = (f"access daemon of region {one}" for one in (answer.region, settings.region))
        check_answering(settings.status, answering, asked)
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(status_table(answer))
    if not answer.healthy:
        raise typer.Exit(1)


@app.command()
def forget(
    devices: Annotated[list[str] | None, typer.Argument(help="Of which devices; none: say which there are.")] = None,
    *,
    config: ConfigOption,
) -> None:
    """Give up what the daemon, which is stopped, keeps of devices by keys that are not trusted any more.

    Without devices it prints a line for each that there is: name, state, and why it is not trusted.

    Example: fleet-gateway access forget acme/bus-1 --config access.toml
    """
    from gateway.access.forget import doubtful_entries, forget_entries

    with _errors_as_messages():
        settings = _checked_settings(config)
        if devices:
            forget_entries(settings, devices)
            return
        for one in doubtful_entries(settings):
            typer.echo(printable(f"{one.device} {one.state} {one.doubt}"))


def _checked_settings(config: Path) -> AccessSettings:
    settings = load(AccessSettings, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except OperatorKeyRefused as error:
        typer.echo(f"fleet-gateway access: {error}: `registry.key` of the settings names it", err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except (GatewayError, IdentityError, OSError) as error:
        typer.echo(printable(f"fleet-gateway access: {error}", "\n"), err=True)
        raise typer.Exit(1) from error
