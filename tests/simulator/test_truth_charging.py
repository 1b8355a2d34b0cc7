"""What is owed, computed by hand: one test for each step from a quarter of an hour to the tax."""

from datetime import UTC, datetime, timedelta

import pytest

from simulator.truth import TrueDays, TrueLedger, TrueOwed, TrueQuarter, TruthError, month_of
from tests.simulator.agreed import ALWAYS, NOON, contracts, km, payer, tariff
from tests.truth.owed import owed_by

MARCH = month_of("Europe/Berlin", 2026, 3)
KM = 'meter = "distance", unit = "km"'
INSIDE = f'{KM}, zone = "*", unit_amount = "0.45"'


def owed(texts: list[str], *usage: TrueQuarter, days: TrueDays = MARCH, name: str = "acme") -> TrueOwed:
    return owed_by(contracts(*texts), name, days, usage)


def amounts(found: TrueOwed, kind: str = "usage") -> dict[str, int]:
    return {
        "/".join(filter(None, (charge.about.device, charge.about.zone, charge.about.window))): charge.amount_minor
        for charge in found.charges
        if charge.about.kind == kind
    }


def test_a_quantity_costs_its_price_and_is_rounded_once() -> None:
    """2.226389 km at 0.45 are 1.00187505."""
    found = owed([payer(), tariff(INSIDE)], km(2, "a"), km(0.226389, "a", NOON + timedelta(days=1)))
    assert [(charge.quantity, charge.amount_minor) for charge in found.charges] == [(2_226_389, 100)]
    assert found.charges[0].about.price == "0.45 EUR/km"


def test_tax_is_rounded_once_on_the_sum() -> None:
    """19 % of 10.11 are 1.9209."""
    found = owed([payer(), tariff(INSIDE)], km(20, "a"), km(2.4666, "b"))
    assert (found.net_minor, found.taxes[0].tax_minor, found.gross_minor) == (1011, 192, 1203)


TIERS = 'tiers = [{ up_to = "10", unit_amount = "1" }, { up_to = "20", unit_amount = "0.5" }, { unit_amount = "0.1" }]'


@pytest.mark.parametrize(
    ("more", "kilometres", "minor"),
    [
        ("", 10, 1000),
        ("", 25, 1550),
        (', tier_mode = "volume"', 10, 1000),
        (', tier_mode = "volume"', 20, 1000),
        (', tier_mode = "volume"', 25, 250),
        (', allowance = "5"', 5, 0),
        (', allowance = "5"', 25, 1500),
        (', allowance = "5", tier_mode = "volume"', 25, 1000),
    ],
)
def test_the_allowance_takes_the_first_units_and_tiers_price_the_rest(more: str, kilometres: int, minor: int) -> None:
    found = owed([payer(), tariff(f"{KM}, {TIERS}{more}")], km(kilometres))
    assert found.net_minor == minor
    assert sum(charge.free for charge in found.charges) == (5_000_000 if "allowance" in more else 0)


def test_a_price_that_changes_keeps_what_is_left_of_the_allowance_and_the_place_in_the_tiers() -> None:
    change = {"begin": "2026-03-10T12:15:00Z"}
    usage = km(60), km(60, at=NOON + timedelta(minutes=15))
    for first, second, minor in (
        ('unit_amount = "0.45", allowance = "50"', 'unit_amount = "0.46", allowance = "50"', 450 + 2760),
        ('unit_amount = "0.45", allowance = "50"', 'unit_amount = "0.45", allowance = "60"', 450 + 2250),
        (TIERS, TIERS.replace("0.1", "0.11"), 1000 + 500 + 400 + 660),
        (f'{TIERS}, tier_mode = "volume"', f'{TIERS.replace("0.1", "0.11")}, tier_mode = "volume"', 600 + 660),
    ):
        texts = [payer(), tariff(f"{KM}, {first}"), tariff(f"{KM}, {second}", **change)]
        assert owed(texts, *usage).net_minor == minor


def test_a_pool_is_rounded_once_and_divided_by_the_largest_remainder() -> None:
    """Three times 0.111 are 0.333: 0.33, and each has 0.11; three times 0.115 are 0.345: 0.35, so one has 0.12."""
    price = f'{KM}, unit_amount = "1", pool = "account"'
    devices = ("a", "b", "c")
    assert [
        charge.amount_minor
        for kilometres in (0.111, 0.115)
        for charge in owed(
            [payer(devices=devices), tariff(price)], *(km(kilometres, device=one) for one in devices)
        ).charges
    ] == [11, 11, 11, 12, 12, 11]


def test_what_is_above_a_daily_cap_is_taken_off_once() -> None:
    """Two local days of 12.345 and 11.1 EUR, capped at 10: 3.445 too much, 3.45 off. 23:30 in Berlin is 22:30 UTC."""
    cap = 'caps = [{ scope = "device", span = "day", amount = "10", meters = ["distance"] }]'
    price = tariff(f'{KM}, unit_amount = "1"', more=cap)
    days = [datetime(2026, 3, 10, 22, 30, tzinfo=UTC), datetime(2026, 3, 10, 23, 30, tzinfo=UTC)]
    found = owed([payer(), price], km(12.345, at=days[0]), km(11.1, at=days[1]), km(1, at=days[1] + timedelta(days=3)))
    assert amounts(found, "usage") == {"van": 2445}
    assert amounts(found, "cap") == {"van": -345}


