"""Closings, documents and changes as Rich tables and as JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from cloud_jobs.billing.documents import document_table
from cloud_jobs.billing.documents.document import PREVIEW_MARK
from cloud_jobs.billing.rating import Charge, RatedAccount
from cloud_jobs.billing.register.closing import Closing, ClosingNotes, ClosingState
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.payments import Balance, PaidState
from cloud_jobs.billing.units import amount_text, quantity_text
from cloud_jobs.terminal import Column, FittedTable
from geo.reference.moments import stamp

if TYPE_CHECKING:
    from cloud_jobs.billing.register.preview import PeriodPreview

_MAX_REASONS = 3


def closing_values(closing: Closing) -> dict[str, Any]:
    noticed = ClosingNotes.of(closing.parties)
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
        "rounding_minor": closing.rounding_minor,
        "charges": closing.charges,
        "snapshot": closing.snapshot_id,
        "closing": closing.id,
        "control_totals": json.loads(closing.control_totals),
        **noticed.counts,
        "notes": [*noticed.notes],
        "doubtful": [*noticed.doubtful],
        "decisions": [*noticed.decisions],
        "refused_fences": [*noticed.refused_fences],
    }


def closings_table(closings: Iterable[Closing], *, with_snapshots: bool = False) -> RenderableType:
    """One row for each payer with its first reasons, and below the table the notes.

    `with_snapshots`: show the snapshot of each closing.
    """
    closings = [*closings]
    snapshots = [Column("snapshot")] if with_snapshots else []
    table = FittedTable(
        *(Column("payer"), Column.text("period"), Column("outcome"), Column.number("net"), Column.number("tax")),
        *(*snapshots, Column.text("why not final")),
    )
    for one in closings:
        reasons = [*one.reasons[:_MAX_REASONS]]
        if len(one.reasons) > _MAX_REASONS:
            reasons.append(f"and {len(one.reasons) - _MAX_REASONS} more")
        # a blocked closing has no sum
        currency = "" if one.outcome is ClosingState.BLOCKED else one.currency
        amounts = (_amount(one.net_minor, currency), _amount(one.tax_minor, currency))
        by = [one.snapshot_id] if with_snapshots else []
        table.add(one.key.payer, one.key.text, one.outcome.value, *amounts, *by, "\n".join(reasons))
    return Group(table, *(Text(line) for line in _noticed(closings)))


def _noticed(closings: Iterable[Closing]) -> Iterator[str]:
    """The notes of each payer, and each refused fence once."""
    refused: dict[str, None] = {}
    for one in closings:
        noticed = ClosingNotes.of(one.parties)
        refused |= dict.fromkeys(noticed.refused_fences)
        for text in (*noticed.notes, noticed.unknown, *noticed.doubtful, *noticed.decisions):
            if text:
                yield f"{one.key.payer}: {text}"
    yield from (f"refused, so what it was to replace was metered: {one}" for one in refused)


MAX_PREVIEWS: Final = 20
"""The most payers whose lines are shown; a table has the sums of all."""


def preview_values(found: PeriodPreview) -> dict[str, Any]:
    return {
        "mark": PREVIEW_MARK,
        "as_of": stamp(found.as_of),
        "previews": [
            one.document | {"annex": [*one.document["annex"]]} for one in found.payers if one.document is not None
        ],
        "blocked": [
            {"payer": one.closing.key.payer, "reasons": [*one.closing.reasons]}
            for one in found.payers
            if one.document is None
        ],
        "unbilled": [f"{one.tenant}/{one.device}" for one in found.unbilled],
    }


def previews_table(found: PeriodPreview) -> RenderableType:
    """The lines of each payer, and a table with the sums of all."""
    documents = [one.document for one in found.payers if one.document is not None]
    table = FittedTable(
        *(Column("payer"), Column.text("period"), Column.number("net so far"), Column.number("tax so far")),
        Column.text("not known"),
        title=f"{PREVIEW_MARK}: provisional, as of {stamp(found.as_of)}",
    )
    for one in found.payers:
        closing, made = one.closing, one.document
        if made is None:
            table.add(closing.key.payer, closing.key.text, "", "", f"blocked: {'; '.join(closing.reasons)}")
            continue
        amounts = (_amount(closing.net_minor, closing.currency), _amount(closing.tax_minor, closing.currency))
        unknown = made["preview"]["incomplete"]
        of_all = f"{len(unknown)} of {made['preview']['devices']} vehicles incomplete" if unknown else ""
        said = "; ".join(text for text in (of_all, *made["preview"]["reasons"]) if text)
        table.add(closing.key.payer, closing.key.text, *amounts, said)
    notes = [Text(line) for line in _noticed(one.closing for one in found.payers)]
    return Group(*map(document_table, documents[:MAX_PREVIEWS]), table, *notes)


def document_values(document: IssuedDocument) -> dict[str, Any]:
    reference = document.reference
    return {
        "number": document.number,
        "type": document.type.value,
        "legal_entity": document.key.legal_entity,
        "payer": document.key.payer,
        "first_day": document.key.first_day.isoformat(),
        "last_day": document.key.last_day.isoformat(),
        "issue_date": document.issue_date.isoformat(),
        "due_date": document.due_date and document.due_date.isoformat(),
        "issued_at": stamp(document.issued_at),
        "currency": document.currency,
        "net_minor": document.net_minor,
        "tax_minor": document.tax_minor,
        "rounding_minor": document.rounding_minor,
        "gross_minor": document.gross_minor,
        "invoice": None if reference is None else reference.number,
        "is_void": document.is_void,
        "closing": document.closing or None,
        "by": document.by,
        "reason": document.reason,
    }


def balance_values(balance: Balance) -> dict[str, Any]:
    """What is open of the document's invoice with its notes."""
    is_known = balance.state is not PaidState.UNKNOWN
    return {
        "payment": balance.state.value,
        "paid_minor": balance.paid_minor if is_known else None,
        "open_minor": balance.owed_minor - balance.paid_minor if is_known else None,
    }


