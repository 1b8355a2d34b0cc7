"""Issue, adjust and void on the lake. What the ledger allows is posted in one commit; the rest is refused by payer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import uniform
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.certificates.decisions import attribution_faults
from cloud_jobs.billing.documents import DocumentError, DocumentType
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.register import ledger as rules
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.current_contracts import CurrentContracts
from cloud_jobs.billing.register.documents_of import DocumentMaker
from cloud_jobs.billing.register.errors import (
    AdjustmentDue,
    Blocked,
    InvoicedToAnother,
    NotClosed,
    NothingClosed,
    NothingToAdjust,
    OutdatedClosing,
    RegisterError,
    RegisterRefusal,
)
from cloud_jobs.billing.register.ledger import BESIDE, IssuedDocument, Ledger, Numbering
from cloud_jobs.billing.register.tables import Register, document_row, in_parts, missing_closing
from cloud_jobs.errors import CommitConflict, CommitFailed, CommitNotDurable, Fenced
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.location import error_text, sync_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number

Row = dict[str, Any]
MakeRows = Callable[[DeltaTable], Iterable[Sequence[Row]]]
"""The rows to add to a version of a table, part by part; called at each attempt."""
MakeFiles = Callable[[DeltaTable, int], Sequence[DataFile]]
"""The files to add to a version of a table by a commit with this counter; called at each attempt."""
MAX_ATTEMPTS: Final = 40
"""One of several concurrent writers wins each time, so this many may start at once."""
MAX_FAILURES: Final = 3
"""Attempts that may fail for other reasons than concurrent writers."""
_MAX_PAUSE_S: Final = 0.2


def post(
    register: Register, attempt: str, make: MakeRows, *, pause: Callable[[float], object] = time.sleep
) -> list[IssuedDocument]:
    """Adds the documents that `make` numbers in one commit, and returns them: all or none.

    `attempt`: a unique name of the command, stored in each row. Raises the errors of `make`; CommitConflict after
    MAX_ATTEMPTS conflicts; CommitFailed, LakeError, StoreUnavailable. After an error nothing is posted, or it is
    unknown; after CommitNotDurable all is posted until a power cut.
    """
    lake = register.lake

    def written(opened: DeltaTable, _: int) -> Sequence[DataFile]:
        # an earlier attempt may have been committed and its answer lost
        if register.attempted(opened, attempt):
            return []
        return [file for rows in make(opened) for file in _written(lake, rows)]

    commit_to(lake, "documents", written, pause=pause)
    return register.attempted(lake.open("documents"), attempt)


def commit_to(lake: Lake, table: str, make: MakeFiles, *, pause: Callable[[float], object] = time.sleep) -> None:
    """Adds files to a table of the register in one commit, and retries after commits of others. Raises as `post`."""
    failures = 0
    first: int | None = None
    for _ in range(MAX_ATTEMPTS):
        opened = lake.open(table)
        first = opened.version() if first is None else first
        previous = newest_number(opened, table)
        number = next_number(previous)
        try:
            files = make(opened, counter_of(number))
        except OSError as error:
            raise CommitFailed(table, error_text(error)) from error
        try:
            if files:
                commit_files(opened, table, files, writer=table, previous=previous, number=number)
        except Fenced:
            # random, so that two writers do not collide again
            pause(uniform(0, _MAX_PAUSE_S))
        except CommitFailed:
            failures += 1
            if failures == MAX_FAILURES:
                raise
            pause(uniform(0, _MAX_PAUSE_S))
        else:
            _sync_log(lake, table, range(first, opened.version() + 1))
            return
    raise CommitConflict(table)


def _sync_log(lake: Lake, table: str, versions: range) -> None:
    """Syncs all versions that this command saw: others may have committed before and after it.

    A number that a power cut takes back would be given again. Raises CommitNotDurable.
    """
    try:
        sync_files(lake.files(table), [f"_delta_log/{version:020}.json" for version in versions])
    except OSError as error:
        raise CommitNotDurable(table, versions[-1], error_text(error)) from error


def _written(lake: Lake, rows: Sequence[Row]) -> Iterable[DataFile]:
    made = pa.Table.from_pylist([*rows], schema=TABLES["documents"].schema)
    return write_data_files(lake.files("documents"), made, datetime.now(UTC), table="documents")


# Valid invoices that charge, under earlier contracts, for what other payers now owe.


class OverlappingInvoice(NamedTuple):
    """An account or device (`what`) that an invoice charges by a closing under outdated contracts."""

    what: str
    number: str
    closing: Closing


Pair = tuple[Closing, Closing | None]
"""A payer's newest closing, and the posted one, if any."""
PAYERS_AT_ONCE: Final = 2000
"""Documents held in memory at once."""


