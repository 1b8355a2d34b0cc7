"""The conformance suite of the format `pulsar`: a real cluster, a real Spark, one sentence a test."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from cloud_jobs.pulsar_source.messages import arrow_schema
from deploy.local import LocalStack
from tests.cloud_jobs.pulsar_source.world import (
    DeliveredBatches,
    LiveCluster,
    eventually,
    offsets,
    read_available,
    running,
    stream,
)

pytestmark = pytest.mark.system


@pytest.fixture
def collected() -> DeliveredBatches:
    return DeliveredBatches()


def test_three_topics_of_four_partitions_are_read_once_each_and_available_now_ends(
    hq: LiveCluster, spark: SparkSession, collected: DeliveredBatches, tmp_path: Path
) -> None:
    topics = [hq.new_topic(4) for _ in range(3)]
    frame = stream(spark, hq.options, topics=",".join(topics), subscription="s")
    for number, topic in enumerate(topics):
        hq.send(topic, range(number * 1000, number * 1000 + 1000))
    read_available(frame, collected, tmp_path)
    assert sorted(collected.numbers()) == list(range(3000))
    hq.send(topics[1], range(3000, 3500))
    read_available(frame, collected, tmp_path)
    assert sorted(collected.numbers()) == list(range(3500))
    assert all(hq.backlog(topic, "s") == 0 for topic in topics)
    assert_forward(offsets(tmp_path))


def test_limits_hold_for_messages_of_batching_producers(
    hq: LiveCluster, spark: SparkSession, collected: DeliveredBatches, tmp_path: Path
) -> None:
    topic = hq.new_topic(4)
    hq.send(topic, range(5000), pad=20)
    read_available(
        stream(spark, hq.options, topics=topic, subscription="rows", maxMessagesPerTrigger="1700"),
        collected,
        tmp_path / "r",
    )
    assert collected.sizes() == [1700, 1700, 1600]
    assert sorted(collected.numbers()) == list(range(5000))
    assert_forward(offsets(tmp_path / "r"))


def test_a_compacted_topic_gives_the_newest_of_each_key(
    hq: LiveCluster, spark: SparkSession, collected: DeliveredBatches, tmp_path: Path
) -> None:
    topic = hq.new_topic()
    for number in range(300):
        hq.send(topic, [number], partition_key=f"k{number % 3}") if number % 100 == 0 or number > 296 else None
    hq.send(topic, range(300, 303), partition_key="gone")
    producer = hq.client.create_producer(topic)
    producer.send(b"", partition_key="gone")
    producer.close()
    hq.call("PUT", f"{hq.path(topic)}/compaction")
    eventually("compaction", lambda: hq.call("GET", f"{hq.path(topic)}/compaction")["status"] == "SUCCESS")
    frame = spark.read.format("pulsar").options(**hq.options, topics=topic, readCompacted="true").load()
    # The tombstone is the newest entry of all, and the broker keeps that one.
    newest = {row["key"]: int(row["value"]) for row in frame.collect() if row["value"]}
    assert newest == {"k0": 297, "k1": 298, "k2": 299}
    hq.send(topic, [300], partition_key="k0")
    read_available(stream(spark, hq.options, topics=topic, subscription="s", readCompacted="true"), collected, tmp_path)
    assert sorted(collected.numbers()) == [297, 298, 299, 300]


def test_columns_carry_what_the_producer_set(hq: LiveCluster, spark: SparkSession) -> None:
    topic = hq.new_topic()
    hq.send(topic, [1], batching=False, properties={"a": "b", "c": "ü"}, event_timestamp=1_767_603_422_123)
    producer = hq.client.create_producer(topic)
    producer.send(b"\x00\xff")
    producer.close()
    frame = spark.read.format("pulsar").options(**hq.options, topics=topic).load()
    assert to_arrow_schema(frame.schema, timezone="UTC") == arrow_schema()
    first, second = frame.orderBy("publish_time").collect()
    assert (first["value"], first["key"], first["properties"]) == (b"1", "k1", {"a": "b", "c": "ü"})
    assert first["event_time"].timestamp() == pytest.approx(1_767_603_422.123)
    assert (second["value"], second["key"], second["properties"], second["event_time"]) == (b"\x00\xff", None, {}, None)
    assert (first["topic"], first["cluster"]) == (topic, "hq")
    assert first["message_id"].split(":")[1:] == ["0", "-1"]


def test_a_replicated_message_names_the_cluster_where_it_entered_and_the_far_cursor_follows(
    stack: LocalStack, spark: SparkSession, collected: DeliveredBatches, tmp_path: Path
) -> None:
    eu, hq = (LiveCluster.of(stack.pulsar[name], "fleet/telemetry-eu") for name in ("eu", "hq"))
    topic = eu.new_topic(2, also_in=[hq])
    with running(stream(spark, hq.options, topics=topic, subscription="s"), collected, tmp_path / "checkpoint"):
        for number in range(8):
            eu.send(topic, range(number * 100, number * 100 + 100))
            eventually("a round", partial(has_numbers, collected, number * 100 + 100))
            eventually("half a second", beat(0.5))
        eventually("the far cursor", lambda: any_after_first(eu.cursors(topic, "s")))
    rows = spark.read.format("pulsar").options(**hq.options, topics=topic).load().select("cluster").distinct()
    assert [row[0] for row in rows.collect()] == ["eu"]
    for cluster in (eu, hq):
        # the stack's other tests look at all links of the namespace
        cluster.call("DELETE", f"{cluster.path(topic)}/partitions?force=true")
        cluster.close()


def test_records_gone_by_retention_stop_the_query_or_leave_a_gap_as_the_option_says(
    hq: LiveCluster, spark: SparkSession, collected: DeliveredBatches, tmp_path: Path
) -> None:
    topic = hq.new_topic()
    hq.send(topic, range(50))
    options = {"topics": topic, "subscription": "s"}
    read_available(stream(spark, hq.options, **options), collected, tmp_path)
    hq.call("DELETE", f"{hq.path(topic)}/subscription/s?force=true")
    hq.send(topic, range(50, 100))
    stored = hq.call("GET", f"{hq.path(topic)}/internalStats")["ledgers"][0]["ledgerId"]
    hq.call("PUT", f"{hq.path(topic)}/unload")
    hq.send(topic, range(100, 150))
    hq.call("POST", f"{hq.path(topic)}/trim")
    first = lambda: hq.call("GET", f"{hq.path(topic)}/internalStats")["ledgers"][0]["ledgerId"]  # noqa: E731
    eventually("the old ledger is removed", lambda: first() != stored)
    with pytest.raises(StreamingQueryException, match="gone before they were read"):
        read_available(stream(spark, hq.options, **options), collected, tmp_path)
    read_available(stream(spark, hq.options, failOnDataLoss="false", **options), collected, tmp_path)
    assert sorted(collected.numbers()) == [*range(50), *range(100, 150)]


def assert_forward(written: list[dict[str, Any]]) -> None:
    """Each partition's position only grows from offset to offset."""
    for before, after in pairwise(written):
        for topic, position in before["positions"].items():
            assert parts(position) <= parts(after["positions"][topic])


def parts(position: str) -> tuple[int, ...]:
    return (*map(int, position.split(":")), 2**31)[:3]


def any_after_first(cursors: dict[str, str | None]) -> bool:
    return any(position and not position.endswith(":-1") for position in cursors.values())


def has_numbers(collected: DeliveredBatches, count: int) -> bool:
    return len(collected.numbers()) >= count


def beat(seconds: float) -> Callable[[], bool]:
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return lambda: datetime.now(UTC) > until
