"""What the commands of the gateway's daemons share: run, status, and errors as messages with an exit status."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import structlog
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from gateway.errors import GatewayError, last_line
from waybill.daemon.errors import DaemonError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.process import errors_as_messages as command_errors
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError
from waybill.settings import Settings, SettingsError, load, printable_json

_EXPECTED = (GatewayError, DaemonError, IdentityError, PulsarAccessError)
Known = TypeVar("Known", bound=Settings)


def errors_as_messages(program: str, *also: type[Exception]) -> AbstractContextManager[None]:
    """As for every command; `also`: errors of other packages."""
    return command_errors(program, *_EXPECTED, *also)


def checked_settings(model: type[Known], config: Path, problems: Callable[[Known], list[str]]) -> Known:
    """The settings in a file, checked on this machine. Raises SettingsError."""
    settings = load(model, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings


def run_daemon(
    name: str, log: LogSettings, warnings: Iterable[str], make: Callable[[Callable[[], object]], Any]
) -> None:
    """Run the daemon that `make` builds; `make` gets the function that logs which lines were suppressed.

    Exit status 1 for the packages' errors (see `errors_as_messages`), 70 for unexpected ones.
    """
    limit, logger = start_logging(log), structlog.get_logger(name)
    for problem in warnings:
        logger.warning("configuration", problem=problem)
    try:
        make(lambda: limit.log_suppressed(logger)).run()
    except (SettingsError, *_EXPECTED):
        raise
    except Exception as error:
        logger.exception("stopped by an internal error", error=last_line(error))
        raise typer.Exit(os.EX_SOFTWARE) from error
    finally:
        limit.log_suppressed(logger)


def say_warnings(config: Path, warnings: Callable[[float], Iterable[str]]) -> None:
    for problem in warnings(time.time()):
        typer.echo(f"{config}: warning: {problem}", err=True)


def show(answer: BaseModel, table: Callable[[], Table], *, as_json: bool, is_good: bool) -> None:
    """Print a status as JSON or as a table. Exit status 1 if it is not good."""
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(table())
    if not is_good:
        raise typer.Exit(1)
