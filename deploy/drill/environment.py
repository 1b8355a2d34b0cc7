"""Where drills run: four clusters, the ingest, the alert processes, and the waits that every drill needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pulsar
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, SubTreeFileSystem
from pydantic import Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from cloud_jobs.config import CloudSettings
from cloud_jobs.reference.files import Signing, make_version, publish
from deploy.demo.alert_audit import AlertAudit, audit_stack_alerts
from deploy.drill.findings import SNAPSHOT_PERIOD_S
from deploy.local import (
    DaemonProcess,
    LakePlace,
    LocalStack,
    PulsarCluster,
    PulsarSettings,
    StackSettings,
    stack_operator,
)
from deploy.local.stack_settings import alert_process
from geo.replication import AdminClient, admins
from geo.replication.topic_naming import split_partition
from geo.replication.verification import Observation, observe
from waybill.record import Position
from waybill.settings import Settings, load


class DrillError(Exception):
    """The drill cannot continue; the message says what it waited for."""


class Drill(StrEnum):
    """What is lost, or taken back."""

    HQ_LOSS = "hq-loss"
    REGION_LOSS = "region-loss"
    LINK_CUT = "link-cut"
    FAILBACK = "failback"


class Moment(StrEnum):
    """When the cluster is killed, relative to a micro-batch of the ingest."""

    ANY = "any"
    PLANNED = "planned"
    WRITTEN = "written"
    DONE = "done"


class DrillSettings(Settings):
    records_per_s: float = Field(default=400, gt=0, le=50_000, description="of each region's devices")
    moment: Moment = Moment.ANY
    lake: LakePlace = Field(LakePlace.FOLDER, description="`s3`: the tables are on an S3 server of the stack")


# The route of the drill's devices: a circle through a fence and over a gate. Pure.

_LATITUDE: Final = 53.44
_LONGITUDE: Final = -2.93
_SPEED_MPS: Final = 20.0
# small enough that a lap takes seconds, and each lap has its events
_RADIUS_M: Final = 50.0
# of latitude, on the sphere; good enough to lay out a course
_DEGREE_M: Final = 111_320.0
_NORTH: Final = _RADIUS_M / _DEGREE_M
_EAST: Final = _NORTH / math.cos(math.radians(_LATITUDE))

FEATURES: Final[tuple[dict[str, Any], ...]] = (
    {
        "type": "Feature",
        "properties": {"id": "drill-half"},
        "geometry": {
            "type": "Polygon",
            "coordinates": [
                [
                    [_LONGITUDE, _LATITUDE - 2 * _NORTH],
                    [_LONGITUDE + 2 * _EAST, _LATITUDE - 2 * _NORTH],
                    [_LONGITUDE + 2 * _EAST, _LATITUDE + 2 * _NORTH],
                    [_LONGITUDE, _LATITUDE + 2 * _NORTH],
                    [_LONGITUDE, _LATITUDE - 2 * _NORTH],
                ]
            ],
        },
    },
    {
        "type": "Feature",
        "properties": {"id": "drill-gate", "gate": True},
        "geometry": {
            "type": "LineString",
            "coordinates": [[_LONGITUDE - 2 * _EAST, _LATITUDE], [_LONGITUDE, _LATITUDE]],
        },
    },
)
"""An enter, an exit and a passage of the gate in each round of 16 s."""


def position_at(time_us: int, phase: float) -> Position:
    """The position of a device at a time. `phase`: its lead over the others, in radians."""
    angle = (time_us / 1e6 * _SPEED_MPS / _RADIUS_M + phase) % (2 * math.pi)
    return Position(
        latitude=_LATITUDE + _NORTH * math.sin(angle),
        longitude=_LONGITUDE + _EAST * math.cos(angle),
        speed_mps=_SPEED_MPS,
        accuracy_m=4.0,
    )


# The running stack and its jobs.

Say = Callable[[str], None]
TENANT: Final = "fleet"
TRIGGER_S: Final = 1.0
"""The length of a micro-batch."""
TIMEOUT_S: Final = 300.0
"""Bound of every wait."""
_TOPOLOGY: Final = Path(__file__).parents[1] / "local" / "topology-dr.toml"
_POLL_S: Final = 0.25
# Short against the steps of a micro-batch, between two of which the cluster is to be killed.
_MOMENT_POLL_S: Final = 0.002
_MAX_RESTARTS: Final = 20
_VERDICTS_AGAIN_S: Final = 10.0
"""A supervisor starts the job on another machine after this time, as RestartSec of its unit says."""
_VERDICTS_S: Final = 180.0
_GEOFENCE_S: Final = 300.0


@contextmanager
def drill_stack(folder: Path, settings: DrillSettings, say: Say) -> Iterator[LocalStack]:
    """Clusters eu, us, hq and dr, small."""
    say("starting clusters eu, us, hq and dr")
    stack_settings = StackSettings(pulsar=PulsarSettings(heap_mb=320, direct_mb=256), lake=settings.lake)
    with LocalStack(folder, topology=_TOPOLOGY, settings=stack_settings) as stack:
        say(f"{len(stack.servers)} servers are up, replication is applied")
        yield stack


class DrillEnvironment:
    """A running stack with ingest, alert processes and the verdicts job. Each drill on it has its own devices.

    A process that ends is started again while something is waited for, as systemd would.
    """

    def __init__(self, stack: LocalStack, folder: Path, settings: DrillSettings, say: Say) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stack, self.settings, self.say = stack, settings, say
        self.topology = stack.topology
        self._folder = folder
        self._config = folder / "cloud.toml"
        self._config.write_text(self._cloud_settings())
        self.jobs = load(CloudSettings, self._config)
        self.jobs.tables.create()
        self.clients: dict[str, AdminClient] = {}
        self.ingest_restarts = 0
        self.peak_memory_bytes = 0
        self._ingest = self._job("ingest")
        self._verdicts = self._job("verdicts", "--follow")
        self._alerts = [alert_process(stack, region) for region in self.topology.regions]
        self._verdicts_from_s = 0.0

    def start(self) -> None:
        signing = Signing(stack_operator(self.stack.folder).key, "fences of the drill")
        versions = [make_version("fence", feature) for feature in FEATURES]
        publish(self.jobs.service_urls, versions, self.stack.access("publisher"), signing=signing)
        for process in self._processes:
            self.stack.add(process, wait=False)
        for process in self._alerts:
            process.wait()
        self.say("the ingest, an alert process in each region, and the verdicts job at the centre are up")

    def stop(self) -> None:
        for process in self._processes:
            if process in self.stack.servers:
                self.stack.remove(process.name)

    @property
    def topics(self) -> list[str]:
        return [f"persistent://{TENANT}/telemetry-{region}/batches" for region in self.topology.regions]

    def region_cluster(self, region: str) -> PulsarCluster:
        """The cluster that receives the batches of a region's devices."""
        return self.stack.pulsar[self.topology.regions[region].cluster]

    def start_cluster(self, name: str) -> None:
        """Start a killed cluster on its own disks, and wait until it is healthy."""
        self.stack.pulsar[name].start()
        self.stack.pulsar[name].wait(TIMEOUT_S)
        self.say(f"{name} is back")

    def kill_verdicts(self) -> None:
        """The verdicts job is lost with its machine, and starts elsewhere after a while."""
        self._verdicts.kill()
        self._verdicts_from_s = time.monotonic() + _VERDICTS_AGAIN_S
        self.say("killed the verdicts job, too")

    def request_switchover(self, cluster: str) -> None:
        """Tell the ingest to read another cluster. Atomic: the ingest sees the whole request or nothing."""
        request = self.jobs.checkpoints / "reading-from.switchover"
        draft = request.with_suffix(".draft")
        draft.write_text(cluster)
        draft.replace(request)

    def wait_for(self, what: str, is_true: Callable[[], bool], every_s: float = _POLL_S) -> None:
        """Raises DrillError when it is not true in time, or when a process ended too often."""
        if not self.wait_for_or_timeout(what, is_true, every_s):
            raise DrillError(f"not within {TIMEOUT_S:.0f} s: {what}")

    def wait_for_or_timeout(self, what: str, is_true: Callable[[], bool], every_s: float = _POLL_S) -> bool:
        """Whether it became true in time: for a count that is valid even when it does not happen."""
        ends = time.monotonic() + TIMEOUT_S
        while not is_true():
            if time.monotonic() > ends:
                self.say(f"not within {TIMEOUT_S:.0f} s: {what}")
                return False
            self._keep_alive()
            time.sleep(every_s)
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.stack.memory_bytes)
        return True

    def wait_for_moment(self) -> None:
        """Returns at the moment of the settings."""
        checkpoint = SubTreeFileSystem(str(self.jobs.checkpoints / "ingest"), LocalFileSystem())
        watched = {
            Moment.PLANNED: (checkpoint, "offsets"),
            Moment.WRITTEN: (self.jobs.tables.files("records"), "_delta_log"),
            Moment.DONE: (checkpoint, "commits"),
        }.get(self.settings.moment)
        if watched is None:
            return
        before = _files(*watched)
        self.wait_for(
            f"a micro-batch that is {self.settings.moment}", lambda: _files(*watched) > before, _MOMENT_POLL_S
        )

    def cursor_follows(self, cluster: str, read: str, batch_s: float) -> bool:
        """Whether the ingest's cursor in `cluster` is at most two micro-batches and a snapshot behind that in `read`.

        `batch_s`: the time from one micro-batch to the next.
        """
        # A killed cluster is not asked: each look would try it three times in vain.
        clients = {name: client for name, client in self.clients.items() if self.stack.pulsar[name].pid is not None}
        close_s = 2 * batch_s + SNAPSHOT_PERIOD_S
        seen = observe(self.topology, clients, time.time)
        return cursor_follows(seen, cluster, read, close_s, [one.partition("://")[2] for one in self.topics])

    def audit_alerts(self) -> AlertAudit:
        """Compute the geofence events of all records, and wait until each alert has its verdict.

        Raises PulsarException when a topic cannot be read, DrillError when the events cannot be computed.
        """
        self._compute_events()
        audit = Retrying(
            stop=stop_after_delay(_VERDICTS_S),
            wait=wait_fixed(1),
            retry=retry_if_exception_type(pulsar.PulsarException) | retry_if_result(lambda one: not one.holds),
            before=lambda _: self._keep_alive(),
            retry_error_callback=_last_result,
        )
        found: AlertAudit = audit(audit_stack_alerts, self.stack, self.jobs.tables, [TENANT])
        self.say(found.summary)
        return found

    @property
    def _processes(self) -> list[DaemonProcess]:
        return [self._ingest, *self._alerts, self._verdicts]

    def _job(self, name: str, *options: str) -> DaemonProcess:
        command = [name, "--config", str(self._config), *options]
        return DaemonProcess.python(f"cloud-jobs-{name}", "cloud_jobs", command, self._folder / name)

    def _keep_alive(self) -> None:
        for process in self._processes:
            is_early = process is self._verdicts and time.monotonic() < self._verdicts_from_s
            if process.pid is not None or is_early:
                continue
            if process is self._ingest:
                self.ingest_restarts += 1
            if self.ingest_restarts > _MAX_RESTARTS:
                raise DrillError("\n".join(["the ingest ended again and again", *process.last_lines()]))
            process.start()

    def _compute_events(self) -> None:
        job = self._job("geofence")
        job.start()
        ends = time.monotonic() + _GEOFENCE_S
        try:
            while job.pid is not None and time.monotonic() < ends:
                time.sleep(1)
            if job.exit_status != 0:
                raise DrillError("\n".join(["the events at fences were not computed", *job.last_lines()]))
        finally:
            job.kill()

    def _cloud_settings(self) -> str:
        stack, store = self.stack, self.stack.object_store
        clusters = "".join(
            f"""[[clusters]]
name = "{name}"
service_url = "{stack.pulsar[name].service_url}"
admin_url = "{stack.pulsar[name].admin_url}"
"""
            for name in self.topology.centres
        )
        return f"""lake = "{store.lake(self._folder.name) if store else self._folder / "lake"}"
checkpoints = "{self._folder / "checkpoints"}"
tenants = ["{TENANT}"]
{clusters}
{stack_operator(stack.folder).reference_settings()}
[access]
{stack.access("jobs").as_toml()}
[ingest]
topics = {self.topics}
trigger_interval_s = {TRIGGER_S}
[verdicts]
alerts = {[f"persistent://{TENANT}/alerts-{region}/alerts" for region in self.topology.regions]}
{store.job_settings() if store else ""}"""


