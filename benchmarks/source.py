"""`make bench-source`: the source against plain Python readers of the same partitions, light batches, many partitions.

Both sides read the same partitions at once, one process for each, in turns, so that their ratio holds on any machine.
`growth`: what a process holds over many micro-batches and rotations of its token.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pulsar
from pyspark.sql import SparkSession

from benchmarks.harness import Figure, benchmark_folder, limited, print_figures, run_parts
from benchmarks.stacks import measured_stack, running
from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster
from tests.cloud_jobs.pulsar_source.held import Held, halves, held_over
from tests.cloud_jobs.pulsar_source.world import LiveCluster, session, stream
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client

MESSAGES = 600_000
PARTITIONS = 2
VALUE_BYTES = 200
ROUNDS = 3
LIGHT_BATCHES = 25
USUAL = "value,key,publish_time,message_id"
BATCHES = 1000
ROTATIONS = 100
_TOPOLOGY = """
centre = "bench"
[clusters.bench]
[regions.bench]
cluster = "bench"
[tenants.fleet]
"""


@contextmanager
def loaded_cluster(folder: Path) -> Iterator[LiveCluster]:
    with measured_stack(folder, _TOPOLOGY) as stack, closing(LiveCluster.of(stack.pulsar["bench"])) as place:
        yield place


def against_plain_readers() -> bool:
    with benchmark_folder("source") as folder, loaded_cluster(folder) as place, session() as spark:
        topic = filled(place)
        rates = [turn(spark, place, topic, folder, number) for number in range(ROUNDS + 1)]
        light = light_batches(spark, place, folder)
        title = f"{MESSAGES:,} messages of {VALUE_BYTES} bytes, {PARTITIONS} partitions, median of {ROUNDS} turns"
        # the first turn warms both up
        return print_figures(title, figures(rates[1:], light, *plan_and_commit(place)))


def filled(place: LiveCluster) -> str:
    """A topic with MESSAGES messages as the gateway sends them: batched, with a key and four properties."""
    topic = place.new_topic(PARTITIONS)
    properties = {"tenant": "acme", "device": "eu-0001", "epoch": "55432187654321", "region": "eu"}
    place.send(topic, range(MESSAGES), pad=VALUE_BYTES, properties=properties)
    return topic


def turn(spark: SparkSession, place: LiveCluster, topic: str, folder: Path, number: int) -> dict[str, float]:
    return {
        "plain": plain_rate(place, topic, everything=False),
        "plain all": plain_rate(place, topic, everything=True),
        "usual": through_spark(spark, place, topic, folder / f"usual-{number}", columns=USUAL),
        "all": through_spark(spark, place, topic, folder / f"all-{number}"),
    }


def through_spark(spark: SparkSession, place: LiveCluster, topic: str, folder: Path, **options: str) -> float:
    """Messages a second of one micro-batch that takes them all, from its plan to its commit."""
    frame = stream(spark, place.options, topics=topic, subscription=folder.name, **options)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    progress = [row for row in query.recentProgress if row["numInputRows"]]
    assert sum(row["numInputRows"] for row in progress) == MESSAGES
    return float(MESSAGES / sum(row["durationMs"]["triggerExecution"] for row in progress) * 1000)


def light_batches(spark: SparkSession, place: LiveCluster, folder: Path) -> list[int]:
    """Milliseconds of each micro-batch of a topic that gets a few messages a second."""
    topic = place.new_topic(PARTITIONS)
    frame = stream(spark, place.options, topics=topic, subscription="light")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "light")).start()
    producer = place.client.create_producer(topic, batching_max_publish_delay_ms=1)
    for _ in range(LIGHT_BATCHES + 5):
        for number in range(4):
            producer.send_async(b"x", None, partition_key=str(number))
        producer.flush()
        time.sleep(0.5)
    query.stop()
    taken = [row["durationMs"]["triggerExecution"] for row in query.recentProgress if row["numInputRows"]]
    return taken[5:]


def figures(rates: list[dict[str, float]], light: list[int], plan_s: float, commit_s: float) -> Iterator[Figure]:
    names = {"plain": "plain Python readers, the value only", "plain all": "plain Python readers, all that there is"}
    for way, name in (names | {"usual": f"the source, {USUAL}", "all": "the source, all columns"}).items():
        yield Figure(name, f"{statistics.median(rate[way] for rate in rates):,.0f} messages/s")
    for ours, theirs in (("usual", "plain"), ("all", "plain all"), ("all", "plain")):
        ratio = statistics.median(rate[ours] / rate[theirs] for rate in rates)
        yield limited(f"ratio, {ours} to {theirs}", ratio, ">=", 0.6, "{:.2f}")
    yield limited("lightly loaded micro-batch, median", statistics.median(light), "<", 400, "{:.0f} ms")
    yield limited(f"plan and commit of {MANY} partitions", plan_s + commit_s, "<=", 0.5, "{:.2f} s")


OPERATION_S = 30
_barrier: Any = None


def plain_rate(place: LiveCluster, topic: str, *, everything: bool) -> float:
    """Messages a second without the start of the processes. `everything`: all fields, not the value alone."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PARTITIONS)
    with context.Pool(PARTITIONS, initializer=_remember, initargs=(barrier,)) as pool:
        names = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
        work = [(place.service_url, place.access, name, everything) for name in names]
        spans = pool.starmap_async(_read, work, chunksize=1).get(timeout=300)
    assert sum(count for count, *_ in spans) == MESSAGES
    return MESSAGES / (max(end for *_, end in spans) - min(start for _, start, _ in spans))


