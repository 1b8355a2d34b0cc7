"""Fees, percentages and credits are charges of their own, and change no other; started units cost a whole step."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from cloud_jobs.billing.units import amount_text
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.test_price_book import caps_of, few, meters_of
from tests.cloud_jobs.billing.rating.worlds import (
    Row,
    World,
    assigned,
    explained,
    price,
    rated,
    row,
    table,
    tariff,
    used_worlds,
)
from tests.examples import examples

MARCH = TrueDays("UTC", date(2026, 3, 1), date(2026, 3, 31))
NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
KM = 1_000_000


def fee(id_: str = "rate", **terms: Any) -> dict[str, Any]:
    return {"id": id_, "name": id_.capitalize(), **terms}


def fees_of(found: RatedAccount) -> dict[tuple[str, str], int]:
    """Of the payer's account; its child has the tariff's fees, too."""
    mine = (one for one in found.charges if one.key.kind is ChargeKind.FEE and one.key.account == "acme")
    return {(one.key.device, one.key.price): one.amount_minor for one in mine}


def without_fees(found: RatedAccount) -> dict[object, int]:
    others = (one for one in found.charges if one.key.kind not in {ChargeKind.FEE, ChargeKind.MINIMUM})
    return {one.key: one.amount_minor for one in others}


def world(*fees: dict[str, Any], of_account: tuple[dict[str, Any], ...] = (), **more: Any) -> World:
    prices = price("distance"), price("distance", zone="*"), price("event", "0.10")
    return World(**{"days": MARCH, "tariffs": (tariff(*prices, fees=list(fees)),), "fees": of_account} | more)


def km(count: str, zone: str = "", device: str = "van") -> Row:
    return row(NOON, zone, device, distance_mm=(int(Fraction(count) * KM), 0, 0, 0))


amounts = st.decimals(-40, 40, places=0).map(str)
percents = st.decimals(-100, 200, places=1).map(str)
days = st.none() | st.dates(date(2026, 3, 1), date(2026, 10, 25)).map(str)


@st.composite
def drawn_fees(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for number in range(draw(st.integers(0, 3))):
        terms: dict[str, Any] = {"scope": draw(st.sampled_from(["account", "device"]))}
        terms |= {"proration": draw(st.sampled_from(["by_day", "whole"]))}
        if draw(st.booleans()):
            terms |= {"amount": draw(amounts)}
        else:
            terms |= {"percent": draw(percents), "zones": draw(st.sampled_from([[], [""], ["*"], ["a", ""]]))}
        begin = draw(days)
        terms |= {"begin": begin} | ({"every": "once"} if begin and draw(st.booleans()) else {})
        found.append(fee(f"fee-{number}", **terms))
    return found


@few
@given(used_worlds(flat=True), drawn_fees(), drawn_fees(), st.sampled_from([[], *caps_of("day"), *caps_of("cycle")]))
def test_no_fee_changes_usage_or_caps_and_no_credit_makes_a_total_negative(
    drawn: tuple[World, list[Row]], of_tariff: list[dict[str, Any]], own: list[dict[str, Any]], caps: list[Any]
) -> None:
    plain, rows = meters_of(caps, drawn[0]), drawn[1]
    tariffs = tuple(one | {"fees": of_tariff} for one in plain.tariffs)
    agreed = replace(plain, tariffs=tariffs, fees=tuple(own))
    before, after = rated(plain, rows), rated(agreed, rows)
    assert without_fees(after) == without_fees(before)
    assert rated(agreed, rows[::-1]) == after
    assert after.net_minor == sum(one.amount_minor for one in after.charges)
    totals = Counter[str]()
    for one in after.charges:
        totals[one.key.account] += one.amount_minor
        assert one.key.kind is not ChargeKind.FEE or (one.quantity > 0 and one.metered is None)
    assert all(total >= 0 for total in totals.values())
    for one in after.charges:
        if one.key.kind is not ChargeKind.USAGE:
            found = explained(agreed.contract, table(rows), one)
            assert found.agrees
            assert found.arithmetic[-1][1] == f"{amount_text(one.amount_minor, agreed.currency)} {agreed.currency}"
            assert bool(one.parts) <= (one.key.kind is ChargeKind.CAP)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(-5000, 5000), st.integers(2, 30), st.sampled_from(["account", "device"]))
def test_adjacent_parts_of_a_fee_by_day_are_the_whole(minor: int, first: int, scope: str) -> None:
    border = date(2026, 3, 1) + timedelta(days=first)
    rate = fee(amount=f"{minor / 100:.2f}", scope=scope)
    plenty = [km("100")]
    whole = fees_of(rated(world(rate), plenty))
    assert [*whole.values()] == [minor]
    # a version that repeats the fee, and a device that goes and comes back, are one fee of all days
    noon = datetime(border.year, border.month, border.day, 12, tzinfo=UTC)
    repeated = world(rate | {"end": "2026-04-01"}).tariffs[0] | {"effective_from": noon}
    there = assigned(end=noon), assigned(begin=noon)
    assert fees_of(rated(world(rate, tariffs=(*world(rate).tariffs, repeated), devices=there), plenty)) == whole
    # two fees are rounded by themselves
    parts = [rate | {"id": "a", "end": str(border)}, rate | {"id": "b", "begin": str(border)}]
    found = fees_of(rated(world(*parts), plenty)).values()
    assert abs(sum(found) - minor) <= 1
    assert all(0 <= part <= minor or minor <= part <= 0 for part in found)


def test_a_rate_of_each_device_is_for_its_days_and_another_version_takes_over_at_a_day() -> None:
    first = world(fee(amount="1290", scope="device")).tariffs[0]
    second = first | {
        "effective_from": datetime(2026, 3, 12, 5, tzinfo=UTC),
        "fees": [fee(amount="620", scope="device")],
    }
    devices = assigned("bus"), assigned("van", begin=datetime(2026, 3, 12, 9, tzinfo=UTC))
    assert fees_of(rated(world(tariffs=(first, second), devices=devices), [])) == {
        ("bus", "Rate: 1290.00 EUR a period, for each device, 11 of 31 days"): 45774,
        ("bus", "Rate: 620.00 EUR a period, for each device, 20 of 31 days"): 40000,
        ("van", "Rate: 620.00 EUR a period, for each device, 20 of 31 days"): 40000,
    }
    # of what is charged whole the last one counts, and no two add up
    tariffs = tuple(one | {"fees": [one["fees"][0] | {"proration": "whole"}]} for one in (first, second))
    assert {*fees_of(rated(world(tariffs=tariffs, devices=devices), [])).values()} == {62000}


@pytest.mark.parametrize(
    ("terms", "text", "minor"),
    [
        ({"percent": "3.7", "meters": ["distance"]}, "Rate: 3.7 % of distance", 74),
        ({"percent": "50", "zones": ["a"]}, "Rate: 50 % of all usage, only a", 400),
        ({"percent": "50", "zones": [""]}, "Rate: 50 % of all usage, only outside all zones", 600),
        ({"percent": "-10", "begin": "2026-03-17"}, "Rate: -10 % of all usage, 15 of 31 days", -210),
        ({"percent": "-10", "begin": "2026-03-21"}, "", 0),
        ({"amount": "-100"}, "Rate: -100.00 EUR a period, limited to what was charged", -2100),
        ({"amount": "-5", "every": "once", "begin": "2026-03-31"}, "Rate: -5.00 EUR once", -500),
        ({"amount": "-5", "every": "once", "begin": "2026-04-01"}, "", 0),
    ],
)
def test_a_fee_is_of_the_usage_after_caps_and_of_its_days(terms: dict[str, Any], text: str, minor: int) -> None:
    """The cap takes a third of the 30 km: 12.00 outside and 8.00 in the zone are left, and 1.00 for events."""
    rows = [km("18"), km("12", "a"), row(NOON, "*", events=(10, 0, 0, 0))]
    cap = {"scope": "device", "span": "cycle", "amount": "20", "meters": ["distance"]}
    capped = world().tariffs[0] | {"caps": [cap]}
    expected = {("", text): minor} if text else {}
    assert fees_of(rated(world(tariffs=(capped,), of_account=(fee(**terms),)), rows)) == expected


def test_a_fee_counts_towards_the_minimum_and_is_in_its_own_currency() -> None:
    least = world(fee(amount="10")).tariffs[0] | {"currency": "USD", "minimum_amount": "15"}
    made = world(tariffs=(least,), of_account=(fee("own", amount="2"),), rates=(("USD", "0.9"),))
    assert {one.key.price: one.amount_minor for one in rated(made, []).charges if one.key.account == "acme"} == {
        "Rate: 10.00 USD a period": 900,
        "Own: 2.00 EUR a period": 200,
        "at least 15.00 USD a period": 250,
    }
    charge = next(one for one in rated(made, []).charges if one.amount_minor == 900)
    assert explained(made.contract, table([]), charge).arithmetic == (
        ("Rate", "10.00 USD"),
        ("exchanged at 0.90", "9.00 EUR"),
        ("rounded, a half up", "9.00 EUR"),
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 250), min_size=1, max_size=4), st.integers(1, 120), st.integers(0, 150))
def test_started_units_cost_whole_steps_however_the_pool_is_used(counts: list[int], step: int, allowance: int) -> None:
    terms = {"step": str(step), "allowance": str(allowance), "pool": "account"}
    agreed = tariff(price("event", "0.01", **terms))
    rows = [row(NOON, "*", str(at), events=(count, 0, 0, 0)) for at, count in enumerate(counts)]
    devices = tuple(assigned(str(at)) for at in range(len(counts)))
    paid = max(0, sum(counts) - allowance)
    expected = -(-paid // step) * step
    assert rated(World(days=MARCH, tariffs=(agreed,), devices=devices), rows).net_minor == expected
    # a dearer version from some moment on takes over the step that was started
    second = agreed | {"effective_from": NOON, "prices": [price("event", "0.02", **terms)]}
    early = [row(NOON - timedelta(hours=2), "*", str(at), events=(count, 0, 0, 0)) for at, count in enumerate(counts)]
    used = min(expected, -(-max(0, sum(counts) - allowance) // step) * step)
    both = rated(World(days=MARCH, tariffs=(agreed, second), devices=devices), [*early, *rows]).net_minor
    in_all = -(-max(0, 2 * sum(counts) - allowance) // step) * step
    assert both == used + 2 * (in_all - used)
