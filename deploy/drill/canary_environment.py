"""A region, a centre and a canary on the local stack, each part as an operator runs it and as it can be killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from cloud_jobs.config import CloudSettings
from cloud_jobs.reference.files import Signing, publish, read_reference
from deploy.canary.config import CanarySettings
from deploy.canary.errors import CanaryNotRunning
from deploy.canary.hops import Hop
from deploy.canary.probe_at_hop import HopColour
from deploy.canary.reference_texts import contracts_text, fence_text, write_reference
from deploy.canary.status import CanaryStatus, read_canary_status
from deploy.demo.guarding import ExpectedDevice, expect_devices
from deploy.demo.processes import gateway_process
from deploy.drill.errors import DrillError
from deploy.local import DaemonProcess, LocalStack, PortBook, stack_operator
from deploy.local.alert_process import alert_process
from deploy.local.canary_settings import CANARY_TENANT, StackCanary, canary_settings
from deploy.local.stack import DEFAULT_TOPOLOGY
from waybill.settings import load

__all__ = ["REGION", "CanaryEnvironment", "canary_environment", "small_topology"]

REGION: Final = "eu"
_POLL_S: Final = 0.5
_FOLLOWED_S: Final = 4.0
"""The pause between two runs of the jobs that follow."""
_JOBS: Final = {
    "ingest": ((), (Hop.TABLE, Hop.COVERAGE)),
    "geofence": (("--follow",), (Hop.EVENT,)),
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

[geofence]
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
                limits={"table": 25, "event": 35, "usage": 35, "rated": 20},
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
