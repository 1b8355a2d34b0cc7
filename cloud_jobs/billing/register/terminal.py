"""Closings, documents and differences for people, as Rich tables, and for programs, as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.meters import quantity_text
from cloud_jobs.billing.period import stamp
from cloud_jobs.billing.rating import Charge, RatedAccount
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.ledger import IssuedDocument

_MAX_REASONS = 3


def closing_values(closing: Closing) -> dict[str, Any]:
    """A closing as JSON has it."""
    return {
        "payer": closing.key.payer,
        "legal_entity": closing.key.legal_entity,
        "first_day": closing.key.first_day.isoformat(),
        "last_day": closing.key.last_day.isoformat(),
        "time_zone": closing.time_zone,
        "outcome": closing.outcome.value,
        "reasons": [*closing.reasons],
        "currency": closing.currency,
        "net_minor": closing.net_minor,
        "tax_minor": closing.tax_minor,
        "charges": closing.charges,
        "snapshot": closing.snapshot_id,
        "closing": closing.id,
        "control_totals": json.loads(closing.control_totals),
    }


def closings_table(closings: Iterable[Closing]) -> RenderableType:
    """One row a payer; of the reasons the first ones."""
    table = _table("payer", "period", "outcome", "net >", "tax >", "why not final")
    for one in closings:
        reasons = [*one.reasons[:_MAX_REASONS]]
        if len(one.reasons) > _MAX_REASONS:
            reasons.append(f"and {len(one.reasons) - _MAX_REASONS} more")
        amounts = (_amount(one.net_minor, one.currency), _amount(one.tax_minor, one.currency))
        _add(table, one.key.payer, one.key.text, one.outcome.value, *amounts, "\n".join(reasons))
    return table


def document_values(document: IssuedDocument) -> dict[str, Any]:
    """An entry of the register as JSON has it."""
    reference = document.reference
    return {
        "number": document.number,
        "type": document.type.value,
        "legal_entity": document.key.legal_entity,
        "payer": document.key.payer,
        "first_day": document.key.first_day.isoformat(),
        "last_day": document.key.last_day.isoformat(),
        "issue_date": document.issue_date.isoformat(),
        "issued_at": stamp(document.issued_at),
        "currency": document.currency,
        "net_minor": document.net_minor,
        "tax_minor": document.tax_minor,
        "gross_minor": document.gross_minor,
        "invoice": None if reference is None else reference.number,
        "is_void": document.is_void,
        "closing": document.closing or None,
        "by": document.by,
        "reason": document.reason,
    }


def documents_table(documents: Iterable[IssuedDocument]) -> RenderableType:
    """One row a document. Amounts are what it adds: those of a credit are negative."""
    table = _table("number", "type", "date", "payer", "period", "net >", "tax >", "gross >", "invoice", "reason")
    for one in documents:
        kind = f"{one.type.heading.lower()}{' (void)' if one.is_void else ''}"
        amounts = [_amount(minor, one.currency) for minor in (one.net_minor, one.tax_minor, one.gross_minor)]
        invoice = "" if one.reference is None else one.reference.number
        _add(table, one.number, kind, str(one.issue_date), one.key.payer, one.key.text, *amounts, invoice, one.reason)
    return table


def changes_values(number: str, changes: RatedAccount) -> dict[str, Any]:
    """What would be posted to an invoice, as JSON has it."""
    return {
        "invoice": number,
        "currency": changes.currency,
        "net_minor": changes.net_minor,
        "tax_minor": changes.tax_minor,
        "charges": [_charge_values(charge) for charge in changes.charges],
    }


def changes_table(number: str, changes: RatedAccount) -> RenderableType:
    """What would be posted to an invoice, charge by charge, and in all."""
    names = ("account", "region", "device", "kind", "meter", "zone", "window", "price")
    table = _table(*names, "quantity >", "amount >")
    for charge in changes.charges:
        key = charge.key
        texts = (key.account, key.region, key.device, key.kind.value, key.meter or "", key.zone, key.window, key.price)
        quantity = "" if key.meter is None else quantity_text(key.meter, charge.quantity)
        _add(table, *texts, quantity, _amount(charge.amount_minor, changes.currency))
    table.add_section()
    totals = (("net", changes.net_minor), ("tax", changes.tax_minor), ("to post", changes.gross_minor))
    for name, minor in totals:
        _add(table, f"{name} to {number}", *[""] * len(names), _amount(minor, changes.currency))
    return table


def _charge_values(charge: Charge) -> dict[str, Any]:
    key = charge.key
    return {
        "account": key.account,
        "region": key.region,
        "tenant": key.tenant,
        "device": key.device,
        "kind": key.kind.value,
        "meter": None if key.meter is None else key.meter.value,
        "zone": key.zone,
        "window": key.window,
        "price": key.price,
        "quantity": charge.quantity,
        "free": charge.free,
        "amount_minor": charge.amount_minor,
    }


def _table(*names: str) -> Table:
    """A column for each name; of those with `>` the cells are to the right."""
    table = Table()
    for name in names:
        right = name.endswith(" >")
        table.add_column(name.removesuffix(" >"), justify="right" if right else "left", no_wrap=right)
    return table


def _add(table: Table, *cells: str) -> None:
    # as Text: Rich would read brackets in a name as markup
    table.add_row(*(Text(cell) for cell in cells))


def _amount(minor: int, currency: str) -> str:
    return f"{amount_text(minor, currency)} {currency}" if currency else ""
