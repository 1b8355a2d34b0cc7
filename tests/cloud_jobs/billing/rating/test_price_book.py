"""Which price holds, and what has none."""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Price
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from cloud_jobs.billing.rating.pools import Paid, split
from cloud_jobs.billing.rating.pools import cost as cost_of
from cloud_jobs.billing.units import round_ratio
from simulator.truth import TrueDays, quarters_of
from tests.cloud_jobs.billing.rating.worlds import (
    ALWAYS,
    Row,
    World,
    assigned,
    price,
    rated,
    row,
    tariff,
    tiers,
    used_worlds,
)
from tests.examples import examples

DAY = TrueDays("UTC", date(2026, 3, 3), date(2026, 3, 3))
NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)
KM = 1_000_000


def driven(zone: str = "", hour: datetime = NOON) -> Row:
    return row(hour, zone, distance_mm=(KM,) * 4)


def world(*prices: dict[str, object], **more: Any) -> World:
    return World(days=DAY, tariffs=(tariff(*prices, **more),))


def test_a_zone_without_a_price_is_an_error_that_names_zone_device_and_hour() -> None:
    with pytest.raises(BillingError, match=r"no price of distance for zone 'b'.*'van'.*2026-03-03T12:00"):
        rated(world(price("distance", zone="a"), price("distance")), [driven("a"), driven("b")])


def test_a_new_fence_never_makes_kilometres_free_in_silence() -> None:
    """What was outside lies in a zone that the tariff does not know: an error, or the price of any zone."""
    sold = world(price("distance", "0.45"))
    assert rated(sold, [driven("")]).net_minor == 180
    with pytest.raises(BillingError):
        rated(sold, [driven("new-fence")])
    everywhere = world(price("distance", "0.45"), price("distance", "0.45", zone="*"))
    assert rated(everywhere, [driven("new-fence")]).net_minor == 180


def test_what_has_no_price_anywhere_is_not_sold_and_what_costs_nothing_has_a_charge() -> None:
    found = rated(world(price("distance", "0")), [driven("") | {"duration_ms": [900_000] * 4}])
    assert [(charge.key.meter, charge.quantity, charge.amount_minor) for charge in found.charges] == [
        ("distance", 4 * KM, 0)
    ]


def test_a_device_of_an_account_without_a_tariff_in_force_is_an_error() -> None:
    late = World(days=DAY, tariffs=(tariff(price("distance"), begin=NOON + timedelta(hours=1)),))
    with pytest.raises(BillingError, match="'acme' has no tariff in force for 'van'"):
        rated(late, [driven()])


units = st.fractions(0, 200, max_denominator=1000)


def cost(agreed: Price, some: Fraction) -> Fraction:
    return cost_of(agreed, Paid(Fraction(0), some, some))


def tiered(listed: list[dict[str, str]], mode: str = "graduated") -> Price:
    return Price.model_validate(price("distance", tiers=listed, tier_mode=mode))


@given(tiers(), units, units)
def test_more_units_of_graduated_tiers_never_cost_less(
    listed: list[dict[str, str]], some: Fraction, more: Fraction
) -> None:
    agreed = tiered(listed)
    assert cost(agreed, some) <= cost(agreed, some + more)


weights = st.lists(st.integers(0, 10**12), min_size=1, max_size=12).filter(any)
wholes = st.fractions(0, 10**9, max_denominator=10**6)


@given(wholes, weights)
def test_the_parts_are_the_whole_and_each_is_its_share_rounded_up_or_down(exact: Fraction, parts: list[int]) -> None:
    found = split(round_ratio(*exact.as_integer_ratio()), exact, parts)
    assert sum(found) == round_ratio(*exact.as_integer_ratio())
    for part, weight in zip(found, parts, strict=True):
        assert part >= 0
        assert abs(part - exact * weight / sum(parts)) < 1 or len(parts) == 1


few = settings(max_examples=examples(30), deadline=None)


def caps_of(span: str) -> list[list[dict[str, Any]]]:
    device = {"scope": "device", "span": span, "amount": "12"}
    account = {"scope": "account", "span": span, "amount": "31"}
    return [[device], [account], [device, account], [device | {"meters": ["distance"]}, account]]


def meters_of(caps: list[dict[str, Any]], world: World) -> World:
    """Caps name only meters that are sold; the others are left out."""
    changed = []
    for one in world.tariffs:
        sold = {price["meter"] for price in one["prices"]}
        changed.append({**one, "caps": [cap for cap in caps if set(cap.get("meters", ())) <= sold]})
    return replace(world, tariffs=tuple(changed))


