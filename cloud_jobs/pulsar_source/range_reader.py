"""Runs in Spark's Python workers: reads one planned range of one topic partition; acknowledges nothing."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pulsar
import pyarrow as pa
import structlog
from pyspark import TaskContext

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.entries import Fate, FateAt, IdleTimeout, PlannedRange, RangeIO, entry_fates
from cloud_jobs.pulsar_source.feeds import Feed, broker_timeout_s, durable_feed, reader_feed, to_source_error
from cloud_jobs.pulsar_source.isolation import ReaderTask, isolated_feed
from cloud_jobs.pulsar_source.messages import EntryRuns, MessageColumns, UnreadableEntry, position_of
from cloud_jobs.pulsar_source.options import (
    EntriesUnknown,
    PulsarOptions,
    ReadIncomplete,
    ReadStalled,
)
from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    WHOLE_ENTRY,
    LedgerPosition,
    PartitionState,
    next_entry,
    positions_backwards,
)

# Checks that all planned entries were read.

_NEAR_ENTRIES = 1000
"""Between gaps that are nearer to each other a reader reads on; otherwise it is opened again."""


class Gap(NamedTuple):
    """Entries that were not delivered, between `after` and the entry `before`."""

    after: LedgerPosition
    before: LedgerPosition


def find_delivered(
    options: PulsarOptions, planned: PlannedRange, gaps: Sequence[Gap], io: RangeIO
) -> LedgerPosition | None:
    """The first message that a reader receives in one of the ordered gaps; None when there is none.

    Raises ReadStalled when nothing comes for `readTimeoutSeconds` and the broker does not confirm that nothing will.
    """
    left = deque(gaps)
    while left:
        with io.open_feed(options, replace(planned, durable=False, start=left[0].after)) as feed:
            if delivered := next(_receive_in_gaps(feed, left, options, planned, io.clock), None):
                return delivered
    return None


def _receive_in_gaps(
    feed: Feed, left: deque[Gap], options: PulsarOptions, planned: PlannedRange, clock: Callable[[], float]
) -> Iterator[LedgerPosition]:
    """The messages in the gaps; drops each gap that is passed, and ends where the next one is far ahead."""
    heard = clock()
    while left:
        messages = feed.receive()
        for position in (position_of(message.message_id()) for message in messages):
            passed = _drop_passed(left, position)
            # A reader can begin a little before the place that it is opened at.
            if left and left[0].after[:2] < position[:2]:
                yield position
            if passed and left and not _is_near(position, left[0].after):
                return
        if messages:
            heard = clock()
        elif feed.last() <= left[0].after:
            left.clear()
        elif feed.probe_exhausted(min(left[0].before, planned.end)):
            left.popleft()
        elif clock() - heard > options.read_timeout_seconds:
            gap, waited_s = left[0], options.read_timeout_seconds
            raise ReadStalled(planned.cluster.name, planned.topic, str(gap.after), str(gap.before), waited_s)


def _drop_passed(left: deque[Gap], position: LedgerPosition) -> bool:
    count = len(left)
    while left and left[0].before[:2] <= position[:2]:
        left.popleft()
    return len(left) < count


def _is_near(position: LedgerPosition, other: LedgerPosition) -> bool:
    return position.ledger == other.ledger and other.entry - position.entry < _NEAR_ENTRIES


_log = structlog.get_logger(__name__)
MAX_ENTRIES = 1_000_000
"""How many entries of one range are accounted for; the rest is unknown."""


class RangeVerifier:
    """Verifies one range; its checks raise when stored messages were not delivered, or when that is unknown.

    Entries beyond `MAX_ENTRIES`, or without an answer, are unknown, never complete.
    """

    def __init__(self, options: PulsarOptions, planned: PlannedRange, io: RangeIO) -> None:
        self._options = options
        self._planned = planned
        self._io = io
        self._delivered = DeliveredEntries(planned)

    def add_delivered(self, runs: EntryRuns, first: int) -> None:
        self._delivered.add(runs, first)

    def check_while_idle(self) -> None:
        """Checks, while nothing comes, whether the cursor was moved over expected messages."""
        state = self._state()
        self._check(gaps_behind_cursor(self._planned, state, self._delivered.gaps()), state)

    def check_at_end(self) -> list[UnreadableEntry]:
        """Checks the undelivered entries at the end of the range; returns one for each message in chunks that no client
        put together.
        """
        unreadable = []
        if gaps := self._delivered.gaps():
            state = self._state()
            if self._planned.verified:
                unreadable = self._check_fates(gaps, state)
        if self._planned.durable and (entry := self._delivered.partial_entry()):
            who = "somebody acknowledged it" + (", or it was compacted," if self._options.read_compacted else "")
            self._fail(f"a part of entry {entry}", f"{who} while the query was reading")
        return unreadable

    def _check_fates(self, gaps: Sequence[Gap], state: PartitionState) -> list[UnreadableEntry]:
        """Decides from the fates of the missing entries whether the range may be written."""
        planned = self._planned
        compacted, rest = split_at(gaps, self._compacted(state))
        # One more than is asked for, to know that there are more.
        positions = list(islice(positions_in(rest, planned.ledgers), MAX_ENTRIES + 1))
        with self._io.open_fates(self._options, planned) as fate_at:
            timeout = IdleTimeout(self._options.read_timeout_seconds, self._io.clock)
            fates = entry_fates(fate_at, positions[:MAX_ENTRIES], timeout)
        found = {fate: sorted(position for position, one in fates.items() if one is fate) for fate in Fate}
        if planned.durable:
            # What lies before a compaction's end, and a stored message, must be here if a reader is given it.
            self._check([*compacted, *map(_gap_of, found[Fate.STORED])], state)
        for fate in (Fate.REMOVED, Fate.HELD):
            if found[fate]:
                self._fail(f"entry {found[fate][0]} and {len(found[fate]) - 1} more", f"it is {fate.value}")
        self._refuse_unknown([position for position in positions if fates.get(position) is None])
        reason = f"a message of {planned.topic} that was sent in chunks is not in one batch, or not whole"
        return [UnreadableEntry(position, reason) for position in found[Fate.CHUNK_END]]

    def _refuse_unknown(self, unknown: Sequence[LedgerPosition]) -> None:
        if not unknown:
            return
        why = f"the cluster did not report it so, or said nothing at all for {self._options.read_timeout_seconds:g} s"
        if len(unknown) > MAX_ENTRIES:
            why = f"more than {MAX_ENTRIES} entries of one batch were not delivered"
        error = EntriesUnknown(self._planned.cluster.name, self._planned.topic, unknown[0], len(unknown), why)
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("data loss is possible", detail=str(error))

    def _compacted(self, state: PartitionState) -> LedgerPosition:
        return state.compacted if self._options.read_compacted else BEGINNING

    def _state(self) -> PartitionState:
        state = self._io.read_state(self._options, self._planned)
        if reason := self._delivered.removal_reason(state, self._compacted(state)):
            self._fail(f"what comes after {self._delivered.gaps()[0].after}", reason)
        return state

    def _check(self, gaps: Sequence[Gap], state: PartitionState) -> None:
        if delivered := find_delivered(self._options, self._planned, gaps, self._io):
            why = f"somebody acknowledged it or moved the cursor, to {state.cursor}, while the query was reading"
            self._fail(str(delivered), why)

    def _fail(self, missing: str, detail: str) -> NoReturn:
        raise ReadIncomplete(self._planned.cluster.name, self._planned.topic, missing, detail)


class DeliveredEntries:
    def __init__(self, planned: PlannedRange) -> None:
        self._planned = planned
        self._reached = (planned.start.ledger, planned.start.entry)
        within = planned.start.batch != WHOLE_ENTRY
        self._index, self._size = (planned.start.batch + 1, -1) if within else (0, 0)
        self.inner: list[Gap] = []
        self._partly: LedgerPosition | None = None

    def add(self, runs: EntryRuns, first: int = 0) -> None:
        """Adds the runs from `first` on, in order; ReadIncomplete when they go backwards."""
        if first == len(runs.ledgers):
            return
        ledger = np.concatenate(([self._reached[0]], np.array(runs.ledgers[first:], np.int64)))
        entry = np.concatenate(([self._reached[1]], np.array(runs.entries[first:], np.int64)))
        same, step = ledger[1:] == ledger[:-1], entry[1:] - entry[:-1]
        if ((ledger[1:] < ledger[:-1]) | (same & (step < 0))).any():
            name, topic = self._planned.cluster.name, self._planned.topic
            raise ReadIncomplete(name, topic, f"what comes after {self._reached}", "it came out of order")
        for index in np.flatnonzero(~(same & (step <= 1))):
            after, before = (
                LedgerPosition(int(ledger[position]), int(entry[position])) for position in (index, index + 1)
            )
            if self.next_entry(after) < before:
                self.inner.append(Gap(after, before))
        self._add_batches(runs, first, ledger, entry, same & (step == 0))
        self._reached = (int(ledger[-1]), int(entry[-1]))

    def _add_batches(
        self, runs: EntryRuns, first: int, ledger: np.ndarray, entry: np.ndarray, goes_on: np.ndarray
    ) -> None:
        starts = np.maximum(np.array(runs.first_batch_indexes[first:], np.int64), 0)
        ends = np.concatenate(([self._index], starts + np.array(runs.lengths[first:], np.int64)))
        sizes = np.concatenate(([self._size], np.array(runs.batch_sizes[first:], np.int64)))
        broken = np.where(goes_on, starts != ends[:-1], (starts != 0) | (ends[:-1] != sizes[:-1]))
        if self._partly is None and broken.any():
            position = int(np.flatnonzero(broken)[0])
            position += int(goes_on[position] or starts[position] != 0)
            self._partly = LedgerPosition(int(ledger[position]), int(entry[position]))
        self._index, self._size = int(ends[-1]), int(sizes[-1])

    def partial_entry(self) -> LedgerPosition | None:
        """The first entry that was delivered only in part."""
        end = self._planned.end
        upto = end.batch + 1 if self._reached == end[:2] and end.batch != WHOLE_ENTRY else self._size
        return self._partly or (LedgerPosition(*self._reached) if self._index != upto else None)

    def next_entry(self, position: LedgerPosition) -> LedgerPosition:
        """The entry after a position, as stored when the range was planned."""
        return next_entry(self._planned.ledgers, position)

    def gaps(self) -> list[Gap]:
        """The gaps of the range, in order; empty when every entry was delivered."""
        end, reached = self._planned.end, LedgerPosition(*self._reached)
        if self.next_entry(reached)[:2] > end[:2]:
            return self.inner
        return [*self.inner, Gap(reached, LedgerPosition(end.ledger, end.entry + 1))]

    def removal_reason(self, state: PartitionState, compacted: LedgerPosition) -> str | None:
        """Why undelivered entries are no longer stored; None when they, or their compacted form, are."""
        planned = self._planned
        if planned.durable and state.cursor is None:
            return "the subscription was removed"
        if planned.durable and compacted < planned.start and (loss := state.loss_after(planned.start)) is not None:
            return loss
        for gap in self.gaps():
            missing = self.next_entry(max(gap.after, compacted))
            # No ledger at all: the range was planned from the beginning of a topic that was empty.
            if missing < gap.before and 0 <= missing.ledger < state.first_ledger:
                return f"ledgers before {state.first_ledger} were removed while the query was reading"
        return None


def gaps_behind_cursor(planned: PlannedRange, state: PartitionState, gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps that the durable cursor has passed, so that messages in them may be stored and undelivered.

    Entries that no consumer gets (replication and transaction markers, aborted transactions, compacted messages) leave
    gaps too, and the broker moves the cursor over those that follow at once: one gap. A cursor at or before the range
    has passed nothing.
    """
    if not planned.durable or state.cursor is None or state.cursor_delivers(planned.start):
        return []
    passed = state.cursor._replace(entry=state.cursor.entry + 1)
    return [Gap(gap.after, min(gap.before, passed)) for gap in gaps if gap.after < state.cursor]


