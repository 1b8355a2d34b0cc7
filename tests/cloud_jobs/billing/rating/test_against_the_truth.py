"""Rating agrees with an independent reference, in plain loops and fractions, on any contracts and usage."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import RatedAccount
from simulator.truth import TrueDays, TrueOwed, TruthError
from tests.cloud_jobs.billing.rating.test_rate_facts import START, happened, rated_facts
from tests.cloud_jobs.billing.rating.test_rate_facts import worlds as fact_worlds
from tests.cloud_jobs.billing.rating.worlds import (
    Row,
    World,
    amounts,
    price,
    rated,
    some_units,
    tariff,
    tiers,
    true_quarters,
    usage_rows,
    used_worlds,
    worlds,
)
from tests.examples import examples
from tests.truth.facts import TrueFacts, TruePassage, TrueVisit
from tests.truth.owed import owed_by


def true(world: World, rows: list[Row]) -> TrueOwed:
    return owed_by(world.truth, "acme", world.days, true_quarters(rows))


def same(found: RatedAccount, expected: TrueOwed, *, words: bool = True) -> None:
    """`words`: also in the text of each price."""
    listed = [
        (
            (
                one.key.account,
                one.key.region,
                one.key.tenant,
                one.key.device,
                one.key.kind.value,
                one.key.meter.value if one.key.meter else "",
                one.key.zone,
                one.key.window_id,
                one.key.price,
            ),
            (one.quantity, one.free, one.amount_minor),
        )
        for one in found.charges
    ]
    wanted = [(tuple(one.about), (one.quantity, one.free, one.amount_minor)) for one in expected.charges]
    assert sums(listed, words=words) == sums(wanted, words=words)
    (tax,), (true_tax,) = found.taxes, expected.taxes
    assert (tax.taxable_minor, tax.tax_minor) == (true_tax.taxable_minor, true_tax.tax_minor)
    assert Decimal(found.gross_minor) == expected.gross_minor


def sums(charges: Sequence[tuple[tuple[str, ...], tuple[int, int, int]]], *, words: bool) -> dict[tuple[str, ...], Any]:
    assert len({about for about, _ in charges}) == len(charges)
    found: dict[tuple[str, ...], list[int]] = {}
    for about, numbers in charges:
        key = about if words else about[:-1]
        # The documents do not say which fees of 0.00 have a line, nor which of several credits is limited first.
        if about[4] == "fee" and numbers[2] <= 0:
            key, counted = (about[0], "credits"), (0, 0, numbers[2])
        else:
            counted = numbers
        found[key] = [sum(pair) for pair in zip(found.get(key, [0, 0, 0]), counted, strict=True)]
    return {key: numbers for key, numbers in found.items() if key[1] != "credits" or numbers[2]}


@settings(max_examples=examples(40), deadline=None)
@given(used_worlds())
def test_any_prices_tiers_allowances_windows_and_versions(drawn: tuple[World, list[Row]]) -> None:
    same(rated(*drawn), true(*drawn))


@settings(max_examples=examples(30), deadline=None)
@given(used_worlds(complete=False))
def test_what_has_no_price_is_an_error_of_both(drawn: tuple[World, list[Row]]) -> None:
    try:
        expected = true(*drawn)
    except TruthError:
        try:
            rated(*drawn)
        except BillingError:
            return
        raise
    same(rated(*drawn), expected)


DISTANCE = [price("distance", "1.3333", zone=zone, pool="km") for zone in ("", "*")]


@settings(max_examples=examples(40), deadline=None)
@given(worlds(), st.sampled_from(["device", "account"]), st.sampled_from(["day", "cycle"]), st.data())
def test_a_cap_that_may_change_on_what_is_one_pool(world: World, scope: str, span: str, data: st.DataObject) -> None:
    prices = [one | {"scope": scope} for one in DISTANCE]
    begins = [one["effective_from"] for one in world.tariffs]
    capped = [
        tariff(
            *prices,
            begin=begin,
            currency=world.tariffs[0]["currency"],
            caps=[{"scope": scope, "span": span, "amount": amount, "meters": ["distance"]} for amount in amounts],
        )
        for begin in begins
        for amounts in [data.draw(st.sampled_from([["0"], ["20"], ["55"], []]))]
    ]
    world = replace(world, tariffs=tuple(capped), rates=(("USD", "2"),))
    rows = data.draw(usage_rows(world.days))
    same(rated(world, rows), true(world, rows))


@st.composite
def fees(draw: st.DrawFn, days: TrueDays, name: str, meter: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    some_day = st.dates(days.first_day - timedelta(days=1), days.last_day + timedelta(days=1)).map(str)
    for number in range(draw(st.integers(0, 3))):
        # The documents do not say what a fee costs whose proration or scope changes within a period.
        proration, scope = draw(st.sampled_from(["by_day", "whole"])), draw(st.sampled_from(["account", "device"]))
        terms: dict[str, Any] = {"id": f"{name}-{number}-{proration}-{scope}", "name": f"{name} {number}"}
        terms |= {"scope": scope, "proration": proration}
        terms |= draw(st.sampled_from([{}, {"begin": draw(some_day)}, {"end": draw(some_day)}]))
        if draw(st.booleans()):
            terms |= {"amount": str(draw(st.integers(-40, 40)))}
            terms |= {"every": "once"} if "begin" in terms and draw(st.booleans()) else {}
        else:
            terms |= {"percent": draw(st.decimals(-100, 200, places=1).map(str))}
            terms |= draw(st.sampled_from([{}, {"zones": [""]}, {"zones": ["a", ""]}]))
            terms |= {"meters": [meter]} if meter and draw(st.booleans()) else {}
        found.append(terms)
    return found


@settings(max_examples=examples(60), deadline=None)
@given(used_worlds(), st.data())
def test_fees_of_tariff_and_account(drawn: tuple[World, list[Row]], data: st.DataObject) -> None:
    plain, rows = drawn
    sold = [one["prices"][0]["meter"] for one in plain.tariffs]
    listed = [data.draw(fees(plain.days, "tariff", meter)) for meter in sold]
    if sold[0] in {one["meter"] for one in plain.tariffs[-1]["prices"]} and data.draw(st.booleans()):
        listed[-1] = listed[0]
    tariffs = tuple(one | {"fees": of} for one, of in zip(plain.tariffs, listed, strict=True))
    world = replace(plain, tariffs=tariffs, fees=tuple(data.draw(fees(plain.days, "own"))))
    same(rated(world, rows), true(world, rows))


def true_facts(events: Sequence[Row]) -> TrueFacts:
    visits, passages, since = [], [], dict[tuple[str, str], datetime]()
    for one in sorted(events, key=lambda one: one["time"]):
        place = one["device"], one["place"]
        if one["kind"] == "enter":
            since[place] = one["time"]
        elif one["kind"] == "exit":
            visits.append(TrueVisit("fleet", *place, since.pop(place), one["time"]))
        else:
            passages.append(TruePassage("fleet", *place, one["time"], one["kind"]))
    visits += [TrueVisit("fleet", *place, begin, None) for place, begin in since.items()]
    return TrueFacts(tuple(visits), tuple(passages))


@settings(max_examples=examples(100), deadline=None)
@given(fact_worlds(), happened(), st.booleans(), st.integers(0, 2), st.data())
def test_visits_stays_passages_and_driven_days(
    world: World, happening: tuple[list[Row], list[Row]], both_ways: bool, changes: int, data: st.DataObject
) -> None:
    events, rows = happening
    (first,) = world.tariffs
    stay, *others = first["prices"]
    if both_ways:
        back = {"meter": "passage", "zone": "*", "unit": "each", "after": "b", "within": 200, "unit_amount": "0.50"}
        others.append(back | {"zone": "a"})
    versions = [first | {"prices": [stay, *others]}]
    for number in range(changes):
        dearer: dict[str, Any] = {"unit_amount": data.draw(st.sampled_from(["0.02", "0.50"])), "zone": "*"}
        dearer |= data.draw(st.sampled_from([{}, {"allowance": "90"}, {"step": "45", "most": "12"}]))
        stays = data.draw(st.sampled_from([[], [{"meter": "stay", "unit": "min"} | dearer]]))
        begin = (
            first["effective_from"] if not number else START + timedelta(minutes=15 * data.draw(st.integers(1, 187)))
        )
        terms: dict[str, Any] = {"effective_from": begin, "prices": [*stays, *others]}
        versions.append(first | terms | ({} if stays else {"not_sold": ["stay"]}))
    world = replace(world, tariffs=tuple(versions[-2:] if changes == 2 else versions[-1:]))
    expected = owed_by(world.truth, "acme", world.days, true_quarters(rows), true_facts(events))
    same(rated_facts(world, events, rows), expected, words=False)


@settings(max_examples=examples(40), deadline=None)
@given(used_worlds(), st.sampled_from(["device", "account"]), st.sampled_from(["day", "cycle"]), st.data())
def test_steps_and_spans_of_pools(drawn: tuple[World, list[Row]], scope: str, span: str, data: st.DataObject) -> None:
    terms: dict[str, Any] = {"pool": "km", "scope": scope, "pool_span": span, "allowance": data.draw(some_units)}
    terms |= {"step": step} if (step := data.draw(st.sampled_from(["", "2.5", "10"]))) else {}
    tariffs = []
    for one in drawn[0].tariffs:
        cost = data.draw(st.fixed_dictionaries({"unit_amount": amounts}) | st.fixed_dictionaries({"tiers": tiers()}))
        prices = [price("distance", None, zone=zone, **terms, **cost) for zone in ("", "*")]
        tariffs.append(tariff(*prices, begin=one["effective_from"], currency=one["currency"]))
    world = replace(drawn[0], tariffs=tuple(tariffs))
    same(rated(world, drawn[1]), true(world, drawn[1]), words=False)
