"""A simulated fleet: scenarios, vehicle messages and a publisher. `simulator.truth` computes the correct results."""

from simulator.drive import drive
from simulator.errors import ScenarioError, SimulatorError
from simulator.fleet import generated_scenario, with_two_tenants
from simulator.folder import read_folder, write_folder
from simulator.messages import VehicleMessage
from simulator.publisher import BrokerAddress, Progress, PublishSettings, Summary, publish
from simulator.scenario import Faults, Scenario
from simulator.volume_discount import with_discount

__all__ = [
    "BrokerAddress",
    "Faults",
    "Progress",
    "PublishSettings",
    "Scenario",
    "ScenarioError",
    "SimulatorError",
    "Summary",
    "VehicleMessage",
    "drive",
    "generated_scenario",
    "publish",
    "read_folder",
    "with_discount",
    "with_two_tenants",
    "write_folder",
]