def split_at(gaps: Sequence[Gap], position: LedgerPosition) -> tuple[list[Gap], list[Gap]]:
    """The parts of gaps up to and including an entry, and the parts behind it."""
    behind = position._replace(entry=position.entry + 1, batch=WHOLE_ENTRY)
    before = [Gap(gap.after, min(gap.before, behind)) for gap in gaps if gap.after < position]
    return before, [Gap(max(gap.after, position), gap.before) for gap in gaps if gap.before > behind]


def positions_in(gaps: Sequence[Gap], ledgers: Sequence[tuple[int, int]]) -> Iterator[LedgerPosition]:
    """The entries in gaps, newest first; `ledgers`: (number, entries) in order."""
    for gap in reversed(gaps):
        yield from positions_backwards(ledgers, LedgerPosition(gap.before.ledger, gap.before.entry - 1), gap.after)


def _gap_of(position: LedgerPosition) -> Gap:
    return Gap(LedgerPosition(position.ledger, position.entry - 1), LedgerPosition(position.ledger, position.entry + 1))


_BATCH_ROWS = 10_000
_BATCH_BYTES = 8 << 20
_STOP_PERIOD_S = 0.05
"""How often the broker is asked for its newest message while nothing comes: its answer waits behind what is coming."""
_VERIFY_PERIOD_S = 2.0
"""Silence after which the cluster is asked whether somebody took away what was to come."""


