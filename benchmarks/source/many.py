"""Many partitions: how long the driver needs to plan a batch, and to commit one, when each partition has news."""

import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import pulsar

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.pulsar_source.world import LiveCluster

PARTITIONS = 400
BATCHES = 9
_WARM_UP = 25
"""Batches until the broker's compiler has seen each question some ten thousand times."""


class BatchTimes(NamedTuple):
    """Median seconds of batches that take something of every partition.

    `plan_s`: offsets and tasks; `cold_s`: plan and commit at a broker that was never asked before.
    """

    plan_s: float
    commit_s: float
    cold_s: float


def plan_and_commit(place: LiveCluster) -> BatchTimes:
    """How long plans and commits take. The first batch counts nowhere: it opens what the others find open."""
    topic = place.new_topic(PARTITIONS, prefix="many")
    options = PulsarOptions.parse({**place.options, "topics": topic, "subscription": "many"})
    driver = Driver(options)
    times = list(_batches(driver, place, topic))[1:]
    driver.close()
    cold, warm = times[:BATCHES], times[-BATCHES:]
    return BatchTimes(
        statistics.median(plan for plan, _ in warm),
        statistics.median(commit for _, commit in warm),
        statistics.median(plan + commit for plan, commit in cold),
    )


def _batches(driver: Driver, place: LiveCluster, topic: str) -> Iterator[tuple[float, float]]:
    one_each(place, topic)  # opens the partitions: on a busy machine that takes longer than an answer may
    start = driver.begin()
    for _ in range(1 + _WARM_UP + BATCHES):
        one_each(place, topic)
        began = time.perf_counter()
        end = driver.choose_end(start, limited=False)
        tasks = driver.plan(start, end)
        planned = time.perf_counter()
        assert len(tasks) == PARTITIONS
        driver.commit(end)
        yield planned - began, time.perf_counter() - planned
        start = end


def one_each(place: LiveCluster, topic: str) -> None:
    """A message for each partition."""
    producer = place.client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(PARTITIONS):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    producer.close()
