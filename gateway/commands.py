"""What the commands of each daemon here share: run it, show its status, errors as messages with an exit status."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from gateway.errors import GatewayError, last_line
from waybill.daemon.errors import DaemonError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError
from waybill.settings import Settings, SettingsError, load, printable_json

_EXPECTED = (GatewayError, DaemonError, IdentityError, PulsarAccessError)
Known = TypeVar("Known", bound=Settings)


class Runnable(Protocol):
    """A daemon."""

    def run(self) -> None:
        """Until SIGTERM."""


@contextmanager
def errors_as_messages(program: str) -> Iterator[None]:
    """Of `program`: 78 for wrong settings, 1 for whatever else the packages raise."""
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except _EXPECTED as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(1) from error


def checked_settings(model: type[Known], config: Path, problems: Callable[[Known], list[str]]) -> Known:
    """The settings of a file that can be used on this machine. Raises SettingsError."""
    settings = load(model, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings


def run_daemon(
    name: str, log: LogSettings, warnings: Iterable[str], make: Callable[[Callable[[], object]], Runnable]
) -> None:
    """Runs what `make` makes, which is handed what says in the log which lines it left out. `name`: of its log.

    An error of ours ends it with 1, as `errors_as_messages` says it; an unexpected one with 70.
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
    """On standard error, for `check-config`."""
    for problem in warnings(time.time()):
        typer.echo(f"{config}: warning: {problem}", err=True)


def show(answer: BaseModel, table: Callable[[], Table], *, as_json: bool, is_good: bool) -> None:
    """A status as JSON or as a table; exit status 1 where it is not good."""
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(table())
    if not is_good:
        raise typer.Exit(1)
