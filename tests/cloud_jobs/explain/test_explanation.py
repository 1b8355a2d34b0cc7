"""Every charge comes apart into the hours that it counts, and comes out of them once more."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import Charge, ChargeKind, PeriodUsage, rate
from cloud_jobs.billing.units import amount_text
from cloud_jobs.explain import explain, with_hours_again
from cloud_jobs.explain.metered_again import TrackBox, ids_near
from geo.reference.in_force import parse_fence
from geo.spatial import Fence, FenceError
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import (
    Row,
    World,
    assigned,
    explained,
    facts,
    passage,
    price,
    rated,
    row,
    table,
    tariff,
    used_worlds,
    visit,
)
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
        explanation = explained(world.contract, usage(rows), charge)
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
    agreed: dict[str, Any] = {"tiers": tiers, "allowance": "1", "pool": "km", "scope": "account"}
    prices = price("distance", **agreed), price("distance", zone="*", **agreed)
    world = World(days=MARCH, tariffs=(tariff(*prices),), devices=tuple(map(assigned, names)))
    charge = usage_charges(world, rows)[0]
    made = explained(world.contract, usage(rows), charge).arithmetic
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
    made = explained(world.contract, usage(rows), charge).arithmetic
    assert [*made] == [
        ("the pool: 2 charges of this vehicle", "120.00 km"),
        ("until the price changed", "60.00 km"),
        ("less the allowance of 50 km", "10.00 km"),
        ("10.00 km × 0.45 EUR", "4.50 EUR"),
        ("after it changed", "60.00 km"),
        ("60.00 km × 0.46 EUR", "27.60 EUR"),
        ("together", "32.10 EUR"),
        ("rounded, a half up", "32.10 EUR"),
        ("the part of 60.00 of 120.00 km, exactly 27.60 EUR, by largest remainder", "27.60 EUR"),
    ]


def test_a_stay_comes_apart_into_free_time_steps_maximum_and_days() -> None:
    stay: dict[str, Any] = {"meter": "stay", "zone": "*", "unit": "min", "allowance": "15", "step": "30"}
    caps = [{"scope": "device", "span": "day", "amount": "5"}]
    agreed = tariff(stay | {"step_amount": "1.50", "most": "9"}, caps=caps)
    world = World(days=MARCH, tariffs=(agreed,))
    # in Kolkata, 17:30 to 18:10, and 22:30 to 2:30
    events = [
        *visit("a", NOON, NOON + timedelta(minutes=40)),
        *visit("a", NOON.replace(hour=17), NOON.replace(hour=21)),
    ]
    found = facts(events, world.contract)
    charge, _ = rate(world.contract, (), {}, facts=found).charges
    made = explain(world.contract, charge, periods=[PeriodUsage((), {}, found)])
    assert made.amount_agrees
    assert [(step.partition(", events")[0], figure) for step, figure in made.arithmetic] == [
        ("2026-03-05 17:30:00+05:30 to 2026-03-05 18:10:00+05:30, 40.000000 min", "3.00 EUR"),
        ("- less 15.00 min that are free", "25.00 min"),
        ("- 2 steps of 30 min from entering × 1.50 EUR", "3.00 EUR"),
        ("2026-03-05 22:30:00+05:30 to 2026-03-06 02:30:00+05:30, 240.000000 min", "9.00 EUR"),
        ("- less 15.00 min that are free", "225.00 min"),
        ("- 8 steps of 30 min from entering × 1.50 EUR", "12.00 EUR"),
        ("- the maximum of a stay", "9 EUR"),
        ("- 90.00 min of it on 2026-03-05", "4.50 EUR"),
        ("- 150.00 min of it on 2026-03-06", "4.50 EUR"),
    ]


def test_a_pair_over_a_border_is_its_price_less_the_first_of_it() -> None:
    alone = {"meter": "passage", "zone": "*", "unit": "each", "unit_amount": "3"}
    world = World(
        days=MARCH, tariffs=(tariff(alone, alone | {"zone": "b", "unit_amount": "2", "after": "a", "within": 60}),)
    )
    start, at = world.contract.period.start, timedelta(minutes=10)
    found = facts([*passage("a", start - at), *passage("b", start + at)], world.contract)
    [charge] = rate(world.contract, (), {}, facts=found).charges
    made = explain(world.contract, charge, periods=[PeriodUsage((), {}, found)])
    assert [figure for _, figure in made.arithmetic] == ["-1.00 EUR", "2.00 EUR", "-3.00 EUR"]


def test_caps_and_a_minimum_come_apart_into_days_and_what_was_there() -> None:
    caps = [{"scope": "device", "span": "day", "amount": "5"}, {"scope": "account", "span": "cycle", "amount": "7"}]
    agreed = tariff(price("distance", "1"), caps=caps, minimum_amount="25")
    rows = [row(NOON.replace(day=day), distance_mm=(way * KM, 0, 0, 0)) for day, way in ((5, 8), (6, 3))]
    world = World(days=MARCH, tariffs=(agreed,))
    derived = [one for one in rated(world, rows).charges if one.key.kind is not ChargeKind.USAGE]
    made = {one.key.price[:12]: explained(world.contract, usage(rows), one).arithmetic for one in derived}
    assert [one.parts for one in derived if one.parts] == ["2026-03-05"]
    assert made == {
        "at most 5.00": (
            ("2026-03-05: 8.00 EUR, of which 5.00 EUR remain", "-3.00 EUR"),
            ("rounded; what stays is at most the caps of the days", "-3.00 EUR"),
        ),
        "at most 7.00": (
            ("charged until here", "8.00 EUR"),
            ("at most 7.00 EUR a period for the account (all meters)", "-1.00 EUR"),
        ),
        "at least 25.": (
            ("agreed for a period", "25.00 EUR"),
            ("rounded, a half up", "25.00 EUR"),
            ("less usage, caps and fees", "7.00 EUR"),
            ("missing", "18.00 EUR"),
        ),
    }


def kolkata(*prices: dict[str, object]) -> World:
    return World(days=MARCH, tariffs=(tariff(*prices),))


def test_the_hour_of_a_local_midnight_counts_with_the_quarters_of_the_period() -> None:
    # midnight in India is at 18:30 UTC: two quarters are of March, two of April
    rows = [row(datetime(2026, 3, 31, 18, tzinfo=UTC), distance_mm=(KM, KM, 5 * KM, 5 * KM))]
    world = kolkata(price("distance"))
    [charge] = usage_charges(world, rows)
    [hour] = explained(world.contract, usage(rows), charge).hours
    assert hour.quantity == 2 * KM


def test_records_that_give_another_row_are_seen_and_those_that_give_it_agree() -> None:
    rows = [row(NOON, distance_mm=(KM, 0, 0, 0))]
    world = kolkata(price("distance"))
    [charge] = usage_charges(world, rows)
    explanation = explained(world.contract, usage(rows), charge)
    again = usage(rows).select(["hour", "zone", "digest"])
    assert with_hours_again(explanation, again).agrees is True
    assert with_hours_again(explanation, again.slice(1)).agrees is False


DEGREES = st.integers(-720, 720).map(lambda quarter: quarter / 4)
SMALL = st.integers(0, 40).map(lambda tenth: tenth / 10)


def feature(kind: str, coordinates: Any, **properties: Any) -> str:
    geometry = {"type": kind, "coordinates": coordinates}
    return json.dumps({"type": "Feature", "properties": {"id": "f", **properties}, "geometry": geometry})


def box(west: float, south: float, east: float, north: float) -> TrackBox | None:
    return TrackBox.around(np.array([west, east]), np.array([south, north]))


def is_near(body: str, track: TrackBox | None) -> bool:
    # a track that has all of the world around it
    return track is None or bool(ids_near([("f", body)], track))


@st.composite
def features(draw: st.DrawFn) -> str:
    lon, lat = draw(DEGREES), draw(st.integers(-360, 360)) / 4
    corner = st.tuples(SMALL, SMALL).map(lambda by: [lon + by[0], lat + by[1]])
    kind = draw(st.sampled_from(["circle", "corridor", "gate", "polygon", "wide", "parts"]))
    if kind == "circle":
        return feature("Point", [lon, lat], radius_m=draw(st.sampled_from([1, 500, 50_000, 2_000_000])))
    if kind in {"corridor", "gate"}:
        more = {"gate": True} if kind == "gate" else {"width_m": draw(st.sampled_from([1, 20_000, 100_000]))}
        most = 2 if kind == "gate" else 4
        return feature("LineString", draw(st.lists(corner, min_size=2, max_size=most)), **more)
    ring = draw(st.lists(corner, min_size=4, max_size=6))
    if kind == "wide":
        ring = draw(st.lists(st.tuples(DEGREES, st.integers(-90, 90)).map(list), min_size=4, max_size=6))
    ring.append(ring[0])
    return feature("MultiPolygon", [[ring]]) if kind == "parts" else feature("Polygon", [ring])


@given(features(), st.data())
def test_no_fence_that_a_track_can_meet_is_left_out(body: str, data: st.DataObject) -> None:
    try:
        made = parse_fence(body)
    except FenceError:
        return
    if isinstance(made, Fence):
        west, south, east, north = made.shape.bounds
    else:
        (west, south), (east, north) = made.line.min(axis=0), made.line.max(axis=0)
        if east - west > 180:
            return
    # a fix anywhere in the box of what was made, and on its edge
    share = st.sampled_from([0.0, 0.1, 0.5, 1.0])
    lon = west + data.draw(share) * (east - west)
    lat = south + data.draw(share) * (north - south)
    assert is_near(body, box(lon, lat, lon, lat))
