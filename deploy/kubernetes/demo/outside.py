"""Outside of the cluster: the way in to a Service of a node, and vehicles with their own broker and agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from deploy.demo.processes import DemoVehicle, agent_process
from deploy.kubernetes.cluster.layout import CONTROL_NAMESPACE, Layout
from deploy.kubernetes.demo.office import NODE_PORTS, REGION
from deploy.local import DaemonProcess, MosquittoBroker, MosquittoSettings, PortBook
from deploy.local.server import Server, port_is_open, wait_all
from deploy.local.stack_settings import agent_text
from simulator.scenario import ScenarioVehicle

_LOOK_S = 0.5
_START_S = 120.0


def way_in(layout: Layout, folder: Path, book: PortBook) -> dict[str, DaemonProcess]:
    """What a load balancer is elsewhere: for each port of devices one of this machine that leads to a node."""

    def process(name: str, node_port: int) -> DaemonProcess:
        port, enter = book.port(name), f"nsenter --net=/run/netns/{CONTROL_NAMESPACE} socat -"
        # the second node where the first does not answer
        ways = [f"{enter} TCP:{layout.node(number).address}:{node_port},connect-timeout=2" for number in (1, 2)]
        inside = " || ".join(ways).replace(":", "\\:").replace(",", "\\,")
        command = ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"SYSTEM:{inside}"]
        return DaemonProcess(f"way-in-{name}", command, folder / name, healthy_when=lambda: port_is_open(port))

    return {name: process(name, node_port) for name, node_port in NODE_PORTS.items()}


def vehicles(
    planned: Sequence[ScenarioVehicle], tokens: Mapping[str, str], folder: Path, ca: Path, book: PortBook
) -> list[DemoVehicle]:
    """Each vehicle's broker and agent, not started."""
    return [_vehicle(one, tokens["/".join(one.sender)], folder / one.device, ca, book) for one in planned]


def _vehicle(planned: ScenarioVehicle, token: str, folder: Path, ca: Path, book: PortBook) -> DemoVehicle:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token, encoding="ascii")
    (folder / "token").chmod(0o600)
    broker = MosquittoBroker(planned.device, folder / "broker", settings=MosquittoSettings(), ports=book)
    tenant, device = planned.sender
    text = agent_text(
        tenant=tenant,
        device=device,
        buffer=folder / "buffer",
        broker_port=broker.port,
        region=REGION,
        uplink_port=book.port("devices"),
        enrolment_port=book.port("enrolment"),
        ca=ca,
        token_file=folder / "token",
        status_port=0,
    )
    config = folder / "agent.toml"
    config.write_text(text, encoding="utf-8")
    agent = agent_process(planned.device, config)
    return DemoVehicle(planned.device, REGION, broker, agent, config)


def start(servers: Sequence[Server]) -> None:
    """Start servers and wait until each is healthy. Raises LocalStackError."""
    for server in servers:
        server.start()
    wait_all(servers, _START_S, lambda _: None)


@dataclass
class Waiting:
    """Watches how long records of a vehicle wait for their acknowledgement; a thread of its own.

    `longest_s`: the longest time in which a vehicle had records and none of them was acknowledged.
    """

    vehicles: Sequence[DemoVehicle]
    longest_s: float = 0.0
    first_at: float | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Waiting:
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._watching = self._pool.submit(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        # A watch that failed has seen no late acknowledgement, which must not look like none.
        self._watching.result()

    def _watch(self) -> None:
        since = {one.device: (0, time.monotonic()) for one in self.vehicles}
        while not self._ended.wait(_LOOK_S):
            for one in self.vehicles:
                status, now = one.status(), time.monotonic()
                acknowledged, began = since[one.device]
                if status["acknowledged"] and self.first_at is None:
                    self.first_at = now
                if status["acknowledged"] != acknowledged or not status["depth_records"]:
                    since[one.device] = status["acknowledged"], now
                else:
                    self.longest_s = max(self.longest_s, now - began)
