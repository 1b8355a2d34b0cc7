"""The register's rules: what may be issued next, and what is posted to each invoice. Pure.

A document posts the difference between two closings: an invoice from nothing to its closing, a note from the posted
closing to a newer one, a void from the posted closing to nothing. So the sum of everything posted to an invoice is
always the newest posted closing, charge for charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.errors import (
    AlreadyIssued,
    AlreadyVoid,
    Blocked,
    FuturePeriod,
    NoInvoice,
    NotFinal,
    NothingToAdjust,
    NothingToIssue,
    NotOneNote,
    OtherClocks,
    OtherCurrency,
    OtherSeller,
    OverlappingPeriod,
    RegisterDamaged,
    UnknownDocument,
)

BESIDE: Final = timedelta(days=2)
"""Days of two time zones this far apart share no hour."""
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedDocument:
    """One numbered document. Amounts, in minor units, are added to what is owed; those of a credit are negative.

    `counter`: of its legal entity, from 1 without gaps. `closing`: id of the posted closing ("" for a void); `rank`:
    that closing's. `due_date`: once it is stored. `before`: id of the closing posted until then ("" for an invoice).
    `by`, `reason`: who asked, and why.
    """

    key: PeriodKey
    counter: int
    number: str
    type: DocumentType
    closing: str
    rank: tuple[int, int]
    before: str
    currency: str
    time_zone: str
    net_minor: int
    tax_minor: int
    issued_at: datetime
    issue_date: date
    rounding_minor: int = 0
    due_date: date | None = field(default=None, compare=False)
    reference: PrecedingInvoice | None = None
    by: str = ""
    reason: str = ""

    @property
    def is_void(self) -> bool:
        return self.type is not DocumentType.INVOICE and not self.closing

    @property
    def gross_minor(self) -> int:
        """BT-115, what is to be paid."""
        return self.net_minor + self.tax_minor + self.rounding_minor


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedInvoice:
    """A valid invoice with the sum of all that was posted to it. `closing`: the posted closing, with its `rank`."""

    invoice: IssuedDocument
    closing: str
    rank: tuple[int, int]
    net_minor: int
    tax_minor: int
    rounding_minor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedChange:
    """The change from the posted closing to a newer one. Empty: no amount, tax or rounding differs.

    `fault`: why no single document can state it; "" if one can.
    """

    net_minor: int
    tax_minor: int
    is_empty: bool
    rounding_minor: int = 0
    fault: str = ""

    @property
    def gross_minor(self) -> int:
        return self.net_minor + self.tax_minor + self.rounding_minor


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The last counter (0: none) and the last document date of a legal entity."""

    counter: int = 0
    issue_date: date = date.min

    def after(self, document: IssuedDocument) -> Numbering:
        return Numbering(
            counter=max(self.counter, document.counter), issue_date=max(self.issue_date, document.issue_date)
        )


class Ledger:
    """The documents that affect what may be issued, at least those with overlapping periods, and the numbering of
    sellers.
    """

    def __init__(
        self, documents: Iterable[IssuedDocument] = (), numbering: Mapping[str, Numbering] | None = None
    ) -> None:
        """Raises RegisterDamaged for documents that contradict each other."""
        self._numbering = dict(numbering or {})
        self._posted: dict[str, dict[PeriodKey, PostedInvoice]] = {}
        self._invoices: dict[tuple[str, str], IssuedDocument] = {}
        # in the order of their numbers, which decides what is posted
        for document in sorted(documents, key=lambda one: (one.key.legal_entity, one.counter)):
            self._add(document)
        # at the end, because documents of two sellers have no order
        for of_payer in self._posted.values():
            self._check_apart(of_payer)

    def add(self, document: IssuedDocument) -> None:
        expected = self.numbering(document.key.legal_entity).counter + 1
        if document.counter != expected:
            raise RegisterDamaged(f"document {document.number} has the counter {document.counter}, not {expected}")
        self._add(document)
        self._check_apart(self._posted[document.key.payer])

    def numbering(self, legal_entity: str) -> Numbering:
        return self._numbering.get(legal_entity, Numbering())

    @property
    def all_numbering(self) -> dict[str, Numbering]:
        return dict(self._numbering)

    def posted(self, key: PeriodKey) -> PostedInvoice | None:
        """The valid invoice of a period; None if there is none or it was voided."""
        return next((one for one in self.standing(key.payer) if one.invoice.key == key), None)

    def standing(self, payer: str) -> tuple[PostedInvoice, ...]:
        return tuple(self._posted.get(payer, {}).values())

    def posted_to(self, legal_entity: str, number: str) -> PostedInvoice:
        """Raises UnknownDocument, AlreadyVoid."""
        invoice = self._invoices.get((legal_entity, number))
        if invoice is None:
            raise UnknownDocument(number, "invoice")
        found = self.posted(invoice.key)
        if found is None or found.invoice.number != number:
            raise AlreadyVoid(invoice.key.payer, number)
        return found

    def _add(self, document: IssuedDocument) -> None:
        key, of_payer = document.key, self._posted.setdefault(document.key.payer, {})
        # counts even if the document is damaged
        self._numbering[key.legal_entity] = self.numbering(key.legal_entity).after(document)
        if document.type is DocumentType.INVOICE:
            if key in of_payer:
                raise RegisterDamaged(f"invoice {document.number} has days of {key.payer} that are on another invoice")
            of_payer[key] = _posted(document, document)
            self._invoices[key.legal_entity, document.number] = document
        else:
            before = of_payer.pop(key, None)
            if before is None or document.reference != _reference(before.invoice) or before.closing != document.before:
                raise RegisterDamaged(f"note {document.number} does not match the amounts posted to its invoice")
            after = _posted(before.invoice, document, before)
            if not document.is_void:
                of_payer[key] = after
            elif after.net_minor or after.tax_minor or after.rounding_minor:
                raise RegisterDamaged(f"the void {document.number} does not reverse everything posted to its invoice")

    @staticmethod
    def _check_apart(of_payer: Mapping[PeriodKey, PostedInvoice]) -> None:
        """Raises RegisterDamaged if two valid invoices share a day."""
        in_order = sorted(of_payer, key=lambda key: key.first_day)
        for one, other in pairwise(in_order):
            if one.overlaps(other):
                number = of_payer[other].invoice.number
                raise RegisterDamaged(f"invoice {number} has days of {other.payer} that are on another invoice")


