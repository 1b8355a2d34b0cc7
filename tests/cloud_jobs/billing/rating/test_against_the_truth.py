"""Rating agrees with an independent reference, in plain loops and fractions, on any contracts and usage."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import RatedAccount
from simulator.truth import TrueOwed, TruthError, owed_by
from tests.cloud_jobs.billing.rating.worlds import (
    Row,
    World,
    price,
    rated,
    tariff,
    true_quarters,
    usage_rows,
    used_worlds,
    worlds,
)
from tests.examples import examples


def true(world: World, rows: list[Row]) -> TrueOwed:
    return owed_by(world.truth, "acme", world.days, true_quarters(rows))


def same(found: RatedAccount, expected: TrueOwed) -> None:
    listed = {}
    for one in found.charges:
        key = one.key
        meter = key.meter.value if key.meter else ""
        about = (
            key.account,
            key.region,
            key.tenant,
            key.device,
            key.kind.value,
            meter,
            key.zone,
            key.window_id,
            key.price,
        )
        listed[about] = one.quantity, one.free, one.amount_minor
    assert listed == {tuple(one.about): (one.quantity, one.free, one.amount_minor) for one in expected.charges}
    assert len(found.charges) == len(expected.charges)
    (tax,), (true_tax,) = found.taxes, expected.taxes
    assert (tax.taxable_minor, tax.tax_minor) == (true_tax.taxable_minor, true_tax.tax_minor)
    assert Decimal(found.gross_minor) == expected.gross_minor


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
