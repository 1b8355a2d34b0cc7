"""An invoice and its notes, by hand: whatever is known later, what was posted becomes what is owed."""

from datetime import timedelta

import pytest

from simulator.truth import TrueLedger, TrueQuarter, TruthError, month_of
from tests.simulator.agreed import NOON, contracts, km, payer, tariff

MARCH = month_of("Europe/Berlin", 2026, 3)
KM = 'meter = "distance", unit = "km"'
AGREED = contracts(payer(), tariff(f'{KM}, unit_amount = "0.45"'))
CHEAPER = contracts(
    payer(), tariff(f'{KM}, unit_amount = "0.45"'), tariff(f'{KM}, unit_amount = "0.40"', begin="2026-03-10T12:15:00Z")
)


def test_a_late_quarter_is_a_debit_note_and_the_same_state_again_is_none() -> None:
    """100 km are 45.00 and 8.55 tax; 10.1 km more are 4.545: 49.55 and 9.41 in all."""
    ledger = TrueLedger()
    invoice = ledger.issue(AGREED, "acme", MARCH, [km(100)])
    assert invoice is not None
    assert (invoice.kind, invoice.number, invoice.of, invoice.gross_minor) == ("invoice", 1, None, 5355)
    late = [km(100), km(10.1, at=NOON + timedelta(hours=1))]
    note = ledger.adjust(AGREED, "acme", MARCH, late)
    assert note is not None
    assert (note.kind, note.number, note.of) == ("debit note", 2, 1)
    assert (note.net_minor, note.tax_minor) == (455, 86)
    assert [(charge.quantity, charge.amount_minor) for charge in note.charges] == [(10_100_000, 455)]
    assert ledger.adjust(AGREED, "acme", MARCH, late) is None
    assert ledger.posted_minor("acme", MARCH) == 4955 + 941


def test_a_price_from_an_earlier_moment_credits_the_old_charge_and_debits_the_new_one() -> None:
    """19 % of 49.50 are 9.405, of 49.00 they are 9.31: the tax goes from 9.41 to 9.31."""
    ledger = TrueLedger()
    usage = [km(100), km(10, at=NOON + timedelta(hours=1))]
    ledger.issue(AGREED, "acme", MARCH, usage)
    note = ledger.adjust(CHEAPER, "acme", MARCH, usage)
    assert note is not None
    assert note.kind == "credit note"
    assert [(charge.about.price, charge.quantity, charge.amount_minor) for charge in note.charges] == [
        ("0.40 EUR/km", 10_000_000, 400),
        ("0.45 EUR/km", -10_000_000, -450),
    ]
    assert (note.net_minor, note.tax_minor) == (-50, -10)


def test_any_number_of_late_arrivals_ends_at_the_right_sum() -> None:
    """Each time 0.011 km, which cost half a cent: the sum is rounded, not the differences."""
    ledger = TrueLedger()
    usage: list[TrueQuarter] = [km(0.011)]
    ledger.issue(AGREED, "acme", MARCH, usage)
    for quarter in range(1, 20):
        usage.append(km(0.011, at=NOON + timedelta(minutes=15 * quarter)))
        ledger.adjust(AGREED, "acme", MARCH, usage)
    assert ledger.posted_minor("acme", MARCH) == 10 + 2
    assert [document.number for document in ledger.documents] == list(range(1, len(ledger.documents) + 1))


def test_a_period_is_issued_once_and_adjusted_only_if_it_was() -> None:
    ledger = TrueLedger()
    with pytest.raises(TruthError, match="no invoice"):
        ledger.adjust(AGREED, "acme", MARCH, [])
    ledger.issue(AGREED, "acme", MARCH, [km(2)])
    with pytest.raises(TruthError, match="has an invoice"):
        ledger.issue(AGREED, "acme", MARCH, [km(1)])
