"""A scenario: everything that decides what a simulated fleet does, and what its owners pay.

The same scenario always gives the same records: it holds the seed, and nothing here looks at a clock.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from waybill.settings import Settings

LonLat = tuple[float, float]
Ring = tuple[LonLat, ...]

Meter = Literal["distance", "entry", "duration"]
UNITS: dict[Meter, str] = {"distance": "km", "entry": "each", "duration": "h"}
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
TENANT = "fleet"
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class ScenarioRegion(Settings):
    """A city on whose streets vehicles drive. Coordinates in degrees, half the side of the street grid in metres."""

    id: str = Field(pattern=r"^[a-z][a-z0-9]*$")
    city: str
    latitude: float = Field(ge=-85, le=85)
    longitude: float = Field(ge=-179, le=179)
    half_side_m: float = Field(default=3500.0, gt=500, le=20_000)


class ScenarioVehicle(Settings):
    """A vehicle: its name in the scenario, its region and its account.

    `tenant`: its owner. `device_id`: the tenant's name for it; "": the name in the scenario.
    """

    device: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    region: str
    account: str
    tenant: str = Field(default=TENANT, pattern=_NAME)
    device_id: str = Field(default="", pattern=r"^[a-z0-9-]*$")

    @property
    def sender(self) -> tuple[str, str]:
        """Tenant and device, as its agent sends them."""
        return self.tenant, self.device_id or self.device


class ScenarioFence(Settings):
    """A zone: closed rings of (longitude, latitude), the outline first, then holes."""

    id: str
    priority: int
    effective_from: AwareDatetime = ALWAYS
    rings: tuple[Ring, ...] = Field(min_length=1)


class ScenarioPrice(Settings):
    """The price of a meter's unit in a zone; zone "" is everywhere outside all zones."""

    meter: Meter
    zone: str
    unit: Literal["km", "each", "h"]
    unit_amount: Decimal = Field(ge=0)


class ScenarioDiscount(Settings):
    """Outside all zones each kilometre costs `unit_amount` if an account drives more than `above_km` in the period."""

    above_km: Decimal = Field(gt=0)
    unit_amount: Decimal = Field(ge=0)


class ScenarioTariff(Settings):
    id: str
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    effective_from: AwareDatetime = ALWAYS
    prices: tuple[ScenarioPrice, ...]
    discount: ScenarioDiscount | None = None


class ScenarioAccountVehicle(Settings):
    tenant: str = Field(default=TENANT, pattern=_NAME)
    device: str
    region: str


class ScenarioAccount(Settings):
    id: str
    name: str
    currency: str
    tariff: str
    vehicles: tuple[ScenarioAccountVehicle, ...]


class ScenarioPeriod(Settings):
    """The service period of the bills; `end` is exclusive."""

    start: AwareDatetime
    end: AwareDatetime


class Faults(Settings):
    """Faults of the vehicles; none by default. See docs/simulator.md."""

    duplicates: float = Field(default=0.0, ge=0, le=0.5, description="share of messages that a vehicle sends twice")
    dirty: float = Field(
        default=0.0, ge=0, le=1, description="share of positions that a device writes in a form of its own"
    )
    wrong_clocks: int = Field(default=0, ge=0, description="vehicles whose clock is wrong until it is set right")
    late: int = Field(default=0, ge=0, description="vehicles that send all they have only at the end")


class GpsNoise(Settings):
    """Noise of the receivers: metres in each direction, and its correlation time (0: fixes are independent)."""

    sigma_m: float = Field(gt=0, le=50)
    tau_s: float = Field(default=60.0, ge=0, le=86_400)


class Scenario(Settings):
    seed: int = Field(ge=0)
    start: AwareDatetime
    duration_s: int = Field(ge=60, le=14 * 86_400)
    interval_s: int = Field(default=10, ge=1, le=300, description="seconds between two positions of a driving vehicle")
    regions: tuple[ScenarioRegion, ...] = Field(min_length=1)
    vehicles: tuple[ScenarioVehicle, ...] = Field(min_length=1, max_length=10_000)
    accounts: tuple[ScenarioAccount, ...]
    tariffs: tuple[ScenarioTariff, ...]
    fences: tuple[ScenarioFence, ...]
    period: ScenarioPeriod
    faults: Faults = Faults()
    gps_noise: GpsNoise | None = None

    @model_validator(mode="after")
    def _vehicles_are_different_and_somewhere(self) -> Self:
        senders = {vehicle.sender for vehicle in self.vehicles}
        if not len({vehicle.device for vehicle in self.vehicles}) == len(senders) == len(self.vehicles):
            raise ValueError("two vehicles have the same device name")
        if unknown := {vehicle.region for vehicle in self.vehicles} - {region.id for region in self.regions}:
            raise ValueError(f"vehicles are in unknown regions: {', '.join(sorted(unknown))}")
        return self

    @property
    def start_ms(self) -> int:
        return round(self.start.timestamp() * 1000)

    def region(self, name: str) -> ScenarioRegion:
        return next(region for region in self.regions if region.id == name)
