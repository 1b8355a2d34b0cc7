"""The columns of the format `pulsar`, and how messages become Arrow batches."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.pulsar_source.topics import origin_cluster, split_partition

SCHEMA = (
    "value binary, key string, properties map<string,string>, publish_time timestamp, event_time timestamp, "
    "topic string, message_id string, cluster string"
)
"""The columns, as Spark's DDL. `key`, `event_time` and `value` are null where the producer set none; `topic` is the
topic's full name without its partition; `message_id` is `ledger:entry:partition` (-1: not partitioned), with
`:batch-index` for a message that was sent in a batch; `cluster` is where it entered (see `topics.origin_cluster`)."""

_TIME = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", _TIME),
        ("event_time", _TIME),
        ("topic", pa.string()),
        ("message_id", pa.string()),
        ("cluster", pa.string()),
    ]
)


class Columns:
    """Collects messages of one topic partition; `take` hands them over as one Arrow batch."""

    def __init__(self, topic: str, cluster: str, known_clusters: frozenset[str]) -> None:
        self._topic, partition = split_partition(topic)
        self._partition = str(partition)
        self._cluster = cluster
        self._known_clusters = known_clusters
        self._origins: dict[str, str] = {}
        self._clear()

    def _clear(self) -> None:
        self.bytes = 0
        self._values: list[bytes | None] = []
        self._keys: list[str] = []
        self._ends = [0]
        self._names: list[str] = []
        self._texts: list[str] = []
        self._published: list[int] = []
        self._happened: list[int] = []
        self._ledgers: list[int] = []
        self._entries: list[int] = []
        self._batches: list[int] = []
        self._producers: list[str] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, message: Any, ledger: int, entry: int, batch: int) -> None:
        """One message of the native client (`_pulsar.Message`), with the parts of its id."""
        value = message.data()
        self.bytes += len(value)
        self._values.append(None if not value and message.has_null_value() else value)
        self._keys.append(message.partition_key())
        properties = message.properties()
        self._names.extend(properties.keys())
        self._texts.extend(properties.values())
        self._ends.append(len(self._names))
        self._published.append(message.publish_timestamp())
        self._happened.append(message.event_timestamp())
        self._ledgers.append(ledger)
        self._entries.append(entry)
        self._batches.append(batch)
        self._producers.append(message.producer_name())

    def take(self) -> pa.RecordBatch:
        """Everything added since the last call, in order, as a batch of ARROW_SCHEMA."""
        rows = len(self)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self._values, pa.binary()),
                _null_where_empty(pa.array(self._keys, pa.string())),
                pa.MapArray.from_arrays(
                    pa.array(self._ends, pa.int32()),
                    pa.array(self._names, pa.string()),
                    pa.array(self._texts, pa.string()),
                ),
                _times(self._published),
                _times([time_ms or None for time_ms in self._happened]),
                pa.repeat(pa.scalar(self._topic, pa.string()), rows),
                self._message_ids(),
                pa.array([self._origin(name) for name in self._producers], pa.string()),
            ],
            schema=ARROW_SCHEMA,
        )
        assert batch.num_rows == rows
        self._clear()
        return batch

    def _message_ids(self) -> pa.Array:
        ledgers, entries, batches = (
            pa.array(ints).cast(pa.string()) for ints in (self._ledgers, self._entries, self._batches)
        )
        ids = pc.binary_join_element_wise(ledgers, entries, self._partition, ":")
        in_batch = pc.binary_join_element_wise(ids, batches, ":")
        return pc.if_else(pc.equal(pa.array(self._batches), -1), ids, in_batch)

    def _origin(self, producer: str) -> str:
        if producer not in self._origins:
            self._origins[producer] = origin_cluster(producer, self._known_clusters, self._cluster)
        return self._origins[producer]


def _null_where_empty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _times(times_ms: list[int] | list[int | None]) -> pa.Array:
    return pa.array(times_ms, pa.timestamp("ms", tz="UTC")).cast(_TIME)
