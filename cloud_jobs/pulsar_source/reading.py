"""What runs in Spark's Python workers: reads one planned range of one topic partition and acknowledges nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pulsar
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.clients import as_our_error, patience_s
from cloud_jobs.pulsar_source.columns import Columns
from cloud_jobs.pulsar_source.errors import ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed, durable_feed, reader_feed
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import Position

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until).
    """

    cluster: Cluster
    topic: str
    start: Position
    end: Position
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    since_ms: int | None = None
    until_ms: int | None = None

    def keeps(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


def read_range(options: PulsarOptions, planned: PlannedRange) -> Iterator[pa.RecordBatch]:
    """The messages of a planned range as Arrow batches of `columns.arrow_schema`, each in order, none twice.

    Raises ReadStalled when nothing arrives for `readTimeoutSeconds`, or sooner when the broker is gone.
    """
    columns = Columns(planned.topic, planned.cluster.name, planned.known_clusters, options.columns)
    timed = planned.since_ms is not None or planned.until_ms is not None
    with _open(options, planned) as feed:
        try:
            for messages in _until(feed, options, planned, time.monotonic):
                columns.extend([m for m in messages if planned.keeps(m.publish_timestamp())] if timed else messages)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    yield columns.take()
        except pulsar.PulsarException as error:
            raise as_our_error(planned.cluster, f"reading {planned.topic}", error) from error
    if len(columns):
        yield columns.take()


def _open(options: PulsarOptions, planned: PlannedRange) -> AbstractContextManager[Feed]:
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def _until(
    feed: Feed, options: PulsarOptions, planned: PlannedRange, clock: Callable[[], float]
) -> Iterator[list[Any]]:
    """The messages from after `start` to `end`, or to the newest that is delivered at all.

    The planned end can be an entry that no consumer is given (a replication marker): what counts is `feed.last()`.
    """
    reached, end = planned.start, planned.end
    heard = clock()
    stop = _stop(feed, end)
    while reached < stop:
        messages = feed.receive()
        if not messages:
            if feed.connected() and feed.exhausted(stop):
                return
            _check_silence(feed, options, planned, reached, clock() - heard)
            stop = _stop(feed, end)
            continue
        heard = clock()
        last = position_of(messages[-1].message_id())
        if position_of(messages[0].message_id()) <= reached or last > end:
            messages = [m for m in messages if reached < position_of(m.message_id()) <= end]
        if messages:
            yield messages
        reached = max(reached, last)


def _stop(feed: Feed, end: Position) -> Position:
    # While the broker is away the planned end stands, and the silence is what is bounded.
    if not feed.connected():
        return end
    try:
        return min(end, feed.last())
    except pulsar.PulsarException:
        return end


def _check_silence(
    feed: Feed, options: PulsarOptions, planned: PlannedRange, reached: Position, silence_s: float
) -> None:
    bound_s = options.read_timeout_seconds if feed.connected() else patience_s(options)
    if silence_s > bound_s:
        raise ReadStalled(planned.cluster.name, planned.topic, str(reached), str(planned.end), silence_s)
