"""`waybill drill canary`: faults on purpose, each of which has to be red at its own hop, and green after the repair."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from cloud_jobs.config import CloudSettings
from cloud_jobs.reference.files import Signing, publish, read_reference
from deploy.canary.config import CanarySettings, Hop
from deploy.canary.errors import CanaryNotRunning
from deploy.canary.ledger import HopColour
from deploy.canary.reference import contracts_text, fence_text, write_reference
from deploy.canary.status import CanaryStatus, read_canary_status
from deploy.demo.processes import ExpectedDevice, expect_devices, gateway_process
from deploy.drill.environment import DrillError
from deploy.local import DaemonProcess, LocalStack, LocalStackError, PortBook, stack_operator
from deploy.local.stack import DEFAULT_TOPOLOGY
from deploy.local.stack_settings import CANARY_TENANT, StackCanary, alert_process, canary_settings
from waybill.settings import load

# A region, a centre and a canary whose parts can be killed.

REGION: Final = "eu"
_POLL_S: Final = 0.5
_FOLLOWED_S: Final = 4.0
"""The pause between two runs of the jobs that follow."""
_JOBS: Final = {
    "ingest": ((), (Hop.TABLE,)),
    "usage": (("--follow",), (Hop.USAGE, Hop.RATED)),
}
"""Each with its options, and the hops that it makes green."""
_BEGUN_S: Final = 600.0
"""A first run of Spark takes 20 s on two idle cores, and minutes on a machine that others share."""
_QUICK_JVM: Final = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class CanaryEnvironment:
    """What a canary is watched with. `processes`: by name, each of which can be killed and started again."""

    def __init__(self, stack: LocalStack, folder: Path, watched: Collection[Hop], say: Callable[[str], None]) -> None:
        self.stack, self.folder, self.say = stack, folder, say
        folder.mkdir(parents=True, exist_ok=True)
        self._ports = PortBook(folder / "ports.json")
        self.jobs_file = folder / "cloud.toml"
        self.jobs_file.write_text(self._jobs_text())
        self.jobs = load(CloudSettings, self.jobs_file)
        self.config = folder / "canary.toml"
        self.config.write_text(self._canary_text(watched))
        self.canary = load(CanarySettings, self.config)
        self.processes: dict[str, DaemonProcess] = {}
        self._watched = watched

    def start(self) -> None:
        """Starts gateway, alerts, canary and jobs, in this order; what is published is published before."""
        self.jobs.tables.create()
        self.publish_contracts()
        device = ExpectedDevice((CANARY_TENANT, self.canary.device), REGION, self._token_file)
        expect_devices(self.stack, [device], "is the canary of a drill")
        self._add("gateway", gateway_process(self.stack, REGION, self._ports.port("gateway")))
        if Hop.ALERT in self._watched:
            self._add("alerts", alert_process(self.stack, REGION))
        arguments = ["canary", "run", "--config", str(self.config)]
        self._add("canary", DaemonProcess.python("canary-eu", "waybill", arguments, self.folder / "canary"))
        for name, (more, hops) in _JOBS.items():
            if wanted := {*hops} & {*self._watched}:
                self._add(name, self._job(name, *more))
                # one after the other: the beginnings of several at once take minutes on a small machine
                self.wait_for(f"{name} is seen", partial(_are_green, wanted), _BEGUN_S)

    def stop(self) -> None:
        """Stops what was started, the canary first."""
        for process in reversed([*self.processes.values()]):
            self.stack.remove(process.name)
        self.processes.clear()

    def publish_contracts(self, edit: Callable[[str], str] = lambda text: text) -> None:
        """Publishes the canary's fence and contracts, with what `edit` makes of the latter's text."""
        out = self.folder / "reference"
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        write_reference(out, fence_text(self.canary), edit(contracts_text(self.canary, month)), replace=True)
        signing = Signing(stack_operator(self.stack.folder).key, "a drill")
        publish(self.jobs.service_urls, read_reference([out]), self.stack.access("publisher"), signing=signing)

    def status(self) -> CanaryStatus | None:
        """What the canary says now; None while it does not."""
        try:
            return read_canary_status(self.canary)
        except CanaryNotRunning:
            return None

    def wait_for(self, what: str, true: Callable[[CanaryStatus], bool], timeout_s: float) -> float:
        """After how many seconds it is true of the canary's status. Raises DrillError with what it says instead."""
        began, status = time.monotonic(), None
        while time.monotonic() - began < timeout_s:
            status = self.status()
            if status is not None and true(status):
                return time.monotonic() - began
            self.stack.check()
            time.sleep(_POLL_S)
        said = [f"{one.hop}: {one.colour} {one.reason}" for one in status.hops] if status else ["it does not answer"]
        lines = [*said, *self.processes["canary"].last_lines(5)]
        raise DrillError("\n".join([f"not within {timeout_s:.0f} s: {what}", *lines]))

    @property
    def _token_file(self) -> Path:
        return self.folder / "device.token"

    def _add(self, name: str, process: DaemonProcess) -> None:
        self.processes[name] = process
        self.stack.add(process, wait=name == "gateway")

    def _job(self, name: str, *more: str) -> DaemonProcess:
        command = [name, "--config", str(self.jobs_file), *more]
        return DaemonProcess.python(f"cloud-jobs-{name}", "cloud_jobs", command, self.folder / name, env=_QUICK_JVM)

    def _jobs_text(self) -> str:
        centre = self.stack.pulsar[self.stack.topology.centre]
        return f"""lake = "{self.folder / "lake"}"
checkpoints = "{self.folder / "checkpoints"}"
tenants = ["canary"]

[ingest]
topics = ["persistent://{{tenant}}/telemetry-{REGION}/batches"]

[usage]
interval_s = {_FOLLOWED_S}

[[clusters]]
name = "{self.stack.topology.centre}"
service_url = "{centre.service_url}"
admin_url = "{centre.admin_url}"

{stack_operator(self.stack.folder).reference_settings()}
[access]
{self.stack.access("jobs").as_toml()}
"""

    def _canary_text(self, watched: Collection[Hop]) -> str:
        return canary_settings(
            self.stack,
            StackCanary(
                region=REGION,
                folder=self.folder / "vehicle",
                token_file=self._token_file,
                status_port=self._ports.port("canary"),
                watched=[hop.value for hop in Hop if hop in watched],
                lake=str(self.folder / "lake"),
                lost_after_s=60,
                script={"fence_m": 100, "speed_mps": 40, "period_s": 10},
                limits={"table": 25, "usage": 35, "rated": 20},
            ),
        )


