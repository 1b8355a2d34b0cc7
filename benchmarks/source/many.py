"""Many partitions: how long the driver needs to plan a batch, and to commit one, when each partition has news."""

import statistics
import time
from collections.abc import Iterator

import pulsar

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.pulsar_source.world import Place

PARTITIONS = 400
BATCHES = 9


def plan_and_commit(place: Place) -> tuple[float, float]:
    """Median seconds of a plan (offsets and tasks) and of a commit, of batches that take something of every partition.

    The first batch warms up: it opens what the others find open.
    """
    topic = place.new_topic(PARTITIONS, prefix="many")
    options = PulsarOptions.parse({"clusters": place.text, "topics": topic, "subscription": "many"})
    driver = Driver(options)
    times = list(_batches(driver, place, topic))[1:]
    driver.close()
    return statistics.median(plan for plan, _ in times), statistics.median(commit for _, commit in times)


def _batches(driver: Driver, place: Place, topic: str) -> Iterator[tuple[float, float]]:
    start = driver.initial()
    for _ in range(BATCHES + 1):
        one_each(place, topic)
        began = time.perf_counter()
        end = driver.latest(start, limited=False)
        tasks = driver.plan(start, end)
        planned = time.perf_counter()
        assert len(tasks) == PARTITIONS
        driver.commit(end)
        yield planned - began, time.perf_counter() - planned
        start = end


def one_each(place: Place, topic: str) -> None:
    """A message for each partition."""
    producer = place.client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(PARTITIONS):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    producer.close()
