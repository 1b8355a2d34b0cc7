"""What the owners of a fleet agreed to: sellers, payers, a child account and tariffs, as contracts.toml has them.

The prices of the scenario, and one of each thing that contracts can do: a default for any zone, an allowance, a daily
cap, a price of the active day and one of what was transmitted. Amounts are such that an hour of driving is readable.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from simulator.scenario import (
    Scenario,
    ScenarioAccount,
    ScenarioAccountVehicle,
    ScenarioDiscount,
    ScenarioPrice,
    ScenarioTariff,
    ScenarioVehicle,
)
from simulator.toml_text import toml_text

SELLERS: dict[str, dict[str, Any]] = {
    "EUR": {
        "id": "waybill-eu",
        "name": "Waybill Europe GmbH",
        "address": {"line": "Am Sandtorkai 1", "city": "Hamburg", "postal_code": "20457", "country": "DE"},
        "vat_id": "DE136695976",
        "contact": "billing@waybill.example",
        "number_prefix": "WE-",
        "payment": {"means_code": "58", "iban": "DE02120300000000202051", "bic": "BYLADEM1001"},
        "payment_days": 30,
    },
    "JPY": {
        "id": "waybill-jp",
        "name": "Waybill Japan KK",
        "address": {"line": "Marunouchi 1-1", "city": "Tokyo", "postal_code": "100-0005", "country": "JP"},
        "tax_registration_id": "T1234567890123",
        "contact": "billing-jp@waybill.example",
        "number_prefix": "WJ-",
        "payment": {"means_code": "30", "iban": "GB33BUKB20201555555555"},
        "payment_days": 60,
    },
}
PAYERS: dict[str, dict[str, Any]] = {
    "EUR": {
        "legal_entity": "waybill-eu",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "address": {"line": "Kehrwieder 5", "city": "Hamburg", "postal_code": "20457", "country": "DE"},
        "vat": {"category": "S", "rate": Decimal(19)},
        "vat_id": "DE129273398",
        "buyer_reference": "fleet-2026",
    },
    "JPY": {
        "legal_entity": "waybill-jp",
        "currency": "JPY",
        "time_zone": "Asia/Tokyo",
        "address": {"line": "Sakae 3-5", "city": "Nagoya", "postal_code": "460-0008", "country": "JP"},
        "vat": {"category": "S", "rate": Decimal(10)},
    },
}
MORE_PRICES: dict[str, list[dict[str, Any]]] = {
    "EUR": [
        {"meter": "distance", "zone": "*", "unit": "km", "unit_amount": Decimal("0.45")},
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal("0.40")},
        {"meter": "duration", "zone": "", "unit": "h", "unit_amount": Decimal("0.30")},
        {"meter": "duration", "zone": "*", "unit": "h", "unit_amount": Decimal("0.30")},
        {
            "meter": "transmitted",
            "unit": "MB",
            "unit_amount": Decimal("5.00"),
            "allowance": Decimal("0.1"),
            "pool": "account",
        },
        {"meter": "active day", "unit": "day", "unit_amount": Decimal("1.50")},
    ],
    "JPY": [
        {"meter": "distance", "zone": "*", "unit": "km", "unit_amount": Decimal(72)},
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal(60)},
        {"meter": "duration", "zone": "", "unit": "h", "unit_amount": Decimal(50)},
        {"meter": "duration", "zone": "*", "unit": "h", "unit_amount": Decimal(50)},
        {"meter": "transmitted", "unit": "MB", "unit_amount": Decimal(800)},
        {"meter": "active day", "unit": "day", "unit_amount": Decimal(240)},
    ],
}
DAILY_CAPS = {"EUR": [{"pool": "device", "per": "day", "amount": Decimal("0.60"), "meters": ["duration"]}]}


def contracts_toml(scenario: Scenario) -> str:
    """The text of contracts.toml."""
    # A day before the period: its first local midnight may lie before that of UTC.
    begin = scenario.period.start - timedelta(days=1)
    currencies = sorted({account.currency for account in scenario.accounts})
    return toml_text(
        {
            "legal_entity": [{"effective_from": begin, **SELLERS[currency]} for currency in currencies],
            "tariff": [_tariff(tariff, begin) for tariff in scenario.tariffs],
            "account": [entry for account in scenario.accounts for entry in _accounts(account, begin)],
        }
    )


def _tariff(tariff: ScenarioTariff, begin: datetime) -> dict[str, Any]:
    return {
        "id": tariff.id,
        "effective_from": begin,
        "currency": tariff.currency,
        "prices": [*(_price(price, tariff.discount) for price in tariff.prices), *MORE_PRICES[tariff.currency]],
        "caps": DAILY_CAPS.get(tariff.currency),
    }


def _price(price: ScenarioPrice, discount: ScenarioDiscount | None) -> dict[str, Any]:
    if discount is None or (price.meter, price.zone) != ("distance", ""):
        return price.model_dump()
    tiers = [
        {"up_to": discount.above_km, "unit_amount": price.unit_amount},
        {"unit_amount": discount.unit_amount},
    ]
    same = {"meter": price.meter, "zone": price.zone, "unit": price.unit}
    return {**same, "tiers": tiers, "tier_mode": "volume", "pool": "account"}


def pooled_with(scenario: Scenario, vehicle: ScenarioVehicle) -> Sequence[ScenarioAccountVehicle]:
    """The vehicles of the account in the contracts that has a vehicle: of the payer's own, or of its child."""
    (account,) = [one for one in scenario.accounts if one.id == vehicle.account]
    return next(part for part in _parts(account) if vehicle.sender in {(one.tenant, one.device) for one in part})


def _parts(account: ScenarioAccount) -> tuple[Sequence[ScenarioAccountVehicle], Sequence[ScenarioAccountVehicle]]:
    """The payer's own vehicles and those of its child; the one in EUR has a child with the later half of them."""
    keeps = (len(account.vehicles) + 1) // 2 if account.currency == "EUR" else len(account.vehicles)
    return account.vehicles[:keeps], account.vehicles[keeps:]


def _accounts(account: ScenarioAccount, begin: datetime) -> list[dict[str, Any]]:
    """The payer and, if it has one, its child."""
    own, others = _parts(account)
    payer = {
        "id": account.id,
        "effective_from": begin,
        "name": account.name,
        "tariff": account.tariff,
        "payer": PAYERS[account.currency],
        "devices": _devices(own, begin),
    }
    if not others:
        return [payer]
    child = {
        "id": f"{account.id}-leased",
        "effective_from": begin,
        "name": f"{account.name}, leased vehicles",
        "parent": account.id,
        "tariff": account.tariff,
        "devices": _devices(others, begin),
    }
    return [payer, child]


def _devices(vehicles: Sequence[ScenarioAccountVehicle], begin: datetime) -> list[dict[str, Any]]:
    return [{"tenant": one.tenant, "device": one.device, "region": one.region, "begin": begin} for one in vehicles]
