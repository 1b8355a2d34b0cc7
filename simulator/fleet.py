"""Makes scenarios of a generated fleet, with their contracts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from pydantic import ValidationError

from simulator.errors import ScenarioError
from simulator.roads import Plane, PlanePoint
from simulator.scenario import (
    UNITS,
    Faults,
    GpsNoise,
    LonLat,
    Meter,
    Ring,
    Scenario,
    ScenarioAccount,
    ScenarioAccountVehicle,
    ScenarioDiscount,
    ScenarioFence,
    ScenarioPeriod,
    ScenarioPrice,
    ScenarioRegion,
    ScenarioTariff,
    ScenarioVehicle,
)

# A TOML writer for tables that `tomllib` reads back.


def toml_text(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Arrays of tables as TOML, one key a line; a list of tables has one table a line. Keys with value None are left
    out.

    Values: strings, integers, booleans, decimals (as strings), dates, datetimes, times, and lists and tables of these.
    """
    lines: list[str] = []
    for name, entries in tables.items():
        for entry in entries:
            lines += ["", f"[[{name}]]"]
            lines += [f"{key} = {_value(value, inline=False)}" for key, value in entry.items() if value is not None]
    return "\n".join(lines[1:]) + "\n"


def _value(value: Any, *, inline: bool = True) -> str:
    if isinstance(value, Mapping):
        inside = (f"{key} = {_value(one)}" for key, one in value.items() if one is not None)
        return f"{{ {', '.join(inside)} }}"
    if isinstance(value, list | tuple):
        items = [_value(one) for one in value]
        if items and not inline and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if isinstance(value, date | time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        # As a string, because most readers parse a TOML float as a double.
        return f'"{value:f}"'
    if isinstance(value, str | bool | int):
        # JSON's escapes are valid in TOML.
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{value!r} cannot be written as TOML")


# Contracts of a fleet: sellers, payers, a child account and tariffs.

SELLERS: dict[str, dict[str, Any]] = {
    "EUR": {
        "id": "waybill-eu",
        "name": "Waybill Europe GmbH",
        "address": {"line": "Am Sandtorkai 1", "city": "Hamburg", "postal_code": "20457", "country": "DE"},
        "vat_id": "DE136695976",
        "contact": {"name": "Billing", "email": "billing@waybill.example"},
        "number_prefix": "WE-",
        "payment": {"means_code": "58", "iban": "DE02120300000000202051", "bic": "BYLADEM1001"},
        "payment_days": 30,
    },
    "JPY": {
        "id": "waybill-jp",
        "name": "Waybill Japan KK",
        "address": {"line": "Marunouchi 1-1", "city": "Tokyo", "postal_code": "100-0005", "country": "JP"},
        "tax_registration_id": "T1234567890123",
        "contact": {"name": "Billing", "email": "billing-jp@waybill.example"},
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
DAILY_CAPS = {"EUR": [{"scope": "device", "span": "day", "amount": Decimal("0.60"), "meters": ["duration"]}]}


def contracts_toml(scenario: Scenario) -> str:
    # A day before the period, because its first local midnight may be before that of UTC.
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
    """The vehicles of the contract account that has a vehicle: the payer's own, or its child's."""
    (account,) = [one for one in scenario.accounts if one.id == vehicle.account]
    return next(part for part in _parts(account) if vehicle.sender in {(one.tenant, one.device) for one in part})


def _parts(account: ScenarioAccount) -> tuple[Sequence[ScenarioAccountVehicle], Sequence[ScenarioAccountVehicle]]:
    """The payer's own vehicles and its child's; the payer in EUR has a child with the second half."""
    keeps = (len(account.vehicles) + 1) // 2 if account.currency == "EUR" else len(account.vehicles)
    return account.vehicles[:keeps], account.vehicles[keeps:]


def _accounts(account: ScenarioAccount, begin: datetime) -> list[dict[str, Any]]:
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


# Zones of a city: drawn on the unit square, then scaled.

Outline = tuple[tuple[float, float], ...]


class Shape(NamedTuple):
    """A zone on the unit square: its name after the prefix, its priority, and its rings without the closing point."""

    name: str
    priority: int
    rings: tuple[Outline, ...]


SHAPES = (
    Shape("centre", 30, (((-0.21, -0.17), (0.03, -0.26), (0.24, -0.12), (0.22, 0.16), (-0.04, 0.25), (-0.24, 0.13)),)),
    Shape(
        "ring",
        10,
        (
            ((-0.62, -0.53), (0.57, -0.61), (0.66, 0.52), (-0.55, 0.6)),
            ((-0.36, -0.31), (-0.33, 0.37), (0.38, 0.33), (0.34, -0.35)),
        ),
    ),
    Shape("harbour", 25, (((0.41, -0.97), (0.95, -0.88), (0.92, -0.31), (0.47, -0.27)),)),
    Shape("depot", 20, (((0.27, -0.79), (0.68, -0.76), (0.71, -0.47), (0.29, -0.44)),)),
    Shape(
        "bend",
        15,
        (((-0.96, 0.31), (-0.35, 0.36), (-0.37, 0.57), (-0.72, 0.53), (-0.74, 0.74), (-0.33, 0.77), (-0.31, 0.95),
          (-0.93, 0.92)),),
    ),
)  # fmt: skip


def city_fences(prefix: str, plane: Plane, half_side_m: float) -> tuple[ScenarioFence, ...]:
    """The zones of a city that reaches `half_side_m` metres from the plane's centre in each direction."""
    fences = []
    for shape in SHAPES:
        rings: list[Ring] = []
        for outline in shape.rings:
            places = [plane.degrees(PlanePoint(x * half_side_m, y * half_side_m)) for x, y in outline]
            corners = tuple(_off_grid((longitude, latitude)) for latitude, longitude in places)
            # A ring of GeoJSON ends where it begins (RFC 7946).
            rings.append((*corners, corners[0]))
        fences.append(ScenarioFence(id=f"{prefix}-{shape.name}", priority=shape.priority, rings=tuple(rings)))
    return tuple(fences)


def _off_grid(corner: LonLat) -> LonLat:
    longitude, latitude = corner
    # Rounded again, because the file would show the sum's rounding errors.
    return round(round(longitude, 7) + 5e-8, 8), round(round(latitude, 7) + 5e-8, 8)


CITIES = {
    "eu": ScenarioRegion(id="eu", city="Hamburg", latitude=53.5503, longitude=10.0006),
    "us": ScenarioRegion(id="us", city="Denver", latitude=39.7392, longitude=-104.9903),
    "ap": ScenarioRegion(id="ap", city="Nagoya", latitude=35.1709, longitude=136.8815),
}
START = datetime(2026, 1, 5, 7, 20, tzinfo=UTC)


class AccountOwner(NamedTuple):
    """A future account with its base prices per km, entry and hour."""

    id: str
    name: str
    currency: str
    tariff: str
    per_km: Decimal
    per_entry: Decimal
    per_hour: Decimal
    digits: int


OWNERS = (
    AccountOwner("acme", "Acme Logistics", "EUR", "standard-eur", Decimal("0.45"), Decimal("2.50"), Decimal("1.20"), 4),
    AccountOwner("kaze", "Kaze Freight", "JPY", "standard-jpy", Decimal(72), Decimal(400), Decimal(190), 2),
)
# Strings, because the double 1.15 is not the decimal 1.15.
ZONE_FACTORS = {"centre": "1.6", "ring": "1.15", "harbour": "0.9", "depot": "0.55", "bend": "1.05"}
ENTRY_ZONES = ("centre", "harbour")
DURATION_ZONES = ("ring", "depot")


def generated_scenario(
    *,
    seed: int,
    vehicles: int,
    regions: tuple[str, ...],
    start: datetime = START,
    duration_s: int = 7200,
    interval_s: int = 10,
    faults: Faults | None = None,
    gps_noise: GpsNoise | None = None,
) -> Scenario:
    """A fleet of `vehicles` spread over `regions` (eu, us, ap). Each of the two accounts has some in each region."""
    if not regions or not set(regions) <= set(CITIES) or len(set(regions)) != len(regions):
        got = ", ".join(regions) or "none"
        raise ScenarioError(f"regions must be some of {', '.join(CITIES)}, each once; got {got}")
    places = tuple(CITIES[name] for name in regions)
    names = [(places[i % len(places)].id, i // len(places) + 1) for i in range(vehicles)]
    fleet = _deal(sorted((region, f"{region}-{number:04d}") for region, number in names))
    month = start.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # In force from the start of the period, as tariffs are.
    fences = tuple(
        fence.model_copy(update={"effective_from": month})
        for place in places
        for fence in city_fences(place.id, Plane(place.latitude, place.longitude), place.half_side_m)
    )
    try:
        return Scenario(
            seed=seed,
            start=start,
            duration_s=duration_s,
            interval_s=interval_s,
            regions=places,
            vehicles=fleet,
            accounts=tuple(_account(owner, fleet) for owner in OWNERS),
            tariffs=tuple(_tariff_fleet(owner, fences, month) for owner in OWNERS),
            fences=fences,
            # 32 days after the first of a month is in the next one.
            period=ScenarioPeriod(start=month, end=(month + timedelta(days=32)).replace(day=1)),
            faults=faults or Faults(),
            gps_noise=gps_noise,
        )
    except ValidationError as error:
        raise ScenarioError(f"no such scenario: {error}") from error


def with_two_tenants(scenario: Scenario) -> Scenario:
    """The same drives, but the vehicles of each account after the first belong to a tenant of their own.

    That tenant uses the device names of the first account's vehicles: only the names are equal.
    """
    first, *others = scenario.accounts
    names = [vehicle.device for vehicle in first.vehicles]
    called: dict[str, tuple[str, str]] = {}
    for account in others:
        own = sorted(vehicle.device for vehicle in account.vehicles)
        called |= {device: (account.id, names[at] if at < len(names) else device) for at, device in enumerate(own)}
    vehicles = tuple(
        vehicle.model_copy(update=dict(zip(("tenant", "device_id"), called[vehicle.device], strict=True)))
        if vehicle.device in called
        else vehicle
        for vehicle in scenario.vehicles
    )
    owners = [owner for owner in OWNERS if owner.id in {account.id for account in scenario.accounts}]
    accounts = tuple(_account(owner, vehicles) for owner in owners)
    return Scenario.model_validate(scenario.model_dump() | {"vehicles": vehicles, "accounts": accounts})


def _deal(names: list[tuple[str, str]]) -> tuple[ScenarioVehicle, ...]:
    """Deal the vehicles of each region to the accounts in turn."""
    seen: dict[str, int] = {}
    vehicles = []
    for region, device in names:
        turn = seen.get(region, 0)
        seen[region] = turn + 1
        vehicles.append(ScenarioVehicle(device=device, region=region, account=OWNERS[turn % len(OWNERS)].id))
    return tuple(vehicles)


def _account(owner: AccountOwner, vehicles: tuple[ScenarioVehicle, ...]) -> ScenarioAccount:
    senders = ((*vehicle.sender, vehicle.region) for vehicle in vehicles if vehicle.account == owner.id)
    own = tuple(
        ScenarioAccountVehicle(tenant=tenant, device=device, region=region) for tenant, device, region in senders
    )
    return ScenarioAccount(id=owner.id, name=owner.name, currency=owner.currency, tariff=owner.tariff, vehicles=own)


def _tariff_fleet(owner: AccountOwner, fences: tuple[ScenarioFence, ...], effective_from: datetime) -> ScenarioTariff:
    def price(meter: Meter, zone: str, amount: Decimal) -> ScenarioPrice:
        # A price times a factor has more decimals than a published price.
        quantum = Decimal(1).scaleb(-owner.digits)
        return ScenarioPrice(meter=meter, zone=zone, unit=UNITS[meter], unit_amount=amount.quantize(quantum))

    prices = [price("distance", "", owner.per_km)]
    for fence in fences:
        shape = fence.id.rsplit("-", 1)[1]
        prices.append(price("distance", fence.id, owner.per_km * Decimal(ZONE_FACTORS[shape])))
        if shape in ENTRY_ZONES:
            prices.append(price("entry", fence.id, owner.per_entry))
        if shape in DURATION_ZONES:
            prices.append(price("duration", fence.id, owner.per_hour))
    return ScenarioTariff(id=owner.tariff, currency=owner.currency, effective_from=effective_from, prices=tuple(prices))
