"""What runs in Spark's Python workers: reads one planned range of one topic partition and acknowledges nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pulsar
import pyarrow as pa
import structlog
from pyspark import TaskContext

from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.cluster.clients import broker_timeout_s, to_source_error
from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, SubscriptionProperties
from cloud_jobs.pulsar_source.errors import PulsarSourceError, ReadStalled
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.reading.columns import MessageColumns
from cloud_jobs.pulsar_source.reading.entries import BOUNDS, EntryStore, IdleTimeout, Inquiry, InquiryBounds
from cloud_jobs.pulsar_source.reading.entry_store import open_entry_store
from cloud_jobs.pulsar_source.reading.feeds import Feed, durable_feed, reader_feed
from cloud_jobs.pulsar_source.reading.isolation import ReaderTask, isolated_feed
from cloud_jobs.pulsar_source.reading.messages import position_of
from cloud_jobs.pulsar_source.reading.planned import PlannedRange, RangeIO
from cloud_jobs.pulsar_source.reading.range_verifier import RangeVerifier

_log = structlog.get_logger(__name__)
_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_STOP_PERIOD_S = 0.05
"""How often the broker is asked for its newest message while nothing comes: its answer waits behind what is coming."""
_VERIFY_PERIOD_S = 2.0
"""Silence after which the cluster is asked whether somebody took away what was to come."""


def partition_state(options: PulsarOptions, planned: PlannedRange) -> PartitionState:
    """The topic partition of a range as its cluster sees it now."""
    with closing(SourceAdmin(planned.cluster, options, options.call_timeout_s())) as admin:
        return admin.partition_state(planned.topic, options.subscription or "")


def record_chunks(options: PulsarOptions, planned: PlannedRange) -> None:
    """Keeps with the subscription, for the driver, that the topic partition has messages in chunks."""
    with closing(SourceAdmin(planned.cluster, options, options.call_timeout_s())) as admin:
        try:
            admin.update_subscription_properties(
                planned.topic, options.subscription_name(), SubscriptionProperties.with_chunks
            )
        except PulsarSourceError as error:
            _log.warning("chunks are not recorded", cluster=planned.cluster.name, topic=planned.topic, error=str(error))


def open_feed(options: PulsarOptions, planned: PlannedRange) -> AbstractContextManager[Feed]:
    """Where the messages of a range come from."""
    if planned.isolated:
        task = ReaderTask(planned.cluster, options, planned.topic, planned.start, planned.queue)
        return isolated_feed(task, planned.ledgers, lambda position: _is_part(options, planned, position))
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def _is_part(options: PulsarOptions, planned: PlannedRange, position: LedgerPosition) -> bool:
    with open_entry_store(planned.cluster, options, planned.topic) as entries:
        return Inquiry(entries, IdleTimeout(options.read_timeout_seconds)).is_part(position)


def isolate_retry(planned: PlannedRange) -> PlannedRange:
    """The work of a Spark task: in isolation when an earlier attempt of the same task failed."""
    context = TaskContext.get()
    return planned.isolated_copy() if context is not None and context.attemptNumber() else planned


PULSAR_IO = RangeIO(open_feed, open_entry_store, partition_state, record_chunks)


def read_range(
    options: PulsarOptions, planned: PlannedRange, io: RangeIO = PULSAR_IO, bounds: InquiryBounds = BOUNDS
) -> Iterator[pa.RecordBatch]:
    """The messages of a planned range as Arrow batches of `columns.arrow_schema`, each in order, none twice.

    What was planned is what is read: where entries are left out, the cluster must vouch that nobody moved the cursor
    beneath the read, acknowledged them one by one or removed a ledger; otherwise ReadIncomplete. Where it does not say
    what some are, or they are beyond `bounds`: EntriesUnknown (a warning with failOnDataLoss=false). A range that ends
    in or behind an open transaction is read once that has ended. Raises ReadStalled when nothing arrives for
    `readTimeoutSeconds`, or sooner when the broker is gone.
    """
    columns = MessageColumns(planned.topic, planned.cluster.name, planned.known_clusters, options.columns)
    timed = planned.since_ms is not None or planned.until_ms is not None
    verifier, verified = RangeVerifier(options, planned, io, bounds), 0

    def record_delivered() -> None:
        nonlocal verified
        verifier.add_delivered(columns.runs, verified)
        verified = len(columns.runs.ledgers)

    with io.open_feed(options, planned) as feed, io.open_store(planned.cluster, options, planned.topic) as entries:
        reader = _RangeReader(feed, options, planned, io.clock, verifier, record_delivered=record_delivered)
        try:
            for messages in reader.read(entries):
                columns.extend([m for m in messages if planned.includes(m.publish_timestamp())] if timed else messages)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    # Before `take`, which begins the runs anew.
                    record_delivered()
                    yield columns.take()
                    verified = 0
            record_delivered()
            for messages in verifier.check_at_end(entries, lambda again: _reread(options, again, verifier, io)):
                columns.extend(messages)
                if columns.bytes >= _BATCH_BYTES:
                    yield columns.take()
        except pulsar.PulsarException as error:
            raise to_source_error(planned.cluster, f"reading {planned.topic}", error) from error
    # Only what is read through the subscription is acknowledged, and chunks hold back an acknowledgement.
    if verifier.met_chunks and planned.durable:
        io.record_chunks(options, planned)
    if len(columns):
        yield columns.take()


def _reread(options: PulsarOptions, planned: PlannedRange, verifier: RangeVerifier, io: RangeIO) -> Iterator[list[Any]]:
    """The messages of a range, once more, by a reader; nothing is proven by it."""
    with io.open_feed(options, planned) as feed, io.open_store(planned.cluster, options, planned.topic) as entries:
        other = verifier.for_range(planned)
        yield from _RangeReader(feed, options, planned, io.clock, other, record_delivered=lambda: None).read(entries)


class _RangeReader:
    """One range's messages as they come."""

    def __init__(
        self,
        feed: Feed,
        options: PulsarOptions,
        planned: PlannedRange,
        clock: Callable[[], float],
        verifier: RangeVerifier,
        *,
        record_delivered: Callable[[], None],
    ) -> None:
        """`record_delivered`: called before a check, so that the verifier knows all that was handed over."""
        self._feed = feed
        self._options = options
        self._planned = planned
        self._clock = clock
        self._verifier = verifier
        self._record_delivered = record_delivered

    def read(self, entries: EntryStore) -> Iterator[list[Any]]:
        """The messages from after `start` to `end`, or to the newest that is delivered at all.

        The planned end can be an entry that no consumer is given (a replication marker): what counts is `feed.last()`,
        unless the rest is held back by a transaction. Whether it is, is asked first: one that ends shows the rest.
        """
        feed, clock, end = self._feed, self._clock, self._planned.end
        reached = self._planned.start
        received_s = verified_s = clock()
        stop, asked = self._stop(), received_s
        while reached < stop or (
            stop < end and (self._verifier.poll_transaction(entries, reached) or reached < (stop := self._stop()))
        ):
            messages = feed.receive()
            if not messages:
                if reached < stop and feed.connected() and feed.probe_exhausted(stop):
                    reached = stop  # what comes after it can be held back still
                    continue
                self._check_idle(reached, clock() - received_s)
                if clock() - asked >= _STOP_PERIOD_S:
                    stop, asked = self._stop(), clock()
                if clock() - max(received_s, verified_s) > _VERIFY_PERIOD_S and feed.connected():
                    self._record_delivered()
                    self._verifier.check_while_idle()
                    verified_s = clock()
                continue
            received_s = clock()
            last = position_of(messages[-1].message_id())
            # What comes first can come again, and no feed stops at the planned end.
            if position_of(messages[0].message_id()) <= reached or last > end:
                messages = [m for m in messages if reached < position_of(m.message_id()) <= end]
            if messages:
                yield messages
            reached = max(reached, last)

    def _stop(self) -> LedgerPosition:
        # While the broker is away the planned end stands, and the silence is what is bounded.
        end = self._planned.end
        if not self._feed.connected():
            return end
        try:
            return min(end, self._feed.last())
        except pulsar.PulsarException:
            return end

    def _check_idle(self, reached: LedgerPosition, silence_s: float) -> None:
        options, planned = self._options, self._planned
        bound_s = options.read_timeout_seconds if self._feed.connected() else broker_timeout_s(options)
        if silence_s > bound_s:
            raise ReadStalled(planned.cluster.name, planned.topic, str(reached), str(planned.end), silence_s)
