"""`fleet-gateway`: run it, check a configuration, ask a running one."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from rich.console import Console
from rich.text import Text

from gateway.config import Drain, GatewaySettings, Log
from gateway.errors import GatewayError, NoAnswer
from gateway.service import Service
from gateway.status import read_status, status_table
from settings import SettingsError, load

app = typer.Typer(no_args_is_help=True, help="The regional front door: from the MQTT broker to Pulsar, acknowledged.")
ConfigOption = Annotated[Path, typer.Option("--config", help="The TOML file of settings.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Serve until SIGTERM. SIGHUP reads `[drain]` of the file again."""
    settings = _settings(config)
    _start_logging(settings.log)
    try:
        Service(settings, lambda: _drain_again(config, settings.drain)).run()
    except GatewayError as error:
        _give_up(str(error))


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Say whether the file can be used, and list every mistake if not."""
    settings = _settings(config)
    Console().print(Text(f"{config}: gateway {settings.name} of region {settings.region}, fine"), soft_wrap=True)


@app.command()
def status(
    *,
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what the gateway that runs with this file is doing; exit status 1 when it is not healthy."""
    try:
        found = read_status(_settings(config).observe)
    except NoAnswer as error:
        _give_up(str(error))
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
    else:
        Console().print(status_table(found))
    if not found.healthy:
        raise typer.Exit(1)


def _settings(config: Path) -> GatewaySettings:
    try:
        return load(GatewaySettings, config)
    except SettingsError as error:
        for problem in error.problems:
            _say(f"{error.source}: {problem}")
        raise typer.Exit(2) from error


def _drain_again(config: Path, before: Drain) -> Drain:
    """The file's drain settings, or those there were if the file cannot be used now."""
    log = structlog.get_logger("gateway")
    try:
        drain = load(GatewaySettings, config).drain
    except SettingsError as error:
        log.error("settings not reloaded", problems=error.problems)
        return before
    log.info("drain settings reloaded", **drain.model_dump())
    return drain


def _start_logging(log: Log) -> None:
    renderer = structlog.processors.JSONRenderer() if log.format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[log.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _say(text: str) -> None:
    Console(stderr=True).print(Text(text), soft_wrap=True)


def _give_up(text: str) -> NoReturn:
    _say(text)
    raise typer.Exit(1)
