"""Where drills run: the four clusters, the ingest, and the waits that every drill needs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import pulsar
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, SubTreeFileSystem
from pydantic import Field

from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.files import Signing, make_version, publish
from deploy.drill.findings import AlertAudit, VerdictRow, audit_alerts
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
from geo.alerts import decode_alert, decode_verdict
from geo.replication import AdminClient, Topology, admins
from geo.replication.topic_naming import split_partition
from geo.replication.verification import Observation, observe
from geo.spatial.event_ids import Revision
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import Position
from waybill.settings import Settings, load

# Errors.


class DrillError(Exception):
    """The drill cannot go on; the message says what it waited for, and shows the last lines of what failed."""


# Settings of a drill.


class Drill(StrEnum):
    """What is lost, or taken back."""

    HQ_LOSS = "hq-loss"
    REGION_LOSS = "region-loss"
    LINK_CUT = "link-cut"
    FAILBACK = "failback"


class Moment(StrEnum):
    """When the cluster is killed, seen from the micro-batch of the ingest."""

    ANY = "any"
    PLANNED = "planned"
    WRITTEN = "written"
    DONE = "done"


class FleetSettings(Settings):
    """How much one region sends."""

    records_per_s: float = Field(default=400, gt=0, le=50_000)
    devices: int = Field(default=8, ge=1, le=1000)
    records_per_batch: int = Field(default=20, ge=1, le=1000)
    unanswered_batches: int = Field(default=64, ge=1, description="more are not sent: the devices store and wait")
    silence_s: float = Field(default=10.0, gt=0, description="without an answer for so long, the next region is tried")


class DrillSettings(Settings):
    """One drill. The snapshot period is the brokers' own, so it holds for a whole stack."""

    fleet: FleetSettings = Field(default_factory=FleetSettings)
    trigger_s: float = Field(1.0, ge=0, le=60, description="length of a micro-batch")
    snapshot_period_s: float = Field(1.0, gt=0, le=60, description="time between two snapshots of the cursors")
    moment: Moment = Moment.ANY
    steady_s: float = Field(5.0, gt=0, le=600, description="steady traffic before the loss")
    after_s: float = Field(5.0, ge=0, le=600, description="traffic after the first record was through")
    cut_s: float = Field(8.0, gt=0, le=600, description="how long a cut link stays cut")
    timeout_s: float = Field(300.0, gt=0, description="bound of every wait")
    lake: LakePlace = Field(LakePlace.FOLDER, description="`s3`: the tables are on an S3 server of the stack")
    alerts: bool = Field(True, description="each region raises alerts, and each is held against its verdict")
    heap_mb: int = Field(320, ge=192, description="heap of each of the four clusters")


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
    """Where a device is at a moment; `phase`: how far it is ahead of others, in radians."""
    angle = (time_us / 1e6 * _SPEED_MPS / _RADIUS_M + phase) % (2 * math.pi)
    return Position(
        latitude=_LATITUDE + _NORTH * math.sin(angle),
        longitude=_LONGITUDE + _EAST * math.cos(angle),
        speed_mps=_SPEED_MPS,
        accuracy_m=4.0,
    )


# The ingest command, restarted if it ends.

_LOOK_S = 0.1
# a job that cannot run at all ends the drill, and not the other way round
_MAX_STARTS = 20