def small_topology(file: Path) -> Path:
    """The topology of the local stack with one region, written to a file: what is not watched needs no cluster."""
    text = DEFAULT_TOPOLOGY.read_text(encoding="utf-8")
    for other in ("[clusters.us]\n", '[regions.us]\ncluster = "us"\n'):
        assert other in text
        text = text.replace(other, "")
    file.write_text(text, encoding="utf-8")
    return file


def _are_green(hops: set[Hop], status: CanaryStatus) -> bool:
    return hops <= {*status.of(HopColour.GREEN)}


@contextmanager
def canary_environment(
    stack: LocalStack, folder: Path, watched: Collection[Hop], say: Callable[[str], None]
) -> Iterator[CanaryEnvironment]:
    """A canary that drives, with all that it is watched with; stopped on leaving."""
    environment = CanaryEnvironment(stack, folder, watched, say)
    try:
        environment.start()
        yield environment
    finally:
        environment.stop()


RED_WITHIN_S: Final = 60.0
_STEADY_S: Final = 600.0
_GIVEN_UP_S: Final = 150.0
_GREEN_FOR_S: Final = 20.0
"""So long all has to be green: what came in before a repair may be late only now, and is no fault of what follows."""
_SENT: Final = "unit_amount = 1.00"
_WRONG: Final = "unit_amount = 0.10"


