"""Makes scenarios: a generated fleet, or one that repeats a recorded track."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import NamedTuple

from pydantic import ValidationError

from simulator.city_zones import city_fences, extent_fences
from simulator.drive import Track
from simulator.errors import ScenarioError
from simulator.plane import Plane
from simulator.replay import Recording
from simulator.scenario import (
    UNITS,
    Faults,
    GpsNoise,
    Meter,
    Scenario,
    ScenarioAccount,
    ScenarioAccountVehicle,
    ScenarioFence,
    ScenarioPeriod,
    ScenarioPrice,
    ScenarioRegion,
    ScenarioTariff,
    ScenarioVehicle,
)

CITIES = {
    "eu": ScenarioRegion(id="eu", city="Hamburg", latitude=53.5503, longitude=10.0006),
    "us": ScenarioRegion(id="us", city="Denver", latitude=39.7392, longitude=-104.9903),
    "ap": ScenarioRegion(id="ap", city="Nagoya", latitude=35.1709, longitude=136.8815),
}
TRACK_FILE = "track.csv"
START = datetime(2026, 1, 5, 7, 20, tzinfo=UTC)


class AccountOwner(NamedTuple):
    """An account to be: who, in which currency, and its base prices (by km, entry and hour)."""

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
# Texts: the double 1.15 is not the decimal 1.15.
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
    """A fleet of `vehicles` spread over `regions` (eu, us, ap), shared by two accounts that both have some in each."""
    _check_regions(regions)
    places = tuple(CITIES[name] for name in regions)
    names = [(places[i % len(places)].id, i // len(places) + 1) for i in range(vehicles)]
    fences = tuple(
        fence
        for place in places
        for fence in city_fences(place.id, Plane(place.latitude, place.longitude), place.half_side_m)
    )
    return _scenario(
        seed=seed,
        start=start,
        duration_s=duration_s,
        interval_s=interval_s,
        regions=places,
        names=sorted((region, f"{region}-{number:04d}") for region, number in names),
        fences=fences,
        faults=faults or Faults(),
        gps_noise=gps_noise,
    )


def recorded_scenario(
    recording: Recording, *, seed: int, regions: tuple[str, ...], faults: Faults | None = None
) -> tuple[Scenario, Track]:
    """A fleet that repeats a recording: vehicles dealt out to the regions, zones laid over the extent."""
    _check_regions(regions)
    fixes = [fix for track in recording.fixes.values() for fix in track]
    west, east = min(fix.longitude for fix in fixes), max(fix.longitude for fix in fixes)
    south, north = min(fix.latitude for fix in fixes), max(fix.latitude for fix in fixes)
    first_ms, last_ms = min(fix.time_ms for fix in fixes), max(fix.time_ms for fix in fixes)
    renamed = _device_names(recording, regions)
    scenario = _scenario(
        seed=seed,
        # Rounded down, so that no fix lies before the start.
        start=datetime.fromtimestamp(first_ms // 1000, UTC),
        # A scenario lasts a minute or more, also where a recording has one fix.
        duration_s=max(60, ceil((last_ms - first_ms) / 1000)),
        interval_s=10,
        regions=tuple(
            ScenarioRegion(id=name, city="recorded track", latitude=(south + north) / 2, longitude=(west + east) / 2)
            for name in regions
        ),
        names=sorted((device.split("-")[0], device) for device in renamed),
        fences=extent_fences("track", west, south, east, north),
        faults=faults or Faults(),
        track=TRACK_FILE,
    )
    return scenario, {device: recording.fixes[name] for device, name in renamed.items()}


def with_two_tenants(scenario: Scenario) -> Scenario:
    """The same drives, in which the vehicles of each account after the first are devices of a tenant of its own.

    That tenant calls them as the first account's are called, one after the other: names of devices are equal, and
    nothing else is.
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


def _check_regions(regions: tuple[str, ...]) -> None:
    if not regions or not set(regions) <= set(CITIES) or len(set(regions)) != len(regions):
        got = ", ".join(regions) or "none"
        raise ScenarioError(f"regions must be some of {', '.join(CITIES)}, each once; got {got}")


def _device_names(recording: Recording, regions: tuple[str, ...]) -> dict[str, str]:
    """The recorded vehicle of each device; a name that MQTT topics cannot carry is made one that they can."""
    renamed: dict[str, str] = {}
    for index, name in enumerate(recording.fixes):
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "vehicle"
        device = f"{regions[index % len(regions)]}-{plain}"
        # Two recorded names may become the same plain one.
        renamed[device if device not in renamed else f"{device}-{index}"] = name
    return renamed


def _scenario(
    *,
    seed: int,
    start: datetime,
    duration_s: int,
    interval_s: int,
    regions: tuple[ScenarioRegion, ...],
    names: list[tuple[str, str]],
    fences: tuple[ScenarioFence, ...],
    faults: Faults,
    gps_noise: GpsNoise | None = None,
    track: str = "",
) -> Scenario:
    vehicles = _deal(names)
    month = start.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # In force from the start of the period on, as tariffs are: no hour that is billed lacks its zones.
    fences = tuple(fence.model_copy(update={"effective_from": month}) for fence in fences)
    try:
        return Scenario(
            seed=seed,
            start=start,
            duration_s=duration_s,
            interval_s=interval_s,
            regions=regions,
            vehicles=vehicles,
            accounts=tuple(_account(owner, vehicles) for owner in OWNERS),
            tariffs=tuple(_tariff(owner, fences, month) for owner in OWNERS),
            fences=fences,
            # From the first of any month, 32 days on lies in the next one.
            period=ScenarioPeriod(start=month, end=(month + timedelta(days=32)).replace(day=1)),
            faults=faults,
            gps_noise=gps_noise,
            track=track,
        )
    except ValidationError as error:
        raise ScenarioError(f"no such scenario: {error}") from error


def _deal(names: list[tuple[str, str]]) -> tuple[ScenarioVehicle, ...]:
    """Deals the vehicles of each region to the accounts in turn, so that both have some everywhere."""
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


def _tariff(owner: AccountOwner, fences: tuple[ScenarioFence, ...], effective_from: datetime) -> ScenarioTariff:
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
