"""What runs in Spark's Python workers: reads one planned range of one topic partition and acknowledges nothing."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pulsar
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.admin import Admin
from cloud_jobs.pulsar_source.clients import as_our_error, patience_s
from cloud_jobs.pulsar_source.columns import Columns
from cloud_jobs.pulsar_source.errors import ReadIncomplete, ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed, durable_feed, reader_feed
from cloud_jobs.pulsar_source.isolation import isolated_feed, next_entry
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import Position
from cloud_jobs.pulsar_source.reader_process import Assignment

_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_MOST_GAPS = 1000
_VOUCH_PERIOD_S = 2.0
"""Silence after which the cluster is asked whether somebody took away what was to come."""


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until). `ledgers`: (number,
    entries) of the ledgers that it touched when it was planned. `careful`: through a client in a process of its own,
    see `isolation`.
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

    def carefully(self) -> Self:
        """The same work with care: what ends a client is a row."""
        return replace(self, durable=False, careful=True)

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
    if planned.careful:
        work = Assignment(planned.cluster, options, planned.topic, planned.start, planned.queue)
        return isolated_feed(work, planned.ledgers)
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def again(planned: PlannedRange) -> PlannedRange:
    """The work of a Spark task: with care when an earlier attempt of the same task failed."""
    context = TaskContext.get()
    return planned.carefully() if context is not None and context.attemptNumber() else planned


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
    track, noted = Track(planned), 0

    def vouch(*, to_end: bool = True) -> None:
        state, gaps = look(options, planned), track.gaps()
        if (reason := track.cut_short(state)) and not options.read_compacted:
            raise ReadIncomplete(planned.cluster.name, planned.topic, f"what comes after {gaps[0].after}", reason)
        for gap in passed_over(planned, state, gaps if to_end else track.inner):
            if found := _first_stored(options, planned, gap, opening):
                moved = f"the subscription's cursor was moved to {state.cursor} while the query was reading"
                raise ReadIncomplete(planned.cluster.name, planned.topic, str(found), moved)

    with opening(options, planned) as feed:
        try:
            for messages in _until(feed, options, planned, clock, vouch):
                columns.extend([m for m in messages if planned.keeps(m.publish_timestamp())] if timed else messages)
                ledgers, entries = columns.places
                track.note(ledgers[noted:], entries[noted:])
                noted = len(ledgers)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    yield columns.take()
                    noted = 0
        except pulsar.PulsarException as error:
            raise as_our_error(planned.cluster, f"reading {planned.topic}", error) from error
        if track.gaps():
            # At the end of what is delivered at all, a reader would wait for a message that does not come.
            vouch(to_end=False)
    if len(columns):
        yield columns.take()


class Gap(NamedTuple):
    """Entries that were not delivered: after `after`, before the entry `before`."""

    after: Position
    before: Position


class Track:
    """The entries that were delivered of one range, and the first places where some were left out."""

    def __init__(self, planned: PlannedRange) -> None:
        self._planned = planned
        self._reached = (planned.start.ledger, planned.start.entry)
        self.inner: list[Gap] = []

    def note(self, ledgers: Sequence[int], entries: Sequence[int]) -> None:
        """The next entries, in order, each at least once; ReadIncomplete when they go backwards."""
        if not ledgers:
            return
        ledger = np.concatenate(([self._reached[0]], np.array(ledgers, np.int64)))
        entry = np.concatenate(([self._reached[1]], np.array(entries, np.int64)))
        same, step = ledger[1:] == ledger[:-1], entry[1:] - entry[:-1]
        if ((ledger[1:] < ledger[:-1]) | (same & (step < 0))).any():
            name, topic = self._planned.cluster.name, self._planned.topic
            raise ReadIncomplete(name, topic, f"what comes after {self._reached}", "it came out of order")
        for index in np.flatnonzero(~(same & (step <= 1))):
            after, before = (Position(int(ledger[place]), int(entry[place])) for place in (index, index + 1))
            if self.next_entry(after) < before and len(self.inner) < _MOST_GAPS:
                self.inner.append(Gap(after, before))
        self._reached = (int(ledger[-1]), int(entry[-1]))

    def next_entry(self, place: Position) -> Position:
        """The entry that was stored after a place when the range was planned."""
        return next_entry(self._planned.ledgers, place)

    def gaps(self) -> list[Gap]:
        """The first gaps of the range, in order; none when every entry was delivered."""
        end, reached = self._planned.end, Position(*self._reached)
        if self.next_entry(reached)[:2] > end[:2]:
            return self.inner
        return [*self.inner, Gap(reached, Position(end.ledger, end.entry + 1))]

    def cut_short(self, state: TopicState) -> str | None:
        """Why entries that were left out are not stored any more; None when they are."""
        planned = self._planned
        if planned.durable and (state.cursor is None or (loss := state.loss_after(planned.start)) is not None):
            return "the subscription was removed" if state.cursor is None else loss
        if any(self.next_entry(gap.after).ledger < state.first_ledger for gap in self.gaps()):
            return f"ledgers before {state.first_ledger} were removed while the query was reading"
        return None


def passed_over(planned: PlannedRange, state: TopicState, gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps that the durable cursor has passed, so that messages in them may be stored and not delivered.

    Entries that no consumer is given (a replication or transaction marker, an aborted transaction, what compaction
    removed) leave gaps too, and the broker moves the cursor over those that follow it at once: one gap. With a cursor
    that stands at or before the range nothing was passed over.
    """
    if not planned.durable or state.cursor is None or state.serves(planned.start):
        return []
    passed = state.cursor._replace(entry=state.cursor.entry + 1)
    return [Gap(gap.after, min(gap.before, passed)) for gap in gaps if gap.after < state.cursor]


def _first_stored(options: PulsarOptions, planned: PlannedRange, gap: Gap, opening: Open) -> Position | None:
    """The first message that is stored in a gap, by a reader, which knows no cursor."""
    with opening(options, replace(planned, durable=False, start=gap.after)) as feed:
        until = time.monotonic() + options.read_timeout_seconds
        while time.monotonic() < until:
            # A reader can begin a little before the place that it is told.
            found = [position_of(message.message_id()) for message in feed.receive()]
            if later := [place for place in found if place[:2] > gap.after[:2]]:
                return later[0] if later[0][:2] < gap.before[:2] else None
            if not found and (feed.last() <= gap.after or feed.exhausted(gap.before)):
                return None
    raise ReadStalled(
        planned.cluster.name, planned.topic, str(gap.after), str(gap.before), options.read_timeout_seconds
    )


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
                vouch()  # somebody may have moved the cursor over what was to come
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
