"""`waybill canary`: run it, check its settings, ask a running one, and write what has to be published for it."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from gateway.commands import checked_settings, errors_as_messages, say_warnings
from gateway.errors import NoAnswer
from waybill.daemon.stack_folder import registered
from waybill.settings import load

_PROGRAM: Final = "waybill canary"
_WIDTH: Final = None if sys.stdout.isatty() else 140
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run a canary vehicle with a known route and check every hop, from the broker to the invoice.",
)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The settings of the canary, a TOML file.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Run the canary until SIGTERM.

    Exit status: 0 stopped by a signal, 1 stopped by an error, 78 for wrong settings.

    Example: waybill canary run --config canary.toml
    """
    from cloud_jobs.errors import CloudError
    from deploy.local import LocalStackError
    from gateway.canary.checks import problems, warnings
    from gateway.canary.config import CanarySettings
    from gateway.canary.service import run_canary
    from waybill.daemon.logs import start_logging
    from waybill.daemon.signals import stop_on_signals

    with errors_as_messages(_PROGRAM, CloudError, LocalStackError), stop_on_signals() as stop:
        settings = checked_settings(CanarySettings, config, problems)
        start_logging(settings.log)
        for problem in warnings(settings, time.time()):
            structlog.get_logger("canary").warning("configuration", problem=problem)
        with registered("waybill canary run", config, settings.status.host, settings.status.port):
            run_canary(settings, stop)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Exit status: 0 no mistake, 78 wrong settings.

    Example: waybill canary check-config --config canary.toml
    """
    from gateway.canary.checks import problems, warnings
    from gateway.canary.config import CanarySettings

    with errors_as_messages(_PROGRAM):
        settings = checked_settings(CanarySettings, config, problems)
    say_warnings(config, partial(warnings, settings))
    watched = ", ".join(hop.value for hop in settings.watched)
    typer.echo(f"{config}: valid. Canary {settings.tenant}/{settings.device} of region {settings.region}: {watched}")


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show each hop of a running canary: colour, reason, latencies, counts and service level.

    Exit status: 0 each watched hop is green; 1 a hop is red; 3 no hop is red, but one is unknown, or no canary
    answers; 78 for wrong settings.

    Example: waybill canary status --config canary.toml
    """
    from rich.console import Console

    from gateway.canary.config import CanarySettings
    from gateway.canary.status import read_canary_status, status_table

    with errors_as_messages(_PROGRAM):
        settings = load(CanarySettings, config)
        try:
            answer = read_canary_status(settings)
        except NoAnswer as error:
            typer.echo(f"{_PROGRAM}: {error}", err=True)
            raise typer.Exit(3) from error
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
    else:
        Console(width=_WIDTH, highlight=False).print(status_table(answer))
    raise typer.Exit({True: 0, False: 1, None: 3}[answer.healthy])


@app.command()
def setup(
    *,
    config: ConfigOption,
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.")],
    since: Annotated[
        datetime | None,
        typer.Option("--since", help="Start of the contracts (UTC). Default: the first of this month."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")] = False,
) -> None:
    """Write the canary's fence, tariff, seller and account, and print how to publish them.

    Choose a place without traffic: any other device in the fence is metered there too.

    Exit status: 0 written, 1 writing failed, 78 for wrong settings.

    Example: waybill canary setup --config canary.toml --out canary-eu
    """
    from gateway.canary.config import CanarySettings
    from gateway.canary.reference import contracts_text, fence_text, write_reference

    # a month is billed as a whole
    begin = since or datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    with errors_as_messages(_PROGRAM):
        settings = load(CanarySettings, config)
        contracts = contracts_text(settings, begin.replace(tzinfo=begin.tzinfo or UTC))
        written = write_reference(out, fence_text(settings), contracts, replace=replace)
    typer.echo(f"written: {' and '.join(map(str, written))}")
    typer.echo("to check and to publish them:")
    typer.echo(f"  waybill reference check {out} --lake {settings.lake or 'LAKE'}")
    typer.echo(f'  waybill reference put {out} --config cloud.toml --key YOUR.key --reason "a canary"')
