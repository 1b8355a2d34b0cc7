"""Contracts in TOML: what is right is the same as JSON, and each fault has its line, its key and its reason."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cloud_jobs.billing.contracts import Account, Tariff, contracts_of_toml
from cloud_jobs.billing.contracts.fields import unprintable
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.contracts.toml_text import MAX_TOML_CONTRACTS_BYTES, MEANT
from cloud_jobs.billing.contracts.windows import Days
from cloud_jobs.billing.units import EXPONENT_OF, FACTS, MEASURE_OF, Meter, MeterZones
from simulator.fleet import toml_text
from tests.cloud_jobs.billing.contracts.makers import ADDRESS
from waybill.settings import model_at

EXAMPLE = """\
# what a clerk writes
[[legal_entity]]
id = "waybill-eu"
effective_from = 2026-01-01T00:00:00+01:00
name = "Waybill Europe GmbH"
address = { line = "Am Sandtorkai 1", city = "Hamburg", postal_code = "20457", country = "DE" }
vat_id = "DE136695976"
number_prefix = "WE-"
payment = { means_code = "58", iban = "DE02 1203 0000 0000 2020 51" }

[[tariff]]
id = "standard"
effective_from = 2026-01-01T00:00:00+01:00
currency = "EUR"
minimum_amount = 5.00
prices = [
  { meter = "distance", unit = "km", unit_amount = 0.45 },
  # any zone without a price of its own
  { meter = "distance", zone = "*", unit = "km", unit_amount = 0.30, window = "night" },
  { meter = "distance", zone = "*", unit = "km", unit_amount = 0.123456789012 },
]
windows = [{ id = "night", days = "mon-tue", hours = "22:00-06:00" }]

[[account]]
id = "acme"
effective_from = 2026-01-01T00:00:00+01:00
name = '''Acme
Logistics'''
tariff = "standard"

[account.payer]
legal_entity = "waybill-eu"
currency = "EUR"
time_zone = "Europe/Berlin"
address = { line = "Kehrwieder 5", city = "Hamburg", country = "DE" }
vat = { category = "S", rate = 19 }

[[account.devices]]
tenant = "fleet"
device = "van-1"
region = "eu"
begin = 2026-01-01T00:00:00+01:00

[[account.devices]]
tenant = "fleet"
device = "van-2"
region = "eu"
begin = 2026-03-01T00:00:00+01:00

