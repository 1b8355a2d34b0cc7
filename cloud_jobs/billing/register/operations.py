"""Issue, adjust and void on the lake: what the ledger allows of many payers is posted at once, the rest is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.billing_period import BillingPeriod, days_text
from cloud_jobs.billing.contracts import BlockedPayer, Contracts, UnknownPayer
from cloud_jobs.billing.contracts.versions import micros
from cloud_jobs.billing.documents import DocumentError, DocumentType
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.register import ledger as rules
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days, RegisterKey
from cloud_jobs.billing.register.errors import (
    AdjustmentDue,
    Blocked,
    DamagedPayer,
    InvoicedToAnother,
    NotClosed,
    NothingClosed,
    NothingToAdjust,
    OutdatedClosing,
    RegisterDamaged,
    RegisterRefusal,
    Unattributed,
)
from cloud_jobs.billing.register.ledger import BESIDE, IssuedDocument, Ledger, Numbering, PostedChange, PostedInvoice
from cloud_jobs.billing.register.newer_contracts import NewerContracts
from cloud_jobs.billing.register.outdated import outdated_closings
from cloud_jobs.billing.register.posting import post
from cloud_jobs.billing.register.rows import document_row
from cloud_jobs.billing.register.tables import Register, missing_closing

# Which invoices that stand ask, by contracts of before, for what other payers are to be asked for by those of now.

_PAIRS_AT_ONCE: Final = 1000


class Changes(Protocol):
    """What one closing changes of another one: see `documents_of.DocumentMaker`."""

    def load(self, closings: Collection[Closing]) -> None:
        """Makes ready what `change` needs of closings of one period. Raises RegisterDamaged, LakeError."""

    def change(self, before: Closing, after: Closing) -> PostedChange:
        """What a closing changes of another one that is posted."""


class AskedElsewhere(NamedTuple):
    """The invoice `number` of another payer (`holder`) asks for `what`, an account or a device, at some time."""

    holder: str
    number: str
    days: str
    what: str


class _Span(NamedTuple):
    """For what somebody is asked, from one moment until another (excluded; µs since 1970)."""

    what: str
    begin_us: int
    end_us: int


class InvoicesOfOthers:
    """The invoices that stand beside what is to be posted for some days."""

    def __init__(self, register: Register, days: Days, newer: NewerContracts, changes: Changes) -> None:
        self._register = register
        self._days = days
        self._newer = newer
        self._changes = changes

    def in_the_way(self, opened: DeltaTable, payers: Collection[str]) -> dict[str, list[AskedElsewhere]]:
        """Of each payer that is to wait for others the invoices of these, in a version of `documents`.

        Raises LakeError, StoreUnavailable, RegisterDamaged.
        """
        standing = [*self._unsettled(self._standing(opened))]
        asked: dict[str, list[tuple[_Span, AskedElsewhere]]] = defaultdict(list)
        for one in standing:
            key = one.invoice.key
            contracts = self._newer.before(self._newer.commit_of(one.rank[0]))
            days = days_text(key.first_day, key.last_day)
            for span in _spans(contracts, key.payer, (key.first_day, key.last_day)):
                asked[span.what].append((span, AskedElsewhere(key.payer, one.invoice.number, days, span.what)))
        found: dict[str, list[AskedElsewhere]] = {}
        commits = {self._newer.commit_of(one.rank[0]) for one in standing}
        for payer in sorted({*payers} & self._touched(commits)):
            # one invoice of another payer may be met by very many devices: the first says enough
            met: dict[tuple[str, str], AskedElsewhere] = {}
            for span in _spans(self._newer.now, payer, self._days):
                for other, elsewhere in asked.get(span.what, ()):
                    if payer != elsewhere.holder and span.begin_us < other.end_us and other.begin_us < span.end_us:
                        met.setdefault((elsewhere.holder, elsewhere.number), elsewhere)
            if met:
                found[payer] = [*met.values()]
        return found

    def _touched(self, commits: Collection[int]) -> set[str]:
        return {payer for commit in commits for payer in self._newer.given_away(commit)}

    def _standing(self, opened: DeltaTable) -> list[PostedInvoice]:
        """The invoices that ask for something at a time of the days, by contracts of before accounts were changed."""
        first, last = self._days[0] - BESIDE, self._days[1] + BESIDE
        posted = self._register.payers_by_snapshot(opened, first, last)
        by_commit: dict[int, set[str]] = defaultdict(set)
        for snapshot, names in posted.items():
            by_commit[self._newer.commit_of(snapshot)] |= names
        payers = {name for commit, names in by_commit.items() for name in names & self._touched([commit])}
        ledger, found = self._register.posted(opened, payers, first, last), []
        for payer in sorted(payers):
            try:
                standing = ledger.standing(payer)
            except RegisterDamaged:
                # it is refused when its turn comes
                continue
            # with a sum of nothing it asks for nothing
            found += [one for one in standing if one.net_minor or one.tax_minor]
        return found

    def _unsettled(self, standing: Sequence[PostedInvoice]) -> Iterator[PostedInvoice]:
        """Those of which it is not known that they ask for the same by the contracts of now."""
        by_days: dict[Days, list[PostedInvoice]] = defaultdict(list)
        for one in standing:
            if one.invoice.key.payer in self._touched([self._newer.commit_of(one.rank[0])]):
                by_days[one.invoice.key.first_day, one.invoice.key.last_day].append(one)
        for days, of_days in sorted(by_days.items()):
            for begin in range(0, len(of_days), _PAIRS_AT_ONCE):
                part = of_days[begin : begin + _PAIRS_AT_ONCE]
                settled = self._settled(days, part)
                yield from (one for one in part if one.invoice.key.payer not in settled)

    def _settled(self, days: Days, standing: Sequence[PostedInvoice]) -> set[str]:
        """Whose newest closing is by the contracts of now, and changes nothing of what is posted."""
        payers = [one.invoice.key.payer for one in standing]
        closings = self._register.closings(*days, payers)
        newest = {one.key.payer: one for one in closings}
        named = {one.in_register: one for one in closings}
        outdated = outdated_closings(self._register, days, self._newer, payers)
        pairs: list[tuple[Closing, Closing]] = []
        for one in standing:
            last, posted = newest.get(one.invoice.key.payer), named.get(RegisterKey(one.invoice.key.payer, one.closing))
            if last and posted and last.outcome is ClosingState.FINAL and last.key.payer not in outdated:
                pairs.append((posted, last))
        same = {posted.key.payer for posted, last in pairs if last.owes_as(posted)}
        return same | self._unchanged([pair for pair in pairs if pair[0].key.payer not in same])

    def _unchanged(self, pairs: Sequence[tuple[Closing, Closing]]) -> set[str]:
        try:
            self._changes.load([one for pair in pairs for one in pair])
        except RegisterDamaged:
            if len(pairs) == 1:
                return set()
            # of one of them; each by itself
            return {name for pair in pairs for name in self._unchanged([pair])}
        return {posted.key.payer for posted, last in pairs if self._changes.change(posted, last).is_empty}


def _spans(contracts: Contracts, payer: str, days: Days) -> Iterator[_Span]:
    """What a payer is asked for; nothing of one that pays for nothing, or with whom nothing clear was agreed."""
    try:
        contract = contracts.contract_of(payer, BillingPeriod(contracts.time_zone_of(payer), *days))
    except (BadPeriod, BlockedPayer, UnknownPayer):
        return
    begin, end = micros(contract.period.start), micros(contract.period.end)
    for account in contract.accounts:
        yield _Span(f"account {account.id}", begin, end)
    for one in contract.assigned:
        yield _Span(f"device {one.tenant}/{one.device}", one.begin_us, one.end_us)


def waiting(
    in_the_way: Mapping[str, Sequence[AskedElsewhere]], taken_back: Collection[str]
) -> dict[str, AskedElsewhere]:
    """Who cannot be posted, and for which invoice it waits; `taken_back`: whose invoices the same command changes.

    Whoever waits changes nothing itself, so that those wait, too, for whom its invoice is in the way. Pure.
    """
    behind: dict[str, list[str]] = defaultdict(list)
    for payer, others in in_the_way.items():
        for holder in {one.holder for one in others}:
            behind[holder].append(payer)
    found: dict[str, AskedElsewhere] = {}
    stuck = [holder for holder in behind if holder not in taken_back]
    while stuck:
        holder = stuck.pop()
        for payer in behind[holder]:
            if payer not in found:
                found[payer] = next(one for one in in_the_way[payer] if one.holder == holder)
                stuck.append(payer)
    return found


# What the newest closings of a period post, part by part, in one commit: what is wrong with one payer holds up no
# other, and no account is asked for by two of them.

Row = dict[str, Any]
Pair = tuple[Closing, Closing | None]
"""A payer's newest closing, and the one that is posted, if there is one."""
PAYERS_AT_ONCE: Final = 2000
"""So many documents are held at once, however many payers there are."""