def overlapping_invoices(
    register: Register, opened: DeltaTable, days: Days, payers: Collection[str], current: CurrentContracts
) -> dict[str, list[OverlappingInvoice]]:
    """For each payer, the invoices of others that charge, in these days, what current contracts give to this payer.

    Raises LakeError, RegisterDamaged.
    """
    asked: dict[str, list[OverlappingInvoice]] = defaultdict(list)
    for one in _given_away(register, opened, (days[0] - BESIDE, days[1] + BESIDE), current):
        asked[one.what].append(one)
    found: dict[str, list[OverlappingInvoice]] = {}
    for payer in payers if asked else ():
        contract = current.contract(payer, days)
        if isinstance(contract, BillingError):
            continue
        mine = [f"account {one.id}" for one in contract.accounts]
        mine += [f"device {one.tenant}/{one.device}" for one in contract.devices]
        others = (one for what in mine for one in asked.get(what, ()) if one.closing.key.payer != payer)
        start, end = contract.period.start, contract.period.end
        near = (one for one in others if one.closing.period_start < end and start < one.closing.period_end)
        # one device for each invoice is enough
        if met := {one.number: one for one in near}:
            found[payer] = [*met.values()]
    return found


def _given_away(
    register: Register, opened: DeltaTable, around: Days, current: CurrentContracts
) -> Iterator[OverlappingInvoice]:
    """What invoices charge although the newest closing of their payer under current contracts does not."""
    posted = register.payers_by_snapshot(opened, *around)
    holders = {name for snapshot, names in posted.items() if current.are_newer(snapshot) for name in names}
    ledger = register.posted(opened, holders, *around)
    by_days: dict[Days, dict[str, IssuedDocument]] = defaultdict(dict)
    for payer in sorted(holders):
        for one in ledger.standing(payer):
            # an invoice of 0 charges nothing
            if one.net_minor or one.tax_minor:
                key = one.invoice.key
                by_days[key.first_day, key.last_day][one.closing] = one.invoice
    for days, invoices in sorted(by_days.items()):
        for part in in_parts([*invoices], PAYERS_AT_ONCE):
            closings = register.closings(*days, {invoices[closing].key.payer for closing in part})
            newest, named = {one.key.payer: one for one in closings}, {one.id: one for one in closings}
            stale = [named[one] for one in part if one in named and current.differ(named[one])]
            now = [newest[one.key.payer] for one in stale]
            is_settled = [one.outcome is ClosingState.FINAL and not current.fault(one) for one in now]
            amounts = register.amounts(
                [*stale, *(one for one, settled in zip(now, is_settled, strict=True) if settled)]
            )
            for before, last, settled in zip(stale, now, is_settled, strict=True):
                owed = amounts[last.key.payer, last.run] if settled else {}
                for what, amount in amounts[before.key.payer, before.run].items():
                    if amount and amount != owed.get(what, 0):
                        yield OverlappingInvoice(what, invoices[before.id].number, before)


