"""Which price holds, and what has none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from cloud_jobs.billing.errors import BadReference, MissingRate, NoTermsInForce, UnpricedZone
from cloud_jobs.billing.rating import PriceBooks, RatedAccount, cells_of_usage, rate
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import ALWAYS, Row, World, assigned, price, rated, row, table, tariff

DAY = TrueDays("UTC", date(2026, 3, 3), date(2026, 3, 3))
NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)
KM = 1_000_000
NIGHT = {"id": "night", "days": ["tue"], "begin": "12:00", "end": "12:30"}


def driven(zone: str = "", hour: datetime = NOON) -> Row:
    """A kilometre in each quarter."""
    return row(hour, zone, distance_mm=(KM,) * 4)


def world(*prices: dict[str, object], **more: Any) -> World:
    return World(days=DAY, tariffs=(tariff(*prices, **more),))


def by_place(found: RatedAccount) -> dict[tuple[str, str], int]:
    return {(charge.key.zone, charge.key.window): charge.amount_minor for charge in found.charges}


def test_the_nearest_price_holds_zone_before_window() -> None:
    sold = world(
        price("distance", "1", zone="a"),
        price("distance", "2", zone="a", window="night"),
        price("distance", "3", zone="*"),
        price("distance", "4", zone="*", window="night"),
        price("distance", "5"),
        windows=[NIGHT],
    )
    assert by_place(rated(sold, [driven("a"), driven("b"), driven("")])) == {
        ("a", ""): 200,
        ("a", "night"): 400,
        ("b", ""): 600,
        ("b", "night"): 800,
        ("", ""): 2000,
    }


def test_a_zone_with_a_price_of_its_own_has_it_in_the_windows_of_other_zones_too() -> None:
    sold = world(
        price("distance", "1", zone="a"),
        price("distance", "3", zone="*"),
        price("distance", "4", zone="*", window="night"),
        windows=[NIGHT],
    )
    assert by_place(rated(sold, [driven("a")])) == {("a", ""): 400}


def test_a_zone_without_a_price_is_an_error_that_names_zone_device_and_hour() -> None:
    with pytest.raises(UnpricedZone, match=r"no price of distance for zone 'b'.*'van'.*2026-03-03T12:00") as caught:
        rated(world(price("distance", zone="a"), price("distance")), [driven("a"), driven("b")])
    assert (caught.value.zone, caught.value.device, caught.value.first_hour) == ("b", "van", NOON)


def test_outside_all_zones_is_no_zone_that_has_the_price_of_any_zone() -> None:
    with pytest.raises(UnpricedZone, match="outside all zones"):
        rated(world(price("distance", zone="*")), [driven("")])


def test_a_new_fence_never_makes_kilometres_free_in_silence() -> None:
    """What was outside lies in a zone that the tariff does not know: an error, or the price of any zone."""
    sold = world(price("distance", "0.45"))
    assert rated(sold, [driven("")]).net_minor == 180
    with pytest.raises(UnpricedZone):
        rated(sold, [driven("new-fence")])
    everywhere = world(price("distance", "0.45"), price("distance", "0.45", zone="*"))
    assert rated(everywhere, [driven("new-fence")]).net_minor == 180


def test_what_has_no_price_anywhere_is_not_sold_and_what_costs_nothing_has_a_charge() -> None:
    found = rated(world(price("distance", "0")), [driven("") | {"duration_ms": [900_000] * 4}])
    assert [(charge.key.meter, charge.quantity, charge.amount_minor) for charge in found.charges] == [
        ("distance", 4 * KM, 0)
    ]


def test_prices_that_name_one_pool_have_one_allowance_and_others_each_its_own() -> None:
    def free(zone: str, amount: str = "1", **more: object) -> dict[str, object]:
        return price("distance", amount, zone=zone, allowance="3", **more)

    def shares(*prices: dict[str, object]) -> list[tuple[int, int, int]]:
        found = rated(world(*prices), [driven(""), driven("a")])
        return [(charge.quantity, charge.free, charge.amount_minor) for charge in found.charges]

    assert shares(free(""), free("a"), free("*")) == [(4 * KM, 3_000_000, 100)] * 2
    km = {"pool_id": "km"}
    assert shares(free("", **km), free("*", **km)) == [(4 * KM, 1_500_000, 250)] * 2
    # each at its own amount
    assert shares(free("", **km), free("*", "2", **km)) == [(4 * KM, 1_500_000, 250), (4 * KM, 1_500_000, 500)]


def test_where_a_zone_loses_its_own_price_its_charge_is_one_of_two_pools() -> None:
    """Usage of the zone counts in the pool of the other price from then on."""
    prices = price("distance", "1", zone="*", allowance="3")
    first = tariff(prices, price("distance", "1", zone="a", allowance="3"))
    later = tariff(prices, begin=NOON + timedelta(hours=1))
    found = rated(World(days=DAY, tariffs=(first, later)), [driven("a"), driven("a", NOON + timedelta(hours=1))])
    assert [(charge.quantity, charge.free, charge.amount_minor) for charge in found.charges] == [(8 * KM, 6 * KM, 200)]


def test_a_pool_of_the_account_adds_its_devices_up_before_tiers_look() -> None:
    steps = [{"up_to": "4", "unit_amount": "1"}, {"unit_amount": "0.5"}]
    for pool, amounts in (("device", [400, 400]), ("account", [300, 300])):
        sold = replace(world(price("distance", tiers=steps, pool=pool)), devices=(assigned("van"), assigned("bus")))
        found = rated(sold, [driven(), driven() | {"device": "bus"}])
        assert [charge.amount_minor for charge in found.charges] == amounts


def test_a_device_of_an_account_without_a_tariff_in_force_is_an_error() -> None:
    late = World(days=DAY, tariffs=(tariff(price("distance"), begin=NOON + timedelta(hours=1)),))
    with pytest.raises(NoTermsInForce, match="'acme' has no tariff in force for 'van'"):
        rated(late, [driven()])


def test_a_currency_without_a_rate_is_an_error() -> None:
    with pytest.raises(MissingRate, match="from USD into EUR"):
        rated(world(price("distance"), currency="USD"), [driven()])


def test_a_daily_cap_on_tiers_is_an_error_where_a_boundary_let_it_in() -> None:
    sold = world(price("distance", tiers=[{"unit_amount": "1"}]))
    contract = sold.contract
    cap = {"pool": "device", "per": "day", "amount": "1"}
    capped = world(price("distance"), caps=[cap]).contract.accounts[0].tariffs[0].tariff.caps
    accounts = tuple(
        replace(
            terms,
            tariffs=tuple(one._replace(tariff=one.tariff.model_copy(update={"caps": capped})) for one in terms.tariffs),
        )
        for terms in contract.accounts
    )
    contract = replace(contract, accounts=accounts)
    (found,) = cells_of_usage([contract], table([driven()]))
    with pytest.raises(BadReference, match="daily cap on distance"):
        rate(contract, *found)


def test_books_that_are_kept_change_nothing() -> None:
    books = PriceBooks()
    for amount, minor in (("1", 400), ("2", 800), ("1", 400)):
        contract = world(price("distance", amount), begin=ALWAYS).contract
        (found,) = cells_of_usage([contract], table([driven()]))
        for _ in range(2):
            assert rate(contract, *found, books).net_minor == minor