def issue(ledger: Ledger, closing: Closing, now: datetime, by: str = "") -> IssuedDocument:
    """The invoice of a closing, which must be the newest of its period. Raises RegisterRefusal."""
    key = closing.key
    for other in ledger.standing(key.payer):
        _check_beside(other.invoice, closing)
    if now < closing.period_end:
        raise FuturePeriod(key.payer, closing.period_end.isoformat(), now.isoformat(timespec="seconds"))
    _check_final(closing)
    if not closing.is_invoiced:
        raise NothingToIssue(key.payer)
    # last, so that a refusal leaves no gap
    counter = ledger.numbering(closing.key.legal_entity).counter + 1
    return IssuedDocument(
        key=key,
        counter=counter,
        number=document_number(closing.number_prefix, counter),
        type=DocumentType.INVOICE,
        closing=closing.id,
        rank=closing.rank,
        before="",
        currency=closing.currency,
        time_zone=closing.time_zone,
        net_minor=closing.net_minor,
        tax_minor=closing.tax_minor,
        rounding_minor=closing.rounding_minor,
        issued_at=now,
        issue_date=_issue_date(ledger, closing, now),
        by=by,
    )


def adjust(
    ledger: Ledger, closing: Closing, change: PostedChange, now: datetime, by: str = "", *, reason: str = ""
) -> IssuedDocument:
    """The note that posts `change`, from the posted closing to this newer one. Raises RegisterRefusal.

    `reason`: "" names the closing's snapshot.
    """
    posted = adjustable(ledger, closing)
    if change.is_empty:
        raise NothingToAdjust(closing.key.payer, posted.invoice.number, closing.snapshot_id)
    if change.fault:
        raise NotOneNote(closing.key.payer, posted.invoice.number, closing.key.text, change.fault)
    note = _note(ledger, posted, closing, change, now)
    said = reason or f"Changes since then, by snapshot {closing.snapshot_id}"
    return replace(note, closing=closing.id, rank=closing.rank, by=by, reason=said)


def adjustable(ledger: Ledger, closing: Closing) -> PostedInvoice:
    """The valid invoice that a newer closing can adjust. Raises RegisterRefusal."""
    key = closing.key
    posted = ledger.posted(key)
    if closing.outcome is ClosingState.BLOCKED:
        # its seller may be unknown
        _check_final(closing)
    if posted is None:
        for other in ledger.standing(key.payer):
            if other.invoice.key._replace(legal_entity=key.legal_entity) == key:
                raise OtherSeller(key.payer, other.invoice.number, other.invoice.key.legal_entity, key.legal_entity)
        if closing.outcome is ClosingState.FINAL and not closing.is_invoiced:
            raise NothingToIssue(key.payer)
        raise NoInvoice(key.payer)
    number = posted.invoice.number
    # a late closing of an older snapshot knows less than the posted one
    if closing.rank <= posted.rank:
        raise NothingToAdjust(key.payer, number, closing.snapshot_id)
    _check_final(closing)
    if closing.currency != posted.invoice.currency:
        raise OtherCurrency(key.payer, number, key.text, posted.invoice.currency, closing.currency)
    if closing.time_zone != posted.invoice.time_zone:
        raise OtherClocks(key.payer, number, posted.invoice.time_zone, closing.time_zone)
    return posted


