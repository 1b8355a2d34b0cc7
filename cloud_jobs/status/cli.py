"""`cloud-jobs status`: once, or again and again until a signal; for people, programs or Prometheus."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.fitted_table import screen
from waybill.settings import printable_json

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings

__all__ = ["status"]

_WIDTH: Final = 140
_SERVED_EVERY_S: Final = 60.0
_STALE_LOOKS: Final = 3
"""After so many looks that did not come nothing is known any more."""


def status(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line each time.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="Look again so many seconds after each look, until a signal."),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Print nothing; serve metrics at metrics.status_port, every 60 s or --every."),
    ] = False,
) -> None:
    """Show what the centre has, how far its jobs are behind, what waits in Pulsar, and what is wrong.

    Reads logs, folders, the coverage and small tables, never the records, and starts no Spark. Exit status: 0 healthy;
    1 when a limit of the settings `[status]` is passed or something is unknown; 75 when the object store of the lake
    does not answer; 78 for wrong settings. With --every and --serve it ends with 0 at a signal.

    Example: cloud-jobs status --config cloud.toml

    Example: cloud-jobs status --config cloud.toml --json --every 60

    Example: cloud-jobs status --config cloud.toml --serve
    """
    settings = load_settings(config)
    from cloud_jobs.run_result import log_to_standard_error
    from cloud_jobs.status.centre_reader import CentreReader
    from cloud_jobs.status.tables import status_tables
    from waybill.daemon.signals import stop_on_signals

    log_to_standard_error()
    if serve:
        _serve(settings, every or _SERVED_EVERY_S)
        return
    with cloud_errors_as_messages("cloud-jobs"):
        reader = CentreReader(settings)

        def look() -> bool:
            found, wrong = reader.look()
            if as_json:
                document = {"healthy": not wrong, "problems": wrong} | found.document()
                sys.stdout.write(printable_json(document) + "\n")
                sys.stdout.flush()
            else:
                screen(_WIDTH).print(status_tables(found, wrong))
            return not wrong

        if every is None:
            healthy = look()
        else:
            with stop_on_signals() as stop:
                healthy = _repeat(look, every, stop)
    if not healthy:
        raise typer.Exit(1)


def _serve(settings: CloudSettings, every_s: float) -> None:
    """Looks again and again, and shows what it found to whoever asks by HTTP, until a signal."""
    from cloud_jobs.metrics.serving import metric_routes
    from cloud_jobs.status.centre_metrics import CentreCollector
    from cloud_jobs.status.centre_reader import CentreReader
    from waybill.daemon.signals import stop_on_signals
    from waybill.daemon.status_server import StatusServer

    host, port = settings.metrics.host, settings.metrics.status_port
    if port is None:
        typer.echo("cloud-jobs: nobody could read what is served: name a port, metrics.status_port", err=True)
        raise typer.Exit(os.EX_CONFIG)
    collector = CentreCollector(_STALE_LOOKS * every_s)
    try:
        server = StatusServer(host, port, metric_routes(collector.registry(), collector.health))
    except OSError as error:
        typer.echo(
            f"cloud-jobs: {host}:{port} cannot be served: {error.strerror}; change metrics.status_port", err=True
        )
        raise typer.Exit(1) from error
    with server, cloud_errors_as_messages("cloud-jobs"), stop_on_signals() as stop:
        reader = CentreReader(settings)

        def look() -> bool:
            collector.looked(*reader.look())
            return True

        _repeat(look, every_s, stop, failed=collector.failed)


def _repeat(
    look: Callable[[], bool], every_s: float, stop: Event, failed: Callable[[str], object] = lambda _: None
) -> bool:
    """Looks until `stop`; a look that failed is followed by the next one all the same."""
    from cloud_jobs.errors import CloudError, LocationError

    while not stop.is_set():
        try:
            look()
        except LocationError:
            # the settings are wrong, and stay so
            raise
        except CloudError as error:
            failed(str(error))
            typer.echo(f"cloud-jobs: {error}", err=True)
        # not `sleep`, which a signal would not end
        stop.wait(every_s)
    return True
