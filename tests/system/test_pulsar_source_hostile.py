"""Messages and names that a producer or an operator can choose freely, through the real Pulsar and Spark."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.cloud_jobs.pulsar_source.raw import Fields, message, metadata, pair, raw_producer
from tests.cloud_jobs.pulsar_source.world import LiveCluster, read_available, stream

pytestmark = [pytest.mark.system, pytest.mark.nightly]
NANOSECONDS = 1_767_603_422_000_000_000
ENCRYPTED = {
    "encryption_keys": message([(1, b"name"), (2, b"v" * 16)]),
    "encryption_algo": b"any",
    "encryption_param": b"p" * 12,
}
HOSTILE: dict[str, tuple[Fields, str | None]] = {
    "plain": (metadata(), None),
    "key": (metadata(partition_key=b"\xff\xfe"), "key not UTF-8: fffe"),
    "property": (metadata(properties=pair(b"a", b"\xff")), "properties not UTF-8: ff"),
    "property's name": (metadata(properties=pair(b"\xffk", b"v")), "properties not UTF-8: ff6b"),
    "nanoseconds": (
        metadata(event_time=NANOSECONDS),
        f"event_time not a time of the years 1970 to 9999: {NANOSECONDS} ms",
    ),
    "2^63": (metadata(event_time=2**63), f"event_time not a time of the years 1970 to 9999: {2**63} ms"),
    "2^64 - 1": (
        metadata(publish_time=2**64 - 1),
        f"publish_time not a time of the years 1970 to 9999: {2**64 - 1} ms",
    ),
    "no publish time": (metadata(publish_time=0), "publish_time not a time of the years 1970 to 9999: 0 ms"),
    "producer's name": (metadata(producer_name=b"\xff"), None),
    "encrypted": (metadata(**ENCRYPTED), "value is encrypted"),
    "encrypted batch": (metadata(num_messages_in_batch=5, **ENCRYPTED), "value is encrypted"),
    "unknown compression": (metadata(compression=9, uncompressed_size=100), None),
    "transaction": (metadata(txnid_least_bits=1, txnid_most_bits=1), None),
    "schema version": (metadata(schema_version=b"\xff" * 40), None),
    "ordering key": (metadata(ordering_key=b"\xff"), None),
    "delivery in the year 146,000,000": (metadata(deliver_at_time=2**62), None),
    "a chunk alone": (metadata(uuid=b"u", num_chunks_from_msg=1, total_chunk_msg_size=1, chunk_id=0), None),
    "two faults": (
        metadata(partition_key=b"\xff", event_time=2**63),
        f"key not UTF-8: ff; event_time not a time of the years 1970 to 9999: {2**63} ms",
    ),
}
NOT_DELIVERED: dict[str, Fields] = {
    "marker": metadata(marker_type=10),
    "does not decompress": metadata(compression=2, uncompressed_size=100),
    "first chunk of three": metadata(uuid=b"v", num_chunks_from_msg=3, total_chunk_msg_size=21, chunk_id=0),
}


class Rows:
    """What a query delivered, as rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def sink(self, frame: DataFrame, _: int) -> None:
        self.rows += frame.toArrow().to_pylist()


def hostile_topic(hq: LiveCluster) -> str:
    """A topic with every hostile message; the last is an ordinary one."""
    topic = hq.new_topic()
    hq.send(topic, range(3))
    with raw_producer(hq, topic) as producer:
        for name, (entry, _) in HOSTILE.items():
            producer.send(entry, name.encode())
        for entry in NOT_DELIVERED.values():
            producer.send(entry, b"no zlib")
    hq.send(topic, [3])
    return topic


@pytest.mark.parametrize("limit", [{}, {"maxMessagesPerTrigger": "7"}])
def test_a_message_of_any_content_is_a_row_and_the_query_goes_on(
    hq: LiveCluster, spark: SparkSession, tmp_path: Path, limit: dict[str, str]
) -> None:
    collected = Rows()
    topic = hostile_topic(hq)
    frame = stream(spark, hq.options, topics=topic, subscription="s", readTimeoutSeconds="20", **limit)
    read_available(frame, collected, tmp_path)
    said = {row["value"]: row["malformed"] for row in collected.rows}
    ordinary = {str(number).encode(): None for number in range(4)}
    assert said == ordinary | {name.encode(): reason for name, (_, reason) in HOSTILE.items()}
    assert len(collected.rows) == len(said)
    for number, entry in enumerate(NOT_DELIVERED.values(), start=100):
        with raw_producer(hq, topic) as producer:
            producer.send(entry, b"no zlib")
        if number == 101:
            read_available(frame, collected, tmp_path)  # there is nothing but what is never delivered
        hq.send(topic, [number])
    read_available(frame, collected, tmp_path)
    assert [row["value"] for row in collected.rows[len(said) :]] == [b"100", b"101", b"102"]
