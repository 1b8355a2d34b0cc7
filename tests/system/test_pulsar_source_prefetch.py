"""What is held ahead of a topic whose messages unpack to much more than they are stored with; the real Pulsar."""

from contextlib import closing

import pulsar
import pytest

from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading.feeds import FIRST_QUEUE
from cloud_jobs.pulsar_source.reading.range_reader import read_range
from tests.cloud_jobs.pulsar_source.world import LiveCluster

pytestmark = [pytest.mark.system, pytest.mark.nightly]
MIB = 1 << 20
COUNT = 80


def test_a_plan_of_one_message_takes_few_of_them_and_a_task_reads_each_once(hq: LiveCluster) -> None:
    topic = hq.new_topic()
    hq.send(topic, range(COUNT), pad=MIB, batching=False, compression=pulsar.CompressionType.ZSTD)
    known = {**hq.options, "topics": topic, "subscription": "s", "prefetchBytes": str(4 * MIB)}
    with closing(Driver(PulsarOptions.parse(known | {"maxMessagesPerTrigger": "1"}))) as driver:
        start = driver.begin()
        end = driver.choose_end(start, limited=True)
        stats = hq.call("GET", f"{hq.path(topic)}/stats")["subscriptions"]
        sent = sum(row["msgOutCounter"] for row in stats.values())
        assert 1 <= sent <= 3 * FIRST_QUEUE  # what the first queue holds, and what was received of it
        (task,) = driver.plan(start, end)
        assert [b.num_rows for b in read_range(PulsarOptions.parse(known), task)] == [1]
    options = PulsarOptions.parse(known | {"subscription": "all"})
    with closing(Driver(options)) as driver:
        start = driver.begin()
        (task,) = driver.plan(start, driver.choose_end(start, limited=False))
        values = [value for batch in read_range(options, task) for value in batch.column("value").to_pylist()]
    assert sorted(map(int, values)) == list(range(COUNT))
