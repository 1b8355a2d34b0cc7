"""The processes of the demo: gateways, jobs of the centre, and each vehicle's broker and agent."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from deploy.demo.plan import DemoError
from deploy.local import (
    CuttableLink,
    CuttableLinks,
    DaemonProcess,
    LocalStack,
    MosquittoBroker,
    MosquittoSettings,
    PortBook,
    TlsFiles,
    free_port,
    http_health,
    stack_operator,
)
from deploy.local.server import port_is_open
from deploy.local.stack_settings import agent_text, alert_process, gateway_settings
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from edge_agent.errors import StoreError
from edge_agent.inspection import read_status
from simulator.folder import STREETS_FILE
from simulator.scenario import ScenarioVehicle
from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.daemon.tls import tls_context
from waybill.identity.claims import TOKEN_LIFETIME, make_token
from waybill.identity.operator_settings import OPERATOR_SETTINGS, read_operator_settings
from waybill.identity.registry import Claim, DeviceChange, DeviceState, expect, revoke
from waybill.identity.registry_session import RegistrySession, exactly
from waybill.settings import load

# Settings of the demo's processes, in the folders of a local stack.


def show_settings(folder: Path, name: str, config: Path) -> None:
    """Replaces the stack's example settings of that name, which has other ports, by those of the running process."""
    text = f"# Of the process that runs in this demo.\n{config.read_text(encoding='utf-8')}"
    # for its owner alone, as the example is: it names tokens
    replace_durably(folder / name, text.encode(), mode=0o600)


# Enrolment of the demo's vehicles by one-time tokens; one is revoked at the end.

_CONFIRM_S, _END_S, _TRY_S = 30.0, 30.0, 5.0
_OPERATOR = "the-demo"


