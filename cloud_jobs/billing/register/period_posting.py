"""What the newest closings of a period post, part by part, in one commit: what is wrong with one payer holds up no
other, and no account is asked for by two of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.documents import DocumentError, DocumentType
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days, RegisterKey
from cloud_jobs.billing.register.errors import (
    Blocked,
    DamagedPayer,
    InvoicedToAnother,
    NotClosed,
    NothingToAdjust,
    OutdatedClosing,
    RegisterDamaged,
    RegisterRefusal,
)
from cloud_jobs.billing.register.invoices_of_others import InvoicesOfOthers, waiting
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, Numbering
from cloud_jobs.billing.register.tables import Register

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
