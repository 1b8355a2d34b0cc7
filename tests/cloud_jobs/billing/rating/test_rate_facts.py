"""Prices of visits, stays, passages and driven days: examples by hand, and what holds of all of them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.billing.contracts import Assigned, Dearest, Tariff
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import RatedAccount, rate
from cloud_jobs.billing.rating.facts import DeviceFacts
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import TenantDevice
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.contracts.makers import APRIL, MARCH, SINCE, account, contracts, device, legal_entity
from tests.cloud_jobs.billing.rating.worlds import Row, World, assigned, facts, passage, row, tariff, visit
from tests.examples import examples

few = settings(max_examples=examples(60), deadline=None)
DAYS = TrueDays("Europe/Berlin", date(2026, 3, 28), date(2026, 3, 29))
START = datetime(2026, 3, 27, 23, tzinfo=UTC)
END = datetime(2026, 3, 29, 22, tzinfo=UTC)
NOON = START + timedelta(hours=13)
EACH = {"unit": "each"}


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def rated_facts(world: World, events: Sequence[Row], rows: Sequence[Row] = ()) -> RatedAccount:
    return rate(world.contract, (), {}, facts=facts(events, world.contract, rows))


def shown(world: World, *events: Row, rows: Sequence[Row] = ()) -> list[tuple[str, str, int, int, int]]:
    """Account, window, quantity, free quantity and amount of each charge."""
    return [
        (one.key.account, one.key.window, one.quantity, one.free, one.amount_minor)
        for one in rated_facts(world, events, rows).charges
    ]


def world(*prices: dict[str, Any], **more: Any) -> World:
    return World(days=DAYS, tariffs=(tariff(*prices, **more),))


STAY = {"meter": "stay", "zone": "*", "unit": "min", "unit_amount": "0.01"}
MINUTE = 60_000


def test_the_dearest_of_any_zone_is_that_of_each_zone() -> None:
    rules = [Dearest(minutes=60, meters=(Meter.PASSAGE,), zones=zones) for zones in ((), ("*",), ("a", "b"))]
    assert all(rule.covers(Meter.PASSAGE, "a") for rule in rules)
    assert not any(rule.covers(Meter.VISIT, "a") for rule in rules)


def test_a_stay_is_charged_whole_when_it_ends_in_the_window_of_its_begin() -> None:
    night = {"id": "night", "days": ["fri", "sat"], "hours": ["22:00-06:07"]}
    priced = world(STAY, STAY | {"window": "night", "unit_amount": "0.02"}, windows=[night])
    over = visit("a", START - hours(30), START + hours(1))
    assert shown(priced, *over) == [("acme", "", 31 * 60 * MINUTE, 0, 1860)]
    # 6:06 is in the window, 6:07 is not
    early = [START + hours(6) + timedelta(minutes=at) for at in (6, 7)]
    both = [one for at in early for one in visit("a", at, at + timedelta(minutes=1))]
    assert shown(priced, *both) == [("acme", "", MINUTE, 0, 1), ("acme", "night (fri, sat 22:00-06:07)", MINUTE, 0, 2)]
    assert shown(priced, *visit("a", END - hours(1))) == []
    assert shown(priced, *visit("a", END - hours(1), END)) == []


def test_a_change_of_account_ends_a_stay_and_a_period_does_not() -> None:
    moved = replace(
        world(STAY | {"allowance": "30"}, {"meter": "visit", "zone": "*", "unit_amount": "1"} | EACH),
        devices=(assigned(end=NOON),),
        child_devices=(assigned(begin=NOON),),
    )
    stays = [("acme", "", 60 * MINUTE, 30 * MINUTE, 30), ("acme-west", "", 120 * MINUTE, 30 * MINUTE, 90)]
    entered = ("acme", "", 1, 0, 100)
    assert shown(moved, *visit("a", NOON - hours(1), NOON + hours(2))) == [entered, *stays]
    # it lasts, and the first account has had its part
    assert shown(moved, *visit("a", NOON - hours(1))) == [entered, stays[0]]
    sold = replace(moved, child_devices=())
    assert shown(sold, *visit("a", NOON - hours(1))) == [entered, stays[0]]
    assert shown(replace(sold, devices=(assigned(end=END + hours(1)),)), *visit("a", NOON)) == [entered]


def test_an_account_has_a_device_also_before_and_after_the_period() -> None:
    earlier = account("acme", device("van-1", begin="2026-02-01T00:00:00Z", end="2026-03-02T00:00:00Z"))
    later = account("acme", device("van-1", begin="2026-03-01T12:00:00Z"), effective_from="2026-03-01T12:00:00Z")
    sold = {"id": "standard", "effective_from": SINCE, "currency": "EUR", "prices": [STAY]}
    (terms,) = contracts(legal_entity(), sold, earlier, later).contract_of("acme", MARCH).accounts
    held = Assigned("fleet", "van-1", micros(datetime(2026, 2, 1, tzinfo=UTC)), micros(MARCH.end) + 1, "acme", "eu")
    assert terms.held == (held,)


def test_a_stay_that_began_before_the_period_has_the_attributes_of_entering() -> None:
    begin, end = "2026-03-01T00:00:00+01:00", datetime(2026, 3, 1, tzinfo=UTC)
    classes = [
        device("van-1", end=begin, attributes={"class": "a"}),
        device("van-1", begin=begin, attributes={"class": "b"}),
    ]
    prices = [
        STAY | {"devices": {"class": of}, "unit": "h", "unit_amount": amount}
        for of, amount in (("a", "1"), ("b", "10"))
    ]
    sold = {"id": "standard", "effective_from": SINCE, "currency": "EUR", "prices": prices}
    contract = contracts(legal_entity(), sold, account("acme", *classes)).contract_of("acme", MARCH)
    assert contract is not None
    inside = visit("a", end - hours(2), end, "van-1")
    (charge,) = rate(contract, (), {}, facts=facts(inside, contract)).charges
    assert charge.amount_minor == 200


def test_a_cap_of_a_day_is_for_each_day_of_a_stay() -> None:
    stay = STAY | {"unit": "h", "unit_amount": "2"}
    capped = world(stay, caps=[{"scope": "device", "span": "day", "amount": "20", "meters": ["stay"]}])
    # 11 hours of Saturday and 12 of Sunday are both above 20.00
    over = visit("a", NOON, NOON + hours(23))
    assert [one[-1] for one in shown(world(stay), *over)] == [4600]
    assert [one[-1] for one in shown(capped, *over)] == [4600, -600]
    # 6 hours of Thursday, 24 of Friday and one of Saturday: 12.00, 20.00 and 2.00
    assert sum(one[-1] for one in shown(capped, *visit("a", START - hours(30), START + hours(1)))) == 3400
    # of 23 hours, 24 by steps, 18 are paid for, 3 of them on Saturday: 6.00, and 22.50 until the maximum on Sunday
    stepped = stay | {"step": "1.5", "allowance": "6", "most": "28.5"}
    late = visit("a", NOON + hours(3), NOON + hours(26))
    assert [one[-1] for one in shown(world(stepped), *late)] == [2850]
    assert sum(one[-1] for one in shown(world(stepped, caps=capped.tariffs[0]["caps"]), *late)) == 600 + 2000


def of_months(*prices: Sequence[dict[str, Any]]) -> list[int]:
    """What a stay from 1 March to 2 April costs in each month, if the prices change on 1 April."""
    dated: tuple[dict[str, Any], ...] = (
        {"effective_from": SINCE},
        {"effective_from": "2026-03-31T22:00:00Z", "not_sold": ["stay"]},
    )
    other: dict[str, Any] = {"meter": "distance", "unit": "km", "unit_amount": "1"}
    tariffs = []
    for some, about in zip(prices, dated, strict=True):
        named = {key: value for key, value in about.items() if key != "not_sold" or not some}
        tariffs.append({"id": "standard", "currency": "EUR", "prices": [other, *some]} | named)
    made = contracts(legal_entity(), *tariffs, account("acme", device("van")))
    events = visit("a", MARCH.start, APRIL.start + hours(24))
    agreed = [made.contract_of("acme", month) for month in (MARCH, APRIL)]
    return [rate(one, (), {}, facts=facts(events, one)).net_minor for one in agreed]


def test_each_part_of_a_stay_costs_what_it_cost_then() -> None:
    low, high = ([STAY | {"unit": "day", "unit_amount": amount}] for amount in ("10", "20"))
    # March has 31 days less an hour
    assert of_months(low, low) == [0, 31958]
    assert of_months(low, high) == [0, 30958 + 2000]
    assert of_months([], high) == [0, 2000]
    assert of_months(low, []) == [30958, 0]
    # free time and the maximum are those of the whole stay
    assert of_months([low[0] | {"allowance": "30"}], [high[0] | {"allowance": "30"}]) == [0, 958 + 2000]
    assert of_months([low[0] | {"most": "300"}], [high[0] | {"most": "310"}]) == [0, 31000]


def test_a_pair_of_gates_is_one_passage() -> None:
    alone = {"meter": "passage", "zone": "*", "unit_amount": "3"} | EACH
    pair = alone | {"zone": "south", "unit_amount": "5", "after": "north", "within": 60}
    priced = world(alone, pair)
    over = passage("north", NOON) + passage("south", NOON + hours(1))
    assert sorted(shown(priced, *over)) == [("acme", "", 1, 0, 500), ("acme", "", 1, 1, 0)]
    late = passage("north", NOON) + passage("south", NOON + hours(1.01))
    assert shown(priced, *late) == [("acme", "", 1, 0, 300), ("acme", "", 1, 0, 300)]
    between = [*over, *passage("east", NOON + hours(0.5))]
    assert sum(one[-1] for one in shown(priced, *between)) == 900
    # the first of the pair is on the document of the earlier period
    border = passage("north", START - hours(0.5)) + passage("south", START + hours(0.5))
    assert shown(priced, *border) == [("acme", "", 1, 0, 200)]
    # a pair that costs less than its first gate gives the rest back: 3.00 - 1.00 = 2.00 too much
    cheaper = pair | {"unit_amount": "1"}
    assert shown(world(alone, cheaper), *border) == [("acme", "", 1, 0, -200)]
    # and the part of a surcharge that was charged on it
    fuel = {"id": "fuel", "name": "Fuel", "percent": "10"}
    assert sorted(one[-1] for one in shown(world(alone, cheaper, fees=[fuel]), *border)) == [-200, -20]
    # it has cost what it cost then
    dearer = tariff(alone | {"unit_amount": "4"}, pair | {"unit_amount": "6"}, begin=START)
    assert shown(replace(priced, tariffs=(*priced.tariffs, dearer)), *border) == [("acme", "", 1, 0, 300)]


def test_the_dearest_is_by_price_before_the_first_of_a_pair_is_given_back() -> None:
    alone = {"meter": "passage", "zone": "*", "unit_amount": "3"} | EACH
    pair = alone | {"zone": "south", "unit_amount": "2", "after": "north", "within": 60}
    east = alone | {"zone": "east", "unit_amount": "2"}
    priced = world(alone, pair, east, dearest=[{"minutes": 60, "meters": ["passage"], "zones": ["*"]}])
    over = [(gate, START + timedelta(minutes=at)) for gate, at in (("north", -10), ("south", 10), ("east", 40))]
    found = shown(priced, *(one for gate, moment in over for one in passage(gate, moment)))
    assert sorted(one[-1] for one in found) == [-100, 0]


def test_a_direction_has_a_price_and_the_other_one_too() -> None:
    there = {"meter": "passage", "zone": "bridge", "unit_amount": "2", "direction": "forward"} | EACH
    back = there | {"unit_amount": "0", "direction": "backward"}
    assert sorted(shown(world(there, back), *passage("bridge", NOON), *passage("bridge", NOON, "backward"))) == [
        ("acme", "", 1, 0, 0),
        ("acme", "", 1, 0, 200),
    ]
    with pytest.raises(ValidationError, match="none in the other direction; write unit_amount = 0"):
        Tariff.model_validate(tariff(there))
    with pytest.raises(BillingError, match=r"no price of passage for zone 'ford', where 'van' was at 2026-03-28T12:00"):
        shown(world(there, back), *passage("ford", NOON))


@pytest.mark.parametrize(
    ("price", "fault"),
    [
        ({"meter": "visit", "pool": "account"}, "each visit is charged by itself; leave out pool and span"),
        ({"meter": "passage", "step": "2"}, "each passage is charged by itself; give it a unit_amount"),
        ({"meter": "visit", "most": "2"}, "most is the maximum of each stay; use a cap for visit"),
        ({"meter": "entry", "direction": "forward"}, "direction and after are of a passage"),
        ({"meter": "passage", "after": "north"}, "after and within belong together"),
        ({"meter": "driven day", "unit": "day", "window": "early"}, "not on quarters of an hour; driven day is kept"),
        ({"meter": "passage", "after": "north", "within": 5}, "has a price, and none for it alone"),
    ],
)
def test_terms_that_a_price_cannot_have(price: dict[str, Any], fault: str) -> None:
    early = {"id": "early", "days": ["mon"], "hours": ["07:10-08:00"]}
    with pytest.raises(ValidationError, match=fault):
        Tariff.model_validate(tariff({"zone": "a", "unit_amount": "1"} | EACH | price, windows=[early]))


def test_a_day_in_which_a_device_only_stands_is_not_driven() -> None:
    priced = world({"meter": "driven day", "zone": "*", "unit": "day", "unit_amount": "18"})
    there = visit("a", START - hours(5), NOON)
    drove = [row(NOON - hours(2), "b", distance_mm=[0, 1, 0, 0])]
    assert shown(priced, *there) == []
    assert shown(priced, *there, rows=drove) == [("acme", "", 1, 0, 1800)]
    assert shown(priced, *there, rows=[row(NOON + hours(2), "a", distance_mm=[1, 0, 0, 0])]) == []


# Laws.

cents = st.integers(1, 900).map(lambda one: f"{one / 100:.2f}")


@st.composite
def prices(draw: st.DrawFn) -> list[dict[str, Any]]:
    stay = STAY | {"unit_amount": draw(cents)}
    stay |= draw(st.sampled_from([{}, {"allowance": "45"}, {"step": "30"}, {"step": "30", "allowance": "45"}]))
    stay |= draw(st.sampled_from([{}, {"most": "9"}]))
    crossing: Row = {"meter": "passage", "zone": "*"} | EACH
    found: list[Row] = [
        stay,
        {"meter": "visit", "zone": "*", "unit_amount": draw(cents)} | EACH,
        {"meter": "visit", "zone": "a", "window": "day", "unit_amount": draw(cents)} | EACH,
        {"meter": "driven day", "zone": "*", "unit": "day", "unit_amount": draw(cents)},
        crossing | {"unit_amount": draw(cents)},
        crossing | {"zone": "a", "direction": "forward", "unit_amount": draw(cents)},
    ]
    if draw(st.booleans()):
        found.append(crossing | {"zone": "b", "after": "a", "within": 90, "unit_amount": draw(cents)})
    return found


@st.composite
def worlds(draw: st.DrawFn) -> World:
    more: dict[str, Any] = {"windows": [{"id": "day", "days": ["sat"], "hours": ["08:10-18:20"]}]}
    if draw(st.booleans()):
        more["dearest"] = [{"minutes": 60, "meters": ["visit", "passage"]}]
    if draw(st.booleans()):
        more["caps"] = [{"scope": "device", "span": "day", "amount": "12"}]
    change = START + hours(draw(st.integers(0, 46)))
    moved = (assigned("van", end=change) if change > START else assigned("car"), assigned("truck"))
    return World(
        days=DAYS,
        tariffs=(tariff(*draw(prices()), **more),),
        devices=moved,
        child_devices=(assigned("van", begin=change),),
    )


@st.composite
def happened(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Events within the period, also of visits that have not ended, and usage."""
    minutes, found = st.integers(0, 47 * 60 - 1).map(lambda one: START + timedelta(minutes=one)), list[Row]()
    for name in ("van", "truck"):
        for zone in ("a", "b"):
            borders = sorted(draw(st.sets(minutes, max_size=5)))
            for begin, end in [*pairwise(borders)][::2]:
                found += visit(zone, begin, end, name)
            if len(borders) % 2:
                found += visit(zone, borders[-1], None, name)
        for moment in draw(st.sets(minutes, max_size=6)):
            found += passage(draw(st.sampled_from("ab")), moment, draw(st.sampled_from(["forward", "backward"])), name)
    drove = draw(st.sets(st.integers(0, 46), max_size=4))
    return found, [row(START + hours(one), "a", "van", distance_mm=[5, 0, 0, 5]) for one in drove]


