"""One task's work, and what it needs of the world."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.entries import Stored
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import Position


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until). `ledgers`: (number,
    entries) of the ledgers that it touched when it was planned. `careful`: through a client in a process of its own,
    see `isolation`. `whole`: what is not delivered is accounted for, because the range is acknowledged once it is read.
    """

    cluster: Cluster
    topic: str
    start: Position
    end: Position
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    ledgers: tuple[tuple[int, int], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    careful: bool = False
    whole: bool = True

    def carefully(self) -> Self:
        """The same work with care: what ends a client is a row."""
        return replace(self, durable=False, careful=True)

    def keeps(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


Look = Callable[[PulsarOptions, PlannedRange], TopicState]
Note = Callable[[PulsarOptions, PlannedRange], None]
Open = Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]
Store = Callable[[Cluster, PulsarOptions, str], AbstractContextManager[Stored]]