@dataclass(frozen=True, slots=True)
class LockedOut:
    """The result of a revocation. `after_s`: until the vehicle's session ended; None: it did not."""

    device: str
    after_s: float | None
    refused_in: tuple[str, ...]
    regions: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether its session ended, and no region lets it in again."""
        return self.after_s is not None and self.refused_in == self.regions

    @property
    def found(self) -> str:
        ended = "its session did not end" if self.after_s is None else f"ended after {self.after_s:.2f} s"
        return f"{self.device}: {ended}, refused in {' and '.join(self.refused_in) or 'no region'}"


class ExpectedDevice(NamedTuple):
    """A device that is to enrol. `sender`: tenant and name. `token_file`: where its one-time token is written."""

    sender: tuple[str, str]
    region: str
    token_file: Path


def expect_vehicles(stack: LocalStack, vehicles: Iterable[ScenarioVehicle], token_file: Callable[[str], Path]) -> None:
    """Registers vehicles, each with a token in a file. Raises IdentityError."""
    devices = [ExpectedDevice(one.sender, one.region, token_file(one.device)) for one in vehicles]
    expect_devices(stack.folder, devices, "drives in the demo")


def expect_devices(folder: Path, devices: Iterable[ExpectedDevice], reason: str, by: str = _OPERATOR) -> None:
    """Registers devices as expected on the stack of a folder. Raises IdentityError, DemoError."""
    entries, now = [], datetime.now(UTC)
    change = DeviceChange(now, by, reason)
    for device in devices:
        token, file = make_token(), device.token_file
        file.parent.mkdir(parents=True, exist_ok=True)
        create_durably(file, token.text.get_secret_value().encode() + b"\n", mode=0o600)
        claim = Claim(id=token.id, password_hash=token.password_hash, until=now + TOKEN_LIFETIME)
        entries.append(expect(*device.sender, region=device.region, claim=claim, change=change))
    with _registry(folder) as registry:
        missing = registry.change({one.name: exactly(one) for one in entries}, _CONFIRM_S).missing
    if missing:
        raise DemoError(f"the access daemons of {', '.join(missing)} did not confirm the devices")


def enrolled(stack: LocalStack, names: Iterable[str], poll: Callable[[int], None], timeout_s: float) -> int:
    """The number of these devices with a certificate, once all have one or the time is over."""
    wanted, ends = list(names), time.monotonic() + timeout_s
    with _registry(stack.folder) as registry:
        while True:
            found = [one for one in map(registry.get, wanted) if one is not None]
            count = sum(one.state is DeviceState.ACTIVE and bool(one.certificates) for one in found)
            if count == len(wanted) or time.monotonic() > ends:
                return count
            poll(count)


def lock_out(stack: LocalStack, name: str, region: str, certificate: TlsFiles) -> LockedOut:
    """Opens a session with a device's certificate, as a thief would, revokes the device, and connects again in every
    region.
    """
    regions = tuple(sorted(stack.brokers))
    with (
        ThreadPoolExecutor(max_workers=1) as pool,
        _registry(stack.folder) as registry,
        open_session(stack.brokers[region].port, tls_context(certificate)) as session,
    ):
        entry = registry.get(name)
        assert entry is not None, "it was enrolled"
        # A thread of its own: the end is noticed when it comes, whatever the publication still waits for.
        ended = pool.submit(_ended_s, session)
        began = time.monotonic()
        registry.change({name: exactly(revoke(entry, DeviceChange(datetime.now(UTC), _OPERATOR, "stolen")))})
        ended_s = ended.result()
        after_s = None if ended_s is None else ended_s - began
    refused = tuple(one for one in regions if _is_refused(stack.brokers[one].port, certificate))
    return LockedOut(name, after_s, refused, regions)


def _registry(folder: Path) -> RegistrySession:
    return RegistrySession(read_operator_settings(folder / OPERATOR_SETTINGS))


def open_session(port: int, context: ssl.SSLContext, timeout_s: float = _END_S) -> ssl.SSLSocket:
    """An MQTT 5 session with a certificate. Raises OSError where the broker refuses it."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    # Nagle's algorithm would hold the CONNECT back until the handshake's last packet is acknowledged.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        session = context.wrap_socket(plain, server_hostname="127.0.0.1")
        body = b"\x00\x04MQTT\x05\x02" + struct.pack(">H", 600) + b"\x00\x00\x00"
        session.sendall(b"\x10" + bytes([len(body)]) + body)
        answer = session.recv(100)
    except OSError:
        plain.close()
        raise
    if len(answer) < 4 or answer[3]:
        session.close()
        raise ConnectionRefusedError(f"the broker answers {answer[:6]!r}")
    return session


def _ended_s(session: ssl.SSLSocket) -> float | None:
    """When the broker ended the session, by the monotonic clock; None: not within the time-out."""
    try:
        while session.recv(100):
            pass
    except TimeoutError:
        return None
    except OSError:
        pass
    return time.monotonic()


def _is_refused(port: int, files: TlsFiles) -> bool:
    # What another region hears of comes over a link: it may be a moment later.
    ends = time.monotonic() + _TRY_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            open_session(port, tls_context(files)).close()
            time.sleep(0.1)
            continue
        return True
    return False


_JOBS_AT_ONCE = 2
"""The ingest, which keeps its cores while it runs, and one other job."""


def start_gateways(stack: LocalStack) -> None:
    """Starts one gateway for each region; returns when all are connected."""
    book = PortBook(stack.folder / "gateways.json")
    gateways = {region: gateway_process(stack, region, book.port(region)) for region in stack.topology.regions}
    for region, gateway in gateways.items():
        show_settings(stack.folder, f"gateway-{region}.toml", gateway.folder / "gateway.toml")
        stack.add(gateway, wait=False)
    for gateway in gateways.values():
        gateway.wait()


REPLAYED_AGE_S = 3_000_000_000
"""The scenario drives on a fixed day, however long ago that is."""


def start_alert_processes(stack: LocalStack) -> None:
    """Starts one process for each region; returns when all are healthy."""
    processes = {region: alert_process(stack, region, max_age_s=REPLAYED_AGE_S) for region in stack.topology.regions}
    for region, process in processes.items():
        show_settings(stack.folder, f"alerts-{region}.toml", process.folder / "alerts.toml")
        stack.add(process, wait=False)
    for process in processes.values():
        process.wait()


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

