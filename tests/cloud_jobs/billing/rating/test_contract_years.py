"""What holds of pools, caps and minimums of a contract year, and of cycles."""

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.billing_period import BillingPeriod, Cycle, cycle_days
from cloud_jobs.billing.contracts import BlockedPayer, Contracts
from cloud_jobs.billing.rating import PeriodUsage, RatedAccount, cells_of_usage, rate
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
from tests.cloud_jobs.billing.rating.worlds import Row, row, table
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
    """A tariff with a pool of a year (or day, or week) whose two places may have different amounts."""
    pool = {"id": "km", "scope": draw(st.sampled_from(["device", "account", "tree"])), "unit": "km"}
    pool |= {
        "span": draw(st.sampled_from(["year", "year", "week", "day"])),
        "allowance": draw(st.sampled_from(["0", "30"])),
    }
    made = []
    for zone in ("", "*"):
        one = price(draw(amounts), zone=zone, pool="km")
        if draw(st.booleans()):
            del one["unit_amount"]
            tiers = [{"up_to": "40", "unit_amount": draw(amounts)}, {"unit_amount": draw(amounts)}]
            one |= {
                "tiers": tiers,
                "tier_mode": "graduated" if monotone else draw(st.sampled_from(["graduated", "volume"])),
            }
        made.append(one)
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


@few
@given(yearly_prices(), st.data(), year_of_usage(), st.sampled_from(["month", "quarter", "quarter"]), st.randoms())
def test_the_periods_of_a_year_are_the_year(
    prices: dict[str, Any], data: st.DataObject, rows: list[Row], cycle: str, shuffled: random.Random
) -> None:
    """Also if a price changes within, a minimum is of the year, and whatever the order of the rows is."""
    later = data.draw(yearly_prices()) | {"effective_from": "2026-08-20T10:00:00Z"}
    later |= {"pools": [prices["pools"][0] | {"allowance": later["pools"][0]["allowance"]}]}
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
    dearer = {**prices["prices"][0]}
    if "unit_amount" in dearer:
        dearer["unit_amount"] = str(float(dearer["unit_amount"]) + 0.5)
    else:
        dearer["tiers"] = [one | {"unit_amount": str(float(one["unit_amount"]) + 0.5)} for one in dearer["tiers"]]
    raised = prices | {"prices": [dearer, *prices["prices"][1:]]}
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


def test_what_a_contract_year_needs_is_named() -> None:
    of_year = tariff(price(span="year"), effective_from=BEGIN)
    assert "needs the cycle of its payer" in refused(agreed([of_year], None), "2026-04")
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
