"""What the driver says to Spark's calls, on clusters in memory and with a clock that moves when somebody waits."""

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloud_jobs.pulsar_source import AccessRefused, DataLoss, SourceClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.acknowledging import Acknowledger, acknowledge
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor, read_left_out
from cloud_jobs.pulsar_source.driver import CrashGuard, Driver, Ownership
from cloud_jobs.pulsar_source.entries import PlannedRange
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.lookahead import Lookahead
from cloud_jobs.pulsar_source.options import PulsarOptions, PulsarSourceError, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset
from tests.cloud_jobs.pulsar_source.model import ModelMessage, ModelWorld
from tests.cloud_jobs.pulsar_source.model_topic import ModelTopic

TOPIC = "persistent://public/default/t"


class SizedFeed:
    """A model's feed whose messages have a length, as a look ahead asks for it."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def receive(self) -> list[Any]:
        return [SizedMessage(message) for message in self._feed.receive()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


class SizedMessage:
    def __init__(self, message: ModelMessage) -> None:
        self._message = message

    def message_id(self) -> ModelMessage:
        return self._message

    def length(self) -> int:
        return 10


class Query:
    def __init__(self, world: ModelWorld, folder: Path, **more: str) -> None:
        self.world = world
        clusters = "hq=pulsar://hq:1|http://hq:2,dr=pulsar://dr:1|http://dr:2"
        file = str(folder / "failover.json")
        given = {"clusters": clusters, "topics": TOPIC, "subscription": "s", "failoverFile": file}
        bounds = {"readTimeoutSeconds": "4", "clusterLostAfterSeconds": "1"}
        self.options = PulsarOptions.parse(given | bounds | more)
        self.sent: list[Mapping[str, LedgerPosition]] = []
        self.pauses: list[float] = []
        self.refuses = False
        self.monitor = ClusterMonitor(self.options, world.time, world.time.pause, world.survey)
        self.driver = Driver(
            self.options,
            monitor=self.monitor,
            ownership=Ownership(self.options, world.own, world.time, world.time.pause),
            acknowledger=Acknowledger(self.options, self.monitor, self._acknowledge),
            lookahead=self._lookahead,
            crash_guard=CrashGuard(self.options),
            pause=self.pauses.append,
        )

    def _acknowledge(
        self, cluster: SourceCluster, options: PulsarOptions, ends: Mapping[str, LedgerPosition]
    ) -> Mapping[str, LedgerPosition]:
        self.sent.append(ends)
        return {} if self.refuses else self.world.acknowledge(cluster, options, ends)

    def _lookahead(self, cluster: SourceCluster, options: PulsarOptions, topic: str, queue: int) -> Lookahead:
        return Lookahead(cluster, options, topic, queue, self._open)

    def _open(self, cluster: SourceCluster, _: Any, topic: str, after: LedgerPosition, queue: int) -> Any:
        end = LedgerPosition(2**62, 0)
        feed = self.world.feed(self.options, PlannedRange(cluster, topic, after, end, False, queue, frozenset()))
        return Sized(feed)


class Sized(AbstractContextManager[Any]):
    def __init__(self, feed: AbstractContextManager[Feed]) -> None:
        self._feed = feed

    def __enter__(self) -> Any:
        return SizedFeed(self._feed.__enter__())

    def __exit__(self, *failure: Any) -> None:
        self._feed.__exit__(*failure)


@pytest.fixture
def world() -> ModelWorld:
    made = ModelWorld()
    for cluster in made.clusters.values():
        cluster.create(TOPIC)
    return made


def topic_of(world: ModelWorld, cluster: str = "hq") -> ModelTopic:
    return world.clusters[cluster].topics[TOPIC]


def send(world: ModelWorld, *numbers: int, cluster: str = "hq") -> None:
    topic = topic_of(world, cluster)
    topic.ledgers[max(topic.ledgers)] += [(number,) for number in numbers]


def end_of(offset: Offset) -> LedgerPosition:
    return offset.positions[TOPIC]


class PlannedBatch(NamedTuple):
    """A query's first batch: from where it began to its end, and the work of its only task."""

    query: Query
    start: Offset
    end: Offset
    task: PlannedRange


def planned_batch(world: ModelWorld, folder: Path, *numbers: int, **more: str) -> PlannedBatch:
    """A new query whose first batch has those messages, planned and neither read nor acknowledged."""
    query = Query(world, folder, **more)
    start = query.driver.begin()
    send(world, *numbers)
    end = query.driver.choose_end(start, limited=False)
    (task,) = query.driver.plan(start, end)
    return PlannedBatch(query, start, end, task)


def test_what_comes_after_the_target_of_available_now_is_left_for_the_next_run(
    world: ModelWorld, tmp_path: Path
) -> None:
    query = Query(world, tmp_path)
    start = query.driver.begin()
    send(world, 0, 1)
    query.driver.fix_target()
    send(world, 2)
    end = query.driver.choose_end(start, limited=False)
    assert end_of(end) == LedgerPosition(1, 1)
    assert query.driver.choose_end(end, limited=False) == end


