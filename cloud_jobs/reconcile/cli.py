"""`waybill reconcile`: compares the stations of a period."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Final

import typer
from rich.console import RenderableType

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.register.commands import (
    JsonOption,
    LakeOption,
    PayersOption,
    PeriodOption,
    SnapshotOption,
    days_of,
)
from cloud_jobs.billing.units import amount_text
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.snapshots import read_snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import ComparisonOutcome
from cloud_jobs.reconcile.reconciling import Reconciliation
from cloud_jobs.reconcile.reconciling import reconcile as compare
from cloud_jobs.terminal import Column, FittedTable, cloud_errors_as_messages, screen
from waybill.settings import printable_json

# The stations as a Rich table.


def reconciled_table(made: Reconciliation) -> RenderableType:
    table = FittedTable(
        *(Column.text("station"), Column.text("what"), Column.text("of")),
        *(Column.number(name) for name in ("expected", "found", "difference")),
        *(Column("outcome"), Column.text("note")),
        title=f"{days_text(*made.days)} by snapshot {made.snapshot.id}: {made.outcome.value}",
    )
    station = None
    for one in made.comparisons:
        if station not in {None, one.station}:
            table.add_section()
        counts = (one.expected, one.found, one.difference or None)
        cells = (
            "" if one.station is station else one.station.value,
            one.name,
            one.place,
            *(_shown(count, one.currency) for count in counts),
            one.outcome.value,
            one.note,
        )
        table.add(*cells)
        station = one.station
    return table


def _shown(count: int | None, currency: str) -> str:
    if count is None:
        return ""
    return f"{amount_text(count, currency)} {currency}" if currency else f"{count:,}"


DIFFERENT: Final = 3
"""The exit status when a count differs or is unknown."""
_WIDTH: Final = 200


@cloud_errors_as_messages("reconcile")
def reconcile(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: PayersOption = None,
    snapshot: SnapshotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the counts of a period from the device to the invoice.

    Exit status: 0 equal; 1 an error; 2 wrong options; 3 a count differs or is unknown; 75 the store does not answer.

    Example: waybill reconcile --lake lake --period 2026-03
    """
    tables, now = Lake(Location.of(lake)), datetime.now(UTC)
    tables.check("records", "closings")
    taken = take_snapshot(tables, now) if snapshot is None else read_snapshot(tables, snapshot)
    made = compare(tables, taken, days_of(period), payer, now=now)
    if as_json:
        sys.stdout.write(printable_json(made.values(), indent=2, sort_keys=True) + "\n")
    else:
        screen(_WIDTH).print(reconciled_table(made))
    if made.outcome is not ComparisonOutcome.EQUAL:
        raise typer.Exit(DIFFERENT)