def partition_state(options: PulsarOptions, planned: PlannedRange) -> PartitionState:
    with closing(SourceAdmin(planned.cluster, options, options.call_timeout_s())) as admin:
        return admin.partition_state(planned.topic, options.subscription or "")


@contextmanager
def open_fates(options: PulsarOptions, planned: PlannedRange) -> Iterator[FateAt]:
    with closing(SourceAdmin(planned.cluster, options, options.call_timeout_s())) as admin:
        yield lambda position: Fate.from_headers(admin.entry_headers(planned.topic, position))


def open_feed(options: PulsarOptions, planned: PlannedRange) -> AbstractContextManager[Feed]:
    if planned.isolated:
        task = ReaderTask(planned.cluster, options, planned.topic, planned.start, planned.queue)
        return isolated_feed(task, planned.ledgers)
    if planned.durable:
        return durable_feed(planned.cluster, options, planned.topic, planned.queue)
    return reader_feed(planned.cluster, options, planned.topic, planned.start, planned.queue)


def isolate_retry(planned: PlannedRange) -> PlannedRange:
    """The work of a Spark task: isolated when an earlier attempt of the same task failed."""
    context = TaskContext.get()
    return planned.isolated_copy() if context is not None and context.attemptNumber() else planned


PULSAR_IO = RangeIO(open_feed, open_fates, partition_state)


