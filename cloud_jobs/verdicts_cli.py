"""`cloud-jobs verdicts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cloud_jobs.command_settings import load_settings, settings_refused
from cloud_jobs.error_messages import cloud_errors_as_messages
from waybill.settings import SettingsError

__all__ = ["verdicts"]


def verdicts(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)],
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until SIGTERM or SIGINT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON, a line for each run.")] = False,
) -> None:
    """Collect the alerts of all regions, say of each whether it is so, and name the events that no region announced.

    Without Spark. An alert is confirmed, corrected or withdrawn once `cloud-jobs geofence` covers the record that it
    names. Exit status: 0 done, or ended by a signal; 1 when it went wrong, a line says how; 2 for wrong options; 75
    when the object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs verdicts --config cloud.toml --follow
    """
    from cloud_jobs.verdicts.run import run_verdicts

    with cloud_errors_as_messages("cloud-jobs"):
        settings = load_settings(config)
        if without_alerts := settings.regions_without_alerts:
            said = f"name the topics of alerts: none follows from {', '.join(without_alerts)} of ingest.topics"
            raise settings_refused(SettingsError(str(config), [f"verdicts.alerts: {said}"]))
        # what each run did stands in the log
        shown = _print_nothing if follow else _print_table
        run_verdicts(settings, _print_json if as_json else shown, follow=follow)


def _print_json(counts: dict[str, Any]) -> None:
    typer.echo(json.dumps({"job": "verdicts", **counts}))


def _print_nothing(_: dict[str, Any]) -> None:
    """Of a command that goes on."""


def _print_table(counts: dict[str, Any]) -> None:
    table = Table("what", "count", title="cloud-jobs verdicts")
    for name, count in counts.items():
        table.add_row(name.replace("_", " "), str(count))
    Console(stderr=False).print(table)