@few
@given(worlds(), happened(), st.randoms(use_true_random=False))
def test_order_and_duplicates_of_facts_change_nothing(
    drawn: World, happening: tuple[list[Row], list[Row]], shuffled: random.Random
) -> None:
    events, rows = happening
    contract = drawn.contract
    of = facts(events, contract, rows)
    mixed = dict[TenantDevice, DeviceFacts]()
    for name in shuffled.sample([*of], len(of)):
        again: list[list[Any]] = [[*some, *some[::2]] for some in (of[name].visits, of[name].passages)]
        for some in again:
            shuffled.shuffle(some)
        mixed[name] = DeviceFacts(visits=again[0], passages=again[1], driven=of[name].driven)
    assert rate(contract, (), {}, facts=mixed) == rate(contract, (), {}, facts=of)


@few
@given(worlds(), happened(), st.integers(1, 187))
def test_a_version_that_repeats_the_tariff_changes_nothing(
    drawn: World, happening: tuple[list[Row], list[Row]], quarter: int
) -> None:
    again = drawn.tariffs[0] | {"effective_from": START + quarter * timedelta(minutes=15)}
    twice = replace(drawn, tariffs=(*drawn.tariffs, again))
    assert rated_facts(twice, *happening).charges == rated_facts(drawn, *happening).charges