def _remember(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603  # how a pool hands its workers something
    _barrier = barrier


def _read(service_url: str, access: PulsarAccess, partition: str, everything: bool) -> tuple[int, float, float]:
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
    assert size == count * VALUE_BYTES
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


# Many partitions: how long the driver needs to plan a batch and to commit one, when each partition has news.

MANY = 400
PLANNED = 9
_WARM_UP = 25
"""Batches until the broker's compiler has seen each question some ten thousand times."""


def plan_and_commit(place: LiveCluster) -> tuple[float, float]:
    """Median seconds of plans and of commits. The first batches open what the others find open."""
    topic = place.new_topic(MANY, prefix="many")
    driver = Driver(PulsarOptions.parse({**place.options, "topics": topic, "subscription": "many"}))
    times = list(_batches(driver, place, topic))[-PLANNED:]
    driver.close()
    plans, commits = zip(*times, strict=True)
    return statistics.median(plans), statistics.median(commits)


def _batches(driver: Driver, place: LiveCluster, topic: str) -> Iterator[tuple[float, float]]:
    one_each(place, topic)  # opens the partitions: on a busy machine that takes longer than an answer may
    start = driver.begin()
    for _ in range(1 + _WARM_UP + PLANNED):
        one_each(place, topic)
        began = time.perf_counter()
        end = driver.choose_end(start, limited=False)
        tasks = driver.plan(start, end)
        planned = time.perf_counter()
        assert len(tasks) == MANY
        driver.commit(end)
        yield planned - began, time.perf_counter() - planned
        start = end


def one_each(place: LiveCluster, topic: str) -> None:
    producer = place.client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    for number in range(MANY):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    producer.close()


_MORE_SOCKETS = 2
_MORE_MIB = 32
"""The second half of the micro-batches may hold so much more than the first one, and no thread more."""


def growth() -> bool:
    with benchmark_folder("source-growth") as folder, running(GuardedCluster(folder)) as server:
        server.allow_reader()
        held = list(held_over(server, folder, BATCHES, ROTATIONS))
    title = f"{BATCHES:,} micro-batches with {ROTATIONS} rotations of the token, the most held in the second half"
    return print_figures(title, _growth_figures(held))


def _growth_figures(held: list[Held]) -> Iterator[Figure]:
    first, second = halves(held)
    tenths = held[len(held) // 10 - 1 :: len(held) // 10]
    first_mib, mib, *later_mib = (one.memory_bytes / (1 << 20) for one in (first, second, *tenths))
    yield limited("threads", second.threads, "<=", first.threads)
    yield limited("sockets", second.sockets, "<=", first.sockets + _MORE_SOCKETS)
    yield limited("memory", mib, "<=", first_mib + _MORE_MIB, "{:.0f} MiB")
    yield Figure("memory after each tenth, MiB", ", ".join(f"{one:.0f}" for one in later_mib))


def main() -> int:
    return run_parts(__doc__, {"speed": against_plain_readers, "growth": growth}, ["speed"])


if __name__ == "__main__":
    sys.exit(main())
