"""What is owed, computed by hand: one test for each step from a quarter of an hour to the tax."""

from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth import TrueDays, TrueLedger, TrueOwed, TrueQuarter, TruthError, month_of, owed_by, quarters_of
from simulator.truth.contracts import exponent, half_up
from tests.simulator.agreed import ALWAYS, NOON, assigned, contracts, km, payer, tariff

MARCH = month_of("Europe/Berlin", 2026, 3)
KM = 'meter = "distance", unit = "km"'
FLAT = f'{KM}, unit_amount = "0.45"'
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


def test_the_nearest_price_holds() -> None:
    """Of zone and window, of the zone, of any zone in the window, of any zone."""
    prices = (
        f'{KM}, zone = "a", window = "noon", unit_amount = "1"',
        f'{KM}, zone = "a", unit_amount = "2"',
        f'{KM}, zone = "*", window = "noon", unit_amount = "3"',
        f'{KM}, zone = "*", unit_amount = "4"',
    )
    noon = 'windows = [{ id = "noon", days = ["tue"], begin = 13:00:00, end = 13:15:00 }]'
    later = NOON + timedelta(minutes=15)
    usage = (km(1, "a"), km(1, "a", later), km(1, "b"), km(1, "b", later))
    found = owed([payer(), tariff(*prices, more=noon)], *usage)
    assert amounts(found) == {"van/a/noon": 100, "van/a": 200, "van/b/noon": 300, "van/b": 400}


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    """Berlin is an hour ahead: Tuesday 22:00 until Wednesday 02:00 there."""
    night = 'windows = [{ id = "night", days = ["tue"], begin = 22:00:00, end = 02:00:00 }]'
    prices = (FLAT, f'{KM}, window = "night", unit_amount = "1"')
    hours = [datetime(2026, 3, day, hour, tzinfo=UTC) for day, hour in ((10, 0), (10, 20), (10, 21), (11, 0), (11, 1))]
    found = owed([payer(), tariff(*prices, more=night)], *(km(1, at=hour) for hour in hours))
    assert amounts(found) == {"van": 135, "van/night": 200}


def test_a_zone_without_a_price_is_refused_and_the_price_of_any_zone_is_not_for_outside() -> None:
    with pytest.raises(TruthError, match="no price for zone 'a'"):
        owed([payer(), tariff(FLAT)], km(1, "a"))
    with pytest.raises(TruthError, match="no price for zone ''"):
        owed([payer(), tariff(INSIDE)], km(1, ""))
    assert owed([payer(), tariff(FLAT, INSIDE)], km(1, ""), km(1, "a")).net_minor == 90


def test_the_version_in_force_in_the_quarter_decides() -> None:
    change = tariff(f'{KM}, unit_amount = "1"', begin="2026-03-10T12:15:00Z")
    found = owed([payer(), tariff(FLAT), change], km(1), km(1, at=NOON + timedelta(minutes=15)))
    assert [(charge.about.price, charge.amount_minor) for charge in found.charges] == [
        ("0.45 EUR/km", 45),
        ("1.00 EUR/km", 100),
    ]


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


def test_prices_that_name_a_pool_have_one_allowance_at_their_own_amounts() -> None:
    """100 km, 50 of them free: half of each place's."""
    prices = f'{KM}, unit_amount = "1"', f'{KM}, zone = "*", unit_amount = "2"'
    named = [f'{one}, allowance = "50", pool_id = "km"' for one in prices]
    assert amounts(owed([payer(), tariff(*named)], km(80), km(20, "a"))) == {"van": 4000, "van/a": 2000}
    alone = [f'{one}, allowance = "50"' for one in prices]
    assert amounts(owed([payer(), tariff(*alone)], km(80), km(20, "a"))) == {"van": 3000, "van/a": 0}


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
    cap = 'caps = [{ pool = "device", per = "day", amount = "10", meters = ["distance"] }]'
    price = tariff(f'{KM}, unit_amount = "1"', more=cap)
    days = [datetime(2026, 3, 10, 22, 30, tzinfo=UTC), datetime(2026, 3, 10, 23, 30, tzinfo=UTC)]
    found = owed([payer(), price], km(12.345, at=days[0]), km(11.1, at=days[1]), km(1, at=days[1] + timedelta(days=3)))
    assert amounts(found, "usage") == {"van": 2445}
    assert amounts(found, "daily cap") == {"van": -345}


def test_a_period_cap_and_the_minimum_hold_at_the_end_of_the_period() -> None:
    price = f'{KM}, unit_amount = "1"'
    cap = 'caps = [{ pool = "account", per = "period", amount = "30" }]\nminimum_amount = "20"'
    capped = tariff(price, begin="2026-03-31T21:45:00Z", more=cap)
    texts = [payer(), tariff(price), capped]
    assert [owed(texts, km(length)).net_minor for length in (50, 30, 25, 20, 5)] == [3000, 3000, 2500, 2000, 2000]
    assert amounts(owed(texts, km(50)), "period cap") == {"": -2000}
    assert amounts(owed(texts), "minimum fee") == {"": 2000}
    too_late = tariff(price, begin="2026-03-31T22:00:00Z", more=cap)
    assert owed([payer(), tariff(price), too_late], km(50)).net_minor == 5000


