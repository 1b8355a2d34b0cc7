"""What runs in Spark's Python workers: reads one planned range of one topic partition and acknowledges nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pulsar
import pyarrow as pa
import structlog
from pyspark import TaskContext

from cloud_jobs.pulsar_source.accounting import BOUNDS, Bounds, Inquiry
from cloud_jobs.pulsar_source.admin import Admin
from cloud_jobs.pulsar_source.clients import as_our_error, patience_s
from cloud_jobs.pulsar_source.columns import Columns
from cloud_jobs.pulsar_source.completeness import Completeness
from cloud_jobs.pulsar_source.entries import Patience, Stored, stored_entries
from cloud_jobs.pulsar_source.errors import PulsarSourceError, ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed, durable_feed, reader_feed
from cloud_jobs.pulsar_source.isolation import isolated_feed
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planned import Look, Note, Open, PlannedRange, Store
from cloud_jobs.pulsar_source.position import Position
from cloud_jobs.pulsar_source.reader_process import Assignment
from cloud_jobs.pulsar_source.subscription import SubscriptionNotes

_log = structlog.get_logger(__name__)
_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_STOP_PERIOD_S = 0.05
"""How often the broker is asked for its newest message while nothing comes: its answer waits behind what is coming."""
_VOUCH_PERIOD_S = 2.0
"""Silence after which the cluster is asked whether somebody took away what was to come."""


def look_at(options: PulsarOptions, planned: PlannedRange) -> TopicState:
    """The topic partition of a range as its cluster sees it now."""
    with closing(Admin(planned.cluster, options, options.call_timeout_s())) as admin:
        return admin.state(planned.topic, options.subscription or "")


def note_chunks(options: PulsarOptions, planned: PlannedRange) -> None:
    """Tells the driver, by a property of the subscription, that the topic partition has messages in chunks."""
    with closing(Admin(planned.cluster, options, options.call_timeout_s())) as admin:
        try:
            admin.notes(planned.topic, options.subscription_name(), SubscriptionNotes.meeting_chunks)
        except PulsarSourceError as error:
            _log.warning("chunks_not_noted", cluster=planned.cluster.name, topic=planned.topic, error=str(error))


def open_feed(options: PulsarOptions, planned: PlannedRange) -> AbstractContextManager[Feed]:
    """Where the messages of a range come from."""
    if planned.careful:
        work = Assignment(planned.cluster, options, planned.topic, planned.start, planned.queue)
        return isolated_feed(work, planned.ledgers, lambda place: _is_part(options, planned, place))
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def _is_part(options: PulsarOptions, planned: PlannedRange, place: Position) -> bool:
    with stored_entries(planned.cluster, options, planned.topic) as stored:
        return Inquiry(stored, Patience(options.read_timeout_seconds)).is_part(place)


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
    *,
    store: Store = stored_entries,
    note: Note = note_chunks,
    bounds: Bounds = BOUNDS,
) -> Iterator[pa.RecordBatch]:
    """The messages of a planned range as Arrow batches of `columns.arrow_schema`, each in order, none twice.

    What was planned is what is read: where entries are left out, the cluster must vouch that nobody moved the cursor
    beneath the read, acknowledged them one by one or removed a ledger; otherwise ReadIncomplete. Where it does not say
    what some are, or they are beyond `bounds`: EntriesUnknown (a warning with failOnDataLoss=false). A range that ends
    in or behind an open transaction is read once that has ended. Raises ReadStalled when nothing arrives for
    `readTimeoutSeconds`, or sooner when the broker is gone.
    """
    columns = Columns(planned.topic, planned.cluster.name, planned.known_clusters, options.columns)
    timed = planned.since_ms is not None or planned.until_ms is not None
    proof, noted = Completeness(options, planned, opening, look, clock, bounds=bounds), 0

    def note_delivered() -> None:
        nonlocal noted
        proof.note(columns.runs, noted)
        noted = len(columns.runs.ledgers)

    with opening(options, planned) as feed, store(planned.cluster, options, planned.topic) as stored:
        reading = _Reading(feed, options, planned, clock, proof, note_delivered=note_delivered)
        try:
            for messages in reading.messages(stored):
                columns.extend([m for m in messages if planned.keeps(m.publish_timestamp())] if timed else messages)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    note_delivered()
                    yield columns.take()
                    noted = 0
            note_delivered()
            for messages in proof.check_at_end(
                stored, lambda work: _reread(options, work, proof, clock, opening=opening, store=store)
            ):
                columns.extend(messages)
                if columns.bytes >= _BATCH_BYTES:
                    yield columns.take()
        except pulsar.PulsarException as error:
            raise as_our_error(planned.cluster, f"reading {planned.topic}", error) from error
    if proof.met_chunks and planned.durable:
        note(options, planned)
    if len(columns):
        yield columns.take()


def _reread(
    options: PulsarOptions,
    planned: PlannedRange,
    proof: Completeness,
    clock: Callable[[], float],
    *,
    opening: Open,
    store: Store,
) -> Iterator[list[Any]]:
    """The messages of a range, once more, by a reader; nothing is proven by it."""
    with opening(options, planned) as feed, store(planned.cluster, options, planned.topic) as stored:
        yield from _Reading(feed, options, planned, clock, proof.of(planned), note_delivered=lambda: None).messages(
            stored
        )


class _Reading:
    """One range's messages as they come."""

    def __init__(
        self,
        feed: Feed,
        options: PulsarOptions,
        planned: PlannedRange,
        clock: Callable[[], float],
        proof: Completeness,
        *,
        note_delivered: Callable[[], None],
    ) -> None:
        """`note_delivered`: tells the proof of all that was handed over."""
        self._feed = feed
        self._options = options
        self._planned = planned
        self._clock = clock
        self._proof = proof
        self._note_delivered = note_delivered

    def messages(self, stored: Stored) -> Iterator[list[Any]]:
        """The messages from after `start` to `end`, or to the newest that is delivered at all.

        The planned end can be an entry that no consumer is given (a replication marker): what counts is `feed.last()`,
        unless the rest is held back by a transaction. Whether it is, is asked first: one that ends shows the rest.
        """
        feed, clock, end = self._feed, self._clock, self._planned.end
        reached = self._planned.start
        heard = vouched = clock()
        stop, asked = self._stop(), heard
        while reached < stop or (
            stop < end and (self._proof.is_held(stored, reached) or reached < (stop := self._stop()))
        ):
            messages = feed.receive()
            if not messages:
                if reached < stop and feed.connected() and feed.exhausted(stop):
                    reached = stop  # what comes after it can be held back still
                    continue
                self._check_silence(reached, clock() - heard)
                if clock() - asked >= _STOP_PERIOD_S:
                    stop, asked = self._stop(), clock()
                if clock() - max(heard, vouched) > _VOUCH_PERIOD_S and feed.connected():
                    self._note_delivered()
                    self._proof.check_in_silence()
                    vouched = clock()
                continue
            heard = clock()
            last = position_of(messages[-1].message_id())
            if position_of(messages[0].message_id()) <= reached or last > end:
                messages = [m for m in messages if reached < position_of(m.message_id()) <= end]
            if messages:
                yield messages
            reached = max(reached, last)

    def _stop(self) -> Position:
        # While the broker is away the planned end stands, and the silence is what is bounded.
        end = self._planned.end
        if not self._feed.connected():
            return end
        try:
            return min(end, self._feed.last())
        except pulsar.PulsarException:
            return end

    def _check_silence(self, reached: Position, silence_s: float) -> None:
        options, planned = self._options, self._planned
        bound_s = options.read_timeout_seconds if self._feed.connected() else patience_s(options)
        if silence_s > bound_s:
            raise ReadStalled(planned.cluster.name, planned.topic, str(reached), str(planned.end), silence_s)