class IngestProcess:
    """One lake, one checkpoint, one ingest process that reads the centre first and its standby when the centre is lost.

    A supervisor starts the process again when it ends by itself, at most `_MAX_STARTS` times, as systemd or
    Kubernetes would.
    """

    def __init__(self, stack: LocalStack, folder: Path, *, trigger_s: float) -> None:
        self._stack = stack
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = load(CloudSettings, _written(stack, folder, trigger_s))
        self.settings.tables.create()
        command = ["ingest", "--config", str(folder / "cloud.toml")]
        self._process = DaemonProcess.python(f"cloud-jobs-{folder.name}", "cloud_jobs", command, folder)
        self.starts = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="ingest", daemon=True)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the query: `offsets/N` is written when batch N is planned, `commits/N` when it is done."""
        return self.settings.checkpoints / "ingest"

    @property
    def reading_from(self) -> Path:
        """Where the source keeps which cluster it reads; with `.switchover` appended, where an operator names
        another."""
        return self.settings.checkpoints / "reading-from"

    def start(self) -> None:
        """Start it and its supervisor."""
        self._stack.add(self._process, wait=False)
        self.starts = 1
        self._thread.start()

    def stop(self) -> None:
        """Stop it for good."""
        # The supervisor ends first: it would start again what is stopped.
        self._stopping.set()
        self._thread.join(10)
        self._stack.remove(self._process.name)

    def check(self) -> None:
        """Raises DrillError when it was started too often."""
        if self.starts > _MAX_STARTS:
            raise DrillError("\n".join(["the ingest ended again and again", *self._process.last_lines()]))

    def request_switchover(self, cluster: str) -> None:
        """Requests a switchover to a cluster. Atomic: the ingest sees all of it or nothing."""
        draft = self._request_file.with_name(self._request_file.name + ".draft")
        draft.write_text(cluster)
        draft.replace(self._request_file)

    @property
    def _request_file(self) -> Path:
        return self.reading_from.with_name(self.reading_from.name + ".switchover")

    def _supervise(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            if self._process.pid is None and self.starts <= _MAX_STARTS:
                self.starts += 1
                self._process.start()
                time.sleep(_LOOK_S)


def _written(stack: LocalStack, folder: Path, trigger_s: float) -> Path:
    topology = stack.topology
    path, store = folder / "cloud.toml", stack.object_store
    topics = [f"persistent://fleet/telemetry-{region}/batches" for region in topology.regions]
    lines = [
        f'lake = "{store.lake(folder.name) if store else folder / "lake"}"',
        f'checkpoints = "{folder / "checkpoints"}"',
        'tenants = ["fleet"]',
        *(line for name in topology.centres for line in _cluster(stack, name)),
        stack_operator(stack.folder).reference_settings(),
        "[access]",
        stack.access("jobs").as_toml(),
        "[ingest]",
        f"topics = {topics!r}",
        f"trigger_interval_s = {trigger_s}",
        "[verdicts]",
        f"alerts = {[f'persistent://fleet/alerts-{region}/alerts' for region in topology.regions]!r}",
        *([store.job_settings()] if store else []),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _cluster(stack: LocalStack, name: str) -> list[str]:
    server = stack.pulsar[name]
    return [
        "[[clusters]]",
        f'name = "{name}"',
        f'service_url = "{server.service_url}"',
        f'admin_url = "{server.admin_url}"',
    ]


# Alerts of a drill: a process per region, the verdicts job, and their audit.

Say = Callable[[str], None]
_TENANT: Final = "fleet"
_OPERATION_S: Final = 10
# the last message is known to be there
_READ_MS: Final = 5_000
_POLL_S: Final = 1.0
# it starts a Spark of its own, beside the whole stack
_GEOFENCE_S: Final = 300.0
# as RestartSec of its unit
_AGAIN_S: Final = 10.0
# it starts without Spark, and waits for the first message of each topic
_VERDICTS_S: Final = 180.0
_Decoded = TypeVar("_Decoded")


class DrillAlerts:
    """The processes of alerts of one environment; each is started again if it ends."""

    def __init__(self, stack: LocalStack, ingest: IngestProcess, say: Say) -> None:
        self._stack, self._say, self._ingest = stack, say, ingest
        self._jobs = 0
        self._regional = [alert_process(stack, region) for region in stack.topology.regions]
        self._verdicts = self._job("verdicts", "--follow")
        self._starting = threading.Lock()
        self._again: threading.Timer | None = None

    def start(self) -> None:
        """Publishes the fences and starts what looks at them; returned from when all turn."""
        signing = Signing(stack_operator(self._stack.folder).key, "fences of the drill")
        versions = [make_version("fence", feature) for feature in FEATURES]
        publish(self._settings.service_urls, versions, self._stack.access("publisher"), signing=signing)
        for process in (*self._regional, self._verdicts):
            self._stack.add(process, wait=False)
        for process in self._regional:
            process.wait()
        self._say("an alert process in each region, and the job of the verdicts at the centre, are up")

    def stop(self) -> None:
        """Ends all of them."""
        if self._again is not None:
            self._again.cancel()
            self._again.join()
        for process in (*self._regional, self._verdicts):
            self._stack.remove(process.name)

    def kill_verdicts(self) -> None:
        """What a centre loses with its machine; a supervisor starts it again elsewhere, after a while."""
        self._verdicts.kill()
        self._say("killed the job of the verdicts, too")
        self._again = threading.Timer(_AGAIN_S, self._start_again, [self._verdicts])
        self._again.start()

    def audit(self) -> AlertAudit:
        """Computes the events of all that is in the table, and waits until each alert has its verdict, or in vain."""
        self._compute_events()
        ends = time.monotonic() + _VERDICTS_S
        while not (found := self._found()).holds and time.monotonic() < ends:
            self._keep_alive()
            time.sleep(_POLL_S)
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.in_force.items())
        self._say(found.unknown or f"{found.announced:,} alerts, {found.without} without a verdict: {kinds}")
        return found

    @property
    def _settings(self) -> CloudSettings:
        return self._ingest.settings

    def _job(self, name: str, *options: str) -> DaemonProcess:
        self._jobs += 1
        folder = self._ingest.folder / f"{name}-{self._jobs}"
        command = [name, "--config", str(self._ingest.folder / "cloud.toml"), *options]
        return DaemonProcess.python(f"cloud-jobs-{name}-{self._ingest.folder.name}", "cloud_jobs", command, folder)

    def _keep_alive(self) -> None:
        for process in (*self._regional, self._verdicts):
            self._start_again(process)

    def _start_again(self, process: DaemonProcess) -> None:
        with self._starting:
            if process.pid is None:
                self._say(f"{process.name} had ended, and is started again")
                process.start()

    def _compute_events(self) -> None:
        job = self._job("geofence")
        job.start()
        ends = time.monotonic() + _GEOFENCE_S
        try:
            while job.pid is not None and time.monotonic() < ends:
                time.sleep(_POLL_S)
            if job.exit_status != 0:
                raise DrillError("\n".join(["the events at fences were not computed", *job.last_lines()]))
        finally:
            job.kill()

    def _found(self) -> AlertAudit:
        """As it is now; unknown where something cannot be read."""
        topology, clusters = self._stack.topology, self._stack.pulsar
        try:
            announced = [
                alert.id
                for region in topology.regions
                for name in (topology.regions[region].cluster, *self._centres())
                for alert in _read(clusters[name], f"persistent://{_TENANT}/alerts-{region}/alerts", decode_alert)
            ]
            topic = f"persistent://{_TENANT}/events/verdicts"
            published = [one for name in self._centres() for one in _read(clusters[name], topic, decode_verdict)]
        except pulsar.PulsarException as error:
            return AlertAudit(unknown=f"a topic cannot be read: {error}")
        return audit_alerts(announced, *_tables(self._settings.tables), published)

    def _centres(self) -> Sequence[str]:
        """The centres that are not lost; what one of them has the regions have as well, but verdicts."""
        return [name for name in self._stack.topology.centres if self._stack.pulsar[name].pid is not None]


def _tables(lake: Lake) -> tuple[list[Revision[str]], list[VerdictRow]]:
    events = lake.rows("geofence_events", ["id", "revision", "retracted"]).to_pylist()
    verdicts = lake.rows("verdicts", [*VerdictRow._fields]).to_pylist()
    return (
        [Revision(row["id"], row["revision"], row["id"], row["retracted"]) for row in events],
        [VerdictRow(**row) for row in verdicts],
    )


def _read(cluster: PulsarCluster, topic: str, decode: Callable[[bytes], _Decoded]) -> Iterable[_Decoded]:
    """All that a cluster has of a topic. Raises PulsarException."""
    with _client(cluster) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            yield decode(reader.read_next(_READ_MS).data())


@contextmanager
def _client(cluster: PulsarCluster) -> Iterator[Any]:
    client = open_pulsar_client(cluster.service_url, cluster.access, timeout_s=_OPERATION_S)
    try:
        yield client
    finally:
        client.close()


TOPOLOGY = Path(__file__).parents[1] / "local" / "topology-dr.toml"
_WAIT_POLL_S = 0.25
# Short against the steps of a micro-batch, between two of which the kill is to happen.
_MOMENT_POLL_S = 0.002


@contextmanager
def drill_stack(folder: Path, settings: DrillSettings, say: Say) -> Iterator[LocalStack]:
    """Clusters eu, us, hq and dr, small, with the snapshot period of the settings."""
    say("starting clusters eu, us, hq and dr")
    period_ms = round(settings.snapshot_period_s * 1000)
    pulsar = PulsarSettings(
        heap_mb=settings.heap_mb,
        direct_mb=256,
        broker={"replicatedSubscriptionsSnapshotFrequencyMillis": period_ms},
    )
    with LocalStack(folder, topology=TOPOLOGY, settings=StackSettings(pulsar=pulsar, lake=settings.lake)) as stack:
        say(f"{len(stack.servers)} servers are up, replication is applied")
        yield stack


class DrillEnvironment:
    """A running stack and its ingest. Each drill on it brings devices of its own."""

    def __init__(
        self,
        stack: LocalStack,
        ingest: IngestProcess,
        settings: DrillSettings,
        say: Say,
        alerts: DrillAlerts | None = None,
    ) -> None:
        self.stack = stack
        self.alerts = alerts
        self.ingest = ingest
        self.settings = settings
        self.say = say
        self.peak_memory_bytes = 0
        self._clients: dict[str, AdminClient] = {}

    @property
    def topics(self) -> list[str]:
        """The topic of batches of each region."""
        return [f"persistent://fleet/telemetry-{region}/batches" for region in self.topology.regions]

    @property
    def topology(self) -> Topology:
        """The topology with addresses."""
        return self.stack.topology

    @contextmanager
    def admin_connections(self) -> Iterator[None]:
        """Admin connections while the block runs."""
        with admins(self.topology, self.stack.access()) as clients:
            self._clients = clients
            yield

    def audit_alerts(self) -> AlertAudit | None:
        """What became of the alerts; None: there were to be none."""
        return None if self.alerts is None else self.alerts.audit()

    def region_cluster(self, region: str) -> PulsarCluster:
        """The cluster that takes in what a region's devices send."""
        return self.stack.pulsar[self.topology.regions[region].cluster]

    def start_cluster(self, name: str) -> None:
        """Starts a cluster that was killed, on the disks that it had, and waits until it is healthy."""
        self.stack.pulsar[name].start()
        self.stack.pulsar[name].wait(self.settings.timeout_s)
        self.say(f"{name} is back")

    def wait_for(self, what: str, true: Callable[[], bool], every_s: float = _WAIT_POLL_S) -> None:
        """Returns when it is true. Raises DrillError after its timeout, or the ingest ended too often."""
        if not self.wait_for_or_timeout(what, true, every_s):
            raise DrillError(f"not within {self.settings.timeout_s:.0f} s: {what}")

    def wait_for_or_timeout(self, what: str, true: Callable[[], bool], every_s: float = _WAIT_POLL_S) -> bool:
        """Whether it became true in time: for what a drill counts even when it does not happen."""
        ends = time.monotonic() + self.settings.timeout_s
        while not true():
            if time.monotonic() > ends:
                self.say(f"not within {self.settings.timeout_s:.0f} s: {what}")
                return False
            # An ingest that ends again and again makes nothing true any more: no need to wait for the time-out.
            self.ingest.check()
            time.sleep(every_s)
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.stack.memory_bytes)
        return True

    def cursor_follows(self, cluster: str, read: str, batch_s: float) -> bool:
        """Whether the ingest's cursor there is at most two micro-batches and a snapshot behind the one it reads at.

        `batch_s`: how long a micro-batch really takes.
        """
        # One that was killed is not asked: each look would try it three times in vain.
        clients = {name: client for name, client in self._clients.items() if self.stack.pulsar[name].pid is not None}
        close_s = 2 * batch_s + self.settings.snapshot_period_s
        seen = observe(self.topology, clients, time.time)
        return cursor_follows(seen, cluster, read, close_s, [one.partition("://")[2] for one in self.topics])

    def wait_for_moment(self) -> None:
        """Returns at the moment of the settings, or after a while when no micro-batch comes by."""
        checkpoint = SubTreeFileSystem(str(self.ingest.checkpoint), LocalFileSystem())
        looked_at = {
            Moment.PLANNED: (checkpoint, "offsets"),
            Moment.WRITTEN: (self.ingest.settings.tables.files("records"), "_delta_log"),
            Moment.DONE: (checkpoint, "commits"),
        }.get(self.settings.moment)
        if looked_at is None:
            return
        before = _files(*looked_at)
        self.wait_for(
            f"a micro-batch that is {self.settings.moment}", lambda: _files(*looked_at) > before, _MOMENT_POLL_S
        )


