"""Alerts in a drill: a process in each region, the verdicts' job at the centre, and their audit at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pulsar

from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import make_version
from cloud_jobs.reference_publisher import Signing, publish
from deploy.drill.alert_audit import AlertAudit, VerdictRow, audit_alerts
from deploy.drill.course import FEATURES
from deploy.drill.errors import DrillError
from deploy.drill.ingest_process import IngestProcess
from deploy.local import DaemonProcess, LocalStack, PulsarCluster, stack_operator
from deploy.local.alert_process import alert_process
from geo.alerts import decode_alert, decode_verdict
from geo.spatial.revisions import Revision
from waybill.pulsar.pulsar_client import open_pulsar_client

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
