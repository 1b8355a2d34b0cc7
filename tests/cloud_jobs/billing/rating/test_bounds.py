"""Whatever prices the check lets in, and whatever is used: a payer is rated and can be stored, or is named. No more."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.billing.contracts import Contracts, Tariff
from cloud_jobs.billing.errors import AmountTooLarge, BillingError
from cloud_jobs.billing.rating import RatedAccount, cells_of_usage, rate, rating_contract
from cloud_jobs.billing.rating.charges import MOST_MINOR
from cloud_jobs.billing.register.closing import PeriodKey
from cloud_jobs.billing.register.control_totals import assigned_usage
from cloud_jobs.billing.register.tables import charge_columns, charge_rows, charges_from
from tests.cloud_jobs.billing.contracts.makers import (
    MARCH,
    account,
    contracts,
    device,
    exchange_rate,
    legal_entity,
    price,
    tariff,
)
from tests.cloud_jobs.billing.rating.worlds import QUANTITIES, UNITS, Row, row, table
from tests.examples import examples

HOUR = datetime(2026, 3, 10, 6, tzinfo=UTC)
KEY = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))
EXTREMES = st.sampled_from(["0", "-0", "0.000000000001", "0.45", "999999999", "1000000000", "999999999999"])
SMALLEST = UNITS | {"distance": "m", "duration": "min", "transmitted": "kB"}
MOST = st.sampled_from([7, 10**6, 10**9, 10**12, 10**15, 2**53 + 1, 2**57, 2**63 - 1])
"""Of a row's quantities the largest: with one that is beyond all bounds nothing else would be looked at."""


@st.composite
def prices(draw: st.DrawFn, meter: str) -> dict[str, Any]:
    zone = {"distance": "", "duration": ""}.get(meter, "*" if meter in {"entry", "crossing"} else "")
    made = price(draw(EXTREMES), meter=meter, unit=draw(st.sampled_from([UNITS, SMALLEST]))[meter], zone=zone)
    if draw(st.booleans()):
        made |= {"allowance": draw(EXTREMES), "pool": draw(st.sampled_from(["device", "account"]))}
    if draw(st.booleans()):
        del made["unit_amount"]
        tiers = [{"up_to": "1000", "unit_amount": draw(EXTREMES)}, {"unit_amount": draw(EXTREMES)}]
        made |= {"tiers": tiers, "tier_mode": draw(st.sampled_from(["graduated", "volume"]))}
    return made


@st.composite
def tariffs(draw: st.DrawFn) -> dict[str, Any]:
    meters = draw(st.sets(st.sampled_from(sorted(UNITS)), min_size=1, max_size=3))
    made = tariff(*(draw(prices(meter)) for meter in sorted(meters)), currency=draw(st.sampled_from(["EUR", "USD"])))
    whole = EXTREMES.filter(lambda text: "." not in text)
    if draw(st.booleans()):
        made["minimum_amount"] = draw(whole)
    if draw(st.booleans()):
        per, pool = draw(st.sampled_from(["day", "period"])), draw(st.sampled_from(["device", "account"]))
        made["caps"] = [{"pool": pool, "per": per, "amount": draw(whole)}]
    return made


@st.composite
def used(draw: st.DrawFn) -> list[Row]:
    zone = draw(st.sampled_from(["", "*", "port"]))
    hours = [HOUR.replace(hour=number) for number in range(draw(st.integers(1, 3)))]
    four = st.lists(st.sampled_from([0, 1, draw(MOST)]), min_size=4, max_size=4)
    return [row(hour, zone, "van-1", 1, **{name: draw(four) for name in QUANTITIES}) for hour in hours]


def agreed(*bodies: dict[str, Any]) -> Contracts:
    return contracts(legal_entity(), exchange_rate("999999999999"), account("acme", device()), *bodies)


def rated(made: Contracts, rows: list[Row]) -> RatedAccount:
    contract = rating_contract(made.contract_of("acme", MARCH))
    usage = table(rows)
    ((cells, metered),) = cells_of_usage([contract], usage)
    assigned_usage([contract], usage)
    return rate(contract, cells, metered)


@settings(max_examples=examples(400), deadline=None)
@given(tariffs(), used())
def test_any_price_and_any_usage_makes_charges_that_can_be_stored_or_a_reason(
    agreed_prices: dict[str, Any], rows: list[Row]
) -> None:
    try:
        Tariff.model_validate(agreed_prices)
    except ValidationError:
        return
    try:
        found = rated(agreed(agreed_prices), rows)
    except BillingError:
        return
    assert sum(abs(one.amount_minor) for one in found.charges) <= MOST_MINOR
    assert 0 <= found.net_minor <= found.gross_minor
    stored = charge_rows("run", [(KEY, charge_columns(found.charges))])
    assert charges_from([stored], [(KEY.payer, "run")]) == {(KEY.payer, "run"): found.charges}


def test_a_payer_that_owes_more_than_all_money_is_named_with_its_price() -> None:
    slip = tariff(price("1000000000", unit="m"))
    with pytest.raises(AmountTooLarge, match="a charge of account 'acme'"):
        rated(agreed(slip), [row(HOUR, "", "van-1", distance_mm=(2 * 10**7, 0, 0, 0))])
