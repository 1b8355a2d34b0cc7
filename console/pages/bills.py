"""Bills: the closings and documents of each payer and period, and why a closing is not final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.documents.look import language
from cloud_jobs.billing.register.closing import Closing, ClosingNotes, ClosingState
from cloud_jobs.billing.units import amount_text
from cloud_jobs.errors import CloudError
from console.bills import RECENT, ClosingRow, days_asked
from console.context import Console, Query
from console.errors import NotThere
from console.page import Column, Fact, Field, Kind, Page, Row, Table, address

ENGLISH: Final = language("en")
MAX_ROWS: Final = 500
"""The most closings and documents on a page."""
_MAX_REASONS: Final = 3

CLOSINGS: Final = (
    Column("period", "Period"),
    Column("payer", "Payer", link="payer_href"),
    Column("outcome", "Outcome", Kind.STATE),
    Column("net", "Net", Kind.MONEY),
    Column("tax", "Tax", Kind.MONEY),
    Column("why", "Why not final"),
    Column("documents", "Documents", Kind.COUNT),
    Column("closed_at", "Closed", Kind.TIME),
    Column("earlier", "Earlier closings", Kind.COUNT),
    Column("stations", "Reconcile", link="stations_href"),
)
DOCUMENTS: Final = (
    Column("number", "Number", link="href"),
    Column("type", "Type"),
    Column("issue_date", "Date"),
    Column("payer", "Payer", link="payer_href"),
    Column("period", "Period"),
    Column("net", "Net", Kind.MONEY),
    Column("tax", "Tax", Kind.MONEY),
    Column("gross", "Gross", Kind.MONEY),
    Column("payment", "Payment"),
    Column("invoice", "Corrects", link="invoice_href"),
    Column("reason", "Reason"),
)
REASONS: Final = (
    Column("period", "Period"),
    Column("what", "What", Kind.STATE),
    Column("text", "Text"),
)
_OUTCOMES: Final = tuple(one.value for one in ClosingState)
_PERIOD_AND_OUTCOME: Final = (
    Field("period", "Period (2026, 2026-03 or 2026-03-05)"),
    Field.choice("outcome", "Outcome", _OUTCOMES),
)


def page(console: Console, query: Query) -> Page:
    """The newest closing of each payer and period that the viewer may see, and the documents."""
    found, issued = _found_closings(console, query, None), _found_documents(console, query, None)
    closings, documents = _closings(found, issued, query), _documents(console, issued, query)
    payers = sorted({row["payer"] for row in (*closings.rows, *documents.rows)})
    return Page(
        path="/bills",
        title="Bills",
        tables=(closings, documents),
        state=query.state("payer", "period", "outcome"),
        form=(
            Field.choice("payer", "Payer", payers),
            *_PERIOD_AND_OUTCOME,
        ),
    )


def payer_page(console: Console, query: Query) -> Page:
    """The bills of one payer, with every reason and note of its closings."""
    payer = query.path["payer"]
    console.bills.require_payer(query.viewer, payer)
    found, issued = _found_closings(console, query, payer), _found_documents(console, query, payer)
    if not (found or issued or query.get("period") or query.get("outcome")):
        raise NotThere(f"there are no bills of {payer!r}, or you may not see them")
    return Page(
        path=address("bills", payer),
        title=f"Bills of {payer}",
        facts=_facts(console, payer),
        tables=(_closings(found, issued, query), _reasons(found), _documents(console, issued, query)),
        state=query.state("period", "outcome"),
        form=_PERIOD_AND_OUTCOME,
        zone=console.zone_of(payer),
    )


def money(minor: int, currency: str) -> str:
    """An amount as a bill prints it, with its currency."""
    return f"{ENGLISH.number(amount_text(minor, currency))} {currency}"


def _facts(console: Console, payer: str) -> tuple[Fact, ...]:
    account = console.reference.accounts_at(console.now()).get(payer)
    name = Fact("name", "Name", account.name if account else None)
    if account is None or account.payer is None:
        return (name,)
    return (
        name,
        Fact("seller", "Seller", account.payer.legal_entity),
        Fact("currency", "Currency", account.payer.currency),
        Fact("time_zone", "Time zone", account.payer.time_zone),
    )


def _found_closings(console: Console, query: Query, payer: str | None) -> list[ClosingRow]:
    """The closings that the query asks for and the viewer may see."""
    asked, outcome = query.get("payer") or None, query.get("outcome")
    found = console.bills.closings(days_asked(query.get("period")), payer or asked)
    visible = {one for one in {one.row["payer"] for one in found} if console.bills.sees(query.viewer, one)}
    return [one for one in found if one.row["payer"] in visible and (not outcome or one.row["outcome"] == outcome)]


def _closings(found: list[ClosingRow], documents: list[Mapping[str, Any]], query: Query) -> Table:
    issued = Counter((row["payer"], row["first_day"], row["last_day"]) for row in documents)
    return Table.of(
        "closings",
        "Closings",
        CLOSINGS,
        found[:MAX_ROWS],
        lambda one: _closing_row(one, issued, query),
        note=_note(query, len(found)),
        empty="nothing was closed; `waybill bill close` closes a period",
    )


def _closing_row(one: ClosingRow, issued: Counter[tuple[Any, ...]], query: Query) -> Row:
    closing = one.closing()
    key = closing.key
    # a blocked closing has no sum
    more = len(closing.reasons) - _MAX_REASONS
    is_summed = closing.outcome is not ClosingState.BLOCKED
    return {
        "id": closing.id,
        "period": key.text,
        "payer": key.payer,
        "payer_href": address("bills", key.payer, zone=query.zone),
        "legal_entity": key.legal_entity,
        "outcome": closing.outcome.value,
        "net": money(closing.net_minor, closing.currency) if is_summed else None,
        "tax": money(closing.tax_minor, closing.currency) if is_summed else None,
        "net_minor": closing.net_minor if is_summed else None,
        "tax_minor": closing.tax_minor if is_summed else None,
        "currency": closing.currency,
        "reasons": [*closing.reasons[:MAX_ROWS]],
        "why": "; ".join([*closing.reasons[:_MAX_REASONS], *([f"and {more:,} more"] if more > 0 else [])]),
        "documents": issued[key.payer, key.first_day, key.last_day],
        "closed_at": one.row["closed_at"],
        "earlier": one.earlier,
        "snapshot": closing.snapshot_id,
        "stations": "stations",
        "stations_href": address("reconcile", payer=key.payer, period=key.text, zone=query.zone),
    }


def _reasons(found: list[ClosingRow]) -> Table:
    """Each reason and note of some closings; those that cannot be read are faults of the table of closings."""
    rows = list[tuple[str, str, str]]()
    for one in found:
        with suppress(CloudError, ValueError, TypeError, KeyError):
            rows += _reasons_of(one.closing())
    note = f"The first {MAX_ROWS:,} of {len(rows):,}." if len(rows) > MAX_ROWS else ""
    title = "Why closings are not final, and what they note"
    shown = tuple({"period": period, "what": what, "text": text} for period, what, text in rows[:MAX_ROWS])
    return Table("reasons", title, REASONS, shown, note, "no reason and no note")


def _reasons_of(closing: Closing) -> Iterator[tuple[str, str, str]]:
    said, period = ClosingNotes.of(closing.parties), closing.key.text
    found = (
        ("reason", closing.reasons),
        ("not billed", (said.unknown,) if said.unknown else ()),
        ("doubtful", said.doubtful),
        ("decision", said.decisions),
        ("refused", said.refused_fences),
        ("note", said.notes),
    )
    return ((period, what, text) for what, texts in found for text in texts)


def _found_documents(console: Console, query: Query, payer: str | None) -> list[Mapping[str, Any]]:
    found = console.bills.documents(days_asked(query.get("period")), payer or query.get("payer") or None)
    visible = {one for one in {row["payer"] for row in found} if console.bills.sees(query.viewer, one)}
    return [row for row in found if row["payer"] in visible]


def _documents(console: Console, found: list[Mapping[str, Any]], query: Query) -> Table:
    payments = console.bills.payments(found, MAX_ROWS)
    return Table.of(
        "documents",
        "Invoices and notes",
        DOCUMENTS,
        found[:MAX_ROWS],
        lambda row: _document_row(console, row, query) | {"payment": payments.get(row["number"], "")},
        note=_note(query, len(found)),
        empty="nothing was issued; `waybill bill issue` issues the invoices of a closed period",
    )


def _document_row(console: Console, row: Mapping[str, Any], query: Query) -> Row:
    one = console.bills.document(row)
    invoice = None if one.reference is None else one.reference.number
    return {
        "id": one.number,
        "number": one.number,
        "href": address("documents", one.number, zone=query.zone),
        "type": f"{one.type.heading.lower()}{' (void)' if one.is_void else ''}",
        "issue_date": one.issue_date.isoformat(),
        "payer": one.key.payer,
        "payer_href": address("bills", one.key.payer, zone=query.zone),
        "period": days_text(one.key.first_day, one.key.last_day),
        "net": money(one.net_minor, one.currency),
        "tax": money(one.tax_minor, one.currency),
        "gross": money(one.gross_minor, one.currency),
        "net_minor": one.net_minor,
        "tax_minor": one.tax_minor,
        "gross_minor": one.gross_minor,
        "currency": one.currency,
        "invoice": invoice or "",
        "invoice_href": address("documents", invoice, zone=query.zone) if invoice else "",
        "reason": one.reason,
        "by": one.by,
    }


def _note(query: Query, count: int) -> str:
    """What the table leaves out."""
    said = [] if query.get("period") else [f"Periods that end within {RECENT.days} days before the newest one."]
    if count > MAX_ROWS:
        said.append(f"The newest {MAX_ROWS:,} of {count:,}; choose a payer or a period.")
    return " ".join(said)
