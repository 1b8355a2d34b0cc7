"""What the newest closings of a period post, part by part, in one commit: what is wrong with one payer holds up no
other, and no account is asked for by two of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.documents import DocumentError, DocumentType
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days, RegisterKey
from cloud_jobs.billing.register.errors import (
    AccountInvoiced,
    Blocked,
    DamagedPayer,
    NotClosed,
    OldContracts,
    RegisterDamaged,
    RegisterRefusal,
)
from cloud_jobs.billing.register.invoiced_accounts import InvoicedAccounts
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, Numbering
from cloud_jobs.billing.register.parties import account_names
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
        self, register: Register, days: Days, payers: Sequence[str], step: Step, outdated: Collection[str] = ()
    ) -> None:
        """`outdated`: see `newer_contracts`."""
        self.refused: list[RegisterRefusal] = []
        self._register = register
        self._days = days
        self._payers = payers
        self._step = step
        self._outdated = outdated
        self._numbering: Mapping[str, Numbering] | None = None
        self._invoiced = InvoicedAccounts()

    def make(self, opened: DeltaTable) -> Iterator[list[Row]]:
        """The rows upon a version of `documents`, part by part; called again after another clerk's commit."""
        self.refused.clear()
        self._numbering = None
        self._invoiced = self._standing(opened)
        for begin in range(0, len(self._payers), PAYERS_AT_ONCE):
            yield [*self._part(opened, self._payers[begin : begin + PAYERS_AT_ONCE])]
        # what held them up may have been taken back meanwhile, by this very command
        held_up = sorted(one.payer for one in self.refused if isinstance(one, AccountInvoiced))
        self.refused = [one for one in self.refused if not isinstance(one, AccountInvoiced)]
        for begin in range(0, len(held_up), PAYERS_AT_ONCE):
            yield [*self._part(opened, held_up[begin : begin + PAYERS_AT_ONCE])]

    def _standing(self, opened: DeltaTable) -> InvoicedAccounts:
        """Of payers that have, or had, children: those alone can be asked for by two."""
        found, related = InvoicedAccounts(), self._register.closings_with_children(*self._days)
        keys = {one.key for one in related}
        keys |= {one.key._replace(payer=name) for one in related for name in account_names(one.parties)}
        ledger = self._register.ledger(opened, keys)
        for payer in sorted({key.payer for key in keys}):
            for posted in _standing(ledger, payer):
                found.take(posted, [payer])
        for one in related:
            for posted in _standing(ledger, one.key.payer):
                if posted.closing == one.id:
                    found.take(posted, [one.key.payer, *account_names(one.parties)])
        return found

    def _part(self, opened: DeltaTable, payers: Collection[str]) -> Iterator[Row]:
        closings = self._register.closings(*self._days, payers)
        newest = {one.key.payer: one for one in closings}
        period = days_text(*self._days)
        self.refused.extend(NotClosed(payer, period) for payer in payers if payer not in newest)
        ledger = self._register.ledger(opened, [one.key for one in newest.values()], self._numbering)
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

    def _of_payer(self, ledger: Ledger, pair: Pair) -> Iterator[Row]:
        closing, payer = pair[0], pair[0].key.payer
        accounts = [payer, *account_names(closing.parties)]
        try:
            made = self._step.entry(ledger, pair)
            if payer in self._outdated:
                raise OldContracts(payer)
            self._invoiced.check(payer, accounts)
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
            for posted in ledger.standing(payer):
                self._invoiced.take(posted, accounts)
            yield row


def _standing(ledger: Ledger, payer: str) -> Sequence[Any]:
    try:
        return ledger.standing(payer)
    except RegisterDamaged:
        # it is refused when its turn comes
        return ()
