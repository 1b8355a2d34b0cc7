"""What happens in the demo, in order: drive, faults, close, decide, issue, a late batch, adjust, compare."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rich.console import RenderableType

from cloud_jobs.billing.register.terminal import closings_table, documents_table
from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.files import Signing, counts_text, read_reference
from cloud_jobs.reference.files import publish as publish_reference
from deploy.demo.audit import (
    CLERK,
    Audit,
    DemoBilling,
    DemoProof,
    Names,
    audit,
    ingested_records,
    noise_findings,
    not_final,
    prove,
)
from deploy.demo.plan import DemoError, DemoPlan, DemoSettings
from deploy.demo.processes import (
    DemoVehicle,
    LockedOut,
    certificate_of,
    cloud_config,
    cloud_settings,
    enrolled,
    expect_vehicles,
    lake_of,
    lock_out,
    spatial_jobs,
    start_gateways,
    start_ingest,
    start_vehicles,
    token_file,
    usage_job,
)
from deploy.demo.watching import (
    AlertFindings,
    AlertWatch,
    CanaryFindings,
    DemoCanary,
    FaultFindings,
    FaultSchedule,
    find_verdicts,
    start_alert_processes,
)
from deploy.local import DaemonProcess, LocalStack, LocalStackError, stack_operator
from simulator import (
    BrokerAddress,
    Progress,
    PublishSettings,
    Scenario,
    Summary,
    drive,
    publish,
    read_folder,
    write_folder,
)
from simulator.truth import Made, Truth

# Limits without progress: slow machines do not fail.


class Standstill:
    """Since when nothing has changed. `timeout_s`: so long that may last."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._last: Hashable = None
        self._since_s = clock()

    def is_over(self, progress: Hashable) -> bool:
        """Whether `progress` is what it was for longer than that."""
        if progress != self._last:
            self._last, self._since_s = progress, self._clock()
        return self._clock() - self._since_s > self._timeout_s


# The drive and its faults: a cut uplink, a killed agent, and a vehicle without a link.

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
        messages = faults.through(drive(scenario), scenario.duration_s)
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


_SETTLED_POLL_S = 0.5
_WORK_S = 10.0
"""Of processor time, that a job has to take to be at work: a JVM that does nothing takes less."""
_GREEN_S = 60.0
"""So long a hop of the canary that is not green may take to become so: the machine has been busy."""