[console]
basemap = "{stack.folder / "scenario" / STREETS_FILE}"
basemap_credit = "Streets: made by the simulator"
link_key = "{stack.folder / "console-link.key"}"

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
    """The location of the demo's lake: a folder, or the stack's bucket."""
    store = stack.object_store
    return str(stack.folder / "lake") if store is None else store.lake("demo")


def job(stack: LocalStack, config: Path, name: str) -> DaemonProcess:
    return DaemonProcess.python(
        f"cloud-jobs-{name}", "cloud_jobs", [name, "--config", str(config)], stack.folder / name
    )


def start_console(stack: LocalStack, config: Path) -> str:
    """Starts the console of these settings, without waiting for it; its address."""
    port = free_port()
    stack.add(
        DaemonProcess.python(
            "console",
            "waybill",
            ["console", "--config", str(config), "--port", str(port)],
            stack.folder / "console",
            healthy_when=lambda: port_is_open(port),
        ),
        wait=False,
    )
    return f"http://127.0.0.1:{port}/"


@dataclass(frozen=True, slots=True)
class DemoVehicle:
    """One vehicle's servers and the agent's settings. `device` is its name in the scenario.

    `link`: the vehicle's own link, before that of its region.
    """

    device: str
    region: str
    broker: MosquittoBroker
    agent: DaemonProcess
    config: Path
    link: CuttableLink | None = None

    def status(self) -> dict[str, Any]:
        """The status of the agent's buffer, as `edge-agent status --json` prints it."""
        return read_status(load(AgentSettings, self.config))

    @property
    def drained(self) -> bool:
        """Whether every stored record has been acknowledged."""
        status = self.status()
        return bool(status["depth_records"] == 0 and status["acknowledged"] >= status["head"])


def start_vehicles(stack: LocalStack, planned: Iterable[ScenarioVehicle], alone: str) -> list[DemoVehicle]:
    """Starts brokers, then agents. The vehicle `alone` gets a link of its own, which can be cut."""
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
    config.write_text(_agent_settings(stack, planned, broker.port, uplink.port))
    agent = agent_process(device, config)
    return DemoVehicle(device, region, broker, agent, config, uplink if device == alone else None)


def agent_process(device: str, config: Path) -> DaemonProcess:
    """A vehicle's agent, not started; its log is in the folder `agent` beside its settings."""
    return DaemonProcess.python(
        f"edge-agent-{device}",
        "edge_agent",
        ["run", "--config", str(config)],
        config.with_name("agent"),
        healthy_when=lambda: has_buffer(config),
    )


def has_buffer(config: Path) -> bool:
    """Whether the agent with these settings has created its buffer, so that its status can be read."""
    try:
        read_status(load(AgentSettings, config))
    except StoreError:
        return False
    return True


def _agent_settings(stack: LocalStack, planned: ScenarioVehicle, broker_port: int, uplink_port: int) -> str:
    (tenant, device), region = planned.sender, planned.region
    return agent_text(
        tenant=tenant,
        device=device,
        buffer=stack.folder / "vehicles" / planned.device / "buffer",
        broker_port=broker_port,
        region=region,
        uplink_port=uplink_port,
        enrolment_port=stack.enrolment[region].port,
        ca=stack.authority.file,
        token_file=token_file(stack, planned.device),
        status_port=0,
    )


def token_file(stack: LocalStack, device: str) -> Path:
    return stack.folder / "vehicles" / device / "token"


def certificate_of(vehicle: DemoVehicle) -> TlsFiles:
    """The certificate of a vehicle's agent. Raises DemoError where it has none."""
    folder = certificate_folder(load(AgentSettings, vehicle.config))
    held = None if folder is None else folder.newest()
    if held is None:
        raise DemoError(f"{vehicle.device} has no certificate")
    ca = load(AgentSettings, vehicle.config).enrolment
    assert ca is not None, "it was enrolled"
    return TlsFiles(ca=ca.ca, certificate=held.path, key=held.path)
