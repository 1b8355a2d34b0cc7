"""A page in a terminal: its facts and tables, or its JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from console.page import UNKNOWN, Clock, Kind, Page, Table, as_json, shown
from waybill.settings import printable, printable_json

if TYPE_CHECKING:
    from console.context import Console
    from console.health.checks import Health

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: the same as the page's.")]
_FOLDS = frozenset({Kind.TEXT, Kind.CODE})


def opened(config: Path) -> Console:
    """The console of a settings file, as the pages have it. Raises CloudError."""
    # imported here: `--help` needs none of it
    from cloud_jobs.commands import load_checked_settings  # noqa: PLC0415
    from console.context import Console  # noqa: PLC0415

    return Console(load_checked_settings(config), folder=config.absolute().parent)


def print_page(page: Page, console: Console, *, as_json_text: bool) -> None:
    """Prints the facts and then each table with its note and faults; times are in its zone, or that of the accounts."""
    if as_json_text:
        sys.stdout.write(printable_json(as_json(page), indent=2) + "\n")
        return
    from cloud_jobs.terminal import screen  # noqa: PLC0415
    from console.context import LOCAL  # noqa: PLC0415

    out, clock = screen(), console.clock(LOCAL, own=page.zone)
    out.print(Text(page.title, "bold"))
    for warning in page.warnings:
        out.print(Text(f"warning: {warning}", "yellow"))
    for fact in page.facts:
        out.print(Text(f"{fact.title}: {shown(fact.value, fact.kind, clock)}"))
    for table in page.tables:
        out.print()
        if not table.rows:
            out.print(Text(f"{table.title}: {table.empty}"))
        else:
            out.print(_fitted(table, clock))
        for text in (
            *((table.note,) if table.note else ()),
            *(f"a row cannot be shown: {one}" for one in table.faults),
        ):
            out.print(Text(text))


def _fitted(table: Table, clock: Clock) -> object:
    from cloud_jobs.terminal import Column, FittedTable  # noqa: PLC0415

    columns = [
        Column(one.title, right=one.right, folds=one.kind in _FOLDS, optional=one.optional) for one in table.columns
    ]
    made = FittedTable(*columns, title=f"{table.title} ({len(table.rows)})")
    for row in table.rows:
        made.add(*(shown(row[one.key], one.kind, clock) for one in table.columns))
    return made


def print_health(health: Health, clock: Clock) -> None:
    """Prints the health on one screen: what is wrong or unknown, with the step of the runbook; then names."""
    from cloud_jobs.terminal import screen  # noqa: PLC0415
    from console.health.checks import Outcome  # noqa: PLC0415

    out = screen()
    styles = {Outcome.WRONG: "bold red", Outcome.UNKNOWN: "yellow", Outcome.FINE: "green"}
    for outcome in (Outcome.WRONG, Outcome.UNKNOWN):
        for one in health.checks:
            if one.outcome is not outcome:
                continue
            since = "" if one.since is None else f" (since {clock.text(one.since)})"
            out.print(
                Text.assemble((f"{outcome.value:8}", styles[outcome]), printable(f"{one.title}: {one.found}{since}"))
            )
            if outcome is Outcome.WRONG:
                out.print(Text(printable(f"        affects: {one.affects or UNKNOWN}")))
            if one.runbook:
                step = f": {one.step}" if one.step else ""
                out.print(Text(printable(f"        {one.runbook_text}{step}"), "dim"))
            if one.command:
                out.print(Text(printable(f"        $ {one.command}"), "dim"), soft_wrap=True)
    fine = [one.title for one in health.checks if one.outcome is Outcome.FINE]
    if fine:
        out.print(Text(f"fine    {', '.join(fine)}", styles[Outcome.FINE]))
    for text in health.not_checked:
        out.print(Text(f"not checked: {printable(text)}", "dim"))
    out.print(
        Text(f"{health.outcome.value}: {health.headline}; asked {clock.text(health.now)}", styles[health.outcome])
    )
