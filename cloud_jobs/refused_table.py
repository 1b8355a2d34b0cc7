"""For the terminal: publications of reference data that cannot be used, and messages that are no publications."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from geo.reference.in_force import RefusedVersion
from geo.reference.messages import QuarantinedMessage
from waybill.settings import printable


def refused_table(refused: Iterable[RefusedVersion]) -> Table:
    """What cannot be used, and why; what it was to replace is in force."""
    rows = ((one.kind, one.id, one.effective_from, one.place, one.reason) for one in refused)
    return _table("Cannot be used, and not in force", ("kind", "id", "effective from", "place", "reason"), rows)


def quarantine_table(messages: Iterable[QuarantinedMessage]) -> Table:
    """Messages that are no publications, where they stand, and why."""
    rows = ((one.topic, one.message_id, one.key, one.reason) for one in messages)
    return _table("In quarantine: no publications", ("topic", "message id", "key", "reason"), rows)


def _table(title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
