"""Attributes of devices select prices and multiply them, dated by their assignments; tables have an amount by zone."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import RatedAccount, cells_of_usage, rate
from tests.cloud_jobs.billing.contracts.makers import MARCH, account, contracts, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.rating.worlds import Row, row, table
from tests.examples import examples

MID = "2026-03-16T00:00:00Z"
HGV = {"class": "hgv", "axles": 4, "weight": 40}
KM = 10**6


def used(hour: int = 9, zone: str = "", name: str = "van-1", day: int = 2, km: int = 100) -> Row:
    return row(MARCH.start + timedelta(days=day - 1, hours=hour), zone, name, distance_mm=(km * KM, 0, 0, 0))


def rated(of_tariff: dict[str, Any], devices: list[dict[str, Any]], *usage: Row) -> RatedAccount:
    made = contracts(legal_entity(), of_tariff, account("acme", *devices))
    contract = made.contract_of("acme", MARCH)
    (cells,) = cells_of_usage([contract], table(usage))
    return rate(contract, *cells)


def lines(found: RatedAccount) -> list[tuple[str, int]]:
    return [(charge.key.price, charge.amount_minor) for charge in found.charges]


CLASSES = tariff(
    price("0.10"),
    price("0.20", devices={"class": "hgv"}),
    price("0.30", devices={"class": "hgv", "axles": [4, 5]}),
    price("0.0228", zone="*", times="weight"),
)


def test_the_most_specific_price_of_a_place_applies() -> None:
    for attributes, amount in (
        ({}, 1000),
        ({"class": "hgv", "axles": 3}, 2000),
        (HGV, 3000),
        (HGV | {"axles": "5"}, 3000),
    ):
        assert rated(CLASSES, [device(attributes=attributes)], used()).net_minor == amount
    assert lines(rated(CLASSES, [device(attributes=HGV)], used())) == [("0.30 EUR/km, for axles 4/5, class hgv", 3000)]


def test_a_factor_multiplies_and_is_on_the_line() -> None:
    # 100 km x 0.0228 x 40, then 50 km x 0.0228 x 7.5 after the trailer is gone
    devices = [device(end=MID, attributes=HGV), device(begin=MID, attributes={"weight": 7.5})]
    found = rated(CLASSES, devices, used(zone="port"), used(zone="port", day=20, km=50))
    assert lines(found) == [("0.0228 EUR/km x 40 (weight)", 9120), ("0.0228 EUR/km x 7.5 (weight)", 855)]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {},
            "device 'van-1' of account 'acme': the price '0.0228 EUR/km x weight' is multiplied by attribute 'weight'",
        ),
        ({"weight": "forty"}, "and the device has weight forty; state a number in its assignment"),
    ],
)
def test_a_missing_or_textual_factor_is_an_error(attributes: dict[str, str], said: str) -> None:
    with pytest.raises(BillingError, match=said):
        rated(CLASSES, [device(attributes=attributes)], used(zone="port"))
    # and none where the price does not apply
    assert rated(CLASSES, [device(attributes=attributes)], used()).net_minor == 1000


def test_a_device_that_no_price_is_for_is_an_error_with_its_attributes() -> None:
    with pytest.raises(
        BillingError, match=r"no price of distance for outside all zones, devices with class car, where"
    ):
        rated(tariff(price(devices={"class": "hgv"})), [device(attributes={"class": "car", "axles": 2})], used())


def test_a_daily_cap_and_tiers_count_factors_exactly() -> None:
    capped = CLASSES | {"caps": [{"scope": "device", "span": "day", "amount": "50"}]}
    found = rated(capped, [device(attributes=HGV)], used(zone="port"), used(zone="port", day=3, km=10))
    assert found.net_minor == 5000 + 912
    tiers = [{"up_to": "100", "unit_amount": "0.01"}, {"unit_amount": "0.005"}]
    tiered = tariff(price(unit_amount=None, tiers=tiers, times="weight"))
    # 100 km at 0.40, 50 km at 0.20
    assert rated(tiered, [device(attributes=HGV)], used(km=150)).net_minor == 5000


def test_a_fee_is_for_the_days_on_which_a_device_has_the_attributes() -> None:
    fee = {"id": "hgv", "name": "Heavy", "amount": "31.00", "scope": "device", "devices": {"class": "hgv"}}
    devices = [device(end=MID, attributes=HGV), device(begin=MID), device("van-2"), device("van-3", attributes=HGV)]
    found = rated(tariff(fees=[fee]), devices)
    # 1 to 15 March: the assignment ends at 01:00 of the 16th in Berlin
    assert lines(found) == [
        ("Heavy: 31.00 EUR a period, for each device, 15 of 31 days, only class hgv", 1500),
        ("Heavy: 31.00 EUR a period, for each device, only class hgv", 3100),
    ]


def test_of_the_fees_with_one_id_the_one_that_names_most_attributes_is_charged() -> None:
    def of(id_: str, amount: str, **more: Any) -> dict[str, Any]:
        return {"id": id_, "name": "Monthly fee", "amount": amount, "scope": "device"} | more

    fees = [of("m", "9.30"), of("m", "31.00", devices={"class": "hgv"}), of("gps", "1.00")]
    devices = [device(end=MID, attributes=HGV), device(begin=MID), device("van-2"), device("van-3", attributes=HGV)]
    found = [
        amount for text, amount in lines(rated(tariff(fees=fees), devices)) if text.startswith("Monthly fee: 9.30")
    ]
    # 16 of 31 days after the trailer is gone
    assert sorted(found) == [480, 930]
    assert rated(tariff(fees=fees), devices).net_minor == 480 + 930 + 1500 + 3100 + 300
    # the heavy fee of a later version is instead of the light one from then on
    late = [fees[0], fees[1] | {"begin": "2026-03-16"}]
    assert rated(tariff(fees=late), [device(attributes=HGV)]).net_minor == 450 + 1600
    whole = [one | {"proration": "whole"} for one in fees]
    assert rated(tariff(fees=whole), [device(attributes=HGV)]).net_minor == 3100 + 100
    # whole, and for other devices from the middle of the month on: once
    other = tariff(effective_from=MID, fees=[whole[1] | {"devices": {"class": ["hgv", "bus"]}}])
    made = contracts(legal_entity(), tariff(fees=whole[1:2]), other, account("acme", device(attributes=HGV)))
    contract = made.contract_of("acme", MARCH)
    assert rate(contract, *cells_of_usage([contract], table(()))[0]).net_minor == 3100


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 31 * 96 - 1), st.lists(st.integers(0, 30 * 24), max_size=8, unique=True), st.booleans())
def test_an_assignment_split_in_two_and_an_attribute_that_nothing_names_change_nothing(
    quarter: int, hours: list[int], in_port: bool
) -> None:
    usage = [used(hour=hour, zone="port" if in_port else "", day=1, km=7) for hour in hours]
    middle = (MARCH.start + timedelta(minutes=15) * quarter).isoformat()
    whole = rated(CLASSES, [device(attributes=HGV)], *usage)
    parts = [device(end=middle, attributes=HGV), device(begin=middle, attributes=HGV | {"colour": "red"})]
    assert rated(CLASSES, parts, *usage) == whole


TOLL = tariff(
    price(unit_amount=None, amounts={"s-1": "0.10", "s-2": "0.20", "*": "0.05"}, devices={"class": "hgv"}),
    price(unit_amount=None, amounts={"s-1": "0.01"}),
    price("0", zone="*"),
    price("0"),
)


@pytest.mark.parametrize(
    ("zone", "attributes", "amount"),
    [
        ("s-1", HGV, 1000),
        ("s-2", HGV, 2000),
        ("s-3", HGV, 500),
        ("s-1", {}, 100),
        ("s-2", {}, 0),
    ],
)
def test_a_table_has_an_amount_for_each_zone(zone: str, attributes: dict[str, Any], amount: int) -> None:
    assert rated(TOLL, [device(attributes=attributes)], used(zone=zone)).net_minor == amount


@settings(max_examples=examples(30), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "*", ""]), st.sampled_from(["1", "0.3333"]), min_size=1),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.integers(1, 30)), max_size=6, unique=True),
    st.sampled_from(["device", "km"]),
    st.booleans(),
)
def test_a_table_is_the_prices_of_its_zones(
    amounts: dict[str, str], drives: list[tuple[str, int]], pool: str, changes: bool
) -> None:
    """Also with tiers of a shared pool and a version that changes one amount."""
    amounts = {"": "0.1", "*": "0.7"} | amounts
    more = {"pools": [{"id": "km", "allowance": "120", "unit": "km"}]} if pool == "km" else {}
    usage = [used(zone=zone, day=day) for zone, day in drives]

    def owed(made: list[list[dict[str, Any]]]) -> RatedAccount:
        first, *later = (tariff(*prices, **more) for prices in made)
        versions = [first, *(one | {"effective_from": MID} for one in later)]
        contract = contracts(legal_entity(), *versions, account("acme", device())).contract_of("acme", MARCH)
        (cells,) = cells_of_usage([contract], table(usage))
        return rate(contract, *cells)

    listed = [amounts] + ([amounts | {"*": "0.8"}] if changes else [])
    tables = [[price(unit_amount=None, amounts=one, pool=pool)] for one in listed]
    assert owed(tables) == owed([[price(of, zone=zone, pool=pool) for zone, of in one.items()] for one in listed])
