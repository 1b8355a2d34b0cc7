"""What holds of pools, caps and minimums of a contract year, and of cycles."""

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.billing_period import BillingPeriod, Cycle, cycle_days
from cloud_jobs.billing.contracts import BlockedPayer, Contracts, Tariff
from cloud_jobs.billing.rating import ChargeKind, PeriodUsage, RatedAccount, cells_of_usage, rate
from tests.cloud_jobs.billing.contracts.makers import (
    BERLIN,
    account,
    contracts,
    device,
    legal_entity,
    payer,
    price,
    tariff,
)
from tests.cloud_jobs.billing.rating.worlds import Row, explained, row, table
from tests.examples import examples

BEGIN = "2025-06-01T00:00:00Z"
YEAR = date(2026, 3, 15)
few = settings(max_examples=examples(12), deadline=None)


def agreed(tariffs: list[dict[str, Any]], cycle: str | None, **more: Any) -> Contracts:
    """`acme` with a van and its child `west` with a bus; the contract year begins on 15 March."""
    acme = account("acme", device("van", begin=BEGIN), payer=payer(**({"cycle": cycle} if cycle else {})))
    west = account("west", device("bus", begin=BEGIN), parent="acme")
    dated = {"effective_from": BEGIN, "year_begins": YEAR.isoformat()}
    return contracts(
        legal_entity(effective_from=BEGIN), acme | dated | more, west | {"effective_from": BEGIN}, *tariffs
    )


def billed(made: Contracts, first: date, last: date, rows: list[Row]) -> RatedAccount:
    contract = made.contract_of("acme", BillingPeriod(BERLIN, first, last))
    *earlier, used = (cells_of_usage([one], table(rows))[0] for one in (*contract.earlier, contract))
    return rate(contract, *used, earlier=[PeriodUsage(*one) for one in earlier])


def cycles(cycle: str) -> list[tuple[date, date]]:
    found, day = [], YEAR
    while day < date(2027, 3, 15):
        found.append(cycle_days(Cycle(cycle), YEAR, day))
        day = found[-1][1] + timedelta(days=1)
    return found


amounts = st.sampled_from(["0.25", "0.333", "1", "0"])


@st.composite
def yearly_prices(draw: st.DrawFn, *, monotone: bool = False) -> dict[str, Any]:
    """A tariff with a pool of a year (or day, or week) for two places."""
    pool = {"id": "km", "scope": draw(st.sampled_from(["device", "account", "tree"])), "unit": "km"}
    pool |= {
        "span": draw(st.sampled_from(["year", "year", "week", "day"])),
        "allowance": draw(st.sampled_from(["0", "30"])),
    }
    modes = ["graduated"] if monotone or pool["span"] != "day" else ["graduated", "volume"]
    one = price(draw(amounts), pool="km")
    if draw(st.booleans()):
        del one["unit_amount"]
        tiers = [{"up_to": "40", "unit_amount": draw(amounts)}, {"unit_amount": draw(amounts)}]
        one |= {"tiers": tiers, "tier_mode": draw(st.sampled_from(modes))}
    made = [one | {"zone": zone} for zone in ("", "*")]
    if draw(st.booleans()):
        made = [one | {"step": "7"} for one in made]
    return tariff(*made, effective_from=BEGIN, pools=[pool])


@st.composite
def year_of_usage(draw: st.DrawFn) -> list[Row]:
    hours = st.datetimes(datetime(2026, 3, 10), datetime(2027, 3, 20)).map(
        lambda one: one.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    )
    keys = st.lists(
        st.tuples(hours, st.sampled_from(["", "port"]), st.sampled_from(["van", "bus"])), max_size=6, unique=True
    )
    four = st.lists(st.integers(0, 20_000_000), min_size=4, max_size=4)
    return [row(hour, zone, name, distance_mm=draw(four)) for hour, zone, name in draw(keys)]


