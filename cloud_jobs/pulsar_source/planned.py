"""One task's work, and what it needs of the world."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.entries import EntryStore
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.partition_state import PartitionState
from cloud_jobs.pulsar_source.position import LedgerPosition


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
        """The same work with care: what ends a client is a row."""
        return replace(self, durable=False, isolated=True)

    def includes(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


ReadState = Callable[[PulsarOptions, PlannedRange], PartitionState]
Note = Callable[[PulsarOptions, PlannedRange], None]
OpenFeed = Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]
OpenEntryStore = Callable[[SourceCluster, PulsarOptions, str], AbstractContextManager[EntryStore]]
