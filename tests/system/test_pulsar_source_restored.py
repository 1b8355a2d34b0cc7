"""The source's driver and its tasks on a real Pulsar, after a restore, a deletion or a compaction; without Spark."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.errors import DataLoss, PulsarSourceError, ReadIncomplete, SubscriptionBusy
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import Offset
from cloud_jobs.pulsar_source.reading.planned import PlannedRange
from cloud_jobs.pulsar_source.reading.range_reader import PULSAR_IO, open_feed, read_range
from cloud_jobs.pulsar_source.source import PulsarBatchReader
from deploy.local import PulsarCluster
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

pytestmark = pytest.mark.system


class LoggedQuery:
    """Spark's micro-batch loop: a log of offsets, a table, and a driver that can be stopped."""

    def __init__(self, place: LiveCluster, topics: str, **options: str) -> None:
        self._options = {**place.options, "topics": topics, "subscription": "s", "columns": "value"} | options
        self._driver: Driver | None = None
        self.log: list[Offset] = []
        self.rows: list[int] = []

    def options(self, **more: str) -> PulsarOptions:
        return PulsarOptions.parse({"readTimeoutSeconds": "5"} | self._options | more)

    def drain(self, meanwhile: Callable[[], None] = lambda: None, **more: str) -> None:
        """Reads what there is; `meanwhile` happens after a plan."""
        options = self.options(**more)
        self._driver = driver = self._driver or Driver(options)
        if not self.log:
            self.log.append(driver.begin())
        while (end := driver.choose_end(self.log[-1], limited=False)) != self.log[-1]:
            tasks = driver.plan(self.log[-1], end)
            meanwhile()
            batches = [batch for task in tasks for batch in read_range(options, task)]
            self.rows += [int(value) for batch in batches for value in batch.column("value").to_pylist()]
            driver.commit(end)
            self.log.append(end)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def goes_on_after(self, error: type[PulsarSourceError], meanwhile: Callable[[], None] = lambda: None) -> None:
        """It fails so, and goes on when it is started once with failOnDataLoss=false."""
        with pytest.raises(error):
            self.drain(meanwhile)
        self.stop()
        self.drain(failOnDataLoss="false")
        self.stop()