def test_a_period_cap_and_the_minimum_hold_at_the_end_of_the_period() -> None:
    price = f'{KM}, unit_amount = "1"'
    cap = 'caps = [{ scope = "account", span = "cycle", amount = "30" }]\nminimum_amount = "20"'
    capped = tariff(price, begin="2026-03-31T21:45:00Z", more=cap)
    texts = [payer(), tariff(price), capped]
    assert [owed(texts, km(length)).net_minor for length in (50, 30, 25, 20, 5)] == [3000, 3000, 2500, 2000, 2000]
    assert amounts(owed(texts, km(50)), "cap") == {"": -2000}
    assert amounts(owed(texts), "minimum fee") == {"": 2000}
    too_late = tariff(price, begin="2026-03-31T22:00:00Z", more=cap)
    assert owed([payer(), tariff(price), too_late], km(50)).net_minor == 5000


def test_a_minimum_is_of_the_days_of_an_account_that_has_a_device() -> None:
    """From noon on 16 March there are 16 days of 31, and 15 until then."""
    price = f'{KM}, unit_amount = "1"'
    noon = "2026-03-16T11:00:00Z"
    least = tariff(price, more='minimum_amount = "31"')
    begins = payer().replace(f"effective_from = {ALWAYS}", f"effective_from = {noon}")
    ends = payer().replace(f"effective_from = {ALWAYS}", f"effective_from = {ALWAYS}\neffective_until = {noon}")
    for account, days in ((begins, 16), (ends, 15)):
        found = owed([account, least], km(1, at=datetime(2026, 3, 16, 10, 45, tzinfo=UTC)))
        assert found.net_minor == days * 100
        assert f"at least 31.00 EUR a period, {days} of 31 days" in {charge.about.price for charge in found.charges}
    whole = tariff(price, more='minimum_amount = "31"\nproration = "whole"')
    assert owed([begins, whole]).net_minor == 3100
    assert owed([payer(devices=()), least]).net_minor == 0
    stated = tariff(price, more='minimum_amount = "31"\nminimum_without_devices = true')
    assert owed([payer(devices=()), stated]).net_minor == 3100


def test_another_currency_is_converted_at_the_last_moment_before_it_is_rounded() -> None:
    """3 km at 0.333 USD are 0.999 USD; at 0.905 that is 0.904095."""
    rate = """
[[exchange_rate]]
id = "usd-eur"
effective_from = {begin}
currency = "USD"
into = "EUR"
rate = "{rate}"
source = "bank"
"""
    price = tariff(f'{KM}, unit_amount = "0.333"', currency="USD")
    first = rate.format(begin="2026-01-01T00:00:00Z", rate="0.5")
    last = rate.format(begin="2026-03-31T21:45:00Z", rate="0.905")
    next_month = rate.format(begin="2026-03-31T22:00:00Z", rate="9")
    assert owed([payer(), price, first, last, next_month], km(3)).net_minor == 90
    with pytest.raises(TruthError, match="no rate from USD into EUR"):
        owed([payer(), price, next_month], km(3))


AGREED = contracts(payer(), tariff(f'{KM}, unit_amount = "0.45"'))
CHEAPER = contracts(
    payer(), tariff(f'{KM}, unit_amount = "0.45"'), tariff(f'{KM}, unit_amount = "0.40"', begin="2026-03-10T12:15:00Z")
)


def test_a_late_quarter_is_a_debit_note_and_the_same_state_again_is_none() -> None:
    """100 km are 45.00 and 8.55 tax; 10.1 km more are 4.545: 49.55 and 9.41 in all."""
    ledger = TrueLedger()
    invoice = ledger.issue(owed_by(AGREED, "acme", MARCH, [km(100)]), MARCH)
    assert invoice is not None
    assert (invoice.kind, invoice.number, invoice.of, invoice.gross_minor) == ("invoice", 1, None, 5355)
    late = [km(100), km(10.1, at=NOON + timedelta(hours=1))]
    note = ledger.adjust(owed_by(AGREED, "acme", MARCH, late), MARCH)
    assert note is not None
    assert (note.kind, note.number, note.of) == ("debit note", 2, 1)
    assert (note.net_minor, note.tax_minor) == (455, 86)
    assert [(charge.quantity, charge.amount_minor) for charge in note.charges] == [(10_100_000, 455)]
    assert ledger.adjust(owed_by(AGREED, "acme", MARCH, late), MARCH) is None
    assert sum(document.gross_minor for document in ledger.documents) == 4955 + 941


def test_a_price_from_an_earlier_moment_credits_the_old_charge_and_debits_the_new_one() -> None:
    """19 % of 49.50 are 9.405, of 49.00 they are 9.31: the tax goes from 9.41 to 9.31."""
    ledger = TrueLedger()
    usage = [km(100), km(10, at=NOON + timedelta(hours=1))]
    ledger.issue(owed_by(AGREED, "acme", MARCH, usage), MARCH)
    note = ledger.adjust(owed_by(CHEAPER, "acme", MARCH, usage), MARCH)
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
    ledger.issue(owed_by(AGREED, "acme", MARCH, usage), MARCH)
    for quarter in range(1, 20):
        usage.append(km(0.011, at=NOON + timedelta(minutes=15 * quarter)))
        ledger.adjust(owed_by(AGREED, "acme", MARCH, usage), MARCH)
    assert sum(document.gross_minor for document in ledger.documents) == 10 + 2
    assert [document.number for document in ledger.documents] == list(range(1, len(ledger.documents) + 1))
