"""What happens in the demo, in order: drive, cut, kill, heal, wait, compute, compare."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import read_reference
from cloud_jobs.reference_publisher import publish as publish_reference
from deploy.demo.audit import Audit, audit
from deploy.demo.errors import DemoError
from deploy.demo.processes import (
    DemoVehicle,
    cloud_config,
    cloud_settings,
    start_gateways,
    start_ingest,
    start_vehicles,
    usage_job,
)
from deploy.local import DaemonProcess, LocalStack
from settings import Settings
from simulator import (
    BrokerAddress,
    Progress,
    PublishSettings,
    Scenario,
    Summary,
    drive,
    generated_scenario,
    publish,
    read_folder,
    read_recording,
    recorded_scenario,
    with_two_tenants,
    write_folder,
)
from simulator.drive import Track
from simulator.truth import Truth

REGIONS = ("eu", "us")
Say = Callable[[str], None]
_POLL_S = 0.5


class DemoSettings(Settings):
    """What is driven and what goes wrong. Moments of the faults are shares of the drive."""

    seed: int = 7
    vehicles: int = Field(default=20, ge=2, le=200)
    drive_s: float = Field(default=45.0, gt=5, le=3600, description="how long the drive takes on the wall clock")
    replay: Path | None = None
    cut_region: str = "eu"
    cut_from: float = Field(default=0.2, ge=0, le=1)
    cut_until: float = Field(default=0.75, ge=0, le=1)
    kill_at: float = Field(default=0.4, ge=0, le=1)
    restart_after_s: float = Field(default=4.0, ge=0)
    timeout_s: float = Field(default=300.0, gt=0, description="how long everything may take to come through")


def plan_drive(settings: DemoSettings) -> tuple[Scenario, Track | None]:
    """The fleet that drives and, where a recording is replayed, its track. Raises SimulatorError."""
    if settings.replay is None:
        made = generated_scenario(seed=settings.seed, vehicles=settings.vehicles, regions=REGIONS)
        return with_two_tenants(made), None
    replayed, track = recorded_scenario(read_recording(settings.replay), seed=settings.seed, regions=REGIONS)
    return with_two_tenants(replayed), track


@dataclass(slots=True)
class DemoScenario:
    """One run of the demo on a stack that was started. `say` is called with what happens, as it happens."""

    stack: LocalStack
    settings: DemoSettings
    planned: tuple[Scenario, Track | None]
    say: Say
    on_progress: Callable[[str, float, float], None] = lambda *_: None
    vehicles: list[DemoVehicle] = field(default_factory=list)
    peak_memory_bytes: int = 0

    def run(self) -> Audit:
        """Run it all and compare. Raises DemoError, LocalStackError."""
        write_folder(self._folder, *self.planned)
        scenario = read_folder(self._folder)[0]
        config = cloud_config(self.stack)
        settings = cloud_settings(config)
        settings.tables.create()
        ingest = start_ingest(self.stack, config)
        count = publish_reference(settings.service_urls, read_reference([self._folder]))
        self.say(f"published {count} fences, tariffs and accounts to their compacted topics")
        start_gateways(self.stack)
        self.say("gateways of both regions are connected")
        self.vehicles = start_vehicles(self.stack, scenario.vehicles)
        self.say(f"{len(self.vehicles)} vehicles, each with its own broker and agent, are ready")
        summary = self._drive(scenario)
        self.say(f"the drive is over: {summary.made:,} records made")
        self._wait_until_through(settings.tables, summary)
        ingest.stop()
        self._compute(usage_job(self.stack, config))
        self.say("comparing with the truth")
        agents = {vehicle.device: (vehicle.region, vehicle.status()) for vehicle in self.vehicles}
        names = {one.sender: one.device for one in scenario.vehicles}
        return audit(settings.tables, Truth.from_folder(self._folder), agents, names, datetime.now(UTC))

    @property
    def _folder(self) -> Path:
        return self.stack.folder / "scenario"

    def _drive(self, scenario: Scenario) -> Summary:
        """Publishes the drive in a thread of its own while the faults are made here."""
        share: list[float] = [0.0]
        outcome: queue.Queue[Summary | Exception] = queue.Queue()

        def report(progress: Progress) -> None:
            share[0] = progress.driven_s / scenario.duration_s

        def work() -> None:
            try:
                outcome.put(self._publish(scenario, report))
            except Exception as error:  # noqa: BLE001 - handed to the thread that waits for it
                outcome.put(error)

        threading.Thread(target=work, name="drive", daemon=True).start()
        self.say(f"driving {scenario.duration_s / 3600:.1f} hours in {self.settings.drive_s:.0f} seconds")
        faults = self._faults()
        ends = time.monotonic() + self.settings.drive_s + self.settings.timeout_s
        while outcome.empty():
            if time.monotonic() > ends:
                raise DemoError("the drive did not end in time: the vehicles' own brokers took no more messages")
            self._poll("driving", share[0], 1.0)
            while faults and share[0] >= faults[0][0]:
                faults.pop(0)[1]()
        for _, remaining in faults:
            remaining()
        result = outcome.get()
        if isinstance(result, Exception):
            raise DemoError(f"the drive failed: {result}") from result
        return result

    def _publish(self, scenario: Scenario, report: Callable[[Progress], None]) -> Summary:
        brokers = {vehicle.device: BrokerAddress("127.0.0.1", vehicle.broker.port) for vehicle in self.vehicles}
        speed = PublishSettings(speedup=scenario.duration_s / self.settings.drive_s, timeout_s=60)
        messages = drive(scenario, read_folder(self._folder)[1])
        with (self._folder / "made.jsonl").open("w", encoding="utf-8") as journal:
            return publish(messages, brokers, speed, journal=journal, on_progress=report)

    def _faults(self) -> list[tuple[float, Callable[[], None]]]:
        settings = self.settings
        link = self.stack.links[settings.cut_region]
        killed = next(one for one in self.vehicles if one.region != settings.cut_region)

        def cut() -> None:
            link.cut()
            self.say(f"cut the uplink of region {settings.cut_region}: its vehicles store and wait")

        def kill() -> None:
            killed.agent.kill()
            self.say(f"killed the agent of {killed.device} with SIGKILL")
            time.sleep(settings.restart_after_s)
            killed.agent.start()
            killed.agent.wait()
            self.say(f"the agent of {killed.device} is back")

        def heal() -> None:
            link.heal()
            self.say(f"healed the uplink of region {settings.cut_region}")

        return [(settings.cut_from, cut), (settings.kill_at, kill), (settings.cut_until, heal)]

    def _wait_until_through(self, lake: Lake, summary: Summary) -> None:
        """Until every agent is drained and the centre has all that was made."""
        ends = time.monotonic() + self.settings.timeout_s
        while True:
            waiting = [one for one in self.vehicles if not one.drained]
            received = _received(lake)
            self._poll("records in the centre's table", received, summary.made)
            if not waiting and received >= summary.made:
                self.say(f"all {received:,} records are in the centre's table")
                return
            if time.monotonic() > ends:
                self.say(f"not all came through: {received:,} of {summary.made:,}, {len(waiting)} agents not drained")
                return

    def _compute(self, job: DaemonProcess) -> None:
        """Runs the usage job to its end."""
        self.say("computing usage on Spark")
        job.start()
        ends = time.monotonic() + self.settings.timeout_s
        while job.pid is not None:
            if time.monotonic() > ends:
                job.stop()
                raise DemoError(_failed("the usage job did not end in time", job.last_lines()))
            self._poll("computing usage", 0, 0)
        if job.exit_status != 0:
            raise DemoError(_failed(f"the usage job ended with exit status {job.exit_status}", job.last_lines()))

    def _poll(self, what: str, done: float, total: float) -> None:
        """Shows progress, checks that no server has died, and waits a moment."""
        self.on_progress(what, done, total)
        self.stack.check()
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.stack.memory_bytes)
        time.sleep(_POLL_S)


def _received(lake: Lake) -> int:
    return sum(coverage.received.count for coverage in lake.coverage().values())


def _failed(what: str, lines: Sequence[str]) -> str:
    return "\n".join([what, *lines])
