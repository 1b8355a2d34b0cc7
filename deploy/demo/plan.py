"""The plan of the demo: the fleet, its faults, and the vehicle that falls silent. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from deploy.local.stack import DEFAULT_TOPOLOGY
from geo.replication import Topology
from simulator import (
    Faults,
    Scenario,
    generated_scenario,
    with_discount,
    with_two_tenants,
)
from simulator.scenario import GpsNoise, ScenarioVehicle
from waybill.settings import Settings, load

# Errors.


class DemoError(Exception):
    """The demo cannot continue; the message says where it stopped and shows the last lines of what failed."""


REGIONS = ("eu", "us")
FAULTS = Faults(dirty=0.1)
"""One position in ten is written as devices write them; what it says, and the truth, is the same."""
NOISE = GpsNoise(sigma_m=4.0, tau_s=60.0)
"""What the receivers have of it, also those of parked vehicles."""


class DemoSettings(Settings):
    """The drive and its faults. The times of the faults are shares of the drive."""

    seed: int = 7
    vehicles: int = Field(default=20, ge=4, le=200)
    # After 5 s without a message an agent counts a vehicle as idle: a slower drive would have such pauses.
    drive_s: float = Field(default=45.0, gt=5, le=100, description="how long the drive takes on the wall clock")
    cut_region: str = "eu"
    cut_from: float = Field(default=0.2, ge=0, le=1)
    cut_until: float = Field(default=0.75, ge=0, le=1)
    cut_at_least_s: float = Field(
        # less than the 5 s of above: the drive stands still so long where it hurries
        default=4.0,
        ge=0,
        lt=5,
        description="how long the cut lasts at least, however late the drive is",
    )
    kill_at: float = Field(default=0.1, ge=0, le=1)
    silent_from: float = Field(default=0.5, ge=0, le=1)
    restart_after_s: float = Field(default=4.0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0, description="without progress for so long it is ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The fleet that drives; `silent`, `killed`: names of vehicles."""

    settings: DemoSettings
    scenario: Scenario
    silent: str
    killed: str

    @property
    def canary_region(self) -> str:
        """A region whose uplink is not cut."""
        return next(region for region in REGIONS if region != self.settings.cut_region)

    @property
    def period(self) -> str:
        """The month that is billed, such as 2026-01."""
        return f"{self.scenario.period.start:%Y-%m}"


def write_topology(folder: Path, scenario: Scenario) -> Path:
    """Writes the topology of the local stack, with each tenant of the scenario as an operator, into `folder`."""
    text = DEFAULT_TOPOLOGY.read_text()
    others = {one.tenant for one in scenario.vehicles} - set(load(Topology, DEFAULT_TOPOLOGY).operators)
    text += "".join(f"\n[tenants.{tenant}]\noperator = true\n" for tenant in sorted(others))
    # not topology.toml and operators.toml, which the stack writes there itself
    file = folder / "demo-topology.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def plan_demo(settings: DemoSettings) -> DemoPlan:
    """Chooses fleet, vehicles and contracts. Raises SimulatorError, and DemoError for a month that is not over."""
    scenario = generated_scenario(
        seed=settings.seed, vehicles=settings.vehicles, regions=REGIONS, faults=FAULTS, gps_noise=NOISE
    )
    scenario = with_two_tenants(scenario)
    if scenario.period.end > datetime.now(UTC):
        raise DemoError(f"{scenario.period.start:%Y-%m} has not ended, so no bill for it can be final")
    silent = _silent(scenario, settings)
    others = [one.device for one in scenario.vehicles if one.device != silent.device]
    elsewhere = [name for name in others if not name.startswith(f"{settings.cut_region}-")]
    return DemoPlan(
        settings=settings,
        scenario=with_discount(scenario, silent, settings.silent_from),
        silent=silent.device,
        killed=[*elsewhere, *others, silent.device][0],
    )


def _silent(scenario: Scenario, settings: DemoSettings) -> ScenarioVehicle:
    """A vehicle of the payer in EUR, if possible in a region that is not cut off."""
    account = next(one for one in scenario.accounts if one.currency == "EUR")
    own = [one for one in scenario.vehicles if one.account == account.id]
    return max(own, key=lambda one: (one.region != settings.cut_region, one.device))