def documents_table(
    documents: Iterable[IssuedDocument], balance: Mapping[str, Balance] | None = None
) -> RenderableType:
    """One row for each document. Amounts of credits are negative. `balance`: by number."""
    payment = [] if balance is None else [Column("payment")]
    table = FittedTable(
        *(Column("number"), Column.text("type"), Column("date"), Column("payer"), Column("period")),
        *(Column.number("net", optional=True), Column.number("tax", optional=True), Column.number("gross"), *payment),
        *(Column("invoice", optional=True), Column("reason", folds=True, optional=True)),
    )
    for one in documents:
        kind = f"{one.type.heading.lower()}{' (void)' if one.is_void else ''}"
        amounts = [_amount(minor, one.currency) for minor in (one.net_minor, one.tax_minor, one.gross_minor)]
        invoice = "" if one.reference is None else one.reference.number
        amounts += [] if balance is None else [balance[one.number].text]
        table.add(one.number, kind, str(one.issue_date), one.key.payer, one.key.text, *amounts, invoice, one.reason)
    return table


def changes_values(number: str, change: RatedAccount) -> dict[str, Any]:
    return {
        "invoice": number,
        "currency": change.currency,
        "net_minor": change.net_minor,
        "tax_minor": change.tax_minor,
        "rounding_minor": change.rounding_minor,
        "charges": [_charge_values(charge) for charge in change.charges],
    }


def changes_table(number: str, change: RatedAccount) -> RenderableType:
    """The charges that would be posted to an invoice, and their sums."""
    names: tuple[str, ...] = ("account", "region", "device", "kind", "meter", "zone", "window", "price")
    # nearly always all are taxed alike
    names += ("tax",) if len(change.taxes) > 1 else ()
    columns = (Column(name, folds=name not in {"device", "kind"}) for name in names)
    table = FittedTable(*columns, Column.number("quantity"), Column.number("amount"))
    currency = change.currency
    for charge in change.charges:
        key = charge.key
        texts = (key.account, key.region, key.device, key.kind.value, key.meter or "", key.zone, key.window, key.price)
        quantity = "" if key.meter is None else quantity_text(key.meter, charge.quantity)
        table.add(*(*texts, key.tax)[: len(names)], quantity, _amount(charge.amount_minor, currency))
    table.add_section()
    for name, minor in (("net", change.net_minor), ("tax", change.tax_minor), ("to post", change.payable_minor)):
        table.add(f"{name} to {number}", *[""] * len(names), _amount(minor, currency))
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
        "tax": key.tax,
        "quantity": charge.quantity,
        "free": charge.free,
        "amount_minor": charge.amount_minor,
    }


def _amount(minor: int, currency: str) -> str:
    return f"{amount_text(minor, currency)} {currency}" if currency else ""
