"""What was agreed for the month, and what of it became known when: contracts as TOML, fences as GeoJSON features."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from simulator.city_zones import city_fences
from simulator.fleet import CITIES
from simulator.fleet_contracts import SELLERS
from simulator.folder import feature_of
from simulator.plane import Plane
from simulator.toml_text import toml_text
from simulator.truth import TrueDays, month_of

BEGIN = datetime(2026, 2, 27, tzinfo=UTC)
DOUBTS = {"unknown_percent": Decimal(100), "unreadable_percent": Decimal(20)}
"""A trip of this month begins where it likes, and not where the one before it ended; and for three days the clock of
one vehicle is far off."""
MOVED = datetime(2026, 3, 19, 23, tzinfo=UTC)
"""Midnight of 20 March in Berlin, when acme's van-3 becomes kaze's to pay."""
NEW_PRICES = datetime(2026, 3, 15, 23, tzinfo=UTC)
"""Midnight of 16 March in Berlin."""
NEW_HARBOUR = datetime(2026, 3, 12, 3, tzinfo=UTC)
NEW_BEND = datetime(2026, 3, 26, 3, tzinfo=UTC)
NEW_RATE = datetime(2026, 3, 31, tzinfo=UTC)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PERIODS: dict[str, TrueDays] = {
    "acme": month_of("Europe/Berlin", 2026, 3),
    "kaze": month_of("Asia/Tokyo", 2026, 3),
}
"""The period that each payer is billed for: Berlin's March has an hour less."""


def contracts_at_first() -> str:
    """Two sellers, two payers, a child, two tariffs, and what a dollar is worth."""
    return toml_text(
        {
            "legal_entity": [
                {"effective_from": BEGIN, **SELLERS["EUR"]},
                {"effective_from": BEGIN, **SELLERS["JPY"], "vat_id": "JP1234567890123"},
            ],
            "tariff": [city_tariff(BEGIN, "0.45"), _mile_tariff()],
            "account": [
                _account("acme", payer=_berlin(), devices=[_device("acme", "van-1"), _device("acme", "van-2")]),
                _account(
                    "acme-north",
                    parent="acme",
                    devices=[_device("acme", "van-3") | {"end": MOVED}, _device("acme", "van-4")],
                ),
                _account(
                    "kaze",
                    tariff="mile",
                    payer=_tokyo(),
                    devices=[
                        _device("kaze", "van-1"),
                        _device("kaze", "van-2"),
                        _device("acme", "van-3") | {"begin": MOVED},
                    ],
                ),
            ],
            "exchange_rate": [exchange_rate(BEGIN, "151.37"), exchange_rate(NEW_RATE, "149.805")],
        }
    )


def tariff_published(per_km: str) -> str:
    """The version of the tariff in EUR that begins in mid-month, at some price."""
    return toml_text({"tariff": [city_tariff(NEW_PRICES, per_km)]})


def rate_published(rate: str) -> str:
    """What a dollar was worth on the last day of the month."""
    return toml_text({"exchange_rate": [exchange_rate(NEW_RATE, rate)]})


def fences_at_first() -> tuple[str, ...]:
    """The zones of both cities."""
    return tuple(_feature(region, 0.0, name, BEGIN) for region in ("eu", "ap") for name in _names(region))


def fence_moved(name: str, begin: datetime, east_deg: float) -> tuple[str, ...]:
    """A new version of a zone of the first city, so many degrees further to the east."""
    return (_feature("eu", east_deg, name, begin),)


