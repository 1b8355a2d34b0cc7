"""The stations for people, as a Rich table: of each comparison what must be, what is, and where it differs."""

from __future__ import annotations

from rich.console import RenderableType

from cloud_jobs.billing.billing_period import days_text
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
        numbers = (one.expected, one.found, one.difference or None)
        cells = (
            "" if one.station is station else one.station.value,
            one.name,
            one.place,
            *("" if number is None else f"{number:,}" for number in numbers),
            one.outcome.value,
            one.note,
        )
        table.add(*cells)
        station = one.station
    return table