@pytest.fixture
def query(hq: LiveCluster) -> Iterator[Callable[..., LoggedQuery]]:
    made: list[LoggedQuery] = []

    def make(topics: str, **options: str) -> LoggedQuery:
        made.append(LoggedQuery(hq, topics, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def load_again(place: LiveCluster, topic: str) -> None:
    """The broker opens a new ledger."""
    place.call("PUT", f"{place.path(topic)}/unload")
    eventually("the topic is loaded", lambda: place.http.get(f"{place.path(topic)}/internalStats").is_success)


def trim(place: LiveCluster, topic: str) -> None:
    """Removes the ledgers that no cursor needs."""
    place.call("POST", f"{place.path(topic)}/trim")
    ledgers = lambda: place.call("GET", f"{place.path(topic)}/internalStats")["ledgers"]  # noqa: E731
    eventually("ledgers are removed", lambda: len(ledgers()) == 1)


@pytest.mark.nightly
def test_a_checkpoint_from_yesterday_misses_what_was_read_and_removed_since_and_says_so(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    one = query(topic)
    hq.send(topic, range(10), batching=False)
    one.drain()
    log, rows = list(one.log), list(one.rows)
    for first in (10, 20, 30):
        load_again(hq, topic)
        hq.send(topic, range(first, first + 10), batching=False)
        one.drain()
    one.stop()
    load_again(hq, topic)
    trim(hq, topic)
    one.log, one.rows = log, rows
    hq.send(topic, range(40, 50), batching=False)
    one.goes_on_after(DataLoss)
    assert one.rows == [*range(10), *range(40, 50)]


@pytest.mark.nightly
@pytest.mark.parametrize("position", ["earliest", "latest"])
def test_a_subscription_that_is_deleted_between_plan_and_read_is_a_loss_and_what_is_stored_comes(
    hq: LiveCluster, query: Callable[..., LoggedQuery], position: str
) -> None:
    topic = hq.new_topic()
    one = query(topic, startingPosition=position)
    one.drain()
    hq.send(topic, range(20))
    one.drain()
    hq.send(topic, range(20, 40))
    one.goes_on_after(DataLoss, lambda: hq.call("DELETE", f"{hq.path(topic)}/subscription/s?force=true"))
    assert set(one.rows) == set(range(40))


@pytest.mark.nightly
def test_a_subscription_that_is_deleted_while_the_query_runs_is_reported_at_the_next_plan(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    one = query(topic)
    hq.send(topic, range(10))
    one.drain()
    hq.call("DELETE", f"{hq.path(topic)}/subscription/s?force=true")
    with closing(hq.client.subscribe(topic, "s")):  # made anew by somebody else, behind what comes
        hq.send(topic, range(10, 20))
    with pytest.raises(DataLoss, match="not the one that the query read"):
        one.drain()


@pytest.mark.nightly
def test_what_was_compacted_is_read_when_its_ledgers_are_gone(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    for number in range(8):
        hq.send(topic, [number], batching=False, partition_key=f"k{number % 6}")
    hq.call("PUT", f"{hq.path(topic)}/compaction")
    eventually("it is compacted", lambda: hq.call("GET", f"{hq.path(topic)}/compaction")["status"] == "SUCCESS")
    load_again(hq, topic)
    trim(hq, topic)
    one = query(topic, readCompacted="true")
    batch: Any = PulsarBatchReader(one.options())
    found = [
        int(v) for task in batch.partitions() for part in batch.read(task) for v in part.column("value").to_pylist()
    ]
    one.drain()
    hq.send(topic, [8], batching=False)
    one.drain()
    assert sorted(found) == [2, 3, 4, 5, 6, 7]
    assert sorted(one.rows) == [*sorted(found), 8]


def compacted(hq: LiveCluster, topic: str) -> None:
    hq.call("PUT", f"{hq.path(topic)}/compaction")
    eventually("it is compacted", lambda: hq.call("GET", f"{hq.path(topic)}/compaction")["status"] == "SUCCESS")


def skip_and_remove(hq: LiveCluster, topic: str) -> None:
    """Somebody clears the backlog, and the broker removes what held it."""
    hq.call("POST", f"{hq.path(topic)}/subscription/s/skip_all")
    load_again(hq, topic)
    hq.send(topic, [900], batching=False)
    trim(hq, topic)


class KilledOnce:
    """A feed whose process is killed from outside once it has handed something over."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.killed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def receive(self) -> list[Any]:
        messages: list[Any] = self._feed.receive()
        if messages and not self.killed:
            self._feed._process._process.kill()
            self.killed = True
        return messages


@pytest.mark.nightly
def test_compacted_messages_whose_ledgers_are_gone_all_come_when_the_reading_process_is_killed(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    producer = hq.client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(3000):
        producer.send_async(str(number).encode(), lambda *_: None, partition_key=f"k{number}")
    producer.flush()
    producer.close()
    compacted(hq, topic)
    load_again(hq, topic)
    trim(hq, topic)
    options = query(topic, readCompacted="true").options()
    (planned,) = PulsarBatchReader(options).partitions()
    feeds: list[KilledOnce] = []

    @contextmanager
    def opening(options: PulsarOptions, planned: Any) -> Iterator[Any]:
        with open_feed(options, planned) as feed:
            feeds.append(KilledOnce(feed))
            yield feeds[-1]

    batches = read_range(options, planned.isolated_copy(), replace(PULSAR_IO, open_feed=opening))
    found = [int(value) for batch in batches for value in batch.column("value").to_pylist()]
    assert sorted(found) == list(range(3000))
    assert feeds[0].killed


@pytest.mark.nightly
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_cleared_backlog_is_read_where_it_was_compacted_and_a_loss_where_it_was_not(
    hq: LiveCluster, query: Callable[..., LoggedQuery], *, is_compacted: bool
) -> None:
    topic = hq.new_topic()
    one = query(topic, readCompacted="true")
    hq.send(topic, range(10), batching=False)
    one.drain()
    hq.send(topic, range(100, 160), batching=False)

    def cleared() -> None:
        if is_compacted:
            compacted(hq, topic)
        skip_and_remove(hq, topic)

    with pytest.raises(ReadIncomplete):
        one.drain(cleared)
    one.stop()
    assert one.rows == list(range(10))


@pytest.mark.nightly
def test_what_another_consumer_acknowledges_of_a_compacted_topic_is_missed_and_read_again(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    one = query(topic, readCompacted="true")
    hq.send(topic, range(10), batching=False)
    one.drain()
    hq.send(topic, range(100, 160), batching=False)

    one.stop()
    with closing(Driver(one.options())) as driver:
        end = driver.choose_end(one.log[-1], limited=False)
        tasks = driver.plan(one.log[-1], end)
        with closing(hq.client.subscribe(topic, "s", replicate_subscription_state_enabled=True)) as consumer:
            for count in range(30):
                message = consumer.receive(5000)
                if 10 <= count < 20:
                    consumer.acknowledge(message)
        with pytest.raises(ReadIncomplete, match="somebody acknowledged it"):
            read(one, tasks)
    with closing(Driver(one.options())) as driver:
        assert sorted(read(one, driver.plan(one.log[-1], end))) == list(range(100, 160))


def read(one: LoggedQuery, tasks: Iterable[PlannedRange]) -> list[int]:
    batches = [batch for task in tasks for batch in read_range(one.options(), task)]
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def test_a_topic_that_is_deleted_behind_a_planned_batch_is_a_loss_and_the_others_go_on(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    kept, deleted = hq.new_topic(), hq.new_topic()
    one = query(f"{kept},{deleted}")
    hq.send(kept, range(10))
    hq.send(deleted, range(10, 20))
    with closing(Driver(one.options())) as driver:
        start = driver.begin()
        end = driver.choose_end(start, limited=False)
        driver.plan(start, end)
    hq.call("DELETE", f"{hq.path(deleted)}?force=true")
    with closing(Driver(one.options())) as driver, pytest.raises(DataLoss, match="does not exist any more"):
        driver.plan(start, end)
    with closing(Driver(one.options(failOnDataLoss="false"))) as driver:
        assert sorted(read(one, driver.plan(start, end))) == list(range(10))


@pytest.mark.nightly
def test_a_query_of_one_partition_is_refused_while_another_reads_the_topic(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic(3)
    query(topic).drain()
    with pytest.raises(SubscriptionBusy, match="partition-1"):
        query(f"{topic}-partition-1", readTimeoutSeconds="1").drain()


@pytest.mark.nightly
def test_a_cluster_with_disks_from_yesterday_is_found_whatever_was_sent_before_the_query_starts(tmp_path: Path) -> None:
    server = PulsarCluster("hq", tmp_path / "hq")

    def place() -> LiveCluster:
        server.start()
        server.wait()
        return LiveCluster.of(server)

    def kill(one: LiveCluster) -> None:
        one.close()
        server.kill()

    try:
        now = place()
        topic = now.new_topic()
        one = LoggedQuery(now, topic)
        now.send(topic, range(100), batching=False)
        one.drain()
        time.sleep(2)  # the cursor is on disk: managedLedgerCursorPositionFlushSeconds
        kill(now)
        disks = {name: server.folder / name for name in ("metadata", "bookkeeper")}
        for name, folder in disks.items():
            shutil.copytree(folder, tmp_path / name)
        now = place()
        now.send(topic, range(100, 200), batching=False)
        one.drain()
        one.stop()
        kill(now)
        for name, folder in disks.items():
            shutil.rmtree(folder)
            (tmp_path / name).rename(folder)
        now = place()
        now.send(topic, range(1000, 1150), batching=False)
        one.goes_on_after(DataLoss)
        assert set(one.rows) == {*range(200), *range(1000, 1150)}
        now.close()
    finally:
        server.stop()