def without(world: World, *names: str) -> World:
    return replace(
        world, tariffs=tuple({key: value for key, value in one.items() if key not in names} for one in world.tariffs)
    )


def usage_only(found: RatedAccount) -> dict[object, int]:
    return {charge.key: charge.amount_minor for charge in found.charges if charge.key.kind is ChargeKind.USAGE}


@few
@given(used_worlds(flat=True), st.sampled_from(caps_of("day") + caps_of("cycle")))
def test_a_cap_never_raises_and_never_takes_more_than_there_is(
    drawn: tuple[World, list[Row]], caps: list[dict[str, Any]]
) -> None:
    world, rows = without(drawn[0], "minimum_amount"), drawn[1]
    capped, plain = rated(meters_of(caps, world), rows), rated(world, rows)
    assert 0 <= capped.net_minor <= plain.net_minor
    assert usage_only(capped) == usage_only(plain)
    assert all(charge.amount_minor < 0 for charge in capped.charges if charge.key.kind is not ChargeKind.USAGE)


@few
@given(used_worlds(flat=True), st.sampled_from(["device", "account"]), st.sampled_from(["day", "cycle"]))
def test_a_cap_of_all_meters_is_the_most_whatever_was_rounded(
    drawn: tuple[World, list[Row]], scope: str, span: str
) -> None:
    world, rows = without(drawn[0], "minimum_amount"), drawn[1]
    cap = {"scope": scope, "span": span, "amount": "3"}
    world = replace(meters_of([cap], world), rates=(("USD", "1"),))
    of_whom: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for charge in rated(world, rows).charges:
        key = charge.key
        of_whom[(key.account, key.device) if scope == "device" else (key.account,)] += charge.amount_minor
    minor = {"EUR": 100, "JPY": 1, "KWD": 1000}[world.currency]
    days = 1 + (world.days.last_day - world.days.first_day).days if span == "day" else 1
    # two versions that both have the cap are one; within a day it is the cap of the whole day
    assert all(0 <= amount <= 3 * minor * days for amount in of_whom.values())


@few
@given(used_worlds())
def test_the_minimum_is_the_least_that_each_account_with_a_device_pays(drawn: tuple[World, list[Row]]) -> None:
    world, rows = drawn
    least = replace(without(world, "minimum_amount", "proration", "minimum_without_devices"), rates=(("USD", "1"),))
    whole = {"minimum_amount": "50", "proration": "whole"}
    least = replace(least, tariffs=tuple(one | whole for one in least.tariffs))
    minor = 50 * {"EUR": 100, "JPY": 1, "KWD": 1000}[world.currency]
    plain, found, first = rated(without(least, "minimum_amount"), rows), rated(least, rows), world.days.first_day
    for account in ("acme", "acme-west"):
        before = sum(charge.amount_minor for charge in plain.charges if charge.key.account == account)
        after = sum(charge.amount_minor for charge in found.charges if charge.key.account == account)
        # the day on which the child ends is none of its days
        until, of_first = world.child_times[1], [at for at, local in quarters_of(world.days) if local.date() == first]
        has_days = until is None or until > of_first[-1]
        has_device = account == "acme" or (bool(world.child_devices) and has_days)
        assert after == (max(before, minor) if has_device else before)
    assert usage_only(found) == usage_only(plain)


@few
@given(used_worlds(), st.data())
def test_a_minimum_by_day_is_never_above_the_whole_and_grows_with_the_days(
    drawn: tuple[World, list[Row]], data: st.DataObject
) -> None:
    world = without(drawn[0], "minimum_amount", "proration", "minimum_without_devices")
    moments = [moment for moment, _ in quarters_of(world.days)]
    ends = data.draw(st.lists(st.sampled_from(moments[1:]), min_size=2, max_size=2).map(sorted))
    world = replace(world, devices=(), rates=(("USD", "1"),))
    fees = []
    for proration, end in (("by_day", ends[0]), ("by_day", ends[1]), ("by_day", None), ("whole", ends[0])):
        agreed = {"minimum_amount": "50", "proration": proration}
        tariffs = tuple(one | agreed for one in world.tariffs)
        bus = (assigned("bus", end=end),)
        fees.append(rated(replace(world, tariffs=tariffs, child_times=(ALWAYS, end), child_devices=bus), []).net_minor)
    assert 0 <= fees[0] <= fees[1] <= fees[2] == 50 * {"EUR": 100, "JPY": 1, "KWD": 1000}[world.currency]
    # a day is enough
    assert fees[3] == (fees[2] if fees[0] else 0)
