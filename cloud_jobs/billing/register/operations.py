"""Issue, adjust and void on the lake: what the ledger allows of many payers is posted at once, the rest is said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.register import ledger as rules
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.errors import AdjustmentDue, NothingClosed, RegisterRefusal, Unattributed
from cloud_jobs.billing.register.invoices_of_others import InvoicesOfOthers
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, PostedChange
from cloud_jobs.billing.register.newer_contracts import NewerContracts
from cloud_jobs.billing.register.outdated import outdated_closings
from cloud_jobs.billing.register.period_posting import Pair, PeriodPosting, Row
from cloud_jobs.billing.register.posting import post
from cloud_jobs.billing.register.rows import document_row
from cloud_jobs.billing.register.tables import Register, missing_closing


class Sealed(NamedTuple):
    """A document that was made: its head (canonical JSON) and the digest of the whole."""

    head: str
    digest: str


class Books(Protocol):
    """What the operations need beside the register's tables: see `documents_of.DocumentMaker`."""

    def check(self, closings: Collection[Closing]) -> None:
        """Refuses closings of one period whose charges are not there."""

    def load(self, closings: Collection[Closing]) -> None:
        """Makes ready what `change` and the seal of a note need of closings of one period."""

    def change(self, before: Closing, after: Closing) -> PostedChange:
        """What a closing changes of another one that is posted."""

    def seal(self, entry: IssuedDocument, closing: Closing | None, before: Closing | None) -> Sealed:
        """The document of a numbered entry, its closing (None of a void), and the one posted before, if there was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """Who asks, when, and in which command: `attempt` is a name that no other command has. `reason`: of the notes."""

    by: str
    now: datetime
    attempt: str
    reason: str = ""


class Done(NamedTuple):
    """The documents that were posted, by number, and why others were not, by payer."""

    documents: Sequence[IssuedDocument]
    refused: Sequence[RegisterRefusal]


class _Issue:
    """The invoice of each payer that has none."""

    def __init__(self, books: Books, clerk: Clerk) -> None:
        self.books, self.clerk = books, clerk

    def ready(self, pairs: Sequence[Pair]) -> None:
        self.books.check([closing for closing, posted in pairs if posted is None])
        self._load_changed(pairs)

    def _load_changed(self, pairs: Sequence[Pair]) -> None:
        changed = [pair for pair in pairs if pair[1] is not None and not pair[0].owes_as(pair[1])]
        self.books.load([one for pair in changed for one in pair if one is not None])

    def entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        closing, posted = pair
        is_final = closing.outcome is ClosingState.FINAL
        if posted is not None and is_final and not self.books.change(posted, closing).is_empty:
            standing = ledger.posted(closing.key)
            assert standing is not None, "a closing is posted to an invoice"
            raise AdjustmentDue(closing.key.payer, standing.invoice.number)
        return rules.issue(ledger, closing, self.clerk.now, self.clerk.by)

    def row(self, entry: IssuedDocument, pair: Pair) -> Row:
        return document_row(entry, *self.books.seal(entry, *pair), self.clerk.attempt)


class _Adjust(_Issue):
    """The note of each payer whose newest closing changes what is posted."""

    def ready(self, pairs: Sequence[Pair]) -> None:
        self._load_changed(pairs)

    def entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        closing, before = pair
        posted = rules.adjustable(ledger, closing)
        if before is None:
            raise missing_closing(closing.key.payer, posted.closing)
        change, clerk = self.books.change(before, closing), self.clerk
        return rules.adjust(ledger, closing, change, clerk.now, clerk.by, reason=clerk.reason)


def issue_period(register: Register, days: Days, payers: Collection[str] | None, *, books: Books, clerk: Clerk) -> Done:
    """Numbers the invoices of a period: of some payers, or of all that were closed. One commit, or none.

    Raises NothingClosed, Unattributed, CommitConflict, CommitFailed, LakeError, StoreUnavailable.
    """
    return _post(register, days, payers, _Issue(books, clerk))


def adjust_period(
    register: Register, days: Days, payers: Collection[str] | None, *, books: Books, clerk: Clerk
) -> Done:
    """Posts what the newest closings change of what is posted, each by a note with the clerk's reason.

    Raises as `issue_period`.
    """
    return _post(register, days, payers, _Adjust(books, clerk))


def void_invoice(
    register: Register, number: str, reason: str, legal_entity: str | None = None, *, books: Books, clerk: Clerk
) -> IssuedDocument:
    """Takes back all that is posted to an invoice; `legal_entity`: its seller, if two have the number.

    Raises UnknownDocument, AlreadyVoid, NumberOfAnother, Unattributed, and as `issue_period`.
    """
    if faults := [*attribution_faults(clerk.by, reason)]:
        raise Unattributed(faults)
    invoice, _ = register.document(number, legal_entity)

    def make(opened: DeltaTable) -> Iterator[list[Row]]:
        ledger = register.ledger(opened, [invoice.key])
        closing = register.closing(invoice.key, ledger.posted_to(invoice.key.legal_entity, number).closing)
        books.load([closing])
        ledger.reserve(register.numbers_of_others(opened, ledger, [closing]))
        made = rules.void(ledger, number, closing, clerk.now, by=clerk.by, reason=reason)
        yield [document_row(made, *books.seal(made, None, closing), clerk.attempt)]

    return post(register, clerk.attempt, make)[0]


def _post(register: Register, days: Days, payers: Collection[str] | None, step: _Issue) -> Done:
    if faults := [*attribution_faults(step.clerk.by, step.clerk.reason or None)]:
        raise Unattributed(faults)
    asked = register.payers(*days) if payers is None else sorted({*payers})
    if not asked:
        raise NothingClosed(days_text(*days))
    newer = NewerContracts(register.lake, days[1])
    others = InvoicesOfOthers(register, days, newer, step.books)
    outdated = outdated_closings(register, days, newer)
    posting = PeriodPosting(register, days, asked, step, others=others, outdated=outdated)
    return Done(post(register, step.clerk.attempt, posting.make), tuple(posting.refused))