def quantities(bills: list[RatedAccount]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for bill in bills:
        found.update(
            {(one.key.device, one.key.zone, one.key.price): one.quantity for one in bill.charges if one.quantity}
        )
    return found


def test_caps_minimums_and_pools_of_a_year_and_a_tree_are_explained() -> None:
    pools = [{"id": "km", "scope": "tree", "span": "year", "unit": "km", "allowance": "10"}]
    caps = [{"scope": "account", "span": "year", "amount": "50"}]
    terms = {"caps": caps, "minimum_amount": "100", "minimum_span": "year", "pools": pools}
    made = agreed([tariff(price("1", pool="km"), effective_from=BEGIN, **terms)], "quarter")
    rows = [
        row(datetime(2026, month, 20, tzinfo=UTC), "", name, distance_mm=(way * 1_000_000, 0, 0, 0))
        for month, name, way in ((5, "van", 40), (6, "bus", 5), (11, "van", 30), (12, "bus", 7))
    ]
    of: dict[Any, Any] = {}
    for days in cycles("quarter")[-2:]:
        contract = made.contract_of("acme", BillingPeriod(BERLIN, *days))
        of |= {(days, one.key): explained(contract, seen(rows), one) for one in billed(made, *days, rows).charges}
    assert all(one.amount_agrees for one in of.values())
    assert [step for (_, key), one in of.items() if key.kind is ChargeKind.CAP for step in one.arithmetic] == [
        ("in earlier periods of the year", "30.00 EUR"),
        ("charged until here", "30.00 EUR"),
        ("at most 50.00 EUR a year for the account (all meters)", "-10.00 EUR"),
    ]
    least = [one.arithmetic[0] for (_, key), one in of.items() if key.kind is ChargeKind.MINIMUM]
    assert least == [("agreed for a year", "100.00 EUR")] * 2
    # 45 km of the pool were used before, 10 of them free
    used = {(*days, key.device): one.arithmetic for (days, key), one in of.items() if key.kind is ChargeKind.USAGE}
    assert used[*cycles("quarter")[-2], "van"] == (
        ("used in earlier periods of the year from 2026-03-15", "45.00 km"),
        ("used in this period, year from 2026-03-15", "30.00 km"),
        ("less 0 km, what is left of the allowance of 10 km", "30.00 km"),
        ("30.00 km × 1 EUR", "30.00 EUR"),
        ("left of the allowance for later periods", "0.00 km"),
        ("with earlier periods of the year", "65.00 EUR"),
        ("rounded, a half up, less 35.00 of earlier periods", "30.00 EUR"),
    )


def seen(rows: list[Row]) -> pa.Table:
    made = table(rows)
    return made.append_column("seq_ranges", pa.array(["{}"] * made.num_rows, pa.string()))


@few
@given(yearly_prices(), st.data(), year_of_usage(), st.sampled_from(["month", "quarter", "quarter"]), st.randoms())
def test_the_periods_of_a_year_are_the_year(
    prices: dict[str, Any], data: st.DataObject, rows: list[Row], cycle: str, shuffled: random.Random
) -> None:
    """Also if a price changes within, a minimum is of the year, and whatever the order of the rows is."""
    later = data.draw(yearly_prices()) | {"effective_from": "2026-08-20T10:00:00Z"}
    later |= {"pools": [prices["pools"][0] | {"allowance": later["pools"][0]["allowance"]}]}
    if prices["pools"][0]["span"] != "day":
        later |= {"prices": [{key: one[key] for key in one if key != "tier_mode"} for one in later["prices"]]}
    of_year = {"minimum_amount": "25", "minimum_span": "year"}
    # a period divides a pool of the tree over the accounts by its own usage
    minimum = data.draw(st.sampled_from([{}, of_year] if prices["pools"][0]["scope"] != "tree" else [{}]))
    tariffs = [prices | minimum, *([later | minimum] if data.draw(st.booleans()) else [])]
    made = agreed(tariffs, cycle)
    bills = [billed(made, *days, rows) for days in cycles(cycle)]
    shuffled.shuffle(rows)
    [days] = cycles("year")
    whole = billed(agreed(tariffs, "year"), *days, rows)
    assert sum(bill.net_minor for bill in bills) == whole.net_minor
    assert quantities(bills) == quantities([whole])


@few
@given(yearly_prices(monotone=True), year_of_usage(), st.sampled_from(["device", "account"]), st.data())
def test_a_cap_of_a_year_is_the_most_and_a_higher_price_never_lowers_what_is_owed(
    prices: dict[str, Any], rows: list[Row], scope: str, data: st.DataObject
) -> None:
    prices |= {"caps": [{"scope": scope, "span": "year", "amount": "10"}]}
    # a period divides a pool of several devices over them by its own usage
    prices |= {"pools": [prices["pools"][0] | {"scope": "device"}]}

    def dearer(one: dict[str, Any]) -> dict[str, Any]:
        if "tiers" in one:
            return one | {"tiers": [dearer(tier) for tier in one["tiers"]]}
        return one | {"unit_amount": str(float(one["unit_amount"]) + 0.5)}

    raised = prices | {"prices": [dearer(one) for one in prices["prices"]]}
    sums = []
    for one in (prices, raised):
        bills = [billed(agreed([one], "quarter"), *days, rows) for days in cycles("quarter")]
        [days] = cycles("year")
        assert sum(bill.net_minor for bill in bills) == billed(agreed([one], "year"), *days, rows).net_minor <= 2000
        sums.append(sum(bill.net_minor for bill in bills))
    assert sums[0] <= sums[1]


@few
@given(yearly_prices(), year_of_usage(), st.data())
def test_a_version_that_says_the_same_changes_no_period_of_a_year(
    prices: dict[str, Any], rows: list[Row], data: st.DataObject
) -> None:
    day = data.draw(st.dates(date(2026, 3, 1), date(2026, 12, 31)))
    same = prices | {"effective_from": f"{day}T10:15:00Z"}
    one, split = agreed([prices], "quarter"), agreed([prices, same], "quarter")
    for days in cycles("quarter"):
        assert billed(one, *days, rows) == billed(split, *days, rows)


def test_cycles_follow_each_other_and_29_february_is_followed_by_1_march() -> None:
    for anchor in (date(2024, 2, 29), date(2026, 1, 31), YEAR):
        for cycle in Cycle:
            day, found = date(2027, 1, 1), []
            while day < date(2029, 4, 1):
                found.append(cycle_days(cycle, anchor, day))
                assert found[-1][0] <= day <= found[-1][1]
                day = found[-1][1] + timedelta(days=1)
            assert all(before[1] + timedelta(days=1) == after[0] for before, after in pairwise(found))
    years = [cycle_days(Cycle.YEAR, date(2024, 2, 29), date(year, 6, 1))[0] for year in (2026, 2028)]
    assert years == [date(2026, 3, 1), date(2028, 2, 29)]


def refused(made: Contracts, text: str) -> str:
    with pytest.raises(BlockedPayer) as caught:
        made.contract_of("acme", BillingPeriod.parse(text, BERLIN))
    return str(caught.value)


def test_other_periods_than_those_of_the_cycle_are_refused_with_the_right_ones() -> None:
    monthly = agreed([tariff(effective_from=BEGIN)], "month", year_begins=None)
    said = refused(monthly, "2026-01-01/2026-03-31")
    assert "is billed by month, and 2026-01-01/2026-03-31 is none of its periods" in said
    assert "close 2026-01, 2026-02, 2026-03 instead" in said
    assert monthly.contract_of("acme", BillingPeriod.parse("2026-02", BERLIN)).earlier == ()
    assert "close 2026-02-15/2026-03-14, 2026-03-15/2026-04-14" in refused(agreed([tariff()], "month"), "2026-03")


RATE = {"id": "rate", "name": "Rate", "amount": "70"}


def test_amounts_of_a_period_need_whole_periods_of_a_cycle_which_is_the_month_if_none_is_stated() -> None:
    by_fee, by_minimum = (tariff(effective_from=BEGIN, **of) for of in ({"fees": [RATE]}, {"minimum_amount": "5"}))
    of_year = tariff(price(span="year"), effective_from=BEGIN)
    for one in (by_fee, by_minimum, of_year):
        made = agreed([one], None, year_begins=None)
        assert "close 2026-03 instead" in refused(made, "2026-03-20")
        assert "close 2026-01, 2026-02, 2026-03 instead" in refused(made, "2026-Q1")
        made.contract_of("acme", BillingPeriod.parse("2026-03", BERLIN))
    own = agreed([tariff(effective_from=BEGIN)], None, year_begins=None, fees=[RATE])
    assert "close 2026-03 instead" in refused(own, "2026-03-20")
    once = agreed([tariff(effective_from=BEGIN, fees=[RATE | {"every": "once", "begin": "2026-03-20"}])], None)
    assert billed(once, date(2026, 3, 20), date(2026, 3, 21), []).net_minor == 14000


def test_a_week_runs_through_the_new_year_and_is_paid_by_days_where_a_stated_year_cuts_it() -> None:
    weekly = tariff(effective_from=BEGIN, fees=[RATE], minimum_amount="105")
    through = agreed([weekly], "week", year_begins=None)
    assert "close 2026-12-28/2027-01-03 instead" in refused(through, "2026-12-28/2026-12-31")
    # each of the two accounts has the fee and the minimum
    assert billed(through, date(2026, 12, 28), date(2027, 1, 3), []).net_minor == 2 * 10500
    cut = agreed([weekly], "week", year_begins="2026-01-01")
    found = [
        billed(cut, *days, [])
        for days in ((date(2026, 12, 28), date(2026, 12, 31)), (date(2027, 1, 1), date(2027, 1, 3)))
    ]
    assert [one.net_minor for one in found] == [2 * 6000, 2 * 4500]
    assert "Rate: 70.00 EUR a period, 4 of 7 days" in {one.key.price for one in found[0].charges}


def test_earlier_periods_are_those_of_the_cycle_of_their_time() -> None:
    """Six months of 1,000.00 and two quarters of 3,000.00 are the agreed 12,000.00."""
    rates = [RATE | {"amount": amount} for amount in ("1000", "3000")]
    first = tariff(effective_from=BEGIN, fees=[rates[0]], minimum_amount="12000", minimum_span="year")
    tariffs = [first, first | {"effective_from": "2026-06-30T22:00:00Z", "fees": [rates[1]]}]
    acme = account("acme", device("van", begin=BEGIN), payer=payer(cycle="month")) | {"effective_from": BEGIN}
    quarterly = acme | {"effective_from": "2026-06-30T22:00:00Z", "payer": payer(cycle="quarter")}
    made = contracts(legal_entity(effective_from=BEGIN), acme, quarterly, *tariffs)
    of_year = made.contract_of("acme", BillingPeriod.parse("2026-Q4", BERLIN))
    assert [str(one.period) for one in of_year.earlier] == [f"2026-0{month}" for month in range(1, 7)] + [
        "2026-07-01/2026-09-30"
    ]
    assert billed(made, date(2026, 10, 1), date(2026, 12, 31), []).net_minor == 300000
    # another cycle in the middle of one ends it
    odd = made_with(acme, quarterly | {"effective_from": "2026-08-14T22:00:00Z"}, first)
    assert "close 2026-07, 2026-08-01/2026-08-14, 2026-08-15/2026-09-30 instead" in refused(odd, "2026-Q3")
    cut = billed(odd, date(2026, 8, 15), date(2026, 9, 30), [])
    assert [one.key.price for one in cut.charges] == ["Rate: 1000.00 EUR a period, 47 of 92 days"]


def test_no_period_of_a_year_gives_back_what_an_earlier_one_paid() -> None:
    """What was used first is priced first: 40 km outside at 1.00, then 40 km in zones, which are beyond the tier."""
    tiers = [{"up_to": "40", "unit_amount": "1"}, {"unit_amount": "0"}]
    prices = [price(pool="km", zone=zone) | {"tiers": tiers} for zone in ("", "*")]
    for one in prices:
        del one["unit_amount"]
    made = agreed([tariff(*prices, effective_from=BEGIN, pools=[{"id": "km", "span": "year", "unit": "km"}])], "month")
    at = [datetime(2026, 3, 20, 9, tzinfo=UTC), datetime(2026, 4, 20, 9, tzinfo=UTC)]
    rows = [
        row(hour, zone, "van", distance_mm=(40_000_000, 0, 0, 0)) for hour, zone in zip(at, ("", "port"), strict=True)
    ]
    assert [billed(made, *days, rows).net_minor for days in cycles("month")[:2]] == [4000, 0]
    for of in (price(span="year"), price(pool="km")):
        del of["unit_amount"]
        with pytest.raises(ValueError, match="volume tiers by year"):
            Tariff.model_validate(
                tariff(of | {"tiers": tiers, "tier_mode": "volume"})
                | ({"pools": [{"id": "km", "span": "year"}]} if "pool" in of else {})
            )


def test_a_minimum_of_a_year_is_of_the_days_on_which_it_was_agreed() -> None:
    """Dropped in December it is due for 334 days, with those of a raised one for 31 more."""
    acme = account("acme", device("van", begin=BEGIN), payer=payer(cycle="month")) | {"effective_from": BEGIN}
    least = tariff(effective_from=BEGIN, minimum_amount="1200", minimum_span="year")
    december = least | {"effective_from": "2026-11-30T23:00:00Z"}
    dropped = made_with(acme, least, {key: december[key] for key in december if not key.startswith("minimum")})
    assert billed(dropped, date(2026, 11, 1), date(2026, 11, 30), []).net_minor == 0
    # 1,200.00 x 334 / 365
    assert billed(dropped, date(2026, 12, 1), date(2026, 12, 31), []).net_minor == 109808
    assert billed(dropped, date(2027, 12, 1), date(2027, 12, 31), []).net_minor == 0
    rows = [row(datetime(2026, 12, 20, 9, tzinfo=UTC), "", "van", distance_mm=(1_000_000_000, 0, 0, 0))]
    raised = billed(
        made_with(acme, least, december | {"minimum_amount": "2400"}), date(2026, 12, 1), date(2026, 12, 31), rows
    )
    assert {one.key.price: one.amount_minor for one in raised.charges} == {
        "0.45 EUR/km": 45000,
        "at least 1200.00 EUR a year, 334 of 365 days": 109808 - 45000,
        "at least 2400.00 EUR a year, 31 of 365 days": 20384,
    }


def test_a_device_takes_its_yearly_pool_along_to_another_account_and_a_day_belongs_to_one() -> None:
    """It moves at noon on 1 July: 100 km are free once in the year, and July's rate is for 31 days in all."""
    noon = "2026-07-01T10:00:00Z"
    own = tariff(
        price("1", span="year", allowance="100"),
        effective_from=BEGIN,
        fees=[RATE | {"amount": "31", "scope": "device"}],
    )
    acme = account("acme", device("van", begin=BEGIN, end=noon), payer=payer(cycle="month")) | {"effective_from": BEGIN}
    west = account("west", device("van", begin=noon), parent="acme") | {"effective_from": BEGIN}
    rows = [
        row(datetime(2026, month, 2, 9, tzinfo=UTC), "", "van", distance_mm=(80_000_000, 0, 0, 0)) for month in (6, 7)
    ]
    found = billed(made_with(acme, west, own), date(2026, 7, 1), date(2026, 7, 31), rows)
    assert {
        (one.key.account, one.key.kind.value): (one.free // 1_000_000, one.amount_minor) for one in found.charges
    } == {
        ("west", "usage"): (20, 6000),
        ("west", "fee"): (0, 3100),
    }
    late = billed(
        made_with(acme | {"effective_until": "2026-06-30T23:00:00Z"}, own), date(2026, 7, 1), date(2026, 7, 31), []
    )
    # an hour of July is no day of July
    assert late.net_minor == 0


def made_with(*bodies: dict[str, Any]) -> Contracts:
    return contracts(legal_entity(effective_from=BEGIN), *bodies)


def test_what_a_contract_year_needs_is_named() -> None:
    of_year = tariff(price(span="year"), effective_from=BEGIN)
    weekly = refused(agreed([of_year], "week", year_begins=None), "2026-03-30/2026-04-05")
    assert "begins on 2026-01-01, within a period of account 'acme'" in weekly
    dollars = of_year | {"currency": "USD"}
    rate_of = {
        "id": "usd-eur",
        "currency": "USD",
        "into": "EUR",
        "rate": "1",
        "source": "bank",
        "effective_from": BEGIN,
    }
    made = agreed([dollars, rate_of], "month", year_begins=None)
    assert "a year has many exchange rates" in refused(made, "2026-04")
    other = agreed(
        [
            tariff(price(pool="km"), id=name, effective_from=BEGIN, pools=[{"id": "km", "scope": "tree"}])
            for name in ("standard", "b")
        ],
        None,
        tariff="b",
    )
    assert "share the pool 'km', and have the tariffs" in refused(other, "2026-04")


def test_the_minimum_of_a_year_is_charged_where_the_account_ends_by_days() -> None:
    least = tariff(effective_from=BEGIN, minimum_amount="365", minimum_span="year")
    made = agreed([least], "month", effective_until="2026-05-10T00:00:00+02:00")
    made = contracts(
        legal_entity(effective_from=BEGIN),
        account("acme", device("van", begin=BEGIN), payer=payer(cycle="month"))
        | {"effective_from": BEGIN, "effective_until": "2026-05-10T00:00:00+02:00", "year_begins": YEAR.isoformat()},
        least,
    )
    rows = [row(datetime(2026, 3, 20, 9, tzinfo=UTC), "", "van", distance_mm=(10_000_000, 0, 0, 0))]
    first, last = (billed(made, *days, rows) for days in cycles("month")[:2])
    # 56 of 365 days, less 4.50
    assert (first.net_minor, last.net_minor) == (450, 5150)
    assert last.charges[0].key.price == "at least 365.00 EUR a year, 56 of 365 days"
