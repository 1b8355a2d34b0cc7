"""`cloud-jobs reference`: fences, tariffs and accounts, published from files and shown as the jobs have them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.fitted_table import screen
from cloud_jobs.lake.beginning import beginning

if TYPE_CHECKING:
    from cloud_jobs.in_force import HeldVersion, RefusedVersion

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Publish fences, tariffs and accounts, and show what the jobs have.",
)
_TAKEN_OVER: Final = (
    "the next run of `cloud-jobs usage` takes them over; what is closed before that is by what was published earlier"
)
Config = Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@cloud_errors_as_messages("cloud-jobs reference")
def publish(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="GeoJSON of fences and gates, TOML of contracts, or folders with fences.geojson and contracts."
        ),
    ],
    *,
    config: Config,
    as_json: AsJson = False,
) -> None:
    """Check files, and publish every version in them; if one has a fault, all faults are named and none is published.

    They are judged as by `waybill reference check`, beside what the jobs have taken over into the lake, if there is
    one. What is not there yet, such as a tariff that was published a moment ago, is a warning here.

    A job that reads fences, tariffs or accounts takes them over at its next run. Of the publications of a version the
    latest holds: a file that is published again puts its versions in force again.

    Example: cloud-jobs reference publish fences.geojson contracts.toml --config cloud.toml
    """
    from cloud_jobs import reference_files, reference_publisher
    from cloud_jobs.errors import ReferenceFileError
    from cloud_jobs.judged_reference import judged_reference
    from cloud_jobs.reference_messages import TOPICS

    settings = load_settings(config)
    # the first contracts are often published before any job has run
    lake = settings.tables if settings.tables.has("reference") else None
    judged = judged_reference(files, lake, datetime.now(UTC))
    if judged.checked.faults:
        raise ReferenceFileError(judged.checked.faults)
    for lacking in judged.checked.lacking:
        typer.echo(f"warning: not there yet: {lacking}", err=True)
    for notice in judged.checked.notices:
        typer.echo(f"warning: {notice}", err=True)
    reference_publisher.publish(settings.service_urls, judged.versions, settings.access)
    counts = judged.counts
    if as_json:
        _print_json({"published": {kind: counts[kind] for kind in TOPICS}})
    else:
        typer.echo(f"published: {reference_files.counts_text(counts) or 'nothing, the files hold no version'}")
        if counts:
            typer.echo(_TAKEN_OVER)


@app.command()
@cloud_errors_as_messages("cloud-jobs reference")
def show(config: Config, *, as_json: AsJson = False) -> None:
    """Show every version in force of what the jobs have taken over from the topics, and what they could not use.

    A version whose column `problem` is not empty cannot be used and is not in force: what it was to replace is. A bill
    of its account says so, and is provisional until the version is published again, corrected. Messages in the topics
    that are no publications are listed as `quarantined`, with the place of each and the reason.

    Example: cloud-jobs reference show --config cloud.toml --json
    """
    from cloud_jobs.in_force import in_force
    from cloud_jobs.reference import publications_in, quarantined_messages
    from cloud_jobs.reference_files import usable
    from cloud_jobs.reference_messages import named_message
    from cloud_jobs.refused_table import quarantine_table

    lake = load_settings(config).tables
    found = in_force(publications_in(lake), usable)
    rows = sorted([*map(_held_row, found.held), *map(_refused_row, found.refused)], key=_version)
    quarantined = quarantined_messages(lake)
    if as_json:
        plain = [{name: _plain(value) for name, value in row.items()} for row in quarantined]
        _print_json({"versions": rows, "quarantined": plain})
        return
    console = screen(140)
    console.print(_table(rows))
    if quarantined:
        console.print(quarantine_table(map(named_message, quarantined)))


def _held_row(held: HeldVersion[Any]) -> dict[str, str]:
    row = held.row
    return {
        "kind": row["kind"],
        "id": row["id"],
        "effective_from": beginning(row["kind"], row["body"]),
        "published_at": _plain(row["published_at"]),
        "publication_id": row["publication_id"],
        "problem": "",
    }


def _refused_row(refused: RefusedVersion) -> dict[str, str]:
    return {
        "kind": refused.kind,
        "id": refused.id,
        "effective_from": refused.effective_from,
        "published_at": refused.published_at,
        "publication_id": refused.publication_id,
        "problem": f"{refused.place}: {refused.reason}",
    }


def _version(row: dict[str, str]) -> tuple[str, ...]:
    return row["kind"], row["id"], row["effective_from"], row["publication_id"]


def _plain(value: Any) -> Any:
    from cloud_jobs.billing.utc_stamp import stamp

    return stamp(value) if isinstance(value, datetime) else value


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "id", "effective from", "published at", "publication", "problem"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