class CanaryFault(StrEnum):
    """What is broken."""

    CUT_LINK = "cut-link"
    GATEWAY = "gateway"
    INGEST = "ingest"
    USAGE = "usage"
    TARIFF = "tariff"
    ALERTS = "alerts"


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a fault is made and repaired, and at which hop it has to be seen."""

    what: str
    hop: Hop
    make: Callable[[CanaryEnvironment], None]
    repair: Callable[[CanaryEnvironment], None]


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """After how many seconds the hop was red, which other hops were red meanwhile, and when all were green again.

    None: it was not. `reason`: why the hop was red, or what the canary said instead.
    """

    fault: CanaryFault
    what: str
    hop: Hop
    red_s: float | None
    others: tuple[Hop, ...]
    reason: str
    green_s: float | None

    @property
    def passed(self) -> bool:
        """Whether it was red in time and at its own hop alone, and all was green again."""
        is_seen = self.red_s is not None and self.red_s <= RED_WITHIN_S
        return is_seen and not self.others and self.green_s is not None


def run_faults(
    environment: CanaryEnvironment, faults: Sequence[CanaryFault], watched: Collection[Hop]
) -> list[FaultOutcome]:
    """One fault after the other; the last one is that which is not over after its repair, or in which a part ended by
    itself.

    Raises DrillError where not all is green before the first one.
    """
    outcomes: list[FaultOutcome] = []
    _wait_until_green(environment, {*watched})
    for fault in faults:
        outcomes.append(_run(environment, fault, {*watched}))
        # each fault begins from green, or the one before would be seen again
        if outcomes[-1].green_s is None:
            break
    return outcomes


def _run(environment: CanaryEnvironment, fault: CanaryFault, watched: set[Hop]) -> FaultOutcome:
    plan = _PLANS[fault]
    environment.say(f"every hop is green; {plan.what}")
    others: set[Hop] = set()

    def is_red(status: CanaryStatus) -> bool:
        red = {*status.of(HopColour.RED)}
        # until it is seen: what a repair does to the others is no fault of the canary's
        others.update(red - {plan.hop})
        return plan.hop in red

    plan.make(environment)
    try:
        red_s: float | None = environment.wait_for(f"{plan.hop} is red", is_red, _GIVEN_UP_S)
        reason = _reason(environment, plan.hop)
        environment.say(f"{plan.hop} is red after {red_s:.0f} s: {reason}")
    except (DrillError, LocalStackError) as error:
        red_s, reason = None, str(error)
        environment.say(reason)
    plan.repair(environment)
    try:
        green_s: float | None = _wait_until_green(environment, watched)
        environment.say(f"every hop is green {green_s:.0f} s after the repair")
    except (DrillError, LocalStackError) as error:
        green_s = None
        environment.say(str(error))
    return FaultOutcome(fault, plan.what, plan.hop, red_s, tuple(sorted(others)), reason, green_s)


def _reason(environment: CanaryEnvironment, hop: Hop) -> str:
    status = environment.status()
    return next((one.reason for one in status.hops if one.hop is hop), "") if status else ""


def _wait_until_green(environment: CanaryEnvironment, watched: set[Hop]) -> float:
    """After how many seconds every hop was green and stayed so."""
    began, since = time.monotonic(), list[float]()

    def stays_green(status: CanaryStatus) -> bool:
        now = time.monotonic()
        if not {*status.of(HopColour.GREEN)} >= watched:
            since.clear()
            return False
        since.append(now)
        return now - since[0] >= _GREEN_FOR_S

    environment.wait_for("every hop is green, and stays so", stays_green, _STEADY_S)
    return since[0] - began


def _links(environment: CanaryEnvironment) -> list[Any]:
    centre = environment.stack.topology.centre
    return [environment.stack.links[name] for name in (f"{REGION}->{centre}", f"{centre}->{REGION}")]


def _cut(environment: CanaryEnvironment) -> None:
    for link in _links(environment):
        link.cut()


def _heal(environment: CanaryEnvironment) -> None:
    for link in _links(environment):
        link.heal()


def _killed(name: str, what: str, hop: Hop) -> _Plan:
    """A process that is killed, and started again."""

    def make(environment: CanaryEnvironment) -> None:
        environment.processes[name].kill()

    def repair(environment: CanaryEnvironment) -> None:
        environment.processes[name].start()

    return _Plan(f"{what} is killed", hop, make, repair)


_PLANS: Final = {
    CanaryFault.CUT_LINK: _Plan("the link between region and centre is cut", Hop.CENTRE, _cut, _heal),
    CanaryFault.GATEWAY: _killed("gateway", "the gateway", Hop.REGION),
    CanaryFault.INGEST: _killed("ingest", "the ingest", Hop.TABLE),
    CanaryFault.USAGE: _killed("usage", "the Spark job of usage", Hop.USAGE),
    CanaryFault.TARIFF: _Plan(
        "a wrong tariff is published",
        Hop.RATED,
        lambda environment: environment.publish_contracts(lambda text: text.replace(_SENT, _WRONG)),
        lambda environment: environment.publish_contracts(),
    ),
    CanaryFault.ALERTS: _killed("alerts", "the alert process", Hop.ALERT),
}


def faults_at(watched: Collection[Hop]) -> tuple[CanaryFault, ...]:
    """The faults that are seen at some of the hops."""
    return tuple(fault for fault, plan in _PLANS.items() if plan.hop in watched)


def chosen_faults(faults: Collection[CanaryFault], watched: Collection[Hop]) -> tuple[CanaryFault, ...]:
    """What is broken, in the order asked for: without a choice whatever is seen at some of the hops.

    Raises DrillError where a fault would be made that no watched hop shows, and where there is none.
    """
    visible = faults_at(watched)
    for fault in faults:
        if fault not in visible:
            hop = _PLANS[fault].hop
            raise DrillError(f"--fault {fault}: it is seen at the hop {hop}, which is not watched; add --hop {hop}")
    if not (chosen := tuple(faults) or visible):
        raise DrillError(f"--hop {', '.join(watched)}: no fault is seen there; see `waybill drill canary --help`")
    return chosen


def faults_table(outcomes: Sequence[FaultOutcome]) -> Table:
    """Each fault, when it was seen, where, and when it was over."""
    table = Table(title="canary: each fault is seen at its own hop", title_justify="left", title_style="bold")
    for name in ("fault", "red at", "after", "others red", "green again", "holds"):
        table.add_column(name, justify="right" if name in {"after", "green again"} else "left", no_wrap=True)
    for one in outcomes:
        table.add_row(
            one.what,
            one.hop.value,
            _seconds(one.red_s),
            ", ".join(one.others) or "none",
            _seconds(one.green_s),
            Text("yes", style="green") if one.passed else Text("NO", style="bold red"),
        )
    table.caption, table.caption_justify = f"red has to be within {RED_WITHIN_S:.0f} s", "left"
    return table


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f} s"


def faults_as_json(outcomes: Sequence[FaultOutcome]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "fault": one.fault.value,
            "hop": one.hop.value,
            "red_s": None if one.red_s is None else round(one.red_s, 1),
            "others_red": [hop.value for hop in one.others],
            "reason": one.reason,
            "green_s": None if one.green_s is None else round(one.green_s, 1),
            "passed": one.passed,
        }
        for one in outcomes
    ]
