"""What the driver says to Spark's calls, on clusters in memory and with a clock that moves when somebody waits."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cloud_jobs.pulsar_source import DataLoss
from cloud_jobs.pulsar_source.acknowledging import Acknowledger
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver import CrashGuard, Driver, Ownership
from cloud_jobs.pulsar_source.entries import PlannedRange
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.lookahead import Lookahead
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
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
    """A driver on the world's clusters, and what it acknowledged."""

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
            acknowledger=Acknowledger(self.options, self.monitor, self._acknowledge, world.store),
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


def test_a_batch_takes_all_there_is_and_is_acknowledged_when_spark_says_that_it_is_done(
    world: ModelWorld, tmp_path: Path
) -> None:
    query, _, end, task = planned_batch(world, tmp_path, 0, 1, 2)
    assert (task.start, task.end, task.durable) == (LedgerPosition(1, -1), LedgerPosition(1, 2), True)
    assert not query.sent
    query.driver.commit(end)
    query.driver.commit(end)
    assert query.sent == [{TOPIC: LedgerPosition(1, 2)}]


@pytest.mark.parametrize(("most", "ends"), [("2", [1, 3, 4]), ("10", [4])])
def test_a_limited_batch_takes_so_many_messages_and_the_next_one_goes_on_there(
    world: ModelWorld, tmp_path: Path, most: str, ends: list[int]
) -> None:
    query = Query(world, tmp_path, maxMessagesPerTrigger=most)
    start = query.driver.begin()
    send(world, *range(5))
    for entry in ends:
        end = query.driver.choose_end(start, limited=True)
        assert end_of(end) == LedgerPosition(1, entry)
        query.driver.plan(start, end)
        start = end
    assert query.driver.choose_end(start, limited=True) == start


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
