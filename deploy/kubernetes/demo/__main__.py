"""`python -m deploy.kubernetes.demo`: from an empty cluster to bills that equal the truth."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cloud_jobs.lake.tables import Lake
from cloud_jobs.terminal import Column, FittedTable
from deploy.demo.audit import (
    DemoBilling,
    Names,
    Verdict,
    audit_devices,
    audit_documents,
    audit_posted,
    audit_usage,
    quarantined_records,
    true_ledger,
)
from deploy.demo.plan import FAULTS, NOISE, write_topology
from deploy.demo.processes import DemoVehicle
from deploy.kubernetes.cluster.layout import Layout
from deploy.kubernetes.cluster.processes import ClusterError, Processes
from deploy.kubernetes.demo.acts import ACTS, Acts, Site, What
from deploy.kubernetes.demo.office import CENTRE, LAKE, OFFICE, REGION, Office
from deploy.kubernetes.demo.outside import Waiting, start, vehicles, way_in
from deploy.kubernetes.demo.tools import Namespace
from deploy.local import PortBook, empty
from deploy.local.errors import LocalStackError
from deploy.packages.__main__ import VERSION
from simulator import (
    BrokerAddress,
    PublishSettings,
    Scenario,
    SimulatorError,
    Summary,
    VehicleMessage,
    drive,
    generated_scenario,
    publish,
    with_two_tenants,
    write_folder,
)
from simulator.truth import Truth

ROOT = Path(__file__).parents[3]
_ACKNOWLEDGED_S = 120.0
_THROUGH_S = 300.0
_LOOK_S = 1.0
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass
class Demo:
    """One run in a namespace that does not exist yet."""

    layout: Layout
    folder: Path
    scenario: Scenario
    drive_s: float
    executors: bool
    acts: Acts
    began: float = field(default_factory=time.monotonic)
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.namespace = Namespace("waybill-demo", self.layout)
        self.site = Site(self.namespace, self.layout)
        self.names: Names = {one.sender: one.device for one in self.scenario.vehicles}
        self.nodes = [f"n{number}" for number in range(1, Processes.recorded(self.layout).nodes + 1)]
        self.tenants = sorted({one.tenant for one in self.scenario.vehicles})

    def say(self, text: str) -> None:
        console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}")

    def run(self) -> bool:
        """Install, drive, bill and compare; whether each verdict holds. Raises ClusterError, LocalStackError."""
        *others, last = self.nodes
        self.set_aside("cordon", *others)
        self._install_pulsar()
        self.set_aside("uncordon", *others)
        self.set_aside("cordon", last)
        office = Office(self.namespace, self.folder / "office", self.tenants)
        self._install(office)
        with ExitStack() as ended:
            fleet, waiting, summary = self._drive(office, ended)
            lake = self._wait_until_through(fleet, summary)
        self._bill(office)
        self._compare(lake, fleet, waiting)
        table = FittedTable(Column("what", folds=True), Column("found", folds=True), Column("holds", right=True))
        for what, found, holds in self.verdicts:
            table.add(what, found, "yes" if holds else "NO")
        console.print(table)
        return all(one.holds for one in self.verdicts)

    def set_aside(self, verb: str, *nodes: str) -> None:
        """Cordon or uncordon nodes, where Pulsar is spared."""
        if self.acts.spares_pulsar:
            self.namespace.kubectl(verb, *nodes)

    def _install_pulsar(self) -> None:
        self.namespace.create()
        self.say("installing two small Pulsar clusters with TLS, tokens and the topology")
        topology = write_topology(self.folder, self.scenario)
        command = [sys.executable, "-m", "deploy.kubernetes.pulsar", self.namespace.name, str(self.folder / "office")]
        done = subprocess.run(
            [*command, "--topology", str(topology), "--without", "us"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"Pulsar was not installed: {done.stdout}{done.stderr}")
        self.say("Pulsar eu and hq are ready, and the topology is applied")

    def _install(self, office: Office) -> None:
        self.namespace.apply(*office.secrets())
        write_folder(self.folder / "scenario", self.scenario)
        self.installed_at = time.monotonic()
        self.site.values = {
            REGION: office.region_values(),
            CENTRE: office.centre_values(executors=self.executors),
        }
        for release in self.site.values:
            self.site.helm("install", release)
        self.say(f"helm install {REGION} waybill-region, helm install {CENTRE} waybill-centre")
        self._open(office)
        for release in self.site.values:
            what = "statefulset,deployment" if release == REGION else "deployment"
            self.namespace.kubectl(
                "rollout", "status", what, "-l", f"app.kubernetes.io/instance={release}", "--timeout=300s"
            )
        self.say("each pod is ready")

    def _open(self, office: Office) -> None:
        """Start the office's pod, again where it ended with its node."""
        image = f"localhost/waybill-centre:{VERSION}"
        self.namespace.apply(*office.pod(image, f"{CENTRE}-centre", self._files()))
        self.namespace.kubectl("wait", "--for=condition=Ready", f"pod/{OFFICE}", "--timeout=120s")

    def _files(self) -> dict[str, str]:
        folder = self.folder / "scenario"
        files = {name: (folder / name).read_text(encoding="utf-8") for name in ("contracts.toml", "fences.geojson")}
        devices = [
            f'[[device]]\ntenant = "{tenant}"\ndevice = "{device}"\nregion = "{REGION}"\nstate = "expected"\n'
            for tenant, device in self.names
        ]
        return {**files, "devices.toml": "\n".join(devices)}

    def _drive(self, office: Office, ended: ExitStack) -> tuple[list[DemoVehicle], Waiting, Summary]:
        office.publish_reference()
        tokens = office.expect_devices()
        self.say(f"fences and contracts are published, {len(tokens)} vehicles are expected")
        book = PortBook(self.folder / "ports.json")
        entrances = way_in(self.layout, self.folder / "way-in", book)
        fleet = vehicles(self.scenario.vehicles, tokens, self.folder / "vehicles", office.authority.file, book)
        servers = [*entrances.values(), *(one.broker for one in fleet), *(one.agent for one in fleet)]
        for server in servers:
            ended.callback(server.stop)
        start([*entrances.values(), *(one.broker for one in fleet)])
        start([one.agent for one in fleet])
        self.say("vehicles with a broker and an agent each are ready, outside of the cluster")
        waiting = ended.enter_context(Waiting(fleet))
        brokers = {one.device: BrokerAddress("127.0.0.1", one.broker.port) for one in fleet}
        speed = PublishSettings(speedup=self.scenario.duration_s / self.drive_s, timeout_s=60)
        with (self.folder / "scenario" / "made.jsonl").open("w", encoding="utf-8") as journal:
            summary = publish(self._with_faults(drive(self.scenario)), brokers, speed, journal=journal)
        self.say(f"the drive is over: {summary.made:,} records made")
        return fleet, waiting, summary

    def _with_faults(self, messages: Iterable[VehicleMessage]) -> Iterator[VehicleMessage]:
        left = sorted(self.acts.at.items())
        for message in messages:
            while left and message.offset_s >= left[0][0] * self.scenario.duration_s:
                self.say(left.pop(0)[1](self.site))
            yield message
        for _, act in left:
            self.say(act(self.site))

    def _wait_until_through(self, fleet: list[DemoVehicle], summary: Summary) -> Lake:
        volume = self.namespace.kubectl("get", "pvc", f"{CENTRE}-centre", "-o", "jsonpath={.spec.volumeName}")
        path = self.namespace.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}")
        lake = Lake(Path(path) / Path(LAKE).name)
        end_us = int(DemoBilling(lake, self._period).stated_by.timestamp() * 1_000_000)

        def through() -> bool:
            coverage = {self.names.get((one.tenant, one.device)): found for one, found in lake.coverage().items()}
            received = sum(found.received.count for found in coverage.values())
            stated = sum(found.complete_until_us >= end_us for found in coverage.values())
            return received >= summary.made and stated == len(fleet) and all(one.drained for one in fleet)

        self._wait("records in the centre's table, and vehicles that stated that nothing is left", through)
        self.say(f"all {summary.made:,} records are in the centre's table")
        truth = Truth.from_folder(self.folder / "scenario")
        self._wait("usage equal to the truth", lambda: not audit_usage(lake, truth, self.names)[1])
        return lake

    @property
    def _period(self) -> str:
        return f"{self.scenario.period.start:%Y-%m}"

    def _bill(self, office: Office) -> None:
        def is_final() -> bool:
            closings = office.waybill("bill", "close", "--period", self._period)
            return bool(closings) and all(one["outcome"] == "final" for one in closings)

        self._open(office)
        self._wait("closings that are final", is_final)
        office.waybill("bill", "issue", "--period", self._period, "--by", "the demo")
        self.say(f"closed and issued {self._period}, in the pod {OFFICE}")

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + _THROUGH_S
        while not holds():
            if time.monotonic() > ends_at:
                raise ClusterError(f"{what}: not within {_THROUGH_S:.0f} s")
            time.sleep(_LOOK_S)

    def _compare(self, lake: Lake, fleet: list[DemoVehicle], waiting: Waiting) -> None:
        truth, billing = Truth.from_folder(self.folder / "scenario"), DemoBilling(lake, self._period)
        billing.close()
        agents: dict[str, tuple[str, dict[str, Any]]] = {one.device: (REGION, one.status()) for one in fleet}
        devices = audit_devices(billing, truth, agents, self.names)
        quarters, differing = audit_usage(lake, truth, self.names)
        lost, twice = sum(one.lost for one in devices), sum(one.unexpected for one in devices)
        assert waiting.first_at is not None, "records were acknowledged"
        first_s = waiting.first_at - self.installed_at
        made = sum(one.made for one in devices)
        self.verdicts += [
            Verdict("made = stored = forwarded = in the table", f"{made:,}", all(one.equal for one in devices)),
            Verdict("no record lost, none twice", f"{lost} lost, {twice} too many", not lost + twice),
            Verdict("nothing in quarantine", f"{quarantined_records(lake)}", not quarantined_records(lake)),
            Verdict("usage equal in every quarter of an hour", f"{quarters:,}, {differing} differ", not differing),
            *(
                Verdict(f"{one.name} equal to the last minor unit", one.gross, one.equal)
                for one in audit_documents(billing.register, true_ledger([truth]))
            ),
            *(
                Verdict(f"{one.payer} was asked for what it owes", one.amount, one.equal)
                for one in audit_posted(billing.register, truth)
            ),
            Verdict(
                "longest wait for an acknowledgement",
                f"{waiting.longest_s:.1f} s",
                waiting.longest_s <= self.acts.late_s,
            ),
            Verdict("first acknowledged batch after helm install", f"{first_s:.0f} s", first_s <= _ACKNOWLEDGED_S),
            *self.site.verdicts,
        ]


