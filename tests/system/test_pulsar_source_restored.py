"""The source's driver and its tasks on a real Pulsar, after a restore, a deletion or a compaction; without Spark."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import DataLoss, PulsarOptions, PulsarSourceError
from cloud_jobs.pulsar_source.position import Offset
from cloud_jobs.pulsar_source.range_reader import read_range
from deploy.local import PulsarCluster
from tests.cloud_jobs.pulsar_source.world import LiveCluster

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


@pytest.mark.nightly
def test_a_subscription_that_is_deleted_between_plan_and_read_is_a_loss_and_what_is_stored_comes(
    hq: LiveCluster, query: Callable[..., LoggedQuery]
) -> None:
    topic = hq.new_topic()
    one = query(topic)
    one.drain()
    hq.send(topic, range(20))
    one.drain()
    hq.send(topic, range(20, 40))
    one.goes_on_after(DataLoss, lambda: hq.call("DELETE", f"{hq.path(topic)}/subscription/s?force=true"))
    assert set(one.rows) == set(range(40))


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
