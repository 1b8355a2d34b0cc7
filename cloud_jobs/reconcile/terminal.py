"""The stations for people, as a Rich table: of each comparison what must be, what is, and where it differs."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.reconcile.reconciling import Reconciled


def reconciled_table(made: Reconciled) -> RenderableType:
    """One row a comparison, in the order of the stations."""
    table = Table(title=f"{days_text(*made.days)} by snapshot {made.snapshot.id}: {made.outcome.value}")
    for name in ("station", "what", "of"):
        table.add_column(name)
    for name in ("expected", "found", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("outcome", "note"):
        table.add_column(name)
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
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(cell) for cell in cells))
        station = one.station
    return table
