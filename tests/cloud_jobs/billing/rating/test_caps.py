"""Caps and the minimum fee."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from simulator.truth import quarters_of
from tests.cloud_jobs.billing.rating.worlds import ALWAYS, Row, World, assigned, rated, used_worlds
from tests.examples import examples

few = settings(max_examples=examples(30), deadline=None)


def caps_of(per: str) -> list[list[dict[str, Any]]]:
    """Lists of caps that a tariff may have together."""
    device = {"pool": "device", "per": per, "amount": "12"}
    account = {"pool": "account", "per": per, "amount": "31"}
    return [[device], [account], [device, account], [device | {"meters": ["distance"]}, account]]


def meters_of(caps: list[dict[str, Any]], world: World) -> World:
    """Caps name only meters that are sold; the others are left out."""
    changed = []
    for one in world.tariffs:
        sold = {price["meter"] for price in one["prices"]}
        changed.append({**one, "caps": [cap for cap in caps if set(cap.get("meters", ())) <= sold]})
    return replace(world, tariffs=tuple(changed))


def without(world: World, *names: str) -> World:
    """The same tariffs without caps or a minimum."""
    return replace(
        world, tariffs=tuple({key: value for key, value in one.items() if key not in names} for one in world.tariffs)
    )


def usage_only(found: RatedAccount) -> dict[object, int]:
    return {charge.key: charge.amount_minor for charge in found.charges if charge.key.kind is ChargeKind.USAGE}


@few
@given(used_worlds(flat=True), st.sampled_from(caps_of("day") + caps_of("period")))
def test_a_cap_never_raises_and_never_takes_more_than_there_is(
    drawn: tuple[World, list[Row]], caps: list[dict[str, Any]]
) -> None:
    world, rows = without(drawn[0], "minimum_amount"), drawn[1]
    capped, plain = rated(meters_of(caps, world), rows), rated(world, rows)
    assert 0 <= capped.net_minor <= plain.net_minor
    assert usage_only(capped) == usage_only(plain)
    assert all(charge.amount_minor < 0 for charge in capped.charges if charge.key.kind is not ChargeKind.USAGE)


@few
@given(used_worlds(flat=True), st.sampled_from(["device", "account"]), st.sampled_from(["day", "period"]))
def test_a_cap_of_all_meters_is_the_most_whatever_was_rounded(
    drawn: tuple[World, list[Row]], pool: str, per: str
) -> None:
    world, rows = without(drawn[0], "minimum_amount"), drawn[1]
    cap = {"pool": pool, "per": per, "amount": "3"}
    world = replace(meters_of([cap], world), rates=(("USD", "1"),))
    of_whom: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for charge in rated(world, rows).charges:
        key = charge.key
        of_whom[(key.account, key.device) if pool == "device" else (key.account,)] += charge.amount_minor
    minor = {"EUR": 100, "JPY": 1, "KWD": 1000}[world.currency]
    days = 1 + (world.days.last_day - world.days.first_day).days if per == "day" else 1
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
    plain, found = rated(without(least, "minimum_amount"), rows), rated(least, rows)
    for account in ("acme", "acme-west"):
        before = sum(charge.amount_minor for charge in plain.charges if charge.key.account == account)
        after = sum(charge.amount_minor for charge in found.charges if charge.key.account == account)
        has_device = account == "acme" or bool(world.child_devices)
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
    assert 0 < fees[0] <= fees[1] <= fees[2] == fees[3] == 50 * {"EUR": 100, "JPY": 1, "KWD": 1000}[world.currency]
