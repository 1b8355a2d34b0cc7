"""The stations for people, as a Rich table: of each comparison what must be, what is, and where it differs."""

from __future__ import annotations

from rich.console import RenderableType

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.currency import amount_text
from cloud_jobs.fitted_table import Column, FittedTable
from cloud_jobs.reconcile.reconciling import Reconciled


def reconciled_table(made: Reconciled) -> RenderableType:
    """One row a comparison, in the order of the stations."""
    table = FittedTable(
        *(Column.text("station"), Column.text("what"), Column.text("of", 1)),
        *(Column.number(name) for name in ("expected", "found", "difference")),
        *(Column("outcome"), Column.text("note", 2)),
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
