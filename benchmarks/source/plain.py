"""Plain Python readers: what the source is measured against. One process for each partition, all at once."""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pulsar

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.pulsar_source.world import LiveCluster
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client

OPERATION_S = 30
_barrier: Any = None


def plain_rate(
    service_url: str, access: PulsarAccess, partitions: list[str], messages: int, value_bytes: int, *, everything: bool
) -> float:
    """Messages a second from the first reader's start to the last one's end, without the start of the processes.

    `everything`: take all that the source has columns for, not the value alone.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(partitions))
    with context.Pool(len(partitions), initializer=_remember, initargs=(barrier,)) as pool:
        work = [(service_url, access, partition, value_bytes, everything) for partition in partitions]
        spans = pool.starmap_async(_read, work, chunksize=1).get(timeout=300)
    assert sum(count for count, *_ in spans) == messages
    return messages / (max(end for *_, end in spans) - min(start for _, start, _ in spans))


def _remember(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603  # how a pool hands its workers something
    _barrier = barrier


def _read(
    service_url: str, access: PulsarAccess, partition: str, value_bytes: int, everything: bool
) -> tuple[int, float, float]:
    client = open_pulsar_client(service_url, access, timeout_s=OPERATION_S)
    _barrier.wait(60)
    start = time.time()
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    count = size = 0
    while reader.has_message_available():
        # What a good plain reader does: ask now and then, not before each message.
        for _ in range(1000):
            try:
                message = reader.read_next(timeout_millis=100)
            except pulsar.Timeout:
                break
            size += len(message.data())
            count += 1
            if everything:
                _take(message)
    end = time.time()
    client.close()
    assert size == count * value_bytes
    return count, start, end


def _take(message: pulsar.Message) -> tuple[object, ...]:
    place = message.message_id()
    return (
        message.partition_key(),
        message.properties(),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.topic_name(),
        f"{place.ledger_id()}:{place.entry_id()}:{place.partition()}:{place.batch_index()}",
        message.producer_name(),
    )


# Many partitions: how long the driver needs to plan a batch, and to commit one, when each partition has news.

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
    producer = place.client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(PARTITIONS):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    producer.close()