[[exchange_rate]]
id = "usd-eur"
effective_from = 2026-01-01T00:00:00Z
currency = "USD"
into = "EUR"
rate = 0.9123
source = "European Central Bank"
""".replace("'''Acme\nLogistics'''", '"Acme"')


def faults(text: str) -> list[str]:
    return [str(fault) for fault in contracts_of_toml(text)[1]]


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(EXAMPLE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("unit_amount = 0.45", "unit_amont = 0.45", "prices.0.unit_amont: no such key; did you mean 'unit_amount'?"),
        ('window = "night" }', 'window = "dawn" }', "prices.1 is for window 'dawn', which the tariff does not have"),
        ('currency = "USD"', 'currency = "USS"', "currency: no currency 'USS' in ISO 4217"),
        ("vat = {", "vatt = {", "payer.vatt: no such key; did you mean 'vat'?"),
        ("begin = 2026-03-01T00:00:00+01:00", "begin = 2026-03-01T00:00:00", "devices.1.begin: "),
        ("22:00-06:00", "22:00:10-06:00", "windows.0.hours.0: '22:00:10-06:00' is no time of the day; write local"),
        ('hours = "22:00-06:00"', 'begin = "22:00", end = "06:00"', 'write hours = ["22:00-06:00"]'),
        (
            'window = "night" }',
            'window = "night", weight = 2 }',
            'prices.1.weight: no such key; write times = "weight"',
        ),
        ("minimum_amount = 5.00", "coupon = 5.00", 'amount = -5.00, every = "once", begin = 2026-07-01 }]'),
        ("2020 51", "2020 52", "payment.iban: the check digits of the IBAN"),
        ("rate = 0.9123", "rate = inf", "rate: "),
        ("[[exchange_rate]]", "[[exchange_rates]]", "exchange_rates: no such table; did you mean [[exchange_rate]]?"),
        ("[[exchange_rate]]", "[exchange_rate]", "exchange_rate: is one table, and a list of them is needed: write [["),
    ],
)
def test_a_fault_has_its_line_its_key_and_its_reason(wrong: str, right: str, said: str) -> None:
    (first, *_) = [one for one in faults(EXAMPLE.replace(wrong, right)) if said in one] or [""]
    number = line_of(wrong)
    assert first.startswith(f"{number}: "), (first, faults(EXAMPLE.replace(wrong, right)))
    assert "Value error" not in first


def test_a_local_day_is_its_first_moment_where_its_payer_is() -> None:
    days = EXAMPLE.replace("T00:00:00+01:00", "").replace("T00:00:00Z", "")
    assert "T00" not in days
    made = [one.made.model_dump() for one in contracts_of_toml(days)[0]]
    # 1 January in UTC is none of Berlin
    assert made == [
        one.made.model_dump()
        for one in contracts_of_toml(EXAMPLE.replace("01-01T00:00:00Z", "01-01T00:00:00+01:00"))[0]
    ]
    summer = EXAMPLE.replace("begin = 2026-03-01T00:00:00+01:00", "begin = 2026-07-01")
    account = next(one.made for one in contracts_of_toml(summer)[0] if isinstance(one.made, Account))
    assert account.devices[1].begin == datetime(2026, 6, 30, 22, tzinfo=UTC)
    # a payer of the text comes before the zone of the text
    assert contracts_of_toml('time_zone = "Asia/Tokyo"\n' + summer)[0][2].made == account
    # a tariff is none of the payer whose id it has
    named = days.replace('id = "standard"', 'id = "acme"')
    assert contracts_of_toml('time_zone = "Asia/Tokyo"\n' + named)[0][1].made.model_dump()[
        "effective_from"
    ] == datetime(2025, 12, 31, 15, tzinfo=UTC)
    rate = '[[exchange_rate]]\nid = "usd-eur"\neffective_from = 2026-01-01\ncurrency = "USD"\ninto = "EUR"\n'
    rate += 'rate = 0.9\nsource = "ECB"\n'
    [tokyo] = contracts_of_toml('time_zone = "Asia/Tokyo"\n' + rate)[0]
    assert tokyo.made.model_dump()["effective_from"] == datetime(2025, 12, 31, 15, tzinfo=UTC)
    [said] = faults(rate)
    assert said.startswith(
        "3: exchange_rate 'usd-eur': effective_from: 2026-01-01 is a local day; write time_zone = \""
    )
    said, _ = faults('time_zone = "Asia/Tokio"\n' + rate)
    assert said == "1: time_zone: no time zone 'Asia/Tokio'; did you mean 'Asia/Tokyo'?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("account = [5, { id = [], payer = 5 }, { parent = [], payer = { time_zone = [] } }]", "a table is needed"),
        ("time_zone = [5]", "time_zone: no time zone '["),
        ("a" * (MAX_TOML_CONTRACTS_BYTES + 1), "bytes"),
        ("x = " + "[" * 1000, "nested deeper"),
        ("a" + ".a" * 1000 + " = 1", "nested deeper"),
        ("x = " + "1" * 5000, "is not valid TOML"),
        ("[[tariff]]\nminimum_amount = 0." + "1" * 5000, "a number of 5002 characters"),
        ("[[tariff]]\nminimum_amount = 1e999999999", "minimum_amount"),
        ("tariff = 5", "is one table"),
        ("tariff = [5]", "a table is needed"),
        ("\x00", "is not valid TOML"),
        ("[[tariff]]\nid = 5", "id: Input should be a valid string"),
        ("[[tariff]]\nprices = 5", "prices: is a number, and a list is needed"),
    ],
)
def test_hostile_texts_are_refused_with_a_short_reason(text: str, said: str) -> None:
    wrong = faults(text)
    assert any(said in one for one in wrong), wrong
    assert all(len(one) < 600 for one in wrong)


AMOUNTS = st.decimals(0, 10**6, places=6, allow_nan=False, allow_infinity=False)
IDS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
PRINTED = st.characters(max_codepoint=0x52F, categories=["L", "N", "P", "Zs"]).filter(lambda one: not unprintable(one))
TEXTS = st.text(PRINTED, min_size=1, max_size=20).filter(str.strip)
MOMENTS = st.integers(0, 4 * 24 * 365 * 30).map(lambda n: datetime(2000, 1, 1, tzinfo=UTC) + n * timedelta(minutes=15))


@st.composite
def prices(draw: st.DrawFn) -> dict[str, Any]:
    meter = draw(st.sampled_from(Meter))
    measure = MEASURE_OF[meter]
    named = [] if measure.zones is MeterZones.NONE else ["port", "*"]
    outside = [] if measure.zones in {MeterZones.INSIDE, MeterZones.GATES} else [""]
    made = {"meter": str(meter), "zone": draw(st.sampled_from(named + outside))}
    made |= {
        "unit": draw(st.sampled_from(list(measure.sale_units))),
        "pool": draw(st.sampled_from(["device"] if meter in FACTS else ["device", "account"])),
    }
    if meter in FACTS - {Meter.STAY}:
        return made | {"unit_amount": draw(AMOUNTS)}
    if draw(st.booleans()):
        return made | {"unit_amount": draw(AMOUNTS), "allowance": draw(AMOUNTS)}
    bounds = sorted(draw(st.sets(st.integers(1, 10**6), max_size=4)))
    tiers = [{"up_to": bound, "unit_amount": draw(AMOUNTS)} for bound in bounds] + [{"unit_amount": draw(AMOUNTS)}]
    return made | {"tiers": tiers, "tier_mode": draw(st.sampled_from(["graduated", "volume"]))}


def places(model: type[BaseModel], *path: str) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, model
    for key in model.model_fields:
        if (inner := model_at(model, (key,))) is not model:
            yield from places(inner, *path, key)


@pytest.mark.parametrize("kind", MODEL_OF)
def test_each_hint_in_each_table_names_a_key_that_is_there(kind: str) -> None:
    words = {word for word, _ in MEANT}
    for path, model in places(MODEL_OF[kind]):
        stated, hints = [f"{word} = 5" for word in sorted(words - {*model.model_fields})], 0
        for brackets in product(("{}", "[{}]"), repeat=len(path)):
            text = "\n".join(stated)
            for key, bracket in reversed([*zip(path, brackets, strict=True)]):
                inner = "{ " + ", ".join(text.splitlines()) + " }"
                text = f"{key} = {bracket.replace('{}', inner)}"
            for said in faults(f"[[{kind}]]\n{text}"):
                if hint := re.search(r"no such key; write ([a-z_.]+) = .*?(?: in " + kind + r"(\S*))?$", said):
                    around = [one for one in (hint[2] or "").split(".") if one] if " in " + kind in said else path
                    *outer, key = hint[1].split(".")
                    assert key in model_at(MODEL_OF[kind], (*around, *outer)).model_fields, said
                    hints += 1
        # a season's days have its name before them
        assert hints or model is Days or not any((word, model) in MEANT for word in words - {*model.model_fields})


FEE = {"id": "fee", "name": "Fee", "scope": "device", "begin": "2026-03-01", "end": "2026-04-01"}


@st.composite
def contracts(draw: st.DrawFn) -> dict[str, list[dict[str, Any]]]:
    tariff = {
        "id": draw(IDS),
        "effective_from": draw(MOMENTS),
        "currency": draw(st.sampled_from(sorted(EXPONENT_OF))),
        "prices": draw(st.lists(prices(), max_size=5, unique_by=lambda one: (one["meter"], one["zone"]))),
        "windows": [{"id": "night", "days": ["mon", "sun"], "hours": ["22:00-06:15"]}],
        "minimum_amount": draw(st.integers(0, 100)),
        "fees": draw(st.sampled_from([[], [FEE | {"amount": 25}], [FEE | {"percent": Decimal("-2.5")}]])),
    }
    account = {
        "id": draw(IDS),
        "effective_from": draw(MOMENTS),
        "name": draw(TEXTS),
        "tariff": tariff["id"],
        "fees": [FEE | {"amount": draw(AMOUNTS)}],
        "payer": {
            "legal_entity": draw(IDS),
            "currency": tariff["currency"],
            "time_zone": "Asia/Kathmandu",
            "address": ADDRESS,
            "vat": {"category": "S", "rate": draw(st.decimals(1, 30, places=2))},
        },
        "devices": [
            {"tenant": "fleet", "device": name, "region": "eu", "begin": draw(MOMENTS)}
            for name in draw(st.sets(IDS, max_size=4))
        ],
    }
    return {"tariff": [tariff], "account": [account]}


@given(contracts())
def test_a_contract_is_the_same_from_toml_and_from_the_json_that_is_published(stated: dict[str, Any]) -> None:
    found, wrong = contracts_of_toml(toml_text(stated))
    assert wrong == []
    assert [one.kind for one in found] == ["tariff", "account"]
    for one in found:
        model: type[Tariff] | type[Account] = Tariff if one.kind == "tariff" else Account
        assert one.made == model.model_validate(stated[one.kind][0])
        assert model.model_validate_json(one.made.model_dump_json(exclude_defaults=True)) == one.made


_TARIFF = """[[tariff]]
id = "a"
effective_from = 2026-01-01T00:00:00Z
currency = "EUR"
"""
_SOLD = 'prices = [{ meter = "distance", unit = "km", unit_amount = 1 }]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'prices = [{ meter = "distance", unit = "h", unit_amount = 1 }]',
            "is sold by 'km' or 'm' or 'mi', not by 'h'",
        ),
        ('prices = [{ meter = "distance", unit = "km", unit_amount = "0,45" }]', "without a currency or unit: 0.45"),
        ('prices = [{ meter = "distance", unit = "km", unit_amount = 1, pool_id = "km" }]', 'pools = [{ id = "km" }]'),
        (_SOLD + 'caps = [{ pool = "device", span = "day", amount = 5 }]', 'write scope = "device"'),
        (_SOLD + 'caps = [{ scope = "device", per = "day", amount = 5 }]', 'write span = "cycle"'),
        (
            _SOLD + 'caps = [{ scope = "device", span = "month", amount = 5 }]',
            "write 'cycle': payer.cycle says how long it is",
        ),
        (_SOLD.replace("= 1 ", "= 1, fence = 5 "), 'prices.0.fence: no such key; write zone = "north"'),
        (_SOLD.replace("= 1 ", "= 1, vat = 7 "), "vat: is a number, and a table is needed"),
        (
            _SOLD + 'caps = [{ scope = "device", span = "day", amount = 5, meters = ["entry"] }]',
            "entry, which has no price",
        ),
        (_SOLD + 'fees = [{ id = "d", name = "D", amount = 5, begin = "1.3.2026" }]', "for instance 2026-03-01"),
        (
            _SOLD + 'fees = [{ id = "d", name = "D", percent = "3,7" }]',
            "6: tariff 'a': fees.0.percent: Input should be a",
        ),
        (_SOLD.replace("= 1 ", "= 0,45 "), "write a number with a point: 0.45"),
        (
            _SOLD.replace("= 1 ", "= 1, zone = 12 "),
            "5: tariff 'a': prices.0.zone: Input should be a valid string; write a",
        ),
        (_SOLD.replace("= 1 ", '= 1, pool = "acount" '), "which pools does not have; did you mean 'account'?"),
        (_SOLD.replace("distance", "distanz"), "did you mean 'distance'?"),
        (_SOLD.replace('"km"', '"kilometre"'), "5: tariff 'a': prices.0: distance is sold by 'km'"),
        (
            _SOLD.replace("= 1 ", '= 1, window = "nigth" ') + 'windows = [{ id = "night", hours = "22:00-06:00" }]',
            "5: tariff 'a': prices.0 is for window 'nigth', which the tariff does not have; did you mean 'night'?",
        ),
        (_SOLD + "minimum_fee = 10", "6: tariff 'a': minimum_fee: no such key; write minimum_amount = 50.00"),
        (_SOLD + 'windows = [{ id = "n", hours = 22:00-06:00 }]', 'write times in quotes: hours = ["22:00-06:00"]'),
        (_SOLD + "dearest = { minutes = 60 }", "a list of them is needed: write dearest = [{ … }]"),
        (_SOLD.replace("= 1 ", "= 1, free = 5 "), "prices.0.free: no such key; write allowance = 50"),
        (_SOLD.replace("= 1 ", "= 1, gross = true "), "no such key; write includes_tax = true in tariff"),
        (_SOLD + "until = 2026-07-01", "until: no such key; write effective_from = 2026-07-01 in the next version"),
        (_SOLD.replace("distance", "parking"), "'passage' or 'driven day'"),
        (_SOLD + 'windows = [{ id = "n", hours = "00:00-24:00" }]', 'all day: "00:00-00:00"'),
        (_SOLD + '[[tariff]]\nid = "Big"', "7: tariff 'Big': id: String should match"),
        (_SOLD + '[[tariff]]\nid = "Big"', "write small letters, digits"),
        (
            _SOLD + '[[tariff]]\neffective_from = "1.3.2026"',
            "write a local day, 2026-03-01, or a date, a time and an offset, 2026-03-01T00:00:00+01:00",
        ),
        (_SOLD + "[[tarif]]", "did you mean [[tariff]]?"),
    ],
)
def test_a_clerks_mistake_has_the_form_that_is_meant(text: str, said: str) -> None:
    _, faults = contracts_of_toml(_TARIFF + text)
    assert said in "\n".join(map(str, faults))
