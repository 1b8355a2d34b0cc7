"""One task's work, how a range of a batch becomes one, and what it does with its cluster."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange
from cloud_jobs.pulsar_source.reading.entries import EntryStore
from cloud_jobs.pulsar_source.reading.feeds import Feed


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until). `ledgers`: (number,
    entries) of the ledgers that it touched when it was planned. `isolated`: through a client in a process of its own,
    see `isolation`. `verified`: what is not delivered is accounted for, because the range is acknowledged once it is
    read.
    """

    cluster: SourceCluster
    topic: str
    start: LedgerPosition
    end: LedgerPosition
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    ledgers: tuple[tuple[int, int], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    isolated: bool = False
    verified: bool = True

    def isolated_copy(self) -> Self:
        """The same work in isolation: an entry that ends a client is a row."""
        return replace(self, durable=False, isolated=True)

    def includes(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


OpenEntryStore = Callable[[SourceCluster, PulsarOptions, str], AbstractContextManager[EntryStore]]


@dataclass(frozen=True, slots=True)
class RangeIO:
    """What reading a range does with its cluster, and the clock (seconds) that bounds it.

    `open_feed`: its messages. `open_store`: what the cluster says of single entries. `read_state`: the topic partition
    as it stands now. `record_chunks`: keeps with the subscription that there are messages in chunks.
    """

    open_feed: Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]
    open_store: OpenEntryStore
    read_state: Callable[[PulsarOptions, PlannedRange], PartitionState]
    record_chunks: Callable[[PulsarOptions, PlannedRange], None]
    clock: Callable[[], float] = time.monotonic


_MAX_QUEUE = 1000


def stream_range(
    part: PartitionRange,
    state: PartitionState,
    cluster: SourceCluster,
    options: PulsarOptions,
    known_clusters: frozenset[str],
) -> PlannedRange:
    """One range of a batch -> one task's work.

    What was compacted is read by a reader: through the subscription it looks like what somebody else has acknowledged.
    """
    compacted = options.read_compacted and part.start < state.compacted
    return PlannedRange(
        cluster=cluster,
        topic=part.topic,
        start=part.start,
        end=part.end,
        durable=state.cursor_delivers(part.start) and not compacted,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.entry_counts_between(part.start, part.end),
    )


def batch_range(
    part: PartitionRange,
    state: PartitionState,
    cluster: SourceCluster,
    options: PulsarOptions,
    known_clusters: frozenset[str],
) -> PlannedRange:
    """One range of a batch query -> one task's work, within the publish times of the options."""
    return PlannedRange(
        cluster=cluster,
        topic=part.topic,
        start=part.start,
        end=part.end,
        durable=False,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.entry_counts_between(part.start, part.end),
        since_ms=_milliseconds(options.starting_position),
        until_ms=_milliseconds(options.ending_position),
        verified=False,
    )


def _milliseconds(moment: str | datetime) -> int | None:
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else None


def queue_size(state: PartitionState, prefetch_bytes: int) -> int:
    """How many messages a consumer may hold ahead, by the mean size of the stored entries."""
    mean = state.mean_entry_size()
    return max(1, min(_MAX_QUEUE, int(prefetch_bytes / mean))) if mean else _MAX_QUEUE
