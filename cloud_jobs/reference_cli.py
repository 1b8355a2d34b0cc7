"""`cloud-jobs reference`: fences, tariffs and accounts, published from files and shown as the jobs have them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Publish fences, tariffs and accounts, and show what the jobs have.",
)
Config = Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@cloud_errors_as_messages("cloud-jobs reference")
def publish(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="GeoJSON of fences and gates, JSON lists of tariffs and of accounts, or folders with "
            "fences.geojson, tariffs.json and accounts.json."
        ),
    ],
    *,
    config: Config,
    as_json: AsJson = False,
) -> None:
    """Check files, and publish every version in them; if one has a fault, all faults are named and none is published.

    Versions are checked alone, and accounts against each other and against the tariffs of the same files: one vehicle
    in two accounts, a tariff that is not there or in another currency. What is published already is not looked at.

    A job that reads fences, tariffs or accounts takes them over at its next run. A version like the
    one in force changes nothing; one of an older file is in force again.

    Example: cloud-jobs reference publish fences.geojson tariffs.json accounts.json --config cloud.toml
    """
    from cloud_jobs import reference_files

    settings = load_settings(config)
    versions = reference_files.read_reference(files)
    for warning in reference_files.warnings(versions):
        typer.echo(f"cloud-jobs reference: warning: {warning}", err=True)
    reference_files.publish(settings.service_urls, versions, settings.access)
    counts = Counter(version.kind for version in versions)
    if as_json:
        _print_json({"published": {kind: counts[kind] for kind in ("fence", "tariff", "account")}})
    else:
        listed = ", ".join(f"{counts[kind]} {kind}{'' if counts[kind] == 1 else 's'}" for kind in sorted(counts))
        typer.echo(f"published: {listed or 'nothing, the files hold no version'}")


@app.command()
@cloud_errors_as_messages("cloud-jobs reference")
def show(config: Config, *, as_json: AsJson = False) -> None:
    """Show every version that the jobs have taken over from the topics, as it was published last.

    A version whose column `problem` is not empty cannot be used. The jobs go on without such a fence; a bill that needs
    such a tariff or account is not made until the version is published again, corrected.

    Example: cloud-jobs reference show --config cloud.toml --json
    """
    from cloud_jobs.billing.period import stamp
    from cloud_jobs.reference import newest_publications
    from cloud_jobs.reference_files import fault_of

    rows = [
        {
            "kind": row["kind"],
            "id": row["id"],
            "effective_from": _iso(row["effective_from"]),
            "published_at": stamp(row["published_at"]),
            "problem": fault_of(row["kind"], row["body"]),
        }
        for row in newest_publications(load_settings(config).tables)
    ]
    if as_json:
        _print_json(rows)
    else:
        # A pipe or a file has no width of its own.
        Console(width=None if sys.stdout.isatty() else 140).print(_table(rows))


def _iso(beginning: str) -> str:
    """A beginning as the other moments are written; what is not a moment with an offset stays as it is."""
    from cloud_jobs.billing.period import stamp

    try:
        moment = datetime.fromisoformat(beginning)
    except ValueError:
        return beginning
    return beginning if moment.tzinfo is None else stamp(moment)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "id", "effective from", "published at", "problem"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    return table


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
