"""Where drills run: the four clusters, the ingest, and the waits that every drill needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, SubTreeFileSystem

from deploy.drill.alert_audit import AlertAudit
from deploy.drill.alert_processes import DrillAlerts
from deploy.drill.errors import DrillError
from deploy.drill.ingest_process import IngestProcess
from deploy.drill.settings import DrillSettings, Moment
from deploy.local import LocalStack, PulsarCluster, PulsarSettings, StackSettings
from geo.replication import AdminClient, Topology, admins
from geo.replication.observe import Observation, observe
from geo.replication.topic_naming import split_partition

Say = Callable[[str], None]
TOPOLOGY = Path(__file__).parents[1] / "local" / "topology-dr.toml"
_POLL_S = 0.25
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

    def wait_for(self, what: str, true: Callable[[], bool], every_s: float = _POLL_S) -> None:
        """Returns when it is true. Raises DrillError after its timeout, or the ingest ended too often."""
        if not self.wait_for_or_timeout(what, true, every_s):
            raise DrillError(f"not within {self.settings.timeout_s:.0f} s: {what}")

    def wait_for_or_timeout(self, what: str, true: Callable[[], bool], every_s: float = _POLL_S) -> bool:
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
