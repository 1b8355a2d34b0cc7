"""The ingest as an operator runs it: the real command, clusters in order, started again if it ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from cloud_jobs.config import CloudSettings
from deploy.drill.errors import DrillError
from deploy.local import DaemonProcess, LocalStack, stack_operator
from waybill.settings import load

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
