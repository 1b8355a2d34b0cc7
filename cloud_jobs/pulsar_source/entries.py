"""The fate of each entry of a planned range that was not delivered, and one task's work.

A chunked message is a row only if all its chunks lie in one batch: the client assembles only chunks that it receives in
order from the first one. Nothing of ours produces chunks.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Self

from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.options import (
    PulsarOptions,
    SourceCluster,
    SourceClusterUnreachable,
    SourceConnectionRefused,
)
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange, PartitionState

# Entry metadata from the broker: why a planned entry was not delivered.

_FIRST_WINDOW, _LARGEST_WINDOW = 8, 128
_PARALLEL, _EACH = 8, 4
"""How many connections are asked over at most, and how many questions one of them is worth."""


class IdleTimeout:
    """Seconds left of a time-out that restarts with each answer."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self.reset()

    def reset(self) -> None:
        self._until_s = self._clock() + self._seconds

    def __call__(self) -> float:
        return self._until_s - self._clock()


class Fate(Enum):
    """Why an entry was not delivered."""

    NOT_SENT = "a marker of the broker, or of a transaction that was aborted"
    CHUNK_END = "the last chunk of a message"
    STORED = "stored, and a consumer could be given it"
    HELD = "held back by an open transaction"
    REMOVED = "not stored any more"

    @classmethod
    def from_headers(cls, headers: Mapping[str, str] | None) -> "Fate":
        """Of an entry by the admin REST's headers: None when it is no longer stored, empty where the broker cannot
        unpack it.
        """
        if headers is None:
            return cls.REMOVED
        # In this order: a broker can say of a marker, too, that it is of an open transaction.
        if "x-pulsar-marker-type" in headers or headers.get("x-pulsar-txn-aborted") == "true":
            return cls.NOT_SENT
        if headers.get("x-pulsar-txn-uncommitted") == "true":
            return cls.HELD
        number, of = (headers.get(f"x-pulsar-{name}", "")[:9] for name in ("chunk-id", "num-chunks-from-msg"))
        is_end = number.isdecimal() and of.isdecimal() and int(of) > 1 and int(number) == int(of) - 1
        return cls.CHUNK_END if is_end else cls.STORED


FateAt = Callable[[LedgerPosition], Fate]
"""Asks a cluster about an entry, from several threads at once; raises SourceClusterUnreachable."""


def entry_fates(
    fate_at: FateAt, positions: Iterable[LedgerPosition], timeout: IdleTimeout
) -> dict[LedgerPosition, Fate | None]:
    """The fates of many entries: None without an answer; those that no time was left for are missing.

    Raises SourceConnectionRefused, which concerns the cluster and not an entry. A topic with replicated subscriptions
    has about ten markers per second and partition, which no batch contains. They are asked for together, because single
    questions each wait for a round trip.
    """
    fates: dict[LedgerPosition, Fate | None] = {}

    def ask(share: Sequence[LedgerPosition]) -> None:
        for position in share:
            if timeout() <= 0:
                return
            try:
                fates[position] = fate_at(position)
            except SourceConnectionRefused:
                raise
            except SourceClusterUnreachable:
                fates[position] = None
                return
            timeout.reset()

    positions, window, size = iter(positions), list[LedgerPosition](), _FIRST_WINDOW
    with ThreadPoolExecutor(_PARALLEL) as pool:
        while timeout() > 0 and (window := [*window, *islice(positions, size - len(window))]):
            count = min(_PARALLEL, -(-len(window) // _EACH))
            list(pool.map(ask, [window[number::count] for number in range(count)]))
            window = [position for position in window if position not in fates]
            size = min(2 * size, _LARGEST_WINDOW)
    return fates


# One task: its range of a batch and its cluster.


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start`, up to and including `end`.

    `durable`: read through the durable subscription, whose cursor is at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue`: the most messages held ahead of Spark.
    `ledgers`: (number, entries) of the ledgers
    touched when planned. `isolated`: read by a client in its own process, see `isolation`. `verified`: undelivered
    entries are accounted for, because the range is acknowledged once it is read.
    """

    cluster: SourceCluster
    topic: str
    start: LedgerPosition
    end: LedgerPosition
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    ledgers: tuple[tuple[int, int], ...] = ()
    isolated: bool = False
    verified: bool = True

    def isolated_copy(self) -> Self:
        """The same work in isolation: an entry that crashes a client becomes a row."""
        return replace(self, durable=False, isolated=True)


@dataclass(frozen=True, slots=True)
class RangeIO:
    """The I/O of reading a range, and the clock (seconds) that bounds it.

    `open_feed`: its messages. `open_fates`: what the cluster knows of single entries. `read_state`: the present state
    of the topic partition.
    """

    open_feed: Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]
    open_fates: Callable[[PulsarOptions, PlannedRange], AbstractContextManager[FateAt]]
    read_state: Callable[[PulsarOptions, PlannedRange], PartitionState]
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

    A compacted range is read by a reader: through the subscription it looks like messages that were acknowledged
    elsewhere.
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
    """One range of a batch query -> one task's work."""
    return PlannedRange(
        cluster=cluster,
        topic=part.topic,
        start=part.start,
        end=part.end,
        durable=False,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.entry_counts_between(part.start, part.end),
        verified=False,
    )


def queue_size(state: PartitionState, prefetch_bytes: int) -> int:
    """How many messages a consumer may hold ahead, by the mean size of stored entries."""
    mean = state.mean_entry_size()
    return max(1, min(_MAX_QUEUE, int(prefetch_bytes / mean))) if mean else _MAX_QUEUE
