"""Messages that end the native client's process, through the real Pulsar and Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.cloud_jobs.pulsar_source.raw import Fields, metadata, raw_producer
from tests.cloud_jobs.pulsar_source.world import LiveCluster, stream

pytestmark = [pytest.mark.system, pytest.mark.nightly]
_MOST_STARTS = 6


ENDS_THE_CLIENT: dict[str, tuple[Fields, bytes]] = {
    "five messages that are not there": (metadata(num_messages_in_batch=5), b"x"),
    "a hundred that are not there": (metadata(num_messages_in_batch=100), b"xy"),
}


@pytest.mark.parametrize("limit", [{}, {"maxMessagesPerTrigger": "70"}])
def test_a_message_that_ends_the_client_is_a_row_and_each_other_message_arrives_once(
    hq: LiveCluster, spark: SparkSession, tmp_path: Path, limit: dict[str, str]
) -> None:
    topic = hq.new_topic()
    hq.send(topic, range(50), batching=False)
    for number, (entry, payload) in enumerate(ENDS_THE_CLIENT.values(), start=1):
        hq.send(topic, range(100 * number - 50, 100 * number))
        with raw_producer(hq, topic) as producer:
            producer.send(entry, payload)
            producer.send(metadata(), str(100 * number).encode())
        hq.send(topic, range(100 * number + 1, 100 * number + 50))
    rows: dict[int, list[Any]] = {}
    frame = stream(spark, hq.options, topics=topic, subscription="s", readTimeoutSeconds="20", **limit)
    starts = starts_until_done(
        frame, lambda sink, batch: rows.__setitem__(batch, sink.toArrow().to_pylist()), tmp_path / "checkpoint"
    )
    assert starts == 2  # one that ends, one that reads in isolation
    delivered = [row for batch in rows.values() for row in batch]
    assert sorted(int(row["value"]) for row in delivered if row["value"] is not None) == list(range(250))
    faulty = [row for row in delivered if row["value"] is None]
    assert len(faulty) == len(ENDS_THE_CLIENT)
    assert all(row["topic"] == topic and "ends the Pulsar client (SIG" in row["malformed"] for row in faulty)


def starts_until_done(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> int:
    for start in range(1, _MOST_STARTS + 1):
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        except StreamingQueryException:
            continue
        finally:
            query.stop()
        return start
    raise AssertionError("the query does not get over it")
