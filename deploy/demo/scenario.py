"""The steps of the demo: drive, faults, close, decide, issue, a late batch, adjust, compare."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pulsar

from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.files import Signing, counts_text, read_reference
from cloud_jobs.reference.files import publish as publish_reference
from deploy.demo.alert_audit import AlertAudit, audit_stack_alerts
from deploy.demo.audit import (
    CLERK,
    Audit,
    DemoBilling,
    Names,
    audit_devices,
    audit_documents,
    audit_posted,
    audit_usage,
    ingested_records,
    prove,
    quarantined_records,
    reasons_not_final,
    true_ledger,
)
from deploy.demo.plan import DemoError, DemoPlan, DemoSettings
from deploy.demo.processes import (
    DemoVehicle,
    LockedOut,
    certificate_of,
    cloud_config,
    enrolled,
    expect_vehicles,
    job,
    lake_of,
    lock_out,
    start_alert_processes,
    start_console,
    start_gateways,
    start_vehicles,
    token_file,
)
from deploy.demo.watching import CanaryFindings, DemoCanary, FaultFindings
from deploy.local import LocalStack, stack_operator
from simulator import (
    BrokerAddress,
    Progress,
    PublishSettings,
    Scenario,
    SimulatorError,
    Summary,
    VehicleMessage,
    drive,
    publish,
    read_folder,
    write_folder,
)
from simulator.truth import Made, Truth
from waybill.settings import load

Say = Callable[[str], None]
Poll = Callable[[str, float, float], None]
_POLL_S: Final = 0.5


class Deadline:
    """Raises DemoError when `progress` has not changed for `timeout_s`."""

    def __init__(self, what: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._timeout_s, self._clock = what, timeout_s, clock
        self._last: float | None = None
        self._since_s = clock()

    def check(self, progress: float) -> None:
        if progress != self._last:
            self._last, self._since_s = progress, self._clock()
        if self._clock() - self._since_s > self._timeout_s:
            raise DemoError(
                f"{self._what}: no progress for {self._timeout_s:.0f} s; this machine is overloaded. Try "
                "fewer vehicles (--vehicles 5), stop other programs, or raise --timeout-s"
            )


# The drive and its faults: a cut uplink, a killed agent, and a vehicle without a link.

_DELIVERED_S = 30.0
"""The drive waits so long at most for a vehicle to deliver everything before its link is cut."""


@dataclass(slots=True, kw_only=True)
class DemoDrive:
    """One drive on a stack. `poll` is called several times a second while it lasts."""

    stack: LocalStack
    plan: DemoPlan
    folder: Path
    vehicles: Sequence[DemoVehicle]
    say: Say
    poll: Poll
    _findings: FaultFindings = field(init=False)
    _cut_s: float = field(init=False, default=0.0)
    _killed_s: float | None = field(init=False, default=None)

    @property
    def settings(self) -> DemoSettings:
        return self.plan.settings

    def run(self, scenario: Scenario) -> tuple[Summary, FaultFindings]:
        """Publishes the drive, and makes each fault at its share of it. Raises DemoError."""
        self._findings = FaultFindings(
            region=self.settings.cut_region,
            killed=self.plan.killed,
            silent=self.plan.silent,
            cut_at_least_s=self.settings.cut_at_least_s,
        )
        brokers = {vehicle.device: BrokerAddress("127.0.0.1", vehicle.broker.port) for vehicle in self.vehicles}
        speed = PublishSettings(speedup=scenario.duration_s / self.settings.drive_s, timeout_s=60)
        messages = self._with_faults(drive(scenario), scenario.duration_s)
        self.say(f"driving {scenario.duration_s / 3600:.1f} hours in {self.settings.drive_s:.0f} seconds")

        def report(progress: Progress) -> None:
            self.poll("driving, seconds", progress.driven_s, scenario.duration_s)
            self._restart_killed()

        with (self.folder / "made.jsonl").open("w", encoding="utf-8") as journal:
            try:
                summary = publish(messages, brokers, speed, journal=journal, on_progress=report)
            except SimulatorError as error:
                raise DemoError(f"the drive failed: {error}") from error
        while self._killed_s is not None:
            time.sleep(_POLL_S)
            self._restart_killed()
        return summary, self._findings

    def _with_faults(self, messages: Iterable[VehicleMessage], duration_s: float) -> Iterator[VehicleMessage]:
        """The messages. Each fault is made before the first message after its share of the drive, however late the
        drive is.
        """
        settings = self.settings
        faults = [
            (settings.kill_at, self._kill),
            (settings.cut_from, self._cut),
            (settings.silent_from, self._silence),
            (settings.cut_until, self._heal),
        ]
        faults.sort(key=lambda one: one[0])
        for message in messages:
            while faults and message.offset_s >= faults[0][0] * duration_s:
                faults.pop(0)[1]()
            yield message
        for _, make in faults:
            make()

    def _cut(self) -> None:
        region = self.settings.cut_region
        self.stack.links[region].cut()
        self._cut_s = time.monotonic()
        self.say(f"cut the uplink of region {region}: its vehicles store and wait")

    def _heal(self) -> None:
        region = self.settings.cut_region
        # A drive that is late hurries: it waits until the cut has lasted.
        time.sleep(max(0.0, self._cut_s + self.settings.cut_at_least_s - time.monotonic()))
        stored = sum(one.status()["depth_records"] for one in self.vehicles if one.region == region)
        self.stack.links[region].heal()
        self._findings.cut_s = time.monotonic() - self._cut_s
        self._findings.stored_while_cut = stored
        self.say(f"healed the uplink of region {region}")

    def _kill(self) -> None:
        killed = self._vehicle(self.plan.killed)
        killed.agent.kill()
        self._killed_s = time.monotonic()
        self.say(f"killed the agent of {killed.device} with SIGKILL")

    def _restart_killed(self) -> None:
        if self._killed_s is None or (dead_s := time.monotonic() - self._killed_s) < self.settings.restart_after_s:
            return
        killed = self._vehicle(self.plan.killed)
        killed.agent.start()
        self._findings.dead_s = dead_s
        self._killed_s = None
        self.say(f"the agent of {killed.device} is back")

    def _silence(self) -> None:
        vehicle = self._vehicle(self.plan.silent)
        assert vehicle.link is not None, "it was started with a link of its own"
        # Between two batches, so that the centre sees silence and no gap. A device of which nothing arrived yet could
        # not be decided about.
        ends = time.monotonic() + _DELIVERED_S
        while not (vehicle.drained and vehicle.status()["acknowledged"]) and time.monotonic() < ends:
            time.sleep(0.01)
        vehicle.link.cut()
        self._findings.is_silenced = True
        self.say(f"{vehicle.device} lost its link: it stays silent and stores its records")

    def _vehicle(self, device: str) -> DemoVehicle:
        return next(one for one in self.vehicles if one.device == device)


_GREEN_S = 60.0
"""So long a hop of the canary that is not green may take to become so: the machine has been busy."""
_JOB_S = 3600.0


class DemoScenario:
    """One run of the demo on a stack that was started. `say` gets each event; `on_progress` what is waited for."""

    def __init__(self, stack: LocalStack, plan: DemoPlan, say: Say, on_progress: Poll = lambda *_: None) -> None:
        self._stack, self._plan, self._say, self._on_progress = stack, plan, say, on_progress
        self._folder = stack.folder / "scenario"
        self._vehicles: list[DemoVehicle] = []
        self._next_check_s = 0.0

    def run(self) -> Audit:
        """Run it all and compare. Raises DemoError, LocalStackError, CloudError."""
        write_folder(self._folder, self._plan.scenario)
        scenario = read_folder(self._folder)
        config = cloud_config(self._stack)
        settings = load(CloudSettings, config)
        lake, names = settings.tables, {one.sender: one.device for one in scenario.vehicles}
        lake.create()
        canary = DemoCanary(self._stack, self._plan.canary_region, lake_of(self._stack))
        ingest = job(self._stack, config, "ingest")
        self._say(f"watch the drive in a browser: {start_console(self._stack, config)}")
        # Not waited for: what comes before Spark is up waits in Pulsar.
        self._stack.add(ingest, wait=False)
        self._publish_reference(settings, canary)
        start_gateways(self._stack)
        start_alert_processes(self._stack)
        self._say("a gateway and an alert process of each region are connected")
        canary.start()
        self._say(f"a canary drives in region {self._plan.canary_region}, and is checked at each hop up to the money")
        self._start_vehicles(scenario)
        summary, faults = self._drive(scenario)
        heard = {one.device for one in self._vehicles} - {self._plan.silent}
        self._wait_until_through(lake, names, summary, heard)
        self._compute(config, "usage")
        billing = DemoBilling(lake, self._plan.period)
        self._wait_until_stated(lake, names, billing, heard)
        reason = self._first_closing(billing, names)
        known = ingested_records(lake, names).get(self._plan.silent, Counter[Made]())
        self._say("closed again, and issued, as by `waybill bill issue`")
        billing.close()
        invoices = billing.issue()
        if not invoices:
            raise DemoError(f"no invoice was issued: {'; '.join(reasons_not_final(billing.closings))}")
        self._come_back(lake, names, summary, billing)
        # while the ingest runs: without it the table's hop would be red
        watched = self._finish_canary(canary)
        ingest.stop()
        self._compute(config, "usage")
        self._say("closed on the new snapshot, and adjusted, as by `waybill bill adjust`")
        billing.close()
        billing.adjust()
        proof = prove(billing, invoices[0].number)
        alerts = self._judge_alerts(lake, config)
        locked_out = self._lock_out(names)
        self._say("comparing with the truth")
        truth = Truth.from_folder(self._folder)
        agents = {vehicle.device: (vehicle.region, vehicle.status()) for vehicle in self._vehicles}
        usage_quarters, usage_differing = audit_usage(lake, truth, names)
        return Audit(
            devices=audit_devices(billing, truth, agents, names),
            reason=reason,
            documents=audit_documents(
                billing.register, true_ledger([truth.knowing({self._plan.silent: known}), truth])
            ),
            posted=audit_posted(billing.register, truth),
            quarantined=quarantined_records(lake),
            usage_quarters=usage_quarters,
            usage_differing=usage_differing,
            proof=proof,
            faults=faults,
            locked_out=locked_out,
            alerts=alerts,
            canary=watched,
        )

    def _publish_reference(self, settings: CloudSettings, canary: DemoCanary) -> None:
        versions = read_reference([self._folder, canary.write_reference()])
        signing = Signing(stack_operator(self._stack.folder).key, "contracts and fences of the demo")
        publish_reference(settings.service_urls, versions, self._stack.access("publisher"), signing=signing)
        counts = counts_text(Counter(version.kind for version in versions))
        self._say(f"published {counts} to their compacted topics, signed by the operator of the stack")

    def _start_vehicles(self, scenario: Scenario) -> None:
        expect_vehicles(self._stack, scenario.vehicles, lambda device: token_file(self._stack, device))
        self._say(f"{len(scenario.vehicles)} vehicles are expected, each with a one-time token")
        self._vehicles = start_vehicles(self._stack, scenario.vehicles, self._plan.silent)
        self._say(f"{len(self._vehicles)} vehicles, each with its own broker and agent, are ready")
        names = ["/".join(one.sender) for one in scenario.vehicles]
        count = enrolled(
            self._stack,
            names,
            lambda done: self._poll("vehicles that got their certificates", done, len(names)),
            self._plan.settings.timeout_s,
        )
        if count < len(names):
            raise DemoError(f"only {count} of {len(names)} vehicles got their certificates")
        self._say(f"{count} vehicles exchanged their tokens for certificates")

    def _lock_out(self, names: Names) -> LockedOut:
        """Revokes a vehicle that has nothing more to send."""
        vehicle = next(one for one in reversed(self._vehicles) if one.device != self._plan.silent)
        # The thief connects in its place: of two clients with one name each would end the other's session.
        vehicle.agent.stop()
        sender = _sender(names, vehicle.device)
        found = lock_out(self._stack, "/".join(sender), vehicle.region, certificate_of(vehicle))
        self._say(f"revoked, as by `waybill device revoke`: {found.found}")
        return found

    def _drive(self, scenario: Scenario) -> tuple[Summary, FaultFindings]:
        summary, faults = DemoDrive(
            stack=self._stack,
            plan=self._plan,
            folder=self._folder,
            vehicles=self._vehicles,
            say=self._say,
            poll=self._show,
        ).run(scenario)
        self._say(f"the drive is over: {summary.made:,} records made")
        return summary, faults

    def _first_closing(self, billing: DemoBilling, names: Names) -> str:
        """Closes, and decides about the silent vehicle; why the closing was not final."""
        self._say(f"closed {billing.period} for the first time, as `waybill bill close` does")
        reasons = reasons_not_final(billing.close())
        sender = _sender(names, self._plan.silent)
        found = [reason for reason in reasons if "/".join(sender) in reason]
        if not found:
            return ""
        silent = billing.certificates([sender])[sender]
        billing.decide(silent, f"{self._plan.silent} cannot be reached; what comes later is adjusted")
        self._say(f"decided by {CLERK}: {'/'.join(sender)} is closed until the period's end")
        return found[0]

    def _come_back(self, lake: Lake, names: Names, summary: Summary, billing: DemoBilling) -> None:
        vehicle = next(one for one in self._vehicles if one.device == self._plan.silent)
        assert vehicle.link is not None, "it was started with a link of its own"
        waiting = vehicle.status()["depth_records"]
        vehicle.link.heal()
        self._say(f"{vehicle.device} is back, with {waiting:,} stored records")
        everyone = {one.device for one in self._vehicles}
        self._wait_until_through(lake, names, summary, everyone)
        self._wait_until_stated(lake, names, billing, everyone)

    def _wait_until_through(self, lake: Lake, names: Names, summary: Summary, devices: Collection[str]) -> None:
        """Until the agents of these vehicles are drained and the centre has all their records."""
        made = sum(summary.by_device[device] for device in devices)
        agents = [one for one in self._vehicles if one.device in devices]

        def received() -> int:
            return sum(
                coverage.received.count
                for stream, coverage in lake.coverage().items()
                if names.get((stream.tenant, stream.device)) in devices
            )

        self._wait("records in the centre's table", received, made)
        self._wait("agents that delivered everything", lambda: sum(one.drained for one in agents), len(agents))
        self._say(f"all {made:,} records of {len(agents)} vehicles are in the centre's table")

    def _wait_until_stated(self, lake: Lake, names: Names, billing: DemoBilling, devices: Collection[str]) -> None:
        """Until these vehicles stated that nothing of the period is left: a minute after the last message."""
        end_us = int(billing.stated_by.timestamp() * 1_000_000)

        def stated() -> int:
            return sum(
                coverage.complete_until_us >= end_us
                for stream, coverage in lake.coverage().items()
                if names.get((stream.tenant, stream.device)) in devices
            )

        self._wait("vehicles that stated that nothing is left (a heartbeat a minute)", stated, len(devices))
        self._say(f"{len(devices)} vehicles stated that nothing of {billing.period} is left")

    def _judge_alerts(self, lake: Lake, config: Path) -> AlertAudit:
        self._compute(config, "geofence")
        self._compute(config, "verdicts")
        tenants = {one.tenant for one in self._plan.scenario.vehicles}
        try:
            found = audit_stack_alerts(self._stack, lake, tenants)
        except pulsar.PulsarException as error:
            raise DemoError(f"the alerts cannot be read: {error}") from error
        self._say(found.summary)
        return found

    def _finish_canary(self, canary: DemoCanary) -> CanaryFindings:
        found = canary.finish(lambda: self._poll("hops of the canary", 0, 0), _GREEN_S)
        self._say(f"the canary: {found.found}")
        return found

    def _compute(self, config: Path, name: str) -> None:
        """Runs a job of the centre to its end."""
        running = job(self._stack, config, name)
        self._say(f"computing {name}")
        running.start()
        ends = time.monotonic() + _JOB_S
        while running.pid is not None and time.monotonic() < ends:
            self._poll(f"computing {name}", 0, 0)
        status = running.exit_status
        running.kill()
        if status != 0:
            failed = f"the job {name} did not end, or with exit status {status}; its log is {running.log}"
            raise DemoError("\n".join([failed, *running.last_lines()]))

    def _wait(self, what: str, count: Callable[[], int], total: int) -> None:
        """Raises DemoError when the count stands still."""
        deadline = Deadline(what, self._plan.settings.timeout_s)
        while (done := count()) < total:
            deadline.check(done)
            self._poll(what, done, total)

    def _poll(self, what: str, done: float, total: float) -> None:
        self._show(what, done, total)
        time.sleep(_POLL_S)

    def _show(self, what: str, done: float, total: float) -> None:
        """Shows progress, and checks now and then that no server has ended."""
        self._on_progress(what, done, total)
        if time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + _POLL_S
            self._stack.check()


def _sender(names: Names, device: str) -> TenantDevice:
    return TenantDevice(*next(sender for sender, name in names.items() if name == device))
