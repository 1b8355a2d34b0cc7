"""A document for the terminal, as Rich tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.documents import presentation as show
from cloud_jobs.billing.documents.canonical import Document


def document_table(document: Document) -> RenderableType:
    """Parties and dates, the lines with their sub-totals, the tax and the totals; no annex."""
    return Group(_facts(document), _lines(document), _totals(document), Text(show.provenance(document), style="dim"))


def _facts(document: Document) -> Table:
    table = Table(title=Text(show.heading(document)), title_justify="left", show_header=False)
    for role, label in (("seller", "From"), ("buyer", "To")):
        # as Text: Rich would read brackets in a name as markup
        table.add_row(label, Text(", ".join(show.party(document, role))))
    for label, text in (*show.facts_of(document), *show.payment(document)):
        table.add_row(label, Text(text))
    return table


def _lines(document: Document) -> Table:
    table = Table()
    for name in show.LINE_COLUMNS:
        table.add_column(name, justify="left" if name in {"Item", "Price"} else "right")
    for group in show.line_groups(document):
        table.add_row("", Text(group.heading, style="bold"))
        for row in group.rows:
            table.add_row(*(Text(cell) for cell in row))
        table.add_row("", Text("Sub-total"), "", "", "", Text(group.net_amount, style="bold"))
        table.add_section()
    return table


def _totals(document: Document) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for category, rate, taxable, tax in show.vat_rows(document):
        table.add_row(Text(f"VAT {category}, {rate} of {taxable}"), tax)
    table.add_section()
    for label, text in show.totals(document):
        table.add_row(label, Text(text, style="bold"))
    return table