def waiting(
    in_the_way: Mapping[str, Sequence[OverlappingInvoice]], taken_back: Collection[str]
) -> dict[str, OverlappingInvoice]:
    """The payers that cannot be posted, and the invoice that each waits for. Pure.

    `taken_back`: payers whose invoices the same command changes. A payer that waits changes nothing, so payers that
    wait for its invoice wait as well.
    """
    found: dict[str, OverlappingInvoice] = {}
    stuck = {one.closing.key.payer for others in in_the_way.values() for one in others} - {*taken_back}
    while stuck:
        held_up = {
            payer: next(one for one in others if one.closing.key.payer in stuck)
            for payer, others in in_the_way.items()
            if payer not in found and any(one.closing.key.payer in stuck for one in others)
        }
        found |= held_up
        stuck = {*held_up}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Clerk:
    """Who asks, when, and in which command (`attempt`, a unique name). `reason`: for the notes."""

    by: str
    now: datetime
    attempt: str
    reason: str = ""


class PostingResult(NamedTuple):
    """The posted documents by number, and the refusals by payer."""

    documents: Sequence[IssuedDocument]
    refused: Sequence[RegisterRefusal]


class _Issue:
    """The invoices of one command, part by part in one commit. A problem of one payer does not affect others."""

    def __init__(
        self, register: Register, days: Days, payers: Sequence[str], maker: DocumentMaker, clerk: Clerk
    ) -> None:
        self.refused: list[RegisterRefusal] = []
        self._register, self._days, self._payers, self._maker, self._clerk = register, days, payers, maker, clerk
        self._current = CurrentContracts(register.lake)
        self._numbering: Mapping[str, Numbering] | None = None
        self._waiting: Mapping[str, OverlappingInvoice] = {}

    def make(self, opened: DeltaTable) -> Iterator[list[Row]]:
        """The rows to add to a version of `documents`, part by part; called again after another commit."""
        self._waiting = {}
        in_the_way = overlapping_invoices(self._register, opened, self._days, self._payers, self._current)
        # this command may itself change the invoices that others wait for; trying shows it
        holders = {one.closing.key.payer for others in in_the_way.values() for one in others}
        tried = self._parts(opened, sorted(holders & {*self._payers}))
        self._waiting = waiting(in_the_way, {str(row["payer"]) for rows in tried for row in rows})
        yield from self._parts(opened, self._payers)

    def _parts(self, opened: DeltaTable, payers: Sequence[str]) -> Iterator[list[Row]]:
        self.refused.clear()
        self._numbering = None
        for part in in_parts(payers, PAYERS_AT_ONCE):
            yield [*self._part(opened, part)]

    def _part(self, opened: DeltaTable, payers: Collection[str]) -> Iterator[Row]:
        closings = self._register.closings(*self._days, payers)
        newest, named = {one.key.payer: one for one in closings}, {one.id: one for one in closings}
        period = days_text(*self._days)
        self.refused.extend(NotClosed(payer, period) for payer in payers if payer not in newest)
        ledger = self._register.ledger(opened, [one.key for one in newest.values()], self._numbering)
        pairs: list[Pair] = []
        for one in newest.values():
            posted = ledger.posted(one.key)
            pairs.append((one, named.get("" if posted is None else posted.closing)))
        self._read([pair for pair in pairs if pair[0].outcome is ClosingState.FINAL])
        for pair in pairs:
            try:
                made = self._allowed(ledger, pair)
                before = None if made.type is DocumentType.INVOICE else pair[1]
                row = document_row(made, *self._maker.seal(made, pair[0], before), self._clerk.attempt)
            except RegisterRefusal as refusal:
                self.refused.append(refusal)
            except DocumentError as error:
                # no number without a valid document
                self.refused.append(Blocked(pair[0].key.payer, [str(error)]))
            else:
                # so that the next number follows, and no payer is issued twice
                ledger.add(made)
                yield row
        # the next part continues the numbers, because all parts are one commit
        self._numbering = ledger.all_numbering

    def _read(self, pairs: Sequence[Pair]) -> None:
        self._maker.check([closing for closing, posted in pairs if posted is None])
        changed = [pair for pair in pairs if pair[1] is not None and not pair[0].owes_as(pair[1])]
        self._maker.load([one for pair in changed for one in pair if one is not None])

    def _allowed(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        closing = pair[0]
        fault, payer = self._current.fault(closing), closing.key.payer
        outdated = OutdatedClosing(payer, fault) if fault else None
        try:
            made = self._entry(ledger, pair)
        except NothingToAdjust as refusal:
            # an outdated closing cannot tell what to adjust
            raise outdated or refusal from None
        if outdated is not None:
            raise outdated
        if other := self._waiting.get(payer):
            raise InvoicedToAnother(payer, other.what, other.closing.key.payer, other.number, other.closing.key.text)
        return made

    def _entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        closing, posted = pair
        is_final = closing.outcome is ClosingState.FINAL
        if posted is not None and is_final and not self._maker.change(posted, closing).is_empty:
            standing = ledger.posted(closing.key)
            assert standing is not None, "a closing is posted to an invoice"
            raise AdjustmentDue(closing.key.payer, standing.invoice.number)
        return rules.issue(ledger, closing, self._clerk.now, self._clerk.by)


class _Adjust(_Issue):
    """The notes of payers whose newest closing changes what is posted."""

    def _read(self, pairs: Sequence[Pair]) -> None:
        super()._read([pair for pair in pairs if pair[1] is not None])

    def _entry(self, ledger: Ledger, pair: Pair) -> IssuedDocument:
        closing, before = pair
        posted = rules.adjustable(ledger, closing)
        if before is None:
            raise missing_closing(closing.key.payer, posted.closing)
        change, clerk = self._maker.change(before, closing), self._clerk
        return rules.adjust(ledger, closing, change, clerk.now, clerk.by, reason=clerk.reason)


def issue_period(
    register: Register, days: Days, payers: Collection[str] | None, *, clerk: Clerk, maker: DocumentMaker | None = None
) -> PostingResult:
    """Issues the invoices of a period for some payers, or for all that were closed, in one commit.

    Raises NothingClosed, RegisterError, CommitConflict, CommitFailed, LakeError, StoreUnavailable.
    """
    return _post(_Issue, register, days, payers, maker=maker, clerk=clerk)


def adjust_period(
    register: Register, days: Days, payers: Collection[str] | None, *, clerk: Clerk, maker: DocumentMaker | None = None
) -> PostingResult:
    """Posts the changes of the newest closings as notes with the clerk's reason. Raises as `issue_period`."""
    return _post(_Adjust, register, days, payers, maker=maker, clerk=clerk)


def void_invoice(
    register: Register,
    number: str,
    reason: str,
    *,
    clerk: Clerk,
    maker: DocumentMaker | None = None,
) -> IssuedDocument:
    """Takes back everything posted to an invoice.

    Raises UnknownDocument, AlreadyVoid, RegisterError, and as `issue_period`.
    """
    if faults := [*attribution_faults(clerk.by, reason)]:
        raise RegisterError("; ".join(faults))
    invoice, _ = register.document(number)
    maker = maker or DocumentMaker(register)

    def make(opened: DeltaTable) -> Iterator[list[Row]]:
        ledger = register.ledger(opened, [invoice.key])
        closing = register.closing(invoice.key, ledger.posted_to(invoice.key.legal_entity, number).closing)
        maker.load([closing])
        made = rules.void(ledger, number, closing, clerk.now, by=clerk.by, reason=reason)
        yield [document_row(made, *maker.seal(made, None, closing), clerk.attempt)]

    return post(register, clerk.attempt, make)[0]


def _post(
    command: type[_Issue],
    register: Register,
    days: Days,
    payers: Collection[str] | None,
    *,
    maker: DocumentMaker | None,
    clerk: Clerk,
) -> PostingResult:
    if faults := [*attribution_faults(clerk.by, clerk.reason or None)]:
        raise RegisterError("; ".join(faults))
    asked = register.payers(*days) if payers is None else sorted({*payers})
    if not asked:
        raise NothingClosed(days_text(*days))
    posting = command(register, days, asked, maker or DocumentMaker(register), clerk)
    return PostingResult(post(register, clerk.attempt, posting.make), tuple(posting.refused))
