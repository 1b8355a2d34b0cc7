"""`cloud-jobs status`: once, or again and again until a signal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.fitted_table import screen

__all__ = ["status"]

_WIDTH = 140


def status(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line each time.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="Look again so many seconds after each look, until a signal."),
    ] = None,
) -> None:
    """Show what the centre has, how far its jobs are behind, what waits in Pulsar, and what is wrong.

    Reads logs, folders, the coverage and small tables, never the records, and starts no Spark. Exit status: 0 healthy;
    1 when a limit of the settings `[status]` is passed or something is unknown; 75 when the object store of the lake
    does not answer; 78 for wrong settings. With --every it ends with 0 at a signal.

    Example: cloud-jobs status --config cloud.toml

    Example: cloud-jobs status --config cloud.toml --json --every 60
    """
    settings = load_settings(config)
    from cloud_jobs.run_result import log_to_standard_error
    from cloud_jobs.status.judging import problems
    from cloud_jobs.status.lake_facts import LakeReader
    from cloud_jobs.status.tables import status_tables
    from cloud_jobs.status.topic_lag import left_out_topics, topic_lags
    from runtime.signals import stop_on_signals
    from runtime.token_watch import TokenWatch

    log_to_standard_error()
    with cloud_errors_as_messages("cloud-jobs"):
        reader, token = LakeReader(settings.tables, settings.checkpoints), TokenWatch([settings.access])

        def look() -> bool:
            lags = topic_lags(settings)
            found = replace(reader.read(), lag=lags, token_problem=token.ended or token.ending)
            try:
                found = replace(found, left_out=left_out_topics(settings))
            except ValueError as error:
                found = replace(found, errors={**found.errors, "the note of topics left out": str(error)})
            wrong = problems(found, settings.status)
            if as_json:
                document = {"healthy": not wrong, "problems": wrong} | found.document()
                sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
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


def _repeat(look: Callable[[], bool], every_s: float, stop: Event) -> bool:
    """Looks until `stop`; a look that failed is followed by the next one all the same."""
    from cloud_jobs.errors import CloudError, LocationError

    while not stop.is_set():
        try:
            look()
        except LocationError:
            # the settings are wrong, and stay so
            raise
        except CloudError as error:
            typer.echo(f"cloud-jobs: {error}", err=True)
        # not `sleep`, which a signal would not end
        stop.wait(every_s)
    return True
