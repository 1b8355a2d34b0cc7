"""Every charge comes apart into the hours that it counts, and comes out of them once more."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given, settings

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import Charge, ChargeKind
from cloud_jobs.billing.units import amount_text
from cloud_jobs.explain import explain, with_hours_again
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import Row, World, assigned, price, rated, row, table, tariff, used_worlds
from tests.examples import examples

MARCH = TrueDays("Asia/Kolkata", date(2026, 3, 1), date(2026, 3, 31))
NOON = datetime(2026, 3, 5, 12, tzinfo=UTC)
KM = 1_000_000


def usage(rows: Iterable[Row]) -> pa.Table:
    made = table(rows)
    return made.append_column("seq_ranges", pa.array(['{"1":[[1,9]]}'] * made.num_rows, pa.string()))


def usage_charges(world: World, rows: list[Row]) -> list[Charge]:
    return [one for one in rated(world, rows).charges if one.key.kind is ChargeKind.USAGE]


@settings(max_examples=examples(40))
@given(used_worlds())
def test_hours_digest_and_amount_of_every_charge_come_out_once_more(used: tuple[World, list[Row]]) -> None:
    world, rows = used
    try:
        charges = usage_charges(world, rows)
    except BillingError:
        return
    for charge in charges:
        explanation = explain(world.contract, usage(rows), charge, is_whole=True)
        assert explanation.quantity_agrees, explanation
        assert explanation.digest_agrees
        assert explanation.amount_agrees
        assert explanation.arithmetic[-1][1].split()[0] == amount_text(charge.amount_minor, world.currency)
        # nobody has looked at the records yet
        assert explanation.agrees is None


def test_the_arithmetic_of_a_pool_names_each_step() -> None:
    names, way = ("bus", "truck", "van"), (KM, 0, 0, 0)
    rows = [row(NOON, zone, device=name, distance_mm=way) for name in names for zone in ("", "a")]
    tiers = [{"up_to": "2", "unit_amount": "0.333"}, {"unit_amount": "0.10"}]
    agreed: dict[str, Any] = {"tiers": tiers, "allowance": "1", "pool": "account", "pool_id": "km"}
    prices = price("distance", **agreed), price("distance", zone="*", **agreed)
    world = World(days=MARCH, tariffs=(tariff(*prices),), devices=tuple(map(assigned, names)))
    charge = usage_charges(world, rows)[0]
    made = explain(world.contract, usage(rows), charge, is_whole=True).arithmetic
    assert [*made] == [
        ("the pool: 6 charges of 3 vehicles of the account", "6.00 km"),
        ("less the allowance of 1 km", "5.00 km"),
        ("2.00 km × 0.333 EUR", "0.666 EUR"),
        ("3.00 km × 0.10 EUR", "0.30 EUR"),
        ("together", "0.966 EUR"),
        ("rounded, a half up", "0.97 EUR"),
        ("the part of 1.00 of 6.00 km, by largest remainder", "0.17 EUR"),
    ]


def test_the_arithmetic_of_a_pool_whose_price_changes_has_both_prices() -> None:
    rows = [row(NOON.replace(day=day), distance_mm=(60 * KM, 0, 0, 0)) for day in (4, 6)]
    versions = (
        tariff(price("distance", "0.45", allowance="50")),
        tariff(price("distance", "0.46", allowance="50"), begin=NOON),
    )
    world = World(days=MARCH, tariffs=versions)
    _, charge = usage_charges(world, rows)
    made = explain(world.contract, usage(rows), charge, is_whole=True).arithmetic
    assert [*made] == [
        ("the pool: 2 charges of this vehicle", "120.00 km"),
        ("until the price changed", "60.00 km"),
        ("less what is free", "10.00 km"),
        ("10.00 km × 0.45 EUR", "4.50 EUR"),
        ("after it changed", "60.00 km"),
        ("60.00 km × 0.46 EUR", "27.60 EUR"),
        ("together", "32.10 EUR"),
        ("rounded, a half up", "32.10 EUR"),
        ("the part of 60.00 of 120.00 km, exactly 27.60 EUR, by largest remainder", "27.60 EUR"),
    ]


def kolkata(*prices: dict[str, object]) -> World:
    return World(days=MARCH, tariffs=(tariff(*prices),))


def test_the_hour_of_a_local_midnight_counts_with_the_quarters_of_the_period() -> None:
    # midnight in India is at 18:30 UTC: two quarters are of March, two of April
    rows = [row(datetime(2026, 3, 31, 18, tzinfo=UTC), distance_mm=(KM, KM, 5 * KM, 5 * KM))]
    world = kolkata(price("distance"))
    [charge] = usage_charges(world, rows)
    [hour] = explain(world.contract, usage(rows), charge, is_whole=True).hours
    assert hour.quantity == 2 * KM


def test_records_that_give_another_row_are_seen_and_those_that_give_it_agree() -> None:
    rows = [row(NOON, distance_mm=(KM, 0, 0, 0))]
    world = kolkata(price("distance"))
    [charge] = usage_charges(world, rows)
    explanation = explain(world.contract, usage(rows), charge, is_whole=True)
    again = usage(rows).select(["hour", "zone", "digest"])
    assert with_hours_again(explanation, again).agrees is True
    assert with_hours_again(explanation, again.slice(1)).agrees is False
