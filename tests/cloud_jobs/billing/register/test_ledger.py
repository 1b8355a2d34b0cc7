"""What the register refuses, and what a note says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.register.closing import ClosingState, PeriodKey
from cloud_jobs.billing.register.errors import (
    Blocked,
    FuturePeriod,
    NoInvoice,
    NotFinal,
    OtherClocks,
    OtherCurrency,
    OtherSeller,
    OverlappingPeriod,
    RegisterDamaged,
)
from cloud_jobs.billing.register.ledger import Ledger, adjust, check_numbers, issue
from tests.cloud_jobs.billing.register.closings import MARCH, NOW, change_between, closing_of

JANUARY = MARCH._replace(first_day=date(2026, 1, 1), last_day=date(2026, 1, 31))


NOTHING = change_between({}, {})


def test_a_day_of_an_issued_month_is_not_issued_besides() -> None:
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    day = MARCH._replace(first_day=date(2026, 3, 31))
    with pytest.raises(OverlappingPeriod):
        issue(ledger, closing_of(day), NOW)
    other_seller = day._replace(legal_entity="waybill-us")
    with pytest.raises(OverlappingPeriod):
        issue(ledger, closing_of(other_seller), NOW)
    assert issue(ledger, closing_of(day._replace(payer="beta")), NOW).counter == 2
    assert issue(ledger, closing_of(PeriodKey("waybill-eu", "acme", date(2026, 4, 1), date(2026, 4, 1))), NOW)


def test_a_month_that_has_not_ended_is_not_issued() -> None:
    year_2030 = MARCH._replace(first_day=date(2030, 1, 1), last_day=date(2030, 1, 31))
    with pytest.raises(FuturePeriod):
        issue(Ledger(), closing_of(year_2030), NOW)
    end = closing_of().period_end
    with pytest.raises(FuturePeriod):
        issue(Ledger(), closing_of(), end - timedelta(microseconds=1))
    assert issue(Ledger(), closing_of(), end)


@pytest.mark.parametrize(
    ("outcome", "refusal"), [(ClosingState.PROVISIONAL, NotFinal), (ClosingState.BLOCKED, Blocked)], ids=str
)
def test_what_is_not_final_is_not_posted_and_says_why(outcome: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal, match="device 7 is open"):
        issue(Ledger(), closing_of(outcome=ClosingState(outcome), reasons=("device 7 is open",)), NOW)
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    with pytest.raises(refusal, match="device 7 is open"):
        adjust(
            ledger,
            closing_of(snapshot=2, outcome=ClosingState(outcome), reasons=("device 7 is open",)),
            change_between({}, {"a": 1}),
            NOW,
        )


def test_a_note_belongs_to_an_invoice_and_names_it() -> None:
    newer = closing_of(charges={"a": 500}, snapshot=2)
    with pytest.raises(NoInvoice):
        adjust(Ledger(), newer, change_between({}, {"a": 500}), NOW)
    invoice = issue(Ledger(), closing_of(), NOW)
    note = adjust(Ledger([invoice]), newer, change_between({"a": 900}, {"a": 500}), NOW)
    assert note.type is DocumentType.CREDIT_NOTE
    assert note.reference == PrecedingInvoice(number=invoice.number, issue_date=invoice.issue_date)
    assert (note.net_minor, note.tax_minor, note.counter) == (-400, -80, 2)
    more = adjust(Ledger([invoice]), newer, change_between({"a": 900}, {"a": 901}), NOW)
    assert more.type is DocumentType.DEBIT_NOTE


def test_an_adjustment_is_never_between_two_currencies() -> None:
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    with pytest.raises(OtherCurrency, match="EUR"):
        adjust(ledger, closing_of(snapshot=2, currency="USD"), change_between({}, {"a": 1}), NOW)


def test_the_date_is_the_payers_day_and_never_before_that_of_the_number_before() -> None:
    late = datetime(2026, 5, 31, 22, 30, tzinfo=UTC)
    ledger = Ledger()
    ledger.add(issue(ledger, closing_of(), late))
    assert ledger.numbering("waybill-eu").issue_date == date(2026, 6, 1), "it is June in Berlin"
    behind = issue(ledger, closing_of(MARCH._replace(payer="beta")), late - timedelta(days=2))
    assert behind.issue_date == date(2026, 6, 1)


def test_documents_that_contradict_each_other_are_damage() -> None:
    ledger = Ledger()
    invoice = issue(ledger, closing_of(), NOW)
    of_beta = issue(Ledger([invoice]), closing_of(MARCH._replace(payer="beta")), NOW)
    note = adjust(Ledger([invoice]), closing_of(snapshot=2), change_between({}, {"a": 1}), NOW)
    for damaged in ([invoice, of_beta, invoice], [note, of_beta]):
        with pytest.raises(RegisterDamaged):
            Ledger(damaged)
    with pytest.raises(RegisterDamaged):
        Ledger([invoice]).add(issue(Ledger(), closing_of(MARCH._replace(payer="beta")), NOW))


def test_days_beside_those_of_an_invoice_are_by_the_same_clocks() -> None:
    invoice = issue(Ledger(), closing_of(), NOW)
    april = MARCH._replace(first_day=date(2026, 4, 1), last_day=date(2026, 4, 30))
    elsewhere = replace(closing_of(april), time_zone="Asia/Tokyo")
    with pytest.raises(OtherClocks, match="Europe/Berlin"):
        issue(Ledger([invoice]), elsewhere, NOW)
    assert issue(Ledger([invoice]), closing_of(april), NOW)
    may = MARCH._replace(first_day=date(2026, 5, 1), last_day=date(2026, 5, 31))
    assert issue(Ledger([invoice]), replace(elsewhere, key=may), NOW)
    with pytest.raises(OtherClocks):
        adjust(Ledger([invoice]), replace(closing_of(snapshot=2), time_zone="Asia/Tokyo"), NOTHING, NOW)


def test_an_invoice_of_another_seller_is_named_by_issue_and_adjust_and_a_blocked_closing_says_why() -> None:
    invoice = issue(Ledger(), closing_of(), NOW)
    other = MARCH._replace(legal_entity="another")
    newer = closing_of(other, snapshot=2)
    blocked = closing_of(other, snapshot=2, outcome=ClosingState.BLOCKED, reasons=("no price",))
    for closing, refusal in ((newer, OtherSeller), (blocked, Blocked)):
        with pytest.raises(refusal):
            issue(Ledger([invoice]), closing, NOW)
        with pytest.raises(refusal):
            adjust(Ledger([invoice]), closing, NOTHING, NOW)


def test_a_gap_in_the_numbers_is_found() -> None:
    assert check_numbers([2, 1, 3], "one") == 3
    for counters in ([1, 3], [2], [1, 2, 2]):
        with pytest.raises(RegisterDamaged, match="without gaps"):
            check_numbers(counters, "one")
