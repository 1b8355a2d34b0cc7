"""`make bench-source`: the source against plain Python readers of the same partitions, light micro-batches, and many
partitions.

Both sides read the same partitions of the same cluster at once, one process for each partition, in turns in one run, so
that their ratio holds on any machine. The plain readers take the bytes of each value and nothing else, and
once more all that the source has columns for; the source delivers its columns through Arrow into Spark's `noop` sink:
once those that a job usually needs, once all of them.
"""

import statistics
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.harness import benchmark_folder, loaded_cluster
from benchmarks.source.plain import PARTITIONS as MANY
from benchmarks.source.plain import BatchTimes, plain_rate, plan_and_commit
from tests.cloud_jobs.pulsar_source.world import LiveCluster, session, stream

MESSAGES = 600_000
PARTITIONS = 2
VALUE_BYTES = 200
ROUNDS = 3
LIGHT_BATCHES = 25
USUAL = "value,key,publish_time,message_id"


def main() -> None:
    with benchmark_folder("source") as folder, loaded_cluster(folder) as place:
        spark = session()
        topic = filled(place)
        rates = [turn(spark, place, topic, folder, number) for number in range(ROUNDS + 1)]
        light = light_batches(spark, place, folder)
        spark.stop()
        report(rates[1:], light, plan_and_commit(place))  # the first turn warms both up


def filled(place: LiveCluster) -> str:
    """A topic with MESSAGES messages as the gateway sends them: batched, with a key and four properties."""
    topic = place.new_topic(PARTITIONS)
    properties = {"tenant": "acme", "device": "eu-0001", "epoch": "55432187654321", "region": "eu"}
    place.send(topic, range(MESSAGES), pad=VALUE_BYTES, properties=properties)
    return topic


def turn(spark: SparkSession, place: LiveCluster, topic: str, folder: Path, number: int) -> dict[str, float]:
    return {
        "plain": plain(place, topic, everything=False),
        "plain all": plain(place, topic, everything=True),
        "usual": through_spark(spark, place, topic, folder / f"usual-{number}", columns=USUAL),
        "all": through_spark(spark, place, topic, folder / f"all-{number}"),
    }


def plain(place: LiveCluster, topic: str, *, everything: bool) -> float:
    partitions = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
    return plain_rate(place.service_url, place.access, partitions, MESSAGES, VALUE_BYTES, everything=everything)


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


def report(rates: list[dict[str, float]], light: list[int], many: BatchTimes) -> None:
    light = sorted(light)
    speeds = {way: statistics.median(rate[way] for rate in rates) for way in rates[0]}
    pairs = (("usual", "plain"), ("all", "plain all"), ("all", "plain"))
    ratios = {pair: statistics.median(rate[pair[0]] / rate[pair[1]] for rate in rates) for pair in pairs}
    write = sys.stdout.write
    write(f"{MESSAGES:,} messages of {VALUE_BYTES} bytes, {PARTITIONS} partitions, median of {ROUNDS} turns\n\n")
    write("| what | asked | measured |\n|---|---|---|\n")
    write(f"| plain Python readers, the value only | | {speeds['plain']:,.0f} messages/s |\n")
    write(f"| plain Python readers, all that there is | | {speeds['plain all']:,.0f} messages/s |\n")
    write(f"| the source, {USUAL} | | {speeds['usual']:,.0f} messages/s |\n")
    write(f"| the source, all columns | | {speeds['all']:,.0f} messages/s |\n")
    write(f"| ratio, {USUAL} to the value only | at least 0.60 | {ratios['usual', 'plain']:.2f} |\n")
    write(f"| ratio, all columns to all that there is | at least 0.60 | {ratios['all', 'plain all']:.2f} |\n")
    write(f"| ratio, all columns to the value only | at least 0.60 | {ratios['all', 'plain']:.2f} |\n")
    write(f"| lightly loaded micro-batch, median | under 400 ms | {statistics.median(light):.0f} ms |\n")
    write(f"| lightly loaded micro-batch, 95 % | | {light[int(len(light) * 0.95)]} ms |\n")
    write(f"| plan and commit of {MANY} partitions | at most 0.50 s | {many.plan_s + many.commit_s:.2f} s |\n")
    write(f"| of these the commit | | {many.commit_s:.2f} s |\n")
    write(f"| plan and commit of {MANY} partitions, broker just started | | {many.cold_s:.2f} s |\n")


if __name__ == "__main__":
    main()