def void(ledger: Ledger, number: str, closing: Closing, now: datetime, *, by: str, reason: str) -> IssuedDocument:
    """The note that takes back everything posted to an invoice. `closing`: the posted closing.

    Raises UnknownDocument, AlreadyVoid.
    """
    posted = ledger.posted_to(closing.key.legal_entity, number)
    if posted.closing != closing.id:
        raise RegisterDamaged(f"{number} has the amounts of closing {posted.closing} posted, not of {closing.id}")
    everything = PostedChange(
        net_minor=-posted.net_minor,
        tax_minor=-posted.tax_minor,
        rounding_minor=-posted.rounding_minor,
        is_empty=False,
    )
    return replace(_note(ledger, posted, closing, everything, now), by=by, reason=reason)


def document_number(prefix: str, counter: int) -> str:
    """The prefix `WB-EU-` and counter 42 make `WB-EU-00000042`."""
    return f"{prefix}{counter:0{_DIGITS}d}"


def check_numbers(counters: Iterable[int], legal_entity: str) -> int:
    """The number of documents of a legal entity. Raises RegisterDamaged if their counters have gaps."""
    found = sorted(counters)
    wrong = next((at for at, counter in enumerate(found, 1) if at != counter), None)
    if wrong is not None:
        raise RegisterDamaged(f"the numbers of {legal_entity} have a gap at {wrong}")
    return len(found)


def _check_beside(invoice: IssuedDocument, closing: Closing) -> None:
    """Raises RegisterRefusal if a closing may not be issued beside a valid invoice of its payer."""
    key, its = closing.key, invoice.key
    if its == key:
        raise AlreadyIssued(key.payer, invoice.number)
    if closing.outcome is ClosingState.BLOCKED:
        # its seller may be unknown
        _check_final(closing)
    if its.overlaps(key):
        if its._replace(legal_entity=key.legal_entity) == key:
            raise OtherSeller(key.payer, invoice.number, its.legal_entity, key.legal_entity)
        raise OverlappingPeriod(key.payer, invoice.number, its.first_day, its.last_day)
    beside = its._replace(first_day=its.first_day - BESIDE, last_day=its.last_day + BESIDE)
    if invoice.time_zone != closing.time_zone and beside.overlaps(key):
        raise OtherClocks(key.payer, invoice.number, invoice.time_zone, closing.time_zone)


def _check_final(closing: Closing) -> None:
    if closing.outcome is ClosingState.BLOCKED:
        raise Blocked(closing.key.payer, closing.reasons)
    if closing.outcome is ClosingState.PROVISIONAL:
        raise NotFinal(closing.key.payer, closing.reasons)


def _note(
    ledger: Ledger, posted: PostedInvoice, closing: Closing, change: PostedChange, now: datetime
) -> IssuedDocument:
    invoice, sums = posted.invoice, (change.gross_minor, change.net_minor)
    counter = ledger.numbering(closing.key.legal_entity).counter + 1
    return IssuedDocument(
        key=invoice.key,
        counter=counter,
        number=document_number(closing.number_prefix, counter),
        type=DocumentType.DEBIT_NOTE if sums > (0, 0) else DocumentType.CREDIT_NOTE,
        closing="",
        rank=posted.rank,
        before=posted.closing,
        currency=invoice.currency,
        time_zone=invoice.time_zone,
        net_minor=change.net_minor,
        tax_minor=change.tax_minor,
        rounding_minor=change.rounding_minor,
        issued_at=now,
        issue_date=_issue_date(ledger, closing, now),
        reference=_reference(invoice),
    )


def _issue_date(ledger: Ledger, closing: Closing, now: datetime) -> date:
    """The payer's local day, but never before the date of the previous number."""
    local = now.astimezone(ZoneInfo(closing.time_zone)).date()
    return max(local, ledger.numbering(closing.key.legal_entity).issue_date)


def _reference(invoice: IssuedDocument) -> PrecedingInvoice:
    return PrecedingInvoice(number=invoice.number, issue_date=invoice.issue_date)


def _posted(invoice: IssuedDocument, document: IssuedDocument, before: PostedInvoice | None = None) -> PostedInvoice:
    return PostedInvoice(
        invoice=invoice,
        closing=document.closing,
        rank=document.rank,
        net_minor=document.net_minor + (before.net_minor if before else 0),
        tax_minor=document.tax_minor + (before.tax_minor if before else 0),
        rounding_minor=document.rounding_minor + (before.rounding_minor if before else 0),
    )