def main(
    *,
    vehicles_: Annotated[int, typer.Option("--vehicles", min=4, max=50, help="They drive in one region.")] = 6,
    drive_s: Annotated[float, typer.Option(help="Duration of the drive in seconds.")] = 60.0,
    executors: Annotated[bool, typer.Option("--executors", help="Each job of Spark with two executors.")] = False,
    what: Annotated[What, typer.Option(help="What happens on the way.")] = What.KILLS,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the namespace in the cluster.")] = False,
    folder: Annotated[Path, typer.Option(help="Keys, tokens and vehicles; emptied first.")] = Path("var/kubernetes"),
) -> None:
    """Vehicles outside, region and centre in the cluster that runs on this machine; pods are killed on the way.

    Exit status: 0 all results are correct, 1 a result differs, 2 could not run.

    Example: python -m deploy.kubernetes.demo --vehicles 6
    """
    scenario = generated_scenario(seed=7, vehicles=vehicles_, regions=(REGION,), faults=FAULTS, gps_noise=NOISE)
    layout = Layout.of_user()
    try:
        if Processes.recorded(layout).nodes < ACTS[what].nodes:
            raise ClusterError(
                f"{what} needs {ACTS[what].nodes} nodes: `python -m deploy.kubernetes.cluster up --nodes 3`"
            )
        empty(folder)
        demo = Demo(layout, folder.absolute(), with_two_tenants(scenario), drive_s, executors, ACTS[what])
        try:
            correct = demo.run()
        finally:
            demo.set_aside("uncordon", *demo.nodes)
            if not keep:
                demo.namespace.kubectl(
                    "delete", "namespace", demo.namespace.name, "--ignore-not-found", "--timeout=120s"
                )
    except (ClusterError, LocalStackError, SimulatorError, OSError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    raise typer.Exit(0 if correct else 1)


if __name__ == "__main__":
    typer.run(main)
