"""What the demo starts on the stack: gateways, jobs of the centre, and for each vehicle its broker and agent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_jobs.config import CloudSettings
from deploy.demo.errors import DemoError
from deploy.demo.shown_settings import show_settings
from deploy.local import (
    CuttableLink,
    CuttableLinks,
    DaemonProcess,
    LocalStack,
    MosquittoBroker,
    MosquittoSettings,
    PortBook,
    TlsFiles,
    http_health,
    stack_operator,
)
from deploy.local.stack_settings import gateway_settings
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from edge_agent.errors import StoreError
from edge_agent.inspection import read_status
from simulator.scenario import ScenarioVehicle
from waybill.settings import load

_JOBS_AT_ONCE = 2
"""The ingest, which keeps its cores as long as it runs, and usage beside it."""


def start_gateways(stack: LocalStack) -> None:
    """One gateway for each region, returned from when all are connected."""
    book = PortBook(stack.folder / "gateways.json")
    gateways = {region: gateway_process(stack, region, book.port(region)) for region in stack.topology.regions}
    for region, gateway in gateways.items():
        show_settings(stack.folder, f"gateway-{region}.toml", gateway.folder / "gateway.toml")
        stack.add(gateway, wait=False)
    for gateway in gateways.values():
        gateway.wait()


def gateway_process(stack: LocalStack, region: str, port: int) -> DaemonProcess:
    """The first gateway of a region, not started yet; its status is at `port`."""
    folder = stack.folder / f"gateway-{region}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "gateway.toml"
    config.write_text(gateway_settings(stack, region, port))
    return DaemonProcess.python(
        f"gateway-{region}",
        "gateway",
        ["run", "--config", str(config)],
        folder,
        healthy_when=http_health(f"http://127.0.0.1:{port}/health"),
    )


def cloud_config(stack: LocalStack) -> Path:
    """The settings of the jobs, written to the stack's folder."""
    hq = stack.pulsar["hq"]
    path = stack.folder / "cloud.toml"
    store = stack.object_store
    path.write_text(f"""lake = "{lake_of(stack)}"
checkpoints = "{stack.folder / "checkpoints"}"
tenants = {list(stack.topology.operators)}

[ingest]
# the scenario drives on a fixed day, however long ago that is
max_age_days = 36500

[[clusters]]
name = "hq"
service_url = "{hq.service_url}"
admin_url = "{hq.admin_url}"

{stack_operator(stack.folder).reference_settings()}
[access]
{stack.access("jobs").as_toml()}
{store.job_settings() if store else ""}
{stack.spark.job_settings(_JOBS_AT_ONCE) if stack.spark else ""}""")
    return path


def lake_of(stack: LocalStack) -> str:
    """Where the lake of the demo is: beside the servers, or in the stack's bucket."""
    store = stack.object_store
    return str(stack.folder / "lake") if store is None else store.lake("demo")


def cloud_settings(config: Path) -> CloudSettings:
    """The settings as the jobs read them."""
    return load(CloudSettings, config)


def start_ingest(stack: LocalStack, config: Path) -> DaemonProcess:
    """The ingest, not waited for: what comes before Spark is up waits in Pulsar."""
    job = DaemonProcess.python(
        "cloud-jobs-ingest", "cloud_jobs", ["ingest", "--config", str(config)], stack.folder / "ingest"
    )
    stack.add(job, wait=False)
    return job


def usage_job(stack: LocalStack, config: Path, folder: str = "usage") -> DaemonProcess:
    """The usage job, not started yet; it ends by itself."""
    return DaemonProcess.python(
        "cloud-jobs-usage", "cloud_jobs", ["usage", "--config", str(config)], stack.folder / folder
    )


def spatial_jobs(stack: LocalStack, config: Path) -> list[DaemonProcess]:
    """The events at fences, and what is said of the alerts: not started yet; each ends by itself."""
    return [
        DaemonProcess.python(f"cloud-jobs-{job}", "cloud_jobs", [job, "--config", str(config)], stack.folder / job)
        for job in ("geofence", "verdicts")
    ]


# the demo counts what is left, and has no hour to wait
_PRUNE_DELAY_S = 0.3
_HEARTBEAT_S = 60
"""The least that an agent takes: nobody wants to wait for the usual five minutes."""


