"""Issue, adjust and void on the lake: what the ledger allows of many payers is posted at once, the rest is said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.documents import DocumentError, DocumentType
from cloud_jobs.billing.register import ledger as rules
from cloud_jobs.billing.register.closing import Closing, ClosingState, RegisterKey
from cloud_jobs.billing.register.errors import Blocked, NotClosed, NothingClosed, RegisterRefusal, Unattributed
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, PostedChange
from cloud_jobs.billing.register.posting import post
from cloud_jobs.billing.register.rows import document_row
from cloud_jobs.billing.register.tables import Register, missing_closing

Row = dict[str, Any]
Days = tuple[date, date]
"""The first and the last day of a period, both included."""


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
    """Who asks, when, and in which command: `attempt` is a name that no other command has."""

    by: str
    now: datetime
    attempt: str


class Done(NamedTuple):
    """The documents that were posted, by number, and why others were not, by payer."""

    documents: Sequence[IssuedDocument]
    refused: Sequence[RegisterRefusal]


_Step = Callable[[Ledger, Closing, Closing | None], IssuedDocument]
"""The entry that a newest closing makes; given also the closing that is posted, if there is one."""
_Ready = Callable[[Sequence[tuple[Closing, Closing | None]]], None]
"""What is to be read of the newest closings that are final, each with the one that is posted."""
_PAYERS_AT_ONCE: Final = 2000


def issue_period(register: Register, days: Days, payers: Collection[str] | None, *, books: Books, clerk: Clerk) -> Done:
    """Numbers the invoices of a period: of some payers, or of all that were closed. One commit, or none.

    Raises NothingClosed, CommitConflict, CommitFailed, LakeError, StoreUnavailable, RegisterDamaged.
    """

    def step(ledger: Ledger, closing: Closing, _: Closing | None) -> IssuedDocument:
        return rules.issue(ledger, closing, clerk.now, clerk.by)

    def ready(pairs: Sequence[tuple[Closing, Closing | None]]) -> None:
        books.check([closing for closing, posted in pairs if posted is None])

    return _each(register, days, payers, step, ready, books=books, clerk=clerk)


def adjust_period(
    register: Register, days: Days, payers: Collection[str] | None, *, books: Books, clerk: Clerk
) -> Done:
    """Posts what the newest closings change of what is posted, each by a note. Raises as `issue_period`."""

    def step(ledger: Ledger, closing: Closing, before: Closing | None) -> IssuedDocument:
        posted = rules.adjustable(ledger, closing)
        if before is None:
            raise missing_closing(closing.key.payer, posted.closing)
        return rules.adjust(ledger, closing, books.change(before, closing), clerk.now, clerk.by)

    def ready(pairs: Sequence[tuple[Closing, Closing | None]]) -> None:
        changed = [pair for pair in pairs if pair[1] is not None and not pair[0].owes_as(pair[1])]
        books.load([one for pair in changed for one in pair if one is not None])

    return _each(register, days, payers, step, ready, books=books, clerk=clerk)


def void_invoice(
    register: Register, number: str, reason: str, legal_entity: str | None = None, *, books: Books, clerk: Clerk
) -> IssuedDocument:
    """Takes back all that is posted to an invoice; `legal_entity`: its seller, if two have the number.

    Raises UnknownDocument, AlreadyVoid, Unattributed, and as `issue_period`.
    """
    if faults := [*attribution_faults(clerk.by, reason)]:
        raise Unattributed(faults)
    invoice, _ = register.document(number, legal_entity)

    def make(opened: DeltaTable) -> Iterator[list[Row]]:
        ledger = register.ledger(opened, [invoice.key])
        closing = register.closing(invoice.key, ledger.posted_to(invoice.key.legal_entity, number).closing)
        books.load([closing])
        made = rules.void(ledger, number, closing, clerk.now, by=clerk.by, reason=reason)
        yield [document_row(made, *books.seal(made, None, closing), clerk.attempt)]

    return post(register, clerk.attempt, make)[0]


def _each(
    register: Register,
    days: Days,
    payers: Collection[str] | None,
    step: _Step,
    ready: _Ready,
    *,
    books: Books,
    clerk: Clerk,
) -> Done:
    asked = register.payers(*days) if payers is None else sorted({*payers})
    if not asked:
        raise NothingClosed(days_text(*days))
    refused: list[RegisterRefusal] = []

    def make(opened: DeltaTable) -> Iterator[list[Row]]:
        # made again after another clerk's commit, of which some payers may be
        refused.clear()
        numbering = None
        # so many documents are held at once, however many payers there are
        for begin in range(0, len(asked), _PAYERS_AT_ONCE):
            part = asked[begin : begin + _PAYERS_AT_ONCE]
            closings = register.closings(*days, part)
            newest = {one.key.payer: one for one in closings}
            refused.extend(NotClosed(payer, days_text(*days)) for payer in part if payer not in newest)
            ledger = register.ledger(opened, [one.key for one in newest.values()], numbering)
            named = {one.in_register: one for one in closings}
            posted = {payer: named.get(_posted_key(ledger, one)) for payer, one in newest.items()}
            ready([(one, posted[payer]) for payer, one in newest.items() if one.outcome is ClosingState.FINAL])
            yield [*_rows(ledger, newest.values(), posted, step, books=books, clerk=clerk, refused=refused)]
            # the next part goes on counting where this one ended: all parts are one commit
            numbering = ledger.all_numbering

    return Done(post(register, clerk.attempt, make), tuple(refused))


def _rows(
    ledger: Ledger,
    newest: Iterable[Closing],
    posted: Mapping[str, Closing | None],
    step: _Step,
    *,
    books: Books,
    clerk: Clerk,
    refused: list[RegisterRefusal],
) -> Iterator[Row]:
    for closing in newest:
        payer = closing.key.payer
        try:
            made = step(ledger, closing, posted[payer])
            before = None if made.type is DocumentType.INVOICE else posted[payer]
            row = document_row(made, *books.seal(made, closing, before), clerk.attempt)
        except RegisterRefusal as refusal:
            refused.append(refusal)
        except DocumentError as error:
            # nothing is numbered that no valid document can be made of
            refused.append(Blocked(payer, [str(error)]))
        else:
            # the next number follows upon this one, and a payer is not issued twice in one commit
            ledger.add(made)
            yield row


def _posted_key(ledger: Ledger, closing: Closing) -> RegisterKey:
    posted = ledger.posted(closing.key)
    return RegisterKey(closing.key.payer, "" if posted is None else posted.closing)
