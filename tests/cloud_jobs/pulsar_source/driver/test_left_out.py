"""A topic that cannot be read is left out and holds up no other: a driver on a cluster in memory, with two tenants."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.pulsar_source import AccessRefused, SourceClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.cluster_monitor import read_left_out
from cloud_jobs.pulsar_source.options import PulsarSourceError
from cloud_jobs.pulsar_source.position import Offset
from tests.cloud_jobs.pulsar_source.driver.test_driver import Query
from tests.cloud_jobs.pulsar_source.model import ModelWorld

ACME, ZETA = "persistent://acme/telemetry/batches", "persistent://zeta/telemetry/batches"
GONE = TopicMissing("hq", ZETA)
REFUSED = AccessRefused("hq", "GET", "403")
SILENT = SourceClusterUnreachable("hq", "GET", "504")


class Ingest:
    """A query of both topics that reads in memory; `read` is what its tasks delivered, by topic."""

    def __init__(self, world: ModelWorld, folder: Path, **more: str) -> None:
        self.world, self.folder, self.more = world, folder, more
        self.read: dict[str, list[int]] = {ACME: [], ZETA: []}
        self.logged: list[Offset] = []
        self.query = self._process()

    def start_process(self) -> None:
        self.query.driver.close()
        self.query = self._process()

    def _process(self) -> Query:
        given = {"topics": f"{ACME},{ZETA}", "leftOutFile": str(self.folder / "left-out.json"), "columns": "value"}
        given["clusters"] = "hq=pulsar://hq:1|http://hq:2"
        return Query(self.world, self.folder, **given, **self.more)

    def begin(self) -> None:
        self.logged = [self.query.driver.begin()]

    def plan(self, *, limited: bool = False) -> Offset | None:
        """What Spark does between two batches: the end is in its log, if there is one."""
        end = self.query.driver.choose_end(self.logged[-1], limited=limited)
        if end == self.logged[-1]:
            return None
        self.logged.append(end)
        return end

    def run(self) -> None:
        """Spark reads the newest batch of its log."""
        start, end = self.logged[-2:]
        for task in self.query.driver.plan(start, end):
            for rows in self.world.read(self.query.options, task):
                self.read[task.topic] += [int(value) for value in rows["value"].to_pylist()]
        self.query.driver.commit(end)

    def work(self, *, limited: bool = False) -> None:
        """Batch after batch until there is nothing to read, three times with a minute between."""
        for _ in range(3):
            while self.plan(limited=limited):
                self.run()
            self.world.time.pause(60)

    def left_out(self) -> list[str]:
        return [one.topic for one in read_left_out(self.folder / "left-out.json")]


@pytest.fixture
def world() -> ModelWorld:
    made = ModelWorld()
    for topic in (ACME, ZETA):
        made.clusters["hq"].create(topic)
    return made


def send(world: ModelWorld, topic: str, *numbers: int) -> None:
    stored = world.clusters["hq"].topics[topic]
    stored.ledgers[max(stored.ledgers)] += [(number,) for number in numbers]


def fails(world: ModelWorld, error: PulsarSourceError | None) -> None:
    """Each question about one tenant's topic is answered so; None: as always."""
    world.clusters["hq"].failing = {} if error is None else {ZETA: error}


@pytest.mark.parametrize("error", [GONE, REFUSED, SILENT], ids=lambda error: type(error).__name__)
def test_the_others_go_on_and_nothing_of_it_is_skipped(
    world: ModelWorld, tmp_path: Path, error: PulsarSourceError
) -> None:
    ingest = Ingest(world, tmp_path)
    ingest.begin()
    send(world, ACME, 1)
    send(world, ZETA, 10)
    ingest.work()
    send(world, ZETA, 11)
    fails(world, error)
    send(world, ACME, 2)
    world.time.pause(10)
    ingest.work()
    assert ingest.read == {ACME: [1, 2], ZETA: [10]}
    assert ingest.left_out() == [ZETA]
    send(world, ZETA, 12)
    fails(world, None)
    ingest.work()
    assert ingest.read == {ACME: [1, 2], ZETA: [10, 11, 12]}
    assert ingest.left_out() == []


def test_a_topic_that_was_deleted_and_made_anew_waits_for_a_word_and_the_others_do_not(
    world: ModelWorld, tmp_path: Path
) -> None:
    ingest = Ingest(world, tmp_path)
    ingest.begin()
    send(world, ZETA, 10)
    ingest.work()
    world.clusters["hq"].create(ZETA)
    send(world, ZETA, 11)
    send(world, ACME, 1)
    ingest.work()
    assert ingest.read == {ACME: [1], ZETA: [10]}
    (noted,) = read_left_out(tmp_path / "left-out.json")
    assert noted.topic == ZETA
    assert "failOnDataLoss=false" in noted.reason
    ingest.more = {"failOnDataLoss": "false"}
    ingest.start_process()
    ingest.work()
    assert ingest.read == {ACME: [1], ZETA: [10, 11]}
