"""Which price holds, and what has none."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from cloud_jobs.billing.errors import NoTermsInForce, UnpricedZone
from cloud_jobs.billing.rating import RatedAccount
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import Row, World, price, rated, row, tariff

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


def test_a_zone_without_a_price_is_an_error_that_names_zone_device_and_hour() -> None:
    with pytest.raises(UnpricedZone, match=r"no price of distance for zone 'b'.*'van'.*2026-03-03T12:00"):
        rated(world(price("distance", zone="a"), price("distance")), [driven("a"), driven("b")])


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


def test_a_device_of_an_account_without_a_tariff_in_force_is_an_error() -> None:
    late = World(days=DAY, tariffs=(tariff(price("distance"), begin=NOON + timedelta(hours=1)),))
    with pytest.raises(NoTermsInForce, match="'acme' has no tariff in force for 'van'"):
        rated(late, [driven()])