def test_a_batch_whose_cluster_is_gone_is_closed_unread_and_comes_again_from_the_other_ones_cursor(
    world: ModelWorld, tmp_path: Path
) -> None:
    query = Query(world, tmp_path)
    start = query.driver.begin()
    for cluster in world.clusters:
        send(world, 0, 1, cluster=cluster)
    end = query.driver.choose_end(start, limited=False)
    query.driver.close()
    world.clusters["hq"].answers = False
    fresh = Query(world, tmp_path)  # the driver's process ended in between: nothing was seen by this one
    assert fresh.driver.plan(start, end) == []
    fresh.driver.commit(end)
    assert not fresh.sent
    again = fresh.driver.choose_end(end, limited=False)
    (task,) = fresh.driver.plan(end, again)
    assert (again.cluster, task.start, task.end) == ("dr", LedgerPosition(1, -1), LedgerPosition(1, 1))


def test_an_operators_request_acknowledges_what_is_done_before_it_moves_the_query(
    world: ModelWorld, tmp_path: Path
) -> None:
    query, _, end, _ = planned_batch(world, tmp_path, 0)
    send(world, 0, 1, cluster="dr")
    (tmp_path / "failover.json.switchover").write_text("dr\n")
    assert query.driver.choose_end(end, limited=False).cluster == "dr"
    assert query.sent == [{TOPIC: LedgerPosition(1, 0)}]
    assert not (tmp_path / "failover.json.switchover").exists()


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_that_was_made_anew_is_a_loss_or_is_read_from_its_cursor(
    world: ModelWorld, tmp_path: Path, strict: bool
) -> None:
    query, _, end, _ = planned_batch(world, tmp_path, 0, 1, failOnDataLoss=str(strict))
    world.clusters["hq"].create(TOPIC)
    send(world, 7)
    if strict:
        with pytest.raises(DataLoss, match="its subscription is not the one that the query read"):
            query.driver.choose_end(end, limited=False)
        return
    after = query.driver.choose_end(end, limited=False)
    (task,) = query.driver.plan(end, after)
    assert (task.start, task.end) == (LedgerPosition(2, -1), LedgerPosition(2, 0))


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
def world_without_topic() -> ModelWorld:
    made = ModelWorld()
    for topic in (ACME, ZETA):
        made.clusters["hq"].create(topic)
    return made


def send_to_topic(world: ModelWorld, topic: str, *numbers: int) -> None:
    stored = world.clusters["hq"].topics[topic]
    stored.ledgers[max(stored.ledgers)] += [(number,) for number in numbers]


def fails(world: ModelWorld, error: PulsarSourceError | None) -> None:
    """Each question about one tenant's topic is answered so; None: as always."""
    world.clusters["hq"].failing = {} if error is None else {ZETA: error}


@pytest.mark.parametrize("error", [GONE, REFUSED, SILENT], ids=lambda error: type(error).__name__)
def test_the_others_go_on_and_nothing_of_it_is_skipped(
    world_without_topic: ModelWorld, tmp_path: Path, error: PulsarSourceError
) -> None:
    ingest = Ingest(world_without_topic, tmp_path)
    ingest.begin()
    send_to_topic(world_without_topic, ACME, 1)
    send_to_topic(world_without_topic, ZETA, 10)
    ingest.work()
    send_to_topic(world_without_topic, ZETA, 11)
    fails(world_without_topic, error)
    send_to_topic(world_without_topic, ACME, 2)
    world_without_topic.time.pause(10)
    ingest.work()
    assert ingest.read == {ACME: [1, 2], ZETA: [10]}
    assert ingest.left_out() == [ZETA]
    send_to_topic(world_without_topic, ZETA, 12)
    fails(world_without_topic, None)
    ingest.work()
    assert ingest.read == {ACME: [1, 2], ZETA: [10, 11, 12]}
    assert ingest.left_out() == []


def test_a_topic_that_was_deleted_and_made_anew_waits_for_a_word_and_the_others_do_not(
    world_without_topic: ModelWorld, tmp_path: Path
) -> None:
    ingest = Ingest(world_without_topic, tmp_path)
    ingest.begin()
    send_to_topic(world_without_topic, ZETA, 10)
    ingest.work()
    world_without_topic.clusters["hq"].create(ZETA)
    send_to_topic(world_without_topic, ZETA, 11)
    send_to_topic(world_without_topic, ACME, 1)
    ingest.work()
    assert ingest.read == {ACME: [1], ZETA: [10]}
    (noted,) = read_left_out(tmp_path / "left-out.json")
    assert noted.topic == ZETA
    assert "failOnDataLoss=false" in noted.reason
    ingest.more = {"failOnDataLoss": "false"}
    ingest.start_process()
    ingest.work()
    assert ingest.read == {ACME: [1], ZETA: [10, 11]}


def test_a_broker_that_never_answers_takes_no_acknowledgement_and_is_not_waited_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clusters = f"hq=pulsar://127.0.0.1:{silent.getsockname()[1]}|http://127.0.0.1:1"
        known = {"clusters": clusters, "topics": "t", "subscription": "s", "operationTimeoutSeconds": "1"}
        options = PulsarOptions.parse(known)
        ends = {f"persistent://public/default/t-partition-{number}": LedgerPosition(1, 1) for number in range(600)}
        assert acknowledge(options.cluster_named("hq"), options, ends) == {}
