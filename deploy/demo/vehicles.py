"""Each vehicle's own broker and agent, as they would be on the vehicle: one of each, on ports of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local import DaemonProcess, LocalStack, MosquittoBroker, MosquittoSettings, PortBook
from edge_agent.config import AgentSettings
from edge_agent.status import read_status
from settings import load

TENANT = "fleet"
_SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class DemoVehicle:
    """One vehicle's servers and the agent's settings."""

    device: str
    region: str
    broker: MosquittoBroker
    agent: DaemonProcess
    config: Path

    def status(self) -> dict[str, Any]:
        """What the agent's buffer holds, as `edge-agent status --json` says it."""
        return read_status(load(AgentSettings, self.config))

    @property
    def drained(self) -> bool:
        """Whether everything that was stored has been acknowledged."""
        status = self.status()
        return bool(status["depth_records"] == 0 and status["acknowledged"] >= status["head"])


def start_vehicles(stack: LocalStack, regions: Mapping[str, str]) -> list[DemoVehicle]:
    """Brokers, then agents, of the devices in `regions` (device -> region)."""
    book = PortBook(stack.folder / "vehicles" / "ports.json")
    vehicles = [_vehicle(stack, book, device, region) for device, region in sorted(regions.items())]
    _start(stack, [vehicle.broker for vehicle in vehicles])
    _start(stack, [vehicle.agent for vehicle in vehicles])
    return vehicles


def _start(stack: LocalStack, servers: Iterable[DaemonProcess | MosquittoBroker]) -> None:
    waiting = list(servers)
    for server in waiting:
        stack.add(server, wait=False)
    for server in waiting:
        server.wait()


def _vehicle(stack: LocalStack, book: PortBook, device: str, region: str) -> DemoVehicle:
    folder = stack.folder / "vehicles" / device
    folder.mkdir(parents=True, exist_ok=True)
    # A vehicle's broker keeps whatever its agent has not taken yet: a message that it dropped would be lost unnamed.
    broker = MosquittoBroker(device, folder / "broker", settings=MosquittoSettings(), ports=book)
    config = folder / "agent.toml"
    config.write_text(_agent_toml(device, region, broker.port, stack.links[region].port, folder / "buffer"))
    agent = DaemonProcess.python(
        f"edge-agent-{device}", "edge_agent", ["run", "--config", str(config)], folder / "agent", settle_s=0.1
    )
    return DemoVehicle(device, region, broker, agent, config)


def _agent_toml(device: str, region: str, broker_port: int, uplink_port: int, stream: Path) -> str:
    return f"""[device]
id = "{device}"
tenant = "{TENANT}"

[intake]
port = {broker_port}

[buffer]
path = "{stream}"
prune_delay_s = {_SETTLE_S}

[[uplinks]]
region = "{region}"
host = "127.0.0.1"
port = {uplink_port}
backoff_max_s = 3
"""
