"""A document for the terminal, as Rich tables."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from cloud_jobs.billing.documents import presentation as show
from cloud_jobs.billing.documents.canonical import Document
from cloud_jobs.fitted_table import Column, FittedTable

_QUANTITY: Final = Column("Quantity", right=True, folds=True)


def document_table(document: Document) -> RenderableType:
    """Parties and dates, the lines with their sub-totals, the tax and the totals; no annex."""
    small = (Text(text, style="dim") for text in (*show.remarks(document), show.provenance(document)))
    return Group(_facts(document), _lines(document), _totals(document), *small)


def _facts(document: Document) -> FittedTable:
    table = FittedTable(Column.text(""), Column.text(""), title=show.heading(document))
    for role, label in (("seller", "From"), ("buyer", "To")):
        table.add(label, ", ".join(show.party(document, role)))
    for label, text in (*show.facts_of(document), *show.payment(document)):
        table.add(label, text)
    return table


def _lines(document: Document) -> FittedTable:
    folding = {"Item": Column.text("Item"), "Price": Column.text("Price", 1), "Quantity": _QUANTITY}
    table = FittedTable(*(folding.get(name) or Column.number(name) for name in show.LINE_COLUMNS))
    for group in show.line_groups(document):
        table.add("", Text(group.heading, style="bold"))
        for row in group.rows:
            table.add(*row)
        table.add("", "Sub-total", "", "", "", Text(group.net_amount, style="bold"))
        table.add_section()
    return table


def _totals(document: Document) -> FittedTable:
    table = FittedTable(Column.text(""), Column.number(""))
    for category, rate, taxable, tax in show.vat_rows(document):
        table.add(f"VAT {category}, {rate} of {taxable}", tax)
    table.add_section()
    for label, text in show.totals(document):
        table.add(label, Text(text, style="bold"))
    return table