@few
@given(worlds(), happened(), st.data())
def test_raising_a_price_or_dropping_free_time_never_lowers_the_bill(
    drawn: World, happening: tuple[list[Row], list[Row]], data: st.DataObject
) -> None:
    listed = drawn.tariffs[0]["prices"]
    # a stay that is at its maximum earlier may be under the cap of a day
    assume(not ("most" in listed[0] and drawn.tariffs[0].get("caps")))
    at = data.draw(st.integers(0, len(listed) - 1))
    raised = listed[at] | {"unit_amount": str(Decimal(listed[at]["unit_amount"]) + 1)}
    if data.draw(st.booleans()):
        at, raised = 0, {key: value for key, value in listed[0].items() if key != "allowance"}
    more = drawn.tariffs[0] | {"prices": [*listed[:at], raised, *listed[at + 1 :]]}
    found, before = (rated_facts(one, *happening) for one in (replace(drawn, tariffs=(more,)), drawn))
    assert found.net_minor >= before.net_minor


@few
@given(worlds(), happened())
def test_devices_and_accounts_add_up(drawn: World, happening: tuple[list[Row], list[Row]]) -> None:
    events, rows = happening
    whole = rated_facts(drawn, events, rows)
    parts = [rated_facts(drawn, [one for one in events if one["device"] == name], rows) for name in ("van", "truck")]
    assert whole.net_minor == sum(part.net_minor for part in parts)
    for charge in whole.charges:
        assert 0 <= charge.free <= charge.quantity
        assert charge.metered is not None or charge.key.kind != "usage"
    # each stay that ended is charged, by one account or by two
    visits = [visit for of in facts(events, drawn.contract).values() for visit in of.visits]
    ended = sum((one.end_us - one.begin_us) // 1_000 for one in visits)
    lasting = [one for one in events if one["kind"] == "enter"]
    if len([one for one in events if one["kind"] == "exit"]) == len(lasting):
        assert sum(one.quantity for one in whole.charges if one.key.meter == "stay") == ended
