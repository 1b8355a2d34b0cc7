"""A contract that contradicts itself is refused where it enters, and the message says what to write."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cloud_jobs.billing.contracts import (
    Account,
    Calendar,
    ExchangeRate,
    LegalEntity,
    Tariff,
)
from tests.cloud_jobs.billing.contracts.makers import (
    ADDRESS,
    account,
    calendar,
    device,
    exchange_rate,
    legal_entity,
    payer,
    price,
    tariff,
    tiered,
    window,
)


def faults(model: type[BaseModel], body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return "\n".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in caught.value.errors())


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (Tariff, tariff()),
        (Calendar, calendar()),
        (Account, account()),
        (LegalEntity, legal_entity()),
        (ExchangeRate, exchange_rate()),
    ],
)
def test_the_smallest_contracts_are_right(model: type[BaseModel], body: dict[str, Any]) -> None:
    made = model.model_validate(body)
    assert model.model_validate_json(made.model_dump_json(exclude_defaults=True)) == made
    assert "colour" in faults(model, body | {"colour": "red"})


RATE = {"id": "rate", "name": "Monthly rate", "amount": "12.90"}
DAILY = {"scope": "device", "span": "day", "amount": "10"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (tariff(currency="EURO"), "no currency 'EURO' in ISO 4217"),
        (tariff(effective_from="2026-01-01T00:00:00"), "has no offset from UTC; end it with Z"),
        (tariff(effective_from="2026-01-01"), "or write the local day in TOML without quotes: 2026-01-01"),
        (tariff(effective_from=5), "write a local day, 2026-03-01, or a date, a time and an offset"),
        (tariff(effective_from="1767225600"), "write a local day, 2026-03-01, or a date, a time and an offset"),
        (tariff(effective_from="2026-01-01T00:07:00Z"), "is not on a quarter of an hour"),
        (tariff(effective_from="0001-01-01T00:00:00+14:00"), "is not within the years"),
        (tariff(id="../../evil"), "String should match pattern"),
        (tariff(id="x/y"), "String should match pattern"),
        (tariff(price(unit="mile")), "distance is sold by 'km' or 'm' or 'mi', not by 'mile'"),
        (tariff(price(unit_amount="-1")), "greater than or equal to 0"),
        (tariff(price(unit_amount="NaN")), "finite number"),
        (tariff(price(unit_amount="1000000001")), "less than or equal to 1000000000"),
        (tariff(tiered((None, "1000000001"))), "less than or equal to 1000000000"),
        (tariff(price(), not_sold=["distance"]), "prices.0 is for distance, which is in not_sold"),
        (tariff(not_sold=["mile"]), "not_sold.0: Input should be 'distance'"),
        (tariff(price(unit_amount=True)), "a number is needed, not true or false"),
        (tariff(price(tiers=[{"unit_amount": "1"}])), "or tiers, or amounts by zone"),
        (tariff({"meter": "distance", "unit": "km"}), "or tiers, or amounts by zone"),
        (tariff(price(tier_mode="volume")), "tier_mode is for prices with tiers"),
        (tariff(tiered(("100", "1"))), "the last tier ends at 100; leave out its up_to"),
        (tariff(tiered((None, "1"), (None, "2"))), "tiers.0 has no up_to"),
        (tariff(tiered(("100", "1"), ("100", "2"), (None, "3"))), "tiers must ascend, and up_to 100 follows 100"),
        (tariff(tiered(("0", "1"), (None, "3"))), "tiers must ascend, and up_to 0 follows 0"),
        (tariff(price(), price("0.5")), "prices.0 and prices.1 are both for distance outside"),
        (tariff(price(window="night")), "prices.0 is for window 'night', which the tariff does not have"),
        (
            tariff(price(window="night"), windows=[window()]),
            "distance outside in window 'night' has a price, and none outside its windows",
        ),
        (
            tariff(price(zone="port", window="night"), price(zone="*", window="night"), price(), windows=[window()]),
            "distance in zone 'port' in window 'night' has a price, and none outside its windows",
        ),
        (tariff(price(meter="event", unit="each", zone="port")), "event is metered for the whole device"),
        (tariff(price(meter="entry", unit="each")), 'entry is of a zone: name its zone, or write "*"'),
        (tariff(price(meter="crossing", unit="each")), 'crossing is of a gate: name its zone, or write "*"'),
        (
            tariff(price(meter="active day", unit="day", window="night"), windows=[window()]),
            "active day counts whole days",
        ),
        (
            tariff(windows=[window(), window(id="early", days=["wed"], hours=["05:45-07:00"])]),
            "windows 'night' and 'early' overlap on wed 05:45",
        ),
        (
            tariff(windows=[window(days=["sun"]), window(id="early", days=["mon"], hours=["00:00-01:00"])]),
            "overlap on mon 00:00",
        ),
        (tariff(windows=[window(), window()]), "two windows have the id 'night'"),
        (
            tariff(price(), price(window="night"), windows=[window(hours="22:10-06:00")]),
            "prices.1 is for window 'night', which is not on quarters of an hour; distance is kept by the quarter",
        ),
        (tariff(windows=[window(hours=[])]), "should have at least 1 item"),
        (tariff(windows=[{"id": "rush", "hours": ["07:00-09:00", "08:30-10:00"]}]), "hours of window 'rush' overlap"),
        (tariff(windows=[{"id": "rush", "hours": ["7-9"]}]), "write local times: "),
        (tariff(windows=[window(season="peak")]), "window 'night' has a season or holidays; write calendar ="),
        (tariff(windows=[window(hours=["22:00Z-23:00Z"])]), "write local times"),
        (tariff(windows=[window(days=[])]), "should have at least 1 item"),
        (tariff(windows=[window(days="weekdays")]), "'weekdays' is no day; write days = \"mon-fri\""),
        (tariff(windows=[window(days=["sat-mon", "mon"])]), "names a day twice"),
        (
            tariff(price(pool="km"), price(zone="*", pool="km"), pools=[{"id": "km", "allowance": "9", "unit": "h"}]),
            "pool 'km' has the unit 'h', and distance is sold by 'km' or 'm' or 'mi'",
        ),
        (
            tariff(price(pool="km", allowance="9"), pools=[{"id": "km"}]),
            "allowance and span are those of pool 'km'; write them there",
        ),
        (
            tariff(price(pool="all"), price(meter="duration", unit="h", pool="all"), pools=[{"id": "all"}]),
            "prices.0 and prices.1 have one pool, 'all', and two meters",
        ),
        (tariff(minimum_amount="9", proration="by day"), "proration: Input should be 'whole' or 'by_day'"),
        (tariff(windows=[window(days=["monday"])]), "'monday' is no day; write days"),
        (
            tariff(price(allowance="10"), caps=[DAILY]),
            "caps.0 is by day, and the price for distance outside has an allowance",
        ),
        (
            tariff(tiered(("9", "1"), (None, "2")), caps=[DAILY]),
            "caps.0 is by day, and the price for distance outside has tiers",
        ),
        (tariff(caps=[DAILY | {"meters": ["entry"]}]), "caps.0 is for entry, which has no price"),
        (tariff(caps=[DAILY | {"meters": ["distance", "distance"]}]), "caps.0 names a meter twice"),
        (
            tariff(price(), price(zone="*"), caps=[DAILY | {"zones": zones} for zones in (["", "a"], ["*"])]),
            "caps.0 and caps.1 are both by device and day, and overlap",
        ),
        (tariff(caps=[DAILY | {"amount": "10.005"}]), "caps.0.amount is 10.005, and EUR has 2 digits after the point"),
        (tariff(price(step="0")), "prices.0.step: Input should be greater than 0"),
        (tariff(price(step="2"), caps=[DAILY]), "caps.0 is by day, and the price for distance outside has a step"),
        (
            tariff(price(pool="km", step="1"), price(zone="*", pool="km"), pools=[{"id": "km"}]),
            "prices.0 and prices.1 have one pool, 'km', and two steps",
        ),
        (tariff(fees=[RATE, RATE]), "two fees have the id 'rate'"),
        (
            tariff(fees=[RATE | {"scope": "device", "devices": of} for of in ({"class": "hgv"}, {"axles": 4})]),
            "two fees have the id 'rate'; a device may match both",
        ),
        (tariff(fees=[RATE, RATE | {"scope": "device", "devices": {"axles": 4}}]), "two fees have the id 'rate'"),
        (tariff(fees=[RATE | {"percent": "5"}]), "fee 'rate' needs either an amount or a percent"),
        (tariff(fees=[RATE | {"amount": None}]), "fee 'rate' needs either an amount or a percent"),
        (tariff(fees=[RATE | {"meters": ["distance"]}]), "meters and zones choose the usage of a percent"),
        (tariff(fees=[RATE | {"every": "once"}]), "charged once, on its begin: write a begin and no end"),
        (tariff(fees=[RATE | {"begin": "2026-03-02", "end": "2026-03-02"}]), "ends on 2026-03-02, which is not after"),
        (tariff(fees=[RATE | {"begin": "March"}]), "write a local day, for instance 2026-03-01"),
        (tariff(fees=[RATE | {"begin": datetime(2026, 3, 1)}]), "is a moment; write a local day"),
        (tariff(fees=[RATE | {"name": "Rate: truck"}]), "leave ': ' and ';' out of"),
        (tariff(fees=[RATE | {"amount": "0.005"}]), "fees.0.amount is 0.005, and EUR has 2 digits"),
        (
            tariff(fees=[RATE | {"amount": None, "percent": "5", "meters": ["entry"]}]),
            "fees.0 is for entry, which has no price",
        ),
        (
            tariff(price(devices={"class": "hgv"}), price(devices={"axles": [4, "5"]})),
            "prices.0 and prices.1 are both for distance outside for axles 4/5; a device may match both",
        ),
        (
            tariff(price(amounts={"port": "1", "mall": "2"}, unit_amount=None), price(zone="port")),
            "prices.1 and prices.0 are both for distance in 2 zones",
        ),
        (tariff(price(amounts={"port": "1"}, zone="mall", unit_amount=None)), "leave out zone 'mall'"),
        (
            tariff(price(amounts={"port": "1"}, unit_amount=None, window="night"), windows=[window()]),
            "distance in 1 zones in window 'night' has a price, and none outside its windows",
        ),
        (tariff(price(devices={"class": True})), "write a text or a number, not true or false"),
        (tariff(price(devices={"class": []})), "should have at least 1 item"),
        (tariff(fees=[RATE | {"devices": {"class": "hgv"}}]), 'needs an amount and scope = "device"'),
        (tariff(currency="JPY", minimum_amount="0.5"), "minimum_amount is 0.5, and JPY has no digits after the point"),
    ],
)
def test_a_tariff_that_contradicts_itself_is_refused(body: dict[str, Any], said: str) -> None:
    assert said in faults(Tariff, body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (account(parent="group", payer=payer()), "it has a parent, 'group', and a payer's part of its own"),
        (account(payer=None), "it has no payer"),
        (account("a", parent="a"), "it is its own parent"),
        (account(fees=[RATE, RATE]), "two fees have the id 'rate'"),
        (account("../../evil"), "String should match pattern"),
        (
            account("acme", device(end="2026-01-01T00:00:00+01:00")),
            "device 'van-1' ends at 2025-12-31T23:00:00+00:00, which is not after",
        ),
        (
            account("acme", device(), device(begin="2026-03-01T00:00:00Z")),
            "device 'van-1' of tenant 'fleet' is assigned twice from 2026-03-01",
        ),
        (account(payer=payer(currency="eur")), "no currency 'eur'"),
        (account(payer=payer(time_zone="Europe/Berln")), "did you mean 'Europe/Berlin'"),
        (account(payer=payer(vat={"category": "S"})), "category S with a rate of 0"),
        (account(payer=payer(vat={"category": "Z", "rate": 7})), "category Z with a rate of 7"),
        (account(payer=payer(vat={"category": "E"})), "category E needs an exemption_reason"),
        (
            account(payer=payer(vat={"category": "S", "rate": 19, "exemption_reason": "no"})),
            "category S has no exemption_reason",
        ),
        (
            account(payer=payer(vat={"category": "AE", "exemption_reason": "Reverse charge"})),
            "needs the payer's vat_id",
        ),
        (account(payer=payer(address=ADDRESS | {"country": "UK"})), "no country 'UK'"),
        (account(payer=payer(address=ADDRESS | {"country": "EL"})), "no country 'EL'"),
        (account(payer=payer(vat_id="QQ123456")), "does not begin with the letters of a country (EN 16931, BR-CO-09)"),
        (account(payer=payer(buyer_reference="a\u2028b")), "it has the character U+2028, which"),
        (account(payer=payer(address=ADDRESS | {"postal_code": "1\ufffe"})), "it has the character U+FFFE, which"),
        (account(name="شركة"), "U+0634 (ش), which a document cannot print; use Latin, Greek, Cyrillic, Chinese, Japan"),
        (account(name="か\u3099"), "it has the character U+3099"),
        (account(name="\u3164"), "it has the character U+3164"),
        (account("acme", device("van 1")), "devices.0.device: String should match pattern"),
        (account("acme", device(tenant="fleet/eu")), "devices.0.tenant: String should match pattern"),
        (account("acme", device(region="")), "devices.0.region: String should match pattern"),
        (account(name="Acme\x00"), "it has the character U+0000, which"),
        (account(name="\u202egnp.exe"), "it has the character U+202E, which"),
    ],
)
def test_an_account_that_contradicts_itself_is_refused(body: dict[str, Any], said: str) -> None:
    assert said in faults(Account, body)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"vat_id": None}, "a seller needs a vat_id or a tax_registration_id"),
        ({"payment": {"means_code": "58", "iban": "DE89370400440532013001"}}, "the check digits of the IBAN"),
        ({"payment": {"means_code": "58", "iban": "DE89"}}, "String should match pattern"),
        ({"payment": {"means_code": "sepa", "iban": "DE89370400440532013000"}}, "no means of payment 'sepa'"),
        ({"payment": {"means_code": "99", "iban": "DE89370400440532013000"}}, "no means of payment '99' in UNCL 4461"),
        ({"vat_id": "QQ123456"}, "does not begin with the letters of a country"),
        ({"contact": {"name": "\u05d0\u05d1"}}, "which a document cannot print"),
        ({"contact": {"name": "Billing", "telephone": "none"}}, "String should match pattern"),
        ({"contact": {"name": "Billing", "email": "billing"}}, "String should match pattern"),
        ({"endpoint": {"scheme": "EMAIL", "id": "x"}}, "no scheme 'EMAIL' of electronic addresses"),
        ({"payment": {"means_code": "58"}}, "58 is a transfer: add payment.iban (EN 16931, BR-61)"),
        ({"payment": {"means_code": "59"}}, "add payer.direct_debit there and payment.creditor_id here"),
        ({"payment": {"means_code": "48"}}, "documents have no card number (BT-87)"),
        ({"payment": {"means_code": "1", "creditor_id": "DE98ZZZ09999999998"}}, "check digits of the creditor id"),
        ({"number_prefix": "../"}, "String should match pattern"),
        ({"payment_days": True}, "valid integer"),
        ({"payment_days": 1.5}, "valid integer"),
        ({"logo": "logo.png"}, "no PNG or JPEG in base64"),
        ({"logo": "R0lGODlhAQABAAAAACw="}, "no PNG or JPEG in base64"),
        ({"logo": "QUFB" * 20_000}, "60000 bytes, and 49152 are allowed"),
        ({"colour": "green"}, "String should match pattern"),
    ],
)
def test_a_seller_that_cannot_be_paid_or_named_is_refused(more: dict[str, Any], said: str) -> None:
    assert said in faults(LegalEntity, legal_entity(**more))


@given(st.integers(4, 21), st.sampled_from("0123456789"))
def test_an_iban_with_one_wrong_sign_is_refused(place: int, sign: str) -> None:
    right = "DE89370400440532013000"
    wrong = right[:place] + sign + right[place + 1 :]
    body = legal_entity(payment={"means_code": "58", "iban": wrong})
    if wrong == right:
        LegalEntity.model_validate(body)
    else:
        assert "check digits" in faults(LegalEntity, body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (exchange_rate(id="dollar"), "the id of a rate from USD into EUR is 'usd-eur', not 'dollar'"),
        (exchange_rate(into="USD"), "both are USD"),
        (exchange_rate("0"), "greater than 0"),
        (exchange_rate("Infinity"), "finite number"),
    ],
)
def test_a_rate_that_contradicts_itself_is_refused(body: dict[str, Any], said: str) -> None:
    assert said in faults(ExchangeRate, body)


def test_an_amount_keeps_each_of_its_digits() -> None:
    body = json.dumps(tariff(price("0.123456789012")))
    assert Tariff.model_validate_json(body).prices[0].unit_amount == Decimal("0.123456789012")