@dataclass(frozen=True, slots=True)
class DemoVehicle:
    """One vehicle's servers and the agent's settings. `device` is its name in the scenario.

    `link`: of its own, before that of its region; None: it has none.
    """

    device: str
    region: str
    broker: MosquittoBroker
    agent: DaemonProcess
    config: Path
    link: CuttableLink | None = None

    def status(self) -> dict[str, Any]:
        """What the agent's buffer holds, as `edge-agent status --json` says it."""
        return read_status(load(AgentSettings, self.config))

    @property
    def drained(self) -> bool:
        """Whether everything that was stored has been acknowledged."""
        status = self.status()
        return bool(status["depth_records"] == 0 and status["acknowledged"] >= status["head"])


def start_vehicles(stack: LocalStack, planned: Iterable[ScenarioVehicle], alone: str) -> list[DemoVehicle]:
    """Brokers, then agents. The vehicle named `alone` has a link of its own, which can be cut for it alone."""
    book = PortBook(stack.folder / "vehicles" / "ports.json")
    vehicles = [_vehicle(stack, book, one, alone) for one in sorted(planned, key=lambda one: one.device)]
    _start(stack, [vehicle.broker for vehicle in vehicles])
    _start(stack, [vehicle.agent for vehicle in vehicles])
    return vehicles


def _start(stack: LocalStack, servers: Iterable[DaemonProcess | MosquittoBroker]) -> None:
    waiting = list(servers)
    for server in waiting:
        stack.add(server, wait=False)
    for server in waiting:
        server.wait()


def _vehicle(stack: LocalStack, book: PortBook, planned: ScenarioVehicle, alone: str) -> DemoVehicle:
    device, region = planned.device, planned.region
    folder = stack.folder / "vehicles" / device
    folder.mkdir(parents=True, exist_ok=True)
    # A vehicle's broker keeps whatever its agent has not taken yet: what it dropped would be lost without an id.
    broker = MosquittoBroker(device, folder / "broker", settings=MosquittoSettings(), ports=book)
    uplink = stack.links[region]
    if device == alone:
        links = CuttableLinks(folder / "link", {device: uplink.port}, name=f"link-{device}", ports=book)
        stack.add(links)
        uplink = links.links[device]
    config = folder / "agent.toml"
    # It shows its certificate to the region's broker alone; the vehicle's own is on its loopback.
    config.write_text(
        _agent_toml(planned.sender, region, broker.port, uplink.port, folder / "buffer")
        + _enrolment_toml(stack, region, token_file(stack, device))
    )
    agent = DaemonProcess.python(
        f"edge-agent-{device}",
        "edge_agent",
        ["run", "--config", str(config)],
        folder / "agent",
        healthy_when=lambda: has_buffer(config),
    )
    return DemoVehicle(device, region, broker, agent, config, uplink if device == alone else None)


def has_buffer(config: Path) -> bool:
    """Whether the agent with this configuration has begun its buffer: from then on it can be asked what it holds."""
    try:
        read_status(load(AgentSettings, config))
    except StoreError:
        return False
    return True


def _agent_toml(sender: tuple[str, str], region: str, broker_port: int, uplink_port: int, stream: Path) -> str:
    tenant, device = sender
    return f"""[device]
id = "{device}"
tenant = "{tenant}"

[intake]
port = {broker_port}

[buffer]
path = "{stream}"
prune_delay_s = {_PRUNE_DELAY_S}

[drain]
heartbeat_s = {_HEARTBEAT_S}

[status]
port = 0

[[uplinks]]
region = "{region}"
host = "127.0.0.1"
port = {uplink_port}
backoff_max_s = 3
"""


def token_file(stack: LocalStack, device: str) -> Path:
    """Where a vehicle has its one-time token."""
    return stack.folder / "vehicles" / device / "token"


def certificate_of(vehicle: DemoVehicle) -> TlsFiles:
    """The certificate that a vehicle's agent got. Raises DemoError where it has none."""
    folder = certificate_folder(load(AgentSettings, vehicle.config))
    held = None if folder is None else folder.newest()
    if held is None:
        raise DemoError(f"{vehicle.device} has no certificate")
    ca = load(AgentSettings, vehicle.config).enrolment
    assert ca is not None, "it was enrolled"
    return TlsFiles(ca=ca.ca, certificate=held.path, key=held.path)


def _enrolment_toml(stack: LocalStack, region: str, token: Path) -> str:
    """How an agent gets its certificate, and whom its uplink trusts; nothing where the stack is insecure."""
    if stack.authority is None:
        return ""
    return f'''
[uplinks.tls]
ca = "{stack.authority.file}"

[enrolment]
port = {stack.enrolment[region].port}
host = "127.0.0.1"
ca = "{stack.authority.file}"
token_file = "{token}"
backoff_first_s = 1
backoff_max_s = 5
'''
