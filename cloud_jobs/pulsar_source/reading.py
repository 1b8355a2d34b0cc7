"""What runs in Spark's Python workers: reads one planned range of one topic partition and acknowledges nothing."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulsar
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.admin import Admin
from cloud_jobs.pulsar_source.clients import as_our_error, patience_s
from cloud_jobs.pulsar_source.columns import Columns
from cloud_jobs.pulsar_source.errors import ReadIncomplete, ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed, durable_feed, reader_feed
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, Position

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_VOUCH_PERIOD_S = 2.0
"""Silence after which the cluster is asked whether somebody took away what was to come."""


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until). `first_ledger`: the oldest ledger when it
    was planned.
    """

    cluster: Cluster
    topic: str
    start: Position
    end: Position
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    first_ledger: int = -1
    since_ms: int | None = None
    until_ms: int | None = None

    def keeps(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


Look = Callable[[PulsarOptions, PlannedRange], TopicState]
Open = Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]


def look_at(options: PulsarOptions, planned: PlannedRange) -> TopicState:
    """The topic partition of a range as its cluster sees it now."""
    with closing(Admin(planned.cluster, options, options.call_timeout_s())) as admin:
        return admin.state(planned.topic, options.subscription or "")


def open_feed(options: PulsarOptions, planned: PlannedRange) -> AbstractContextManager[Feed]:
    """Where the messages of a range come from."""
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def read_range(
    options: PulsarOptions,
    planned: PlannedRange,
    opening: Open = open_feed,
    look: Look = look_at,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """The messages of a planned range as Arrow batches of `columns.arrow_schema`, each in order, none twice.

    What was planned is what is read: where entries are left out, the cluster must vouch that nobody moved the cursor
    beneath the read or removed a ledger; otherwise ReadIncomplete. Raises ReadStalled when nothing arrives for
    `readTimeoutSeconds`, or sooner when the broker is gone.
    """
    columns = Columns(planned.topic, planned.cluster.name, planned.known_clusters, options.columns)
    timed = planned.since_ms is not None or planned.until_ms is not None
    track = Track(planned.start)

    def vouch() -> None:
        check_untouched(planned, look(options, planned), track.gap_after(planned.end), compacted=options.read_compacted)

    with opening(options, planned) as feed:
        try:
            for messages in _until(feed, options, planned, clock, vouch):
                columns.extend([m for m in messages if planned.keeps(m.publish_timestamp())] if timed else messages)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    track.note(planned, *columns.places)
                    yield columns.take()
        except pulsar.PulsarException as error:
            raise as_our_error(planned.cluster, f"reading {planned.topic}", error) from error
        track.note(planned, *columns.places)
        if track.gap_after(planned.end) is not None:
            vouch()
    if len(columns):
        yield columns.take()


class Track:
    """The entries that were delivered of one range, and the first place where some were left out."""

    def __init__(self, start: Position) -> None:
        self._reached = (start.ledger, start.entry)
        self._gap: tuple[int, int] | None = None

    def note(self, planned: PlannedRange, ledgers: Sequence[int], entries: Sequence[int]) -> None:
        """The next entries, in order, each at least once; ReadIncomplete when they go backwards."""
        if not ledgers:
            return
        ledger = np.concatenate(([self._reached[0]], np.array(ledgers, np.int64)))
        entry = np.concatenate(([self._reached[1]], np.array(entries, np.int64)))
        same, step = ledger[1:] == ledger[:-1], entry[1:] - entry[:-1]
        if ((ledger[1:] < ledger[:-1]) | (same & (step < 0))).any():
            raise ReadIncomplete(planned.cluster.name, planned.topic, f"{self._reached}", "it came out of order")
        left_out = np.flatnonzero(~(same & (step <= 1)))
        if len(left_out) and self._gap is None:
            self._gap = (int(ledger[left_out[0]]), int(entry[left_out[0]]))
        self._reached = (int(ledger[-1]), int(entry[-1]))

    def gap_after(self, end: Position) -> Position | None:
        """The last entry before the first gap up to `end`; None when every entry was delivered."""
        if self._gap is not None:
            return Position(*self._gap)
        return None if self._reached >= (end.ledger, end.entry) else Position(*self._reached)


def check_untouched(planned: PlannedRange, state: TopicState, gap: Position | None, *, compacted: bool) -> None:
    """Raises ReadIncomplete when entries can be missing because somebody moved the cursor or removed a ledger.

    A replication or transaction marker, an aborted transaction and what compaction removed are entries that no consumer
    is given. While the cursor stands at or before the range, nothing else is left out, and nothing is removed.
    """
    reason = None
    if planned.durable and not state.serves(planned.start):
        reason = f"the subscription's cursor was moved to {state.cursor} while the query was reading"
    elif (
        not planned.durable and not compacted and state.first_ledger > max(planned.first_ledger, (gap or BEGINNING)[0])
    ):
        reason = f"ledgers before {state.first_ledger} were removed while the query was reading"
    if reason:
        raise ReadIncomplete(planned.cluster.name, planned.topic, f"what comes after {gap}", reason)


def _until(
    feed: Feed, options: PulsarOptions, planned: PlannedRange, clock: Callable[[], float], vouch: Callable[[], None]
) -> Iterator[list[Any]]:
    """The messages from after `start` to `end`, or to the newest that is delivered at all.

    The planned end can be an entry that no consumer is given (a replication marker): what counts is `feed.last()`.
    """
    reached, end = planned.start, planned.end
    heard = vouched = clock()
    stop = _stop(feed, end)
    while reached < stop:
        messages = feed.receive()
        if not messages:
            if feed.connected() and feed.exhausted(stop):
                return
            _check_silence(feed, options, planned, reached, clock() - heard)
            stop = _stop(feed, end)
            if clock() - max(heard, vouched) > _VOUCH_PERIOD_S and feed.connected():
                vouch()
                vouched = clock()
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
