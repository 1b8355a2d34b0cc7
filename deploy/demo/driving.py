"""The drive and its faults: a region's uplink is cut, an agent is killed, and one vehicle loses its own link."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deploy.demo.errors import DemoError
from deploy.demo.faults import FaultFindings, FaultSchedule
from deploy.demo.plan import DemoPlan, DemoSettings
from deploy.demo.processes import DemoVehicle
from deploy.demo.standstill import Standstill
from deploy.local import LocalStack
from simulator import (
    BrokerAddress,
    Progress,
    PublishSettings,
    Scenario,
    Summary,
    drive,
    publish,
    read_folder,
)

Say = Callable[[str], None]
_DELIVERED_S = 30.0
"""The drive stands still meanwhile; the link is cut at once when all that came so far is delivered."""
_LATE: Final = 1.2
"""From how many times the time that was meant on it is said how long a drive took."""
_POLL_S: Final = 0.1


@dataclass(slots=True, kw_only=True)
class DemoDrive:
    """One drive on a stack. `poll` is called again and again while it lasts: it waits a moment."""

    stack: LocalStack
    plan: DemoPlan
    folder: Path
    vehicles: Sequence[DemoVehicle]
    say: Say
    poll: Callable[[str, float, float], None]
    _findings: FaultFindings = field(init=False)
    _cut_s: float | None = field(init=False, default=None)
    _killed_s: float | None = field(init=False, default=None)
    _is_restarting: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._findings = FaultFindings(
            region=self.settings.cut_region,
            killed=self.plan.killed,
            silent=self.plan.silent,
            cut_at_least_s=self.settings.cut_at_least_s,
        )

    @property
    def settings(self) -> DemoSettings:
        """What is driven, and how long."""
        return self.plan.settings

    def run(self, scenario: Scenario) -> tuple[Summary, FaultFindings]:
        """Publishes the drive in a thread of its own while the faults are made here. Raises DemoError."""
        faults = FaultSchedule(self._faults())
        try:
            return self._run(scenario, faults), self._findings
        finally:
            faults.end()

    def _run(self, scenario: Scenario, faults: FaultSchedule) -> Summary:
        newest = [Progress(0.0, 0, 0)]
        outcome: queue.Queue[Summary | Exception] = queue.Queue()

        def report(progress: Progress) -> None:
            newest[0] = progress

        def work() -> None:
            try:
                outcome.put(self._publish(scenario, faults, report))
            except Exception as error:  # noqa: BLE001 - handed to the thread that waits for it
                outcome.put(error)

        threading.Thread(target=work, name="drive", daemon=True).start()
        self.say(f"driving {scenario.duration_s / 3600:.1f} hours in {self.settings.drive_s:.0f} seconds")
        standstill = Standstill(self.settings.timeout_s)
        while outcome.empty():
            if standstill.is_over(newest[0]):
                raise DemoError(
                    f"the drive stood still for {self.settings.timeout_s:.0f} s: the vehicles' own brokers took no "
                    "more messages; --timeout-s gives it more time"
                )
            self.poll("driving", newest[0].driven_s / scenario.duration_s, 1.0)
            faults.make_due()
            self._restart_killed()
        result = outcome.get()
        if isinstance(result, Exception):
            raise DemoError(f"the drive failed: {result}") from result
        standstill = Standstill(self.settings.timeout_s)
        while self._killed_s is not None:
            if standstill.is_over(self._killed_s):
                raise DemoError(f"the agent of {self.plan.killed} did not come back after it was killed")
            self.poll("the agent that was killed comes back", 0, 0)
            self._restart_killed()
        if result.seconds > _LATE * self.settings.drive_s:
            self.say(f"the drive took {result.seconds:.0f} seconds: this machine is busy; the faults waited for it")
        return result

    def _publish(self, scenario: Scenario, faults: FaultSchedule, report: Callable[[Progress], None]) -> Summary:
        brokers = {vehicle.device: BrokerAddress("127.0.0.1", vehicle.broker.port) for vehicle in self.vehicles}
        speed = PublishSettings(speedup=scenario.duration_s / self.settings.drive_s, timeout_s=60)
        messages = faults.through(drive(scenario, read_folder(self.folder)[1]), scenario.duration_s)
        made, driven = (self.folder / name for name in ("made.jsonl", "driven.jsonl"))
        with made.open("w", encoding="utf-8") as journal, driven.open("w", encoding="utf-8") as places:
            return publish(messages, brokers, speed, journal=journal, driven=places, on_progress=report)

    def _faults(self) -> list[tuple[float, Callable[[], None]]]:
        """What goes wrong, each at its share of the drive."""
        settings = self.settings
        return [
            (settings.cut_from, self._cut),
            (settings.kill_at, self._kill),
            (settings.silent_from, self._silence),
            (settings.cut_until, self._heal),
        ]

    def _cut(self) -> None:
        region = self.settings.cut_region
        self.stack.links[region].cut()
        self._cut_s = time.monotonic()
        self.say(f"cut the uplink of region {region}: its vehicles store and wait")

    def _heal(self) -> None:
        region = self.settings.cut_region
        if self._cut_s is None:
            return
        # a drive that is behind hurries: it stands still until the cut was one
        while time.monotonic() - self._cut_s < self.settings.cut_at_least_s:
            time.sleep(_POLL_S)
        stored = sum(one.status()["depth_records"] for one in self.vehicles if one.region == region)
        self.stack.links[region].heal()
        lasted_s = time.monotonic() - self._cut_s
        self._findings = replace(self._findings, cut_s=lasted_s, stored_while_cut=stored)
        self.say(f"healed the uplink of region {region}")

    def _kill(self) -> None:
        killed = self._vehicle(self.plan.killed)
        killed.agent.kill()
        self._killed_s = time.monotonic()
        self.say(f"killed the agent of {killed.device} with SIGKILL")

    def _restart_killed(self) -> None:
        """Starts the agent that was killed when its time has come, and notes that it is back. The drive goes on."""
        if self._killed_s is None or (dead_s := time.monotonic() - self._killed_s) < self.settings.restart_after_s:
            return
        killed = self._vehicle(self.plan.killed)
        if not self._is_restarting:
            killed.agent.start()
            self._is_restarting = True
            self._findings = replace(self._findings, dead_s=dead_s)
        if killed.agent.check():
            self._killed_s = None
            self.say(f"the agent of {killed.device} is back")

    def _silence(self) -> None:
        vehicle = self._vehicle(self.plan.silent)
        assert vehicle.link is not None, "it was started with a link of its own"
        # Between two batches: of a gap the centre would know, and of silence it does not know what is behind it. On a
        # busy machine the agent may not have delivered anything yet, and nobody could decide about a device that
        # nothing was ever heard of.
        ends = time.monotonic() + _DELIVERED_S
        while not (vehicle.drained and vehicle.status()["acknowledged"]) and time.monotonic() < ends:
            time.sleep(0.01)
        vehicle.link.cut()
        self._findings = replace(self._findings, is_silenced=True)
        self.say(f"{vehicle.device} lost its link: from here on it is silent, and stores")

    def _vehicle(self, device: str) -> DemoVehicle:
        return next(one for one in self.vehicles if one.device == device)