@contextmanager
def open_environment(stack: LocalStack, folder: Path, settings: DrillSettings, say: Say) -> Iterator[DrillEnvironment]:
    """An environment with tables and checkpoint in `folder`; all its processes are stopped on leaving."""
    environment = DrillEnvironment(stack, folder, settings, say)
    try:
        environment.start()
        with admins(stack.topology, stack.access()) as clients:
            environment.clients = clients
            yield environment
    finally:
        environment.stop()


def _last_result(state: RetryCallState) -> AlertAudit:
    assert state.outcome is not None, "it was tried"
    found: AlertAudit = state.outcome.result()
    return found


def _files(files: FileSystem, folder: str) -> set[str]:
    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    # Spark writes a hidden draft and renames it.
    return {file.base_name for file in found if not file.base_name.startswith(".")}


# on their way while devices send
_FEW_MESSAGES = 50


def cursor_follows(seen: Observation, cluster: str, read: str, close_s: float, topics: Collection[str]) -> bool:
    """Whether the oldest waiting entry of each partition is at most `close_s` older in `cluster` than in `read`.

    `topics`: those that are read, without `persistent://`. A restarted cluster shows no cursor of an unused topic.

    A cluster that comes back first gets positions from before its loss. So every link to it must be connected and
    nearly empty, or messages that it lacks do not count as waiting there.
    """
    links = [one for one in seen.links if one.target == cluster and one.source not in seen.unreachable]
    if not all(one.connected and one.backlog is not None and one.backlog <= _FEW_MESSAGES for one in links):
        return False
    mine, theirs = _waiting_s(seen, cluster, topics), _waiting_s(seen, read, topics)
    return bool(mine) and mine.keys() == theirs.keys() and all(mine[one] - theirs[one] <= close_s for one in mine)


def _waiting_s(seen: Observation, cluster: str, topics: Collection[str]) -> dict[str, float]:
    """The age of the oldest entry before the cursor, by partition. An unknown age is NaN, which is never at most
    another.
    """
    cursors = [one for one in seen.cursors if one.cluster == cluster and split_partition(one.topic)[0] in topics]
    return {one.topic: math.nan if one.waiting_s is None else one.waiting_s for one in cursors}
