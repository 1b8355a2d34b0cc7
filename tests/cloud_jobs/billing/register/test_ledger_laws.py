"""Whatever is closed, issued, adjusted and voided, in any order: numbers without gaps, and what is posted is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from datetime import date, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_jobs.billing.documents import DocumentType
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.errors import AlreadyIssued, AlreadyVoid, NothingToAdjust, RegisterRefusal
from cloud_jobs.billing.register.ledger import (
    IssuedDocument,
    Ledger,
    adjust,
    check_numbers,
    issue,
    void,
)
from tests.cloud_jobs.billing.register.closings import NOW, change_between, closing_of
from tests.examples import examples

ENTITIES, PAYERS = ("one", "two"), ("acme", "beta")
FIRST = date(2026, 1, 1)
CHARGES = st.dictionaries(st.sampled_from("abc"), st.integers(-300, 900), max_size=3)


def keys() -> st.SearchStrategy[PeriodKey]:
    def key(entity: str, payer: str, first: int, days: int) -> PeriodKey:
        return PeriodKey(entity, payer, FIRST + timedelta(days=first), FIRST + timedelta(days=first + days))

    return st.builds(key, st.sampled_from(ENTITIES), st.sampled_from(PAYERS), st.integers(0, 6), st.integers(0, 3))


class Register(RuleBasedStateMachine):
    """Beside the ledger a plain sum of all that was posted, charge for charge."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[IssuedDocument] = []
        self.charges: dict[str, dict[str, int]] = {"": {}}
        self.closings: list[Closing] = []
        self.sums: dict[PeriodKey, Counter[str]] = defaultdict(Counter)

    @property
    def ledger(self) -> Ledger:
        """As whoever opens the register next reads it."""
        return Ledger(reversed(self.documents))

    def posted(self, document: IssuedDocument) -> None:
        ledger = self.ledger
        ledger.add(document)
        self.documents.append(document)
        before, after = self.charges[document.before], self.charges[document.closing]
        for name in {*before, *after}:
            self.sums[document.key][name] += after.get(name, 0) - before.get(name, 0)

    @rule(key=keys(), charges=CHARGES, snapshot=st.integers(1, 9), outcome=st.sampled_from(ClosingState))
    def close(self, key: PeriodKey, charges: dict[str, int], snapshot: int, outcome: ClosingState) -> None:
        """Late data of several moments may be closed in any order."""
        made = closing_of(key, charges, snapshot=snapshot, number=len(self.closings) + 1, outcome=outcome)
        self.closings.append(made)
        self.charges[made.id] = charges

    @rule(data=st.data())
    def issue(self, data: st.DataObject) -> None:
        if self.closings:
            closing = data.draw(st.sampled_from(self.closings))
            with suppress(RegisterRefusal):
                self.posted(issue(self.ledger, closing, NOW))

    @rule(data=st.data())
    def adjust(self, data: st.DataObject) -> None:
        if self.closings:
            closing = data.draw(st.sampled_from(self.closings))
            before = self.ledger.posted(closing.key)
            change = change_between(self.charges[before.closing if before else ""], self.charges[closing.id])
            with suppress(RegisterRefusal):
                self.posted(adjust(self.ledger, closing, change, NOW))

    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        invoices = [one for one in self.documents if one.type is DocumentType.INVOICE]
        if invoices:
            invoice = data.draw(st.sampled_from(invoices))
            with suppress(AlreadyVoid):
                standing = self.ledger.posted_to(invoice.key.legal_entity, invoice.number).closing
                closing = next(one for one in self.closings if one.id == standing)
                made = void(self.ledger, invoice.number, closing, NOW, by="A. Clerk", reason="wrong address")
                self.posted(made)
                assert self.ledger.posted(made.key) is None

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        for entity in ENTITIES:
            of_entity = [one for one in self.documents if one.key.legal_entity == entity]
            assert check_numbers((one.counter for one in of_entity), entity) == len(of_entity)
            assert len({one.number for one in of_entity}) == len(of_entity)

    @invariant()
    def no_two_invoices_of_a_payer_have_a_day_in_common(self) -> None:
        for payer in PAYERS:
            standing = [one.invoice.key for one in self.ledger.standing(payer)]
            assert not any(one.overlaps(other) for at, one in enumerate(standing) for other in standing[at + 1 :])

    @invariant()
    def what_is_posted_is_what_its_closing_says(self) -> None:
        for key, sums in self.sums.items():
            posted = self.ledger.posted(key)
            expected = self.charges[posted.closing if posted else ""]
            assert {name: amount for name, amount in sums.items() if amount} == {
                name: amount for name, amount in expected.items() if amount
            }
            amounts = sum(one.net_minor for one in self.documents if one.key == key)
            tax = sum(one.tax_minor for one in self.documents if one.key == key)
            assert (amounts, tax) == (sum(expected.values()), sum(expected.values()) // 5)

    @invariant()
    def whatever_was_late_the_newest_final_closing_is_posted_by_one_adjustment(self) -> None:
        for key in {one.key for one in self.closings}:
            newest = max((one for one in self.closings if one.key == key), key=lambda one: one.rank)
            ledger, posted = self.ledger, self.ledger.posted(key)
            if posted is None or newest.outcome is not ClosingState.FINAL or newest.rank < posted.rank:
                continue
            change = change_between(self.charges[posted.closing], self.charges[newest.id])
            try:
                ledger.add(adjust(ledger, newest, change, NOW))
            except NothingToAdjust:
                assert change.is_empty or newest.id == posted.closing
            after = ledger.posted(key)
            assert after is not None
            assert (after.net_minor, after.tax_minor) == (newest.net_minor, newest.tax_minor)

    @invariant()
    def each_step_done_again_is_refused(self) -> None:
        for closing in self.closings:
            if self.ledger.posted(closing.key):
                with pytest.raises(AlreadyIssued):
                    issue(self.ledger, closing, NOW)


TestRegister = Register.TestCase
TestRegister.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