@contextmanager
def open_environment(stack: LocalStack, folder: Path, settings: DrillSettings, say: Say) -> Iterator[DrillEnvironment]:
    """A running stack with an ingest whose tables and checkpoint are in `folder`, and with what alerts need.

    All of it is stopped on leaving.
    """
    ingest = IngestProcess(stack, folder, trigger_s=settings.trigger_s)
    ingest.start()
    alerts = DrillAlerts(stack, ingest, say) if settings.alerts else None
    environment = DrillEnvironment(stack, ingest, settings, say, alerts)
    try:
        if alerts is not None:
            alerts.start()
        with environment.admin_connections():
            yield environment
    finally:
        ingest.stop()
        if alerts is not None:
            alerts.stop()


def _files(files: FileSystem, folder: str) -> set[str]:
    found = files.get_file_info(FileSelector(folder, allow_not_found=True))
    # Spark writes a hidden draft and renames it.
    return {file.base_name for file in found if not file.base_name.startswith(".")}


# what is still on its way while devices go on
_FEW_MESSAGES = 50


def cursor_follows(seen: Observation, cluster: str, read: str, close_s: float, topics: Collection[str]) -> bool:
    """Whether on each partition what waits for the cursor in `cluster` is at most `close_s` older than in `read`.

    `topics`: those that are read, without `persistent://`. A cluster that was started again shows none that nobody
    uses there, as of a tenant that is silent.

    That it moved is not enough: a cluster that comes back first hears of positions from before it was lost. Every link
    to it must be connected and nearly empty, or what it lacks does not count as waiting there.
    """
    links = [one for one in seen.links if one.target == cluster and one.source not in seen.unreachable]
    if not all(one.connected and one.backlog is not None and one.backlog <= _FEW_MESSAGES for one in links):
        return False
    mine, theirs = _waiting_s(seen, cluster, topics), _waiting_s(seen, read, topics)
    return bool(mine) and mine.keys() == theirs.keys() and all(mine[one] - theirs[one] <= close_s for one in mine)


def _waiting_s(seen: Observation, cluster: str, topics: Collection[str]) -> dict[str, float]:
    """Each partition -> the age of the oldest entry before the cursor in a cluster; where that is not known no number,
    which is never at most another.
    """
    cursors = [one for one in seen.cursors if one.cluster == cluster and split_partition(one.topic)[0] in topics]
    return {one.topic: math.nan if one.waiting_s is None else one.waiting_s for one in cursors}