def test_a_minimum_is_of_the_days_of_an_account_that_has_a_device() -> None:
    """From noon on 16 March there are 16 days of 31, and until then, too."""
    price = f'{KM}, unit_amount = "1"'
    noon = "2026-03-16T11:00:00Z"
    least = tariff(price, more='minimum_amount = "31"')
    begins = payer().replace(f"effective_from = {ALWAYS}", f"effective_from = {noon}")
    ends = payer().replace(f"effective_from = {ALWAYS}", f"effective_from = {ALWAYS}\neffective_until = {noon}")
    for account in (begins, ends):
        found = owed([account, least], km(1, at=datetime(2026, 3, 16, 10, 45, tzinfo=UTC)))
        assert found.net_minor == 1600
        assert "at least 31.00 EUR a period, 16 of 31 days" in {charge.about.price for charge in found.charges}
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


def test_a_child_s_charges_are_its_parent_s_and_each_account_has_its_own_pool() -> None:
    child = f"""
[[account]]
id = "depot"
effective_from = 2025-01-01T00:00:00Z
name = "depot"
parent = "acme"
tariff = "standard"
devices = [{assigned("truck")}]
"""
    price = tariff(f'{KM}, unit_amount = "1", allowance = "5", pool = "account"')
    found = owed([payer(), child, price], km(8), km(8, device="truck"), km(100, device="nobody-s"))
    assert [(charge.about.account, charge.amount_minor) for charge in found.charges] == [("acme", 300), ("depot", 300)]


def test_a_device_in_two_accounts_is_refused() -> None:
    child = payer("depot").replace("payer = {", 'parent = "acme"\n# payer = {')
    with pytest.raises(TruthError, match="van of fleet is in acme and depot"):
        owed([payer(), child, tariff(FLAT)], km(1))


def test_events_bytes_and_active_days_come_from_all_records_of_the_device() -> None:
    """Three quarters on two local days: 1.5 MB at 0.40, five events at 0.10, two days at 2."""
    prices = (
        'meter = "transmitted", unit = "MB", unit_amount = "0.40"',
        'meter = "event", unit = "each", unit_amount = "0.10"',
        'meter = "active day", unit = "day", unit_amount = "2"',
    )
    moments = [datetime(2026, 3, 10, hour, 45, tzinfo=UTC) for hour in (20, 22, 23)]
    usage = [TrueQuarter("fleet", "van", at, "*", events=5 * (at.hour == 20), content_bytes=500_000) for at in moments]
    found = owed([payer(), tariff(*prices)], *usage)
    assert {charge.about.meter: charge.amount_minor for charge in found.charges} == {
        "transmitted": 60,
        "event": 50,
        "active day": 400,
    }
    assert all(charge.about.zone == "" for charge in found.charges)


@pytest.mark.parametrize(
    ("days", "hours"),
    [
        (TrueDays("Europe/Berlin", date(2026, 3, 29), date(2026, 3, 29)), 23),
        (TrueDays("Europe/Berlin", date(2026, 10, 25), date(2026, 10, 25)), 25),
        (MARCH, 31 * 24 - 1),
        (month_of("Asia/Kolkata", 2026, 2), 28 * 24),
    ],
)
def test_a_period_is_whole_local_days_however_long_they_are(days: TrueDays, hours: int) -> None:
    quarters = [moment for moment, _ in quarters_of(days)]
    assert len(quarters) == 4 * hours
    assert len(set(quarters)) == len(quarters)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 10**7)), unique_by=lambda row: row[:2]
    ),
    st.sampled_from(["", ', allowance = "3"', ', pool = "account"', ', allowance = "3", pool = "account"']),
)
def test_nothing_is_lost_between_usage_and_charges(rows: list[tuple[str, int, int]], more: str) -> None:
    usage = [
        TrueQuarter("fleet", device, NOON + timedelta(hours=hour), "z", distance_mm=length)
        for device, hour, length in rows
    ]
    texts = [payer(devices=("a", "b", "c")), tariff(f'{KM}, zone = "*", unit_amount = "0.37"{more}')]
    found = owed(texts, *usage)
    assert sum(charge.quantity for charge in found.charges) == sum(row[2] for row in rows)
    assert owed(texts, *reversed(usage)) == found
    exact = sum((Fraction(one.quantity - one.free, 1_000_000) * 37 for one in found.charges), Fraction(0))
    assert abs(found.net_minor - exact) * 2 <= 3


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


@given(st.fractions(0, 10**9))
def test_half_up_is_never_further_than_a_half(amount: Fraction) -> None:
    assert -Fraction(1, 2) < half_up(amount) - amount <= Fraction(1, 2)


@pytest.mark.parametrize(("currency", "decimals"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("USD", 2)])
def test_a_currency_has_its_own_decimals(currency: str, decimals: int) -> None:
    assert exponent(currency) == decimals
