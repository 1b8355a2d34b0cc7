"""Spark's micro-batch loop around the driver, on clusters in memory."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud_jobs.pulsar_source.acknowledging import Acknowledger, Loss, LossReporter
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver import Driver, Ownership
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import Offset
from tests.cloud_jobs.pulsar_source.model import ModelWorld

TOPIC = "persistent://public/default/t"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
CRASHES = ["begun", "asked", "log written", "planned", "read", "sink written"]


class Crash(Exception):
    """The process is killed here."""


class NotedLosses(LossReporter):
    def __init__(self, options: PulsarOptions, reported: Callable[[str], None]) -> None:
        super().__init__(options)
        self._reported = reported

    def report(self, cluster: str, losses: Mapping[str, Loss]) -> None:
        for topic in losses:
            self._reported(topic)
        super().report(cluster, losses)


class ModelQuery:
    """Spark's micro-batch loop around the driver: offsets written ahead, a sink that knows batch numbers, commits."""

    def __init__(self, world: ModelWorld, folder: Path, reported: Callable[[str], None]) -> None:
        self._world, self._folder, self._reported = world, folder, reported
        self.compacted = False
        """Whether it reads with `readCompacted`."""
        self.log: list[tuple[Any, Any]] = []
        self.done = 0
        self.sink: dict[int, list[int]] = {}
        self.closed_unread = False
        self._driver: Driver | None = None
        self._start: Any = None

    def options(self, *, strict: bool) -> PulsarOptions:
        return PulsarOptions.parse(
            {
                "clusters": "hq=pulsar://hq:1|http://hq:2,dr=pulsar://dr:1|http://dr:2",
                "topics": TOPIC,
                "subscription": "s",
                "failoverFile": str(self._folder / "failover.json"),
                "columns": "value,message_id,malformed",
                "failOnDataLoss": str(strict).lower(),
                "readCompacted": str(self.compacted).lower(),
                "readTimeoutSeconds": "4",
                "clusterLostAfterSeconds": "1",
            }
        )

    def trigger(self, crash: str | None = None, *, strict: bool = True) -> bool:
        """Starts the query if it does not run, and runs one batch; whether there was one."""
        reached: Callable[[str], None] = lambda place: _crash_at(place, crash)  # noqa: E731
        if self._driver is None:
            self._driver = self._new_driver(strict=strict)
            self._start = None if self.done else json.loads(json.dumps(self._driver.begin().to_json()))
            reached("begun")
            if len(self.log) > self.done:
                self._run_batch(reached)
                return True
        start = self.log[-1][1] if self.log else self._start
        end = json.loads(json.dumps(self._driver.choose_end(Offset.from_json(start), limited=False).to_json()))
        reached("asked")
        if end == start:
            return False
        self.log.append((start, end))
        reached("log written")
        if len(self.log) > 1:
            self._driver.commit(Offset.from_json(self.log[-2][1]))
        self._run_batch(reached)
        return True

    def _run_batch(self, reached: Callable[[str], None]) -> None:
        assert self._driver is not None
        start, end = self.log[-1]
        if len(self.log) == 1:
            start = self._start  # Spark does not keep where the first batch began
        options = self._driver._options
        tasks = self._driver.plan(Offset.from_json(start), Offset.from_json(end))
        self.closed_unread |= not tasks
        reached("planned")
        read = [row for task in tasks for batch in self._world.read(options, task) for row in batch.to_pylist()]
        rows = [int(row["value"]) for row in read]
        reached("read")
        self.sink.setdefault(len(self.log), rows)
        reached("sink written")
        self.done = len(self.log)

    def _new_driver(self, *, strict: bool) -> Driver:
        options, time = self.options(strict=strict), self._world.time
        monitor = ClusterMonitor(options, time, time.pause, self._world.survey)
        return Driver(
            options,
            monitor=monitor,
            ownership=Ownership(options, self._world.own, time, time.pause),
            acknowledger=Acknowledger(options, monitor, self._world.acknowledge),
            losses=NotedLosses(options, self._reported),
            pause=time.pause,
        )

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def delivered(self) -> Counter[int]:
        return Counter(number for rows in self.sink.values() for number in rows)


def _crash_at(place: str, crash: str | None) -> None:
    if place == crash:
        raise Crash(place)