def city_tariff(begin: datetime, per_km: str) -> dict[str, Any]:
    """By zone and window, with an allowance, tiers and a daily cap."""
    km: dict[str, Any] = {"meter": "distance", "unit": "km"}
    prices: list[dict[str, Any]] = [
        km | {"unit_amount": Decimal(per_km)},
        km | {"zone": "*", "unit_amount": Decimal("0.52")},
        km | {"zone": "eu-centre", "unit_amount": Decimal("0.725")},
        km | {"zone": "*", "window": "night", "unit_amount": Decimal("0.31")},
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal("0.40")},
        {"meter": "entry", "zone": "eu-harbour", "unit": "each", "unit_amount": Decimal("2.50")},
        {"meter": "duration", "unit": "h", "unit_amount": Decimal("0.333")},
        {"meter": "duration", "zone": "*", "unit": "h", "unit_amount": Decimal("0.333")},
        {
            "meter": "event",
            "unit": "each",
            "tiers": [
                {"up_to": Decimal(100), "unit_amount": Decimal("0.035")},
                {"unit_amount": Decimal("0.0125")},
            ],
            "pool": "account",
        },
        {
            "meter": "transmitted",
            "unit": "MB",
            # it rises in mid-month, when the allowance is used up
            "unit_amount": Decimal("25.00" if begin < NEW_PRICES else "25.50"),
            "allowance": Decimal("0.05"),
            "pool": "account",
        },
        {"meter": "active day", "unit": "day", "unit_amount": Decimal("1.50")},
    ]
    return {
        "id": "city",
        "effective_from": begin,
        "currency": "EUR",
        "windows": [{"id": "night", "days": list(WEEKDAYS), "begin": "22:00", "end": "06:00"}],
        "prices": prices,
        "caps": [{"pool": "device", "per": "day", "amount": Decimal("11.00"), "meters": ["distance"]}],
    }


def _mile_tariff() -> dict[str, Any]:
    """In dollars, with tiers over all zones, a cap of the period and a minimum."""
    tiers = [
        {"up_to": Decimal(300), "unit_amount": Decimal("0.55")},
        {"up_to": Decimal(600), "unit_amount": Decimal("0.455")},
        {"unit_amount": Decimal("0.3")},
    ]
    prices: list[dict[str, Any]] = [
        {"meter": "distance", "zone": zone, "unit": "km", "tiers": tiers, "pool_id": "km"} for zone in ("", "*")
    ]
    prices += [
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal("1.10")},
        {"meter": "duration", "unit": "h", "unit_amount": Decimal("0.60")},
        {"meter": "duration", "zone": "*", "unit": "h", "unit_amount": Decimal("0.60")},
        {"meter": "active day", "unit": "day", "unit_amount": Decimal("2.00")},
    ]
    return {
        "id": "mile",
        "effective_from": BEGIN,
        "currency": "USD",
        "prices": prices,
        "caps": [{"pool": "device", "per": "period", "amount": Decimal("290.00"), "meters": ["distance"]}],
        "minimum_amount": Decimal("50.00"),
    }


def exchange_rate(begin: datetime, rate: str) -> dict[str, Any]:
    """Yen for a dollar."""
    return {
        "id": "usd-jpy",
        "effective_from": begin,
        "currency": "USD",
        "into": "JPY",
        "rate": Decimal(rate),
        "source": "central bank, reference rate",
    }


def _account(name: str, *, tariff: str = "city", **more: Any) -> dict[str, Any]:
    return {"id": name, "effective_from": BEGIN, "name": name.replace("-", " ").title(), "tariff": tariff, **more}


def _berlin() -> dict[str, Any]:
    return {
        "legal_entity": "waybill-eu",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "address": {"line": "Kehrwieder 5", "city": "Hamburg", "postal_code": "20457", "country": "DE"},
        "vat": {"category": "S", "rate": Decimal(19)},
        "vat_id": "DE129273398",
        "doubts": DOUBTS,
    }


def _tokyo() -> dict[str, Any]:
    return {
        "legal_entity": "waybill-jp",
        "currency": "JPY",
        "time_zone": "Asia/Tokyo",
        "address": {"line": "Sakae 3-5", "city": "Nagoya", "postal_code": "460-0008", "country": "JP"},
        "vat": {"category": "AE", "exemption_reason": "Reverse charge"},
        "vat_id": "JP9876543210987",
        "doubts": DOUBTS,
    }


def _device(tenant: str, device: str) -> dict[str, Any]:
    region = "eu" if tenant == "acme" else "ap"
    return {"tenant": tenant, "device": device, "region": region, "begin": BEGIN}


def _names(region: str) -> list[str]:
    return [fence.id for fence in city_fences(region, Plane(0, 0), 1000.0)]


def _feature(region: str, east_deg: float, name: str, begin: datetime) -> str:
    city = CITIES[region]
    plane = Plane(city.latitude, city.longitude + east_deg)
    fences = {fence.id: fence for fence in city_fences(region, plane, city.half_side_m)}
    return json.dumps(feature_of(fences[name].model_copy(update={"effective_from": begin})))
