"""The contracts of a generated fleet: the truth and the models of billing read them, and everything has a price."""

import tomllib
from collections import Counter
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from cloud_jobs.billing.contracts import Account, LegalEntity, Tariff
from simulator import generated_scenario, with_discount, with_two_tenants
from simulator.fleet import contracts_toml, toml_text
from simulator.truth import TrueContracts, TrueQuarter, Truth, TruthError, month_of, owed_by
from simulator.truth.contracts import half_up
from tests.simulator.runs import run_in

SCENARIO = with_two_tenants(generated_scenario(seed=7, vehicles=10, regions=("eu", "us")))
TEXT = contracts_toml(SCENARIO)
DRIVEN = datetime(2026, 1, 5, 8, tzinfo=UTC)


def test_the_models_of_billing_read_them() -> None:
    read = tomllib.loads(TEXT, parse_float=Decimal)
    assert [LegalEntity.model_validate(one).id for one in read["legal_entity"]] == ["waybill-eu", "waybill-jp"]
    assert [Tariff.model_validate(one).currency for one in read["tariff"]] == ["EUR", "JPY"]
    accounts = [Account.model_validate(one) for one in read["account"]]
    assert [(one.id, one.parent) for one in accounts] == [("acme", None), ("acme-leased", "acme"), ("kaze", None)]
    assigned = [(one.tenant, one.device) for account in accounts for one in account.devices]
    assert sorted(assigned) == sorted(vehicle.sender for vehicle in SCENARIO.vehicles)


@pytest.mark.parametrize(("payer", "time_zone"), [("acme", "Europe/Berlin"), ("kaze", "Asia/Tokyo")])
def test_whatever_a_vehicle_does_has_a_price(payer: str, time_zone: str) -> None:
    contracts = TrueContracts.of_texts(TEXT)
    usage = [
        TrueQuarter(*vehicle.sender, DRIVEN, zone, 1_000_000, 900_000, 1 if zone else 0)
        for vehicle in SCENARIO.vehicles
        for zone in ("", *(fence.id for fence in SCENARIO.fences))
    ]
    usage += [TrueQuarter(*vehicle.sender, DRIVEN, "*", content_bytes=50_000) for vehicle in SCENARIO.vehicles]
    owed = owed_by(contracts, payer, month_of(time_zone, 2026, 1), usage)
    zones = 1 + len(SCENARIO.fences)
    vehicles = sum(vehicle.account == payer for vehicle in SCENARIO.vehicles)
    # Of each vehicle: distance and duration in all zones and outside, entries in all zones, bytes, one day.
    assert sum(charge.about.kind == "usage" for charge in owed.charges) == vehicles * (2 * zones + zones - 1 + 2)


def test_text_moments_and_decimals_are_read_back_as_they_were() -> None:
    entry = {
        "text": 'a "quoted" \\ word\n',
        "amount": Decimal("0.10"),
        "none": None,
        "at": DRIVEN,
        "clock": time(22, 15),
        "tables": [{"yes": True, "number": 3, "list": ["x"]}],
    }
    assert tomllib.loads(toml_text({"thing": [entry, {}]})) == {
        "thing": [
            {
                "text": 'a "quoted" \\ word\n',
                "amount": "0.10",
                "at": DRIVEN,
                "clock": time(22, 15),
                "tables": [{"yes": True, "number": 3, "list": ["x"]}],
            },
            {},
        ]
    }


def test_what_the_payers_of_a_drive_owe_can_be_read(tmp_path: Path) -> None:
    truth = run_in(tmp_path, SCENARIO.model_copy(update={"duration_s": 1800}))
    assert {payer: days.time_zone for payer, days in truth.payers.items()} == {
        "acme": "Europe/Berlin",
        "kaze": "Asia/Tokyo",
    }
    acme, kaze = truth.owed("acme"), truth.owed("kaze")
    assert 10_00 < acme.net_minor < 1000_00
    assert acme.taxes[0].tax_minor == half_up(Fraction(acme.net_minor * 19, 100))
    assert 1_000 < kaze.net_minor < 100_000
    metered = sum(row.distance_mm for row in truth.usage())
    charged = [charge for owed in (acme, kaze) for charge in owed.charges if charge.about.meter == "distance"]
    assert sum(charge.quantity for charge in charged) == metered > 0
    with pytest.raises(TruthError, match="there is no payer 'acme-leased'; there are acme, kaze"):
        truth.owed("acme-leased")
    path = tmp_path / "contracts.toml"
    sold = 'prices = [{ meter = "visit", zone = "*", unit = "each", unit_amount = 7 }'
    path.write_text(path.read_text().replace("prices = [", sold + ", ", 1))
    with pytest.raises(TruthError, match="knows what usage costs, and acme has visit"):
        Truth.from_folder(tmp_path).owed("acme")


def test_a_discount_is_earned_only_with_what_a_vehicle_does_late(tmp_path: Path) -> None:
    made = with_two_tenants(generated_scenario(seed=7, vehicles=8, regions=("eu", "us"), duration_s=3600))
    (vehicle,) = [one for one in made.vehicles if one.device == "us-0003"]
    scenario = with_discount(made, vehicle, 0.5)
    assert [tariff.discount is None for tariff in scenario.tariffs] == [False, True]
    truth = run_in(tmp_path, scenario)
    half = made.start + timedelta(seconds=1800)
    early = Counter(
        one for one in truth.records(vehicle.device) if one.time_us and one.time_us < half.timestamp() * 1_000_000
    )
    known = truth.knowing({vehicle.device: early})
    assert known.owed("kaze") == truth.owed("kaze")
    assert known.records(vehicle.device) == early != truth.records(vehicle.device)
    before, after = (
        [
            charge
            for charge in owed.charges
            if charge.about.account == "acme-leased" and (charge.about.meter, charge.about.zone) == ("distance", "")
        ]
        for owed in (known.owed("acme"), truth.owed("acme"))
    )
    assert {charge.about.price for charge in before} == {charge.about.price for charge in after}
    assert sum(charge.quantity for charge in after) > sum(charge.quantity for charge in before)
    assert sum(charge.amount_minor for charge in after) < sum(charge.amount_minor for charge in before)