def read_range(options: PulsarOptions, planned: PlannedRange, io: RangeIO = PULSAR_IO) -> Iterator[pa.RecordBatch]:
    """The messages of a planned range as Arrow batches of `arrow_schema`, each in order, none twice.

    Exactly the planned messages are read. For undelivered entries the cluster must confirm that nobody moved the cursor
    during the read, acknowledged them singly or removed a ledger; otherwise ReadIncomplete is raised. Entries whose
    kind is unknown raise EntriesUnknown (a warning with failOnDataLoss=false). A range that ends in or behind an open
    transaction raises ReadIncomplete until that has ended. Raises ReadStalled when nothing arrives for
    `readTimeoutSeconds`, or earlier when the broker is gone.
    """
    columns = MessageColumns(planned.topic, planned.cluster.name, planned.known_clusters, options.columns)
    verifier, verified = RangeVerifier(options, planned, io), 0

    def record_delivered() -> None:
        nonlocal verified
        verifier.add_delivered(columns.runs, verified)
        verified = len(columns.runs.ledgers)

    with io.open_feed(options, planned) as feed:
        reader = _RangeReader(feed, options, planned, io.clock, verifier, record_delivered=record_delivered)
        try:
            for messages in reader.read():
                columns.extend(messages)
                if len(columns) >= _BATCH_ROWS or columns.bytes >= _BATCH_BYTES:
                    # Before `take`, which begins the runs anew.
                    record_delivered()
                    yield columns.take()
                    verified = 0
            record_delivered()
            columns.extend(verifier.check_at_end())
        except pulsar.PulsarException as error:
            raise to_source_error(planned.cluster, f"reading {planned.topic}", error) from error
    if len(columns):
        yield columns.take()


class _RangeReader:
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
        """`record_delivered`: called before a check, so that the verifier knows everything that was passed on."""
        self._feed = feed
        self._options = options
        self._planned = planned
        self._clock = clock
        self._verifier = verifier
        self._record_delivered = record_delivered

    def read(self) -> Iterator[list[Any]]:
        """The messages after `start` up to `end`, or to the newest that the broker delivers.

        The planned end can be an entry that no consumer gets (a replication marker), so `feed.last()` counts.
        """
        feed, clock, end = self._feed, self._clock, self._planned.end
        reached = self._planned.start
        received_s = verified_s = clock()
        stop, asked = self._stop(), received_s
        while reached < stop or (stop < end and reached < (stop := self._stop())):
            messages = feed.receive()
            if not messages:
                if reached < stop and feed.connected() and feed.probe_exhausted(stop):
                    reached = stop
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
