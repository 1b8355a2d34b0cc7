"""The drive and its faults: a region's uplink is cut, an agent is killed, and one vehicle loses its own link."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.errors import DemoError
from deploy.demo.plan import DemoPlan, DemoSettings
from deploy.demo.processes import DemoVehicle
from deploy.local import LocalStack
from simulator import (
    BrokerAddress,
    Progress,
    PublishSettings,
    Scenario,
    Summary,
    VehicleMessage,
    drive,
    publish,
    read_folder,
)

Say = Callable[[str], None]
_DELIVERED_S = 30.0
"""The drive stands still meanwhile; the link is cut at once when all that came so far is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDrive:
    """One drive on a stack. `poll` is called again and again while it lasts: it waits a moment."""

    stack: LocalStack
    plan: DemoPlan
    folder: Path
    vehicles: Sequence[DemoVehicle]
    say: Say
    poll: Callable[[str, float, float], None]

    @property
    def settings(self) -> DemoSettings:
        """What is driven, and how long."""
        return self.plan.settings

    def run(self, scenario: Scenario) -> Summary:
        """Publishes the drive in a thread of its own while the faults are made here. Raises DemoError."""
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
            self.poll("driving", share[0], 1.0)
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
        messages = self._until_silent(drive(scenario, read_folder(self.folder)[1]), scenario)
        with (self.folder / "made.jsonl").open("w", encoding="utf-8") as journal:
            return publish(messages, brokers, speed, journal=journal, on_progress=report)

    def _until_silent(self, messages: Iterable[VehicleMessage], scenario: Scenario) -> Iterator[VehicleMessage]:
        """The messages; between two of them a vehicle loses its link, at the same moment of the drive in every run."""
        at_s, is_silent = scenario.duration_s * self.settings.silent_from, False
        for message in messages:
            if not is_silent and message.offset_s >= at_s:
                self._silence()
                is_silent = True
            yield message
        if not is_silent:
            self._silence()

    def _faults(self) -> list[tuple[float, Callable[[], None]]]:
        """What goes wrong, each at its share of the drive, in the order of these."""
        settings = self.settings
        faults = [
            (settings.cut_from, self._cut),
            (settings.kill_at, self._kill),
            (settings.cut_until, self._heal),
        ]
        return sorted(faults, key=lambda fault: fault[0])

    def _cut(self) -> None:
        region = self.settings.cut_region
        self.stack.links[region].cut()
        self.say(f"cut the uplink of region {region}: its vehicles store and wait")

    def _heal(self) -> None:
        region = self.settings.cut_region
        self.stack.links[region].heal()
        self.say(f"healed the uplink of region {region}")

    def _kill(self) -> None:
        killed = next(one for one in self.vehicles if one.device == self.plan.killed)
        killed.agent.kill()
        self.say(f"killed the agent of {killed.device} with SIGKILL")
        time.sleep(self.settings.restart_after_s)
        killed.agent.start()
        killed.agent.wait()
        self.say(f"the agent of {killed.device} is back")

    def _silence(self) -> None:
        vehicle = next(one for one in self.vehicles if one.device == self.plan.silent)
        assert vehicle.link is not None, "it was started with a link of its own"
        # Between two batches: of a gap the centre would know, and of silence it does not know what is behind it. On a
        # busy machine the agent may not have delivered anything yet, and nobody could decide about a device that
        # nothing was ever heard of.
        ends = time.monotonic() + _DELIVERED_S
        while not (vehicle.drained and vehicle.status()["acknowledged"]) and time.monotonic() < ends:
            time.sleep(0.01)
        vehicle.link.cut()
        self.say(f"{vehicle.device} lost its link: from here on it is silent, and stores")