class Step(Protocol):
    """What is done for each payer: see `operations`."""

    def ready(self, pairs: Sequence[Pair]) -> None:
        """Reads what the two others need of final closings. Raises RegisterDamaged, LakeError."""

    def entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        """The entry that a newest closing makes. Raises RegisterRefusal."""

    def row(self, entry: IssuedDocument, pair: Pair) -> Row:
        """The row of an entry, with its document. Raises DocumentError."""


class PeriodPosting:
    """One command's documents of a period; `refused`: of whom there is none, and why."""

    def __init__(
        self,
        register: Register,
        days: Days,
        payers: Sequence[str],
        step: Step,
        *,
        others: InvoicesOfOthers,
        outdated: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`outdated`: see the module of that name."""
        self.refused: list[RegisterRefusal] = []
        self._register = register
        self._days = days
        self._payers = payers
        self._step = step
        self._outdated = outdated
        self._numbering: Mapping[str, Numbering] | None = None
        self._others = others
        self._waiting: Mapping[str, InvoicedToAnother] = {}

    def make(self, opened: DeltaTable) -> Iterator[list[Row]]:
        """The rows upon a version of `documents`, part by part; called again after another clerk's commit."""
        self._waiting = {}
        # whose invoice is in the way of others may be changed by this very command: that is seen by trying
        in_the_way = self._others.in_the_way(opened, self._payers)
        holders = {one.holder for others in in_the_way.values() for one in others}
        tried = self._parts(opened, sorted(holders & {*self._payers}))
        taken_back = {str(row["payer"]) for rows in tried for row in rows}
        self._waiting = {
            payer: InvoicedToAnother(payer, one.what, one.holder, one.number, one.days)
            for payer, one in waiting(in_the_way, taken_back).items()
        }
        yield from self._parts(opened, self._payers)

    def _parts(self, opened: DeltaTable, payers: Sequence[str]) -> Iterator[list[Row]]:
        self.refused.clear()
        self._numbering = None
        for begin in range(0, len(payers), PAYERS_AT_ONCE):
            yield [*self._part(opened, payers[begin : begin + PAYERS_AT_ONCE])]

    def _part(self, opened: DeltaTable, payers: Collection[str]) -> Iterator[Row]:
        closings = self._register.closings(*self._days, payers)
        newest = {one.key.payer: one for one in closings}
        period = days_text(*self._days)
        self.refused.extend(NotClosed(payer, period) for payer in payers if payer not in newest)
        ledger = self._register.ledger(opened, [one.key for one in newest.values()], self._numbering)
        ledger.reserve(self._register.numbers_of_others(opened, ledger, newest.values()))
        named = {one.in_register: one for one in closings}
        pairs = [*self._pairs(ledger, newest.values(), named)]
        self._ready(pairs)
        for pair in pairs:
            yield from self._of_payer(ledger, pair)
        # the next part goes on counting where this one ended: all parts are one commit
        self._numbering = ledger.all_numbering

    def _pairs(
        self, ledger: Ledger, newest: Collection[Closing], named: Mapping[RegisterKey, Closing]
    ) -> Iterator[Pair]:
        for one in newest:
            try:
                posted = ledger.posted(one.key)
            except RegisterDamaged as fault:
                self.refused.append(DamagedPayer(one.key.payer, str(fault)))
            else:
                key = RegisterKey(one.key.payer, "" if posted is None else posted.closing)
                yield one, named.get(key)

    def _ready(self, pairs: list[Pair]) -> None:
        """Reads what is needed of all pairs; those of which it cannot be read are refused, and gone."""
        final = [pair for pair in pairs if pair[0].outcome is ClosingState.FINAL]
        try:
            self._step.ready(final)
        except RegisterDamaged:
            # of one of them; each by itself, and the others go on
            for pair in final:
                try:
                    self._step.ready([pair])
                except RegisterDamaged as fault:
                    self.refused.append(DamagedPayer(pair[0].key.payer, str(fault)))
                    pairs.remove(pair)
            self._step.ready([pair for pair in final if pair in pairs])

    def _entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        payer = pair[0].key.payer
        outdated = OutdatedClosing(payer, self._outdated[payer]) if payer in self._outdated else None
        try:
            made = self._step.entry(ledger, pair)
        except NothingToAdjust as refusal:
            # a closing of before says nothing of what there is to adjust now
            raise outdated or refusal from None
        if outdated is not None:
            raise outdated
        return made

    def _of_payer(self, ledger: Ledger, pair: Pair) -> Iterator[Row]:
        closing, payer = pair[0], pair[0].key.payer
        try:
            made = self._entry(ledger, pair)
            if payer in self._waiting:
                raise self._waiting[payer]
            row = self._step.row(made, (closing, None if made.type is DocumentType.INVOICE else pair[1]))
        except RegisterRefusal as refusal:
            self.refused.append(refusal)
        except RegisterDamaged as fault:
            self.refused.append(DamagedPayer(payer, str(fault)))
        except DocumentError as error:
            # nothing is numbered that no valid document can be made of
            self.refused.append(Blocked(payer, [str(error)]))
        else:
            # the next number follows upon this one, and a payer is not issued twice in one commit
            ledger.add(made)
            yield row


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