@dataclass(slots=True)
class DemoScenario:
    """One run of the demo on a stack that was started. `say` is called with what happens, as it happens."""

    stack: LocalStack
    plan: DemoPlan
    say: Say
    show: Callable[[RenderableType], None] = lambda _: None
    on_progress: Callable[[str, float, float], None] = lambda *_: None
    vehicles: list[DemoVehicle] = field(default_factory=list)
    peak_memory_bytes: int = 0
    watch: AlertWatch | None = None
    canary: DemoCanary | None = None
    ingest: DaemonProcess | None = None

    def run(self) -> Audit:
        """Run it all and compare. Raises DemoError, LocalStackError, CloudError."""
        try:
            return self._run()
        except (CloudError, DemoError, LocalStackError):
            self._show_so_far()
            raise
        finally:
            # a client of Pulsar whose thread still reads ends this process, whatever its exit status was to be
            if self.watch is not None:
                self.watch.close()

    def _run(self) -> Audit:
        write_folder(self._folder, self.plan.scenario)
        scenario = read_folder(self._folder)
        config = cloud_config(self.stack)
        settings = cloud_settings(config)
        lake, names = settings.tables, {one.sender: one.device for one in scenario.vehicles}
        lake.create()
        canary = DemoCanary(self.stack, self.plan.canary_region, lake_of(self.stack))
        self.ingest = ingest = start_ingest(self.stack, config)
        self._publish_reference(settings, canary)
        start_gateways(self.stack)
        self.say("gateways of both regions are connected")
        start_alert_processes(self.stack)
        self.watch = AlertWatch(self.stack)
        self.say("an alert process in each region looks at every fix, and the alerts are read at the centre")
        canary.start()
        self.canary = canary
        self.say(f"a canary drives in region {self.plan.canary_region}, and is looked for at each hop up to the money")
        self._start_vehicles(scenario)
        summary, faults = self._drive(scenario)
        heard = {one.device for one in self.vehicles} - {self.plan.silent}
        self._wait_until_through(lake, names, summary, heard)
        self._compute(usage_job(self.stack, config), "usage")
        billing = DemoBilling(lake, self.plan.period)
        self._wait_until_stated(lake, names, billing, heard)
        reason = self._first_closing(billing, names)
        known = ingested_records(lake, names).get(self.plan.silent, Counter[Made]())
        self._issue(billing)
        self._come_back(lake, names, summary, billing)
        # while the ingest runs: without it the table's hop would be red
        watched = self._finish_canary(canary)
        ingest.stop()
        self._compute(usage_job(self.stack, config, "usage-late"), "usage")
        self._adjust(billing)
        proof = self._prove(billing)
        alerts = self._judge_alerts(lake, config)
        locked_out = self._lock_out(names)
        self.say("comparing with the truth")
        truth = Truth.from_folder(self._folder)
        agents = {vehicle.device: (vehicle.region, vehicle.status()) for vehicle in self.vehicles}
        states = [truth.knowing({self.plan.silent: known}), truth]
        found = audit(billing, states, agents, names, reason, proof)
        noise = noise_findings(truth, Truth.from_folder(self._folder, "driven.jsonl", "every_fix"))
        return replace(found, faults=faults, locked_out=locked_out, alerts=alerts, canary=watched, noise=noise)

    def _show_so_far(self) -> None:
        """What was found before it failed: it is right whatever came after it."""
        if self.watch is not None and (found := self.watch.alerts):
            kinds = Counter(alert.kind for alert, _ in found.values())
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            self.say(f"so far: {len(found)} alerts at the centre: {counts}")
        if self.canary is not None:
            self.say(f"so far: the canary: {self.canary.newest().found}")

    @property
    def _folder(self) -> Path:
        return self.stack.folder / "scenario"

    def _publish_reference(self, settings: CloudSettings, canary: DemoCanary) -> None:
        versions = read_reference([self._folder, canary.write_reference()])
        signing = Signing(stack_operator(self.stack.folder).key, "contracts and fences of the demo")
        publish_reference(settings.service_urls, versions, self.stack.access("publisher"), signing=signing)
        counts = counts_text(Counter(version.kind for version in versions))
        self.say(f"published {counts} to their compacted topics, signed by the operator of the stack")

    def _start_vehicles(self, scenario: Scenario) -> None:
        if self.stack.access_daemons:
            expect_vehicles(self.stack, scenario.vehicles, lambda device: token_file(self.stack, device))
            self.say(f"{len(scenario.vehicles)} vehicles are expected, each with a one-time token")
        self.vehicles = start_vehicles(self.stack, scenario.vehicles, self.plan.silent)
        self.say(f"{len(self.vehicles)} vehicles, each with its own broker and agent, are ready")
        if not self.stack.access_daemons:
            return
        names = ["/".join(one.sender) for one in scenario.vehicles]
        count = enrolled(
            self.stack,
            names,
            lambda done: self._poll("vehicles that got their certificates", done, len(names)),
            self.plan.settings.timeout_s,
        )
        if count < len(names):
            raise DemoError(f"only {count} of {len(names)} vehicles got their certificates")
        self.say(f"{count} vehicles got their certificates, each for its token")

    def _lock_out(self, names: Names) -> LockedOut | None:
        """Revokes a vehicle that has nothing more to say; None: everybody may connect anyway."""
        if not self.stack.access_daemons:
            return None
        vehicle = next(one for one in reversed(self.vehicles) if one.device != self.plan.silent)
        # Who took its certificate comes in its place: of two with one name each would end the other's session.
        vehicle.agent.stop()
        sender = _sender(names, vehicle.device)
        found = lock_out(self.stack, "/".join(sender), vehicle.region, certificate_of(vehicle))
        self.say(f"revoked, as by `waybill device revoke`: {found.found}")
        return found

    def _drive(self, scenario: Scenario) -> tuple[Summary, FaultFindings]:
        summary, faults = DemoDrive(
            stack=self.stack,
            plan=self.plan,
            folder=self._folder,
            vehicles=self.vehicles,
            say=self.say,
            poll=self._poll,
        ).run(scenario)
        self.say(f"the drive is over: {summary.made:,} records made")
        return summary, faults

    def _first_closing(self, billing: DemoBilling, names: Names) -> str:
        """Closes, and answers for the vehicle that keeps it from being final; why it was not."""
        self.say(f"{billing.period} is closed for the first time, as by `waybill bill close`")
        open_ones = not_final(billing.close())
        self.show(closings_table(billing.closings))
        sender = _sender(names, self.plan.silent)
        silent = billing.certificates([sender])[sender]
        found = [reason for one in open_ones for reason in one.reasons if "/".join(sender) in reason]
        if not found:
            return ""
        billing.decide(silent, f"{self.plan.silent} cannot be reached; what comes later is adjusted")
        self.say(f"decided by {CLERK}: {'/'.join(sender)} is closed until the period's end")
        return found[0]

    def _issue(self, billing: DemoBilling) -> None:
        self.say("closed again, and issued, as by `waybill bill issue`")
        billing.close()
        self.show(closings_table(billing.closings))
        billing.invoices = billing.issue()
        self.show(documents_table(billing.invoices))

    def _come_back(self, lake: Lake, names: Names, summary: Summary, billing: DemoBilling) -> None:
        vehicle = next(one for one in self.vehicles if one.device == self.plan.silent)
        assert vehicle.link is not None, "it was started with a link of its own"
        waiting = vehicle.status()["depth_records"]
        vehicle.link.heal()
        self.say(f"{vehicle.device} is back, with {waiting:,} records that nobody had heard of")
        everyone = {one.device for one in self.vehicles}
        self._wait_until_through(lake, names, summary, everyone)
        self._wait_until_stated(lake, names, billing, everyone)

    def _adjust(self, billing: DemoBilling) -> None:
        self.say("closed on the new snapshot, and adjusted, as by `waybill bill adjust`")
        billing.close()
        self.show(closings_table(billing.closings))
        notes = billing.adjust()
        if notes:
            self.show(documents_table(notes))
        else:
            self.say("nothing to adjust: what came late changes no amount")

    def _prove(self, billing: DemoBilling) -> DemoProof | None:
        """All stations side by side, and a line of the first invoice taken apart; None: nothing was issued."""
        if not billing.invoices:
            return None
        self.say(f"{billing.period} is reconciled, and a line explained: the commands stand at the end")
        proof = prove(billing, billing.invoices[0].number)
        for table in proof.tables():
            self.show(table)
        return proof

    def _wait_until_through(self, lake: Lake, names: Names, summary: Summary, devices: Collection[str]) -> None:
        """Until the agents of some vehicles are drained and the centre has all that these made."""
        made = sum(summary.by_device[device] for device in devices)
        agents = [one for one in self.vehicles if one.device in devices]
        standstill, began = Standstill(self.plan.settings.timeout_s), time.monotonic()
        while True:
            waiting = [one for one in agents if not one.drained]
            received = _received(lake, names, devices)
            self._poll("records in the centre's table", received, made)
            if not waiting and received >= made:
                self.say(f"all {received:,} records of {len(agents)} vehicles are in the centre's table")
                return
            # on a busy machine Spark works for minutes before its first commit
            worked = self._worked(self.ingest) if self.ingest is not None and not received else 0
            is_late = time.monotonic() - began > self.plan.settings.job_s
            if standstill.is_over((received, len(waiting), worked)) or is_late:
                self.say(f"not all came through: {received:,} of {made:,}, {len(waiting)} agents not drained")
                return

    def _wait_until_stated(self, lake: Lake, names: Names, billing: DemoBilling, devices: Collection[str]) -> None:
        """Until vehicles stated that nothing of the period is left: their agents do when nothing came for a minute."""
        end_us = int(billing.stated_by.timestamp() * 1_000_000)
        standstill = Standstill(self.plan.settings.timeout_s)
        while True:
            stated = sum(
                coverage.complete_until_us >= end_us
                for stream, coverage in lake.coverage().items()
                if names.get((stream.tenant, stream.device)) in devices
            )
            self._poll("vehicles that stated that nothing is left (a heartbeat a minute)", stated, len(devices))
            if stated >= len(devices):
                self.say(f"{stated} vehicles stated that nothing of {billing.period} is left")
                return
            if standstill.is_over(stated):
                self.say(f"only {stated} of {len(devices)} vehicles stated that nothing is left")
                return

    def _judge_alerts(self, lake: Lake, config: Path) -> AlertFindings:
        """The centre's events, and the verdict on each alert."""
        assert self.watch is not None, "it was started with the gateways"
        self.watch.close()
        for job, what in zip(spatial_jobs(self.stack, config), ("events at fences", "verdicts on alerts"), strict=True):
            self._compute(job, what)
        found = find_verdicts(lake, self.watch.alerts)
        self.say(
            f"{found.found}; at the centre {found.centre_ms[0]} ms after their batches were in the "
            f"region's topic (p99 {found.centre_ms[1]})"
        )
        return found

    def _finish_canary(self, canary: DemoCanary) -> CanaryFindings:
        """What the canary says of each hop, before anything is stopped."""
        found = canary.finish(lambda: self._poll("hops of the canary", 0, 0), _GREEN_S)
        self.say(f"the canary: {found.found}")
        return found

    def _compute(self, job: DaemonProcess, what: str) -> None:
        """Runs a job to its end."""
        settings, began = self.plan.settings, time.monotonic()
        self.say(f"computing {what}")
        job.start()
        standstill = Standstill(settings.timeout_s)
        while job.pid is not None:
            if standstill.is_over(self._worked(job)):
                job.stop()
                raise DemoError(_stuck(what, f"did no work for {settings.timeout_s:.0f} s", job))
            if time.monotonic() - began > settings.job_s:
                job.stop()
                raise DemoError(_stuck(what, f"was not ready after {settings.job_s:.0f} s", job))
            self._poll(f"computing {what}", 0, 0)
        if job.exit_status != 0:
            failed = f"{what}: the job ended with exit status {job.exit_status}; its log is {job.log}"
            raise DemoError("\n".join([failed, *job.last_lines()]))

    def _worked(self, job: DaemonProcess) -> int:
        """What a job has done, by processor time: its own, and that of the workers where there are some."""
        workers = self.stack.spark.workers if self.stack.spark else ()
        return int(sum(one.cpu_s for one in (job, *workers)) / _WORK_S)

    def _poll(self, what: str, done: float, total: float) -> None:
        """Shows progress, checks that no server has died, and waits a moment."""
        self.on_progress(what, done, total)
        if self.watch is not None and (news := self.watch.news()):
            self.say(news)
        self.stack.check()
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.stack.memory_bytes)
        time.sleep(_SETTLED_POLL_S)


def _received(lake: Lake, names: Names, devices: Collection[str]) -> int:
    return sum(
        coverage.received.count
        for stream, coverage in lake.coverage().items()
        if names.get((stream.tenant, stream.device)) in devices
    )


def _sender(names: Names, device: str) -> TenantDevice:
    return TenantDevice(*next(sender for sender, name in names.items() if name == device))


def _stuck(what: str, how: str, job: DaemonProcess) -> str:
    # the last lines of Spark's log say nothing of a machine that is too busy
    return (
        f"{what}: the job {how}, and was ended: this machine has too much to do. Try it with fewer vehicles "
        f"(--vehicles 5), with nothing else running, or with more patience (--timeout-s); its log is {job.log}"
    )
