"""Issue, adjust and void on the lake: what the ledger allows of many payers is posted at once, the rest is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

from deltalake import DeltaTable

from cloud_jobs.billing.register import ledger as rules
from cloud_jobs.billing.register.closing import Closing, PeriodKey
from cloud_jobs.billing.register.errors import NotClosed, RegisterRefusal
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, PostedChange
from cloud_jobs.billing.register.posting import post
from cloud_jobs.billing.register.rows import document_row
from cloud_jobs.billing.register.tables import Register


class Sealed(NamedTuple):
    """A document that was made: its head (canonical JSON) and the digest of the whole."""

    head: str
    digest: str


@dataclass(frozen=True, slots=True)
class Books:
    """What the operations need beside the register's tables.

    `change`: what a closing changes of another one that is posted. `seal`: the document that is made of a numbered
    entry, its closing (None of a void) and the closing that was posted before (None of an invoice).
    """

    change: Callable[[Closing, Closing], PostedChange]
    seal: Callable[[IssuedDocument, Closing | None, Closing | None], Sealed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """Who asks, when, and in which command: `attempt` is a name that no other command has."""

    by: str
    now: datetime
    attempt: str


class Done(NamedTuple):
    """The documents that were posted, by number, and why others were not, by payer."""

    documents: Sequence[IssuedDocument]
    refused: Sequence[RegisterRefusal]


_Step = Callable[[Ledger, Closing], tuple[IssuedDocument, Closing | None]]


def issue_period(
    register: Register,
    first_day: date,
    last_day: date,
    payers: Collection[str] | None,
    *,
    books: Books,
    clerk: Clerk,
) -> Done:
    """Numbers the invoices of a period: of some payers, or of all that were closed. One commit, or none.

    Raises CommitConflict, CommitFailed, LakeError, StoreUnavailable, RegisterDamaged.
    """

    def step(ledger: Ledger, closing: Closing) -> tuple[IssuedDocument, Closing | None]:
        return rules.issue(ledger, closing, clerk.now, clerk.by), None

    return _each(register, (first_day, last_day), payers, step, books=books, clerk=clerk)


def adjust_period(
    register: Register,
    first_day: date,
    last_day: date,
    payers: Collection[str] | None,
    *,
    books: Books,
    clerk: Clerk,
) -> Done:
    """Posts what the newest closings change of what is posted, each by a note. Raises as `issue_period`."""

    def step(ledger: Ledger, closing: Closing) -> tuple[IssuedDocument, Closing | None]:
        posted = rules.adjustable(ledger, closing)
        before = register.closing(closing.key, posted.closing)
        return rules.adjust(ledger, closing, books.change(before, closing), clerk.now, clerk.by), before

    return _each(register, (first_day, last_day), payers, step, books=books, clerk=clerk)


def void_invoice(register: Register, number: str, reason: str, *, books: Books, clerk: Clerk) -> IssuedDocument:
    """Takes back all that is posted to an invoice. Raises UnknownDocument, AlreadyVoid, and as `issue_period`."""
    invoice, _ = register.document(number)

    def make(opened: DeltaTable) -> list[dict[str, object]]:
        ledger = register.ledger(opened, [invoice.key])
        closing = register.closing(invoice.key, ledger.posted_to(number).closing)
        made = rules.void(ledger, number, closing, clerk.now, by=clerk.by, reason=reason)
        return [document_row(made, *books.seal(made, None, closing), clerk.attempt)]

    return post(register, clerk.attempt, make)[0]


def _each(
    register: Register,
    days: tuple[date, date],
    payers: Collection[str] | None,
    step: _Step,
    *,
    books: Books,
    clerk: Clerk,
) -> Done:
    closings = register.closings(*days, payers)
    in_order = sorted(closings.values(), key=lambda one: (one.key.legal_entity, one.key.payer))
    refused: list[RegisterRefusal] = []

    def make(opened: DeltaTable) -> list[dict[str, object]]:
        ledger = register.ledger(opened, (one.key for one in in_order))
        refused[:] = [NotClosed(payer, f"{days[0]}/{days[1]}") for payer in sorted({*(payers or ())} - {*closings})]
        rows = []
        for closing in in_order:
            try:
                made, before = step(ledger, closing)
            except RegisterRefusal as refusal:
                refused.append(refusal)
            else:
                rows.append(document_row(made, *books.seal(made, closing, before), clerk.attempt))
                ledger.add(made)
        return rows

    return Done(post(register, clerk.attempt, make), tuple(refused))


def standing_keys(documents: Iterable[IssuedDocument]) -> list[PeriodKey]:
    """The periods that documents are of, each once, in order."""
    return sorted({document.key for document in documents})
