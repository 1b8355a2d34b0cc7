"""Chooses the end of a batch: counts messages ahead, within the limits of the options.

The broker counts entries, and an entry can hold a thousand messages; only its receiver knows. A lookahead is a reader
that stays open from batch to batch and runs at most one batch ahead, so a limit is exact, at the price of one more
delivery of limited messages.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from itertools import islice
from typing import Any

import pulsar

from cloud_jobs.pulsar_source.admin import States
from cloud_jobs.pulsar_source.entries import queue_size
from cloud_jobs.pulsar_source.feeds import Feed, reader_feed, to_source_error
from cloud_jobs.pulsar_source.isolation import ReaderTask, isolated_feed
from cloud_jobs.pulsar_source.messages import batch_size_of
from cloud_jobs.pulsar_source.options import PulsarOptions, ReadStalled, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, PartitionRange, PartitionState

# The range of one micro-batch, and its limits by partition. Pure.


def start_positions(
    positions: Mapping[str, LedgerPosition], states: States, options: PulsarOptions
) -> dict[str, LedgerPosition]:
    """Where reading begins: the query's positions, and the cursor for partitions that are new to it.

    A cursor before the first entry of a ledger also gets the compacted form from the beginning, which may outlive a
    removed ledger.
    """
    return {
        topic: positions.get(topic)
        or (BEGINNING if state.cursor is None or (options.read_compacted and state.cursor.entry < 0) else state.cursor)
        for topic, state in states.items()
    }


def newest_positions(begin: Mapping[str, LedgerPosition], states: States) -> dict[str, LedgerPosition]:
    """The ends that include everything; a partition without new entries stays exactly where it is.

    From the beginning there may be more than the ledgers hold: the compacted form of removed ones.
    """
    return {
        topic: states[topic].last if start == BEGINNING or states[topic].has_entries_after(start) else start
        for topic, start in begin.items()
    }


def limit_to_target(
    begin: Mapping[str, LedgerPosition], ends: Mapping[str, LedgerPosition], target: Mapping[str, LedgerPosition]
) -> dict[str, LedgerPosition]:
    """The ends, none beyond the target; a partition that is not in the target stays where it is."""
    return {topic: max(begin[topic], min(end, target.get(topic, begin[topic]))) for topic, end in ends.items()}


class _PendingMessages:
    """The messages of a partition that wait, each as the position that includes it."""

    def __init__(self, messages: Iterable[LedgerPosition]) -> None:
        self._messages: Iterator[LedgerPosition] = iter(messages)
        self.end: LedgerPosition | None = None
        self.next: LedgerPosition | None = next(self._messages, None)

    def take(self, most: int) -> int:
        """Takes at most so many messages; returns how many."""
        taken = 0
        while taken < most and self.next is not None:
            self.end, self.next = self.next, next(self._messages, None)
            taken += 1
        return taken


def limit_batch(
    ahead: Mapping[str, Iterable[LedgerPosition]], weights: Mapping[str, float], most: int, turn: int
) -> dict[str, LedgerPosition]:
    """Partition -> its last position in a batch of `most` messages; partitions without messages in it are omitted.

    Each partition gets its share by weight (its waiting entries), then the rest is distributed. The partition whose
    turn it is always gets one message, so no partition starves.
    """
    waiting = {name: _PendingMessages(messages) for name, messages in ahead.items()}
    order = sorted(name for name, messages in waiting.items() if messages.next is not None)
    order = order[turn % len(order) :] + order[: turn % len(order)] if order else []
    whole = sum(weights[name] for name in order) or 1.0
    left = most
    for name in order:
        share = int(most * weights[name] / whole)
        left -= waiting[name].take(min(left, max(1, share) if name == order[0] else share))
    for name in order:
        left -= waiting[name].take(left)
    return {name: messages.end for name, messages in waiting.items() if messages.end is not None}


FeedOpener = Callable[[SourceCluster, PulsarOptions, str, LedgerPosition, int], AbstractContextManager[Feed]]


class Lookahead:
    def __init__(
        self, cluster: SourceCluster, options: PulsarOptions, topic: str, queue: int, opener: FeedOpener = reader_feed
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._queue = queue
        self._opener = opener
        self._opened = ExitStack()
        self._feed: Feed | None = None
        self._pending: deque[LedgerPosition] = deque()
        self._from = BEGINNING
        self._reached = BEGINNING

    def close(self) -> None:
        self._opened.close()
        self._feed = None
        self._pending.clear()

    def read_between(
        self, after: LedgerPosition, upto: LedgerPosition, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[LedgerPosition]:
        """The messages after a position up to `upto`, lazily."""
        self._move_to(after)
        index = 0
        while True:
            while index < len(self._pending):
                if self._pending[index] > upto:
                    return
                yield self._pending[index]
                index += 1
            if self._reached >= upto or not self._receive(upto, clock):
                return

    def _move_to(self, after: LedgerPosition) -> None:
        if self._feed is None or not self._from <= after <= max(self._reached, self._from):
            self.close()
            self._feed = self._opened.enter_context(
                self._opener(self._cluster, self._options, self._topic, after, self._queue)
            )
            self._reached = after
        self._from = after
        while self._pending and self._pending[0] <= after:
            self._pending.popleft()

    def _receive(self, upto: LedgerPosition, clock: Callable[[], float]) -> bool:
        assert self._feed is not None  # _move_to opened it
        since = clock()
        try:
            while True:
                if messages := self._feed.receive():
                    break
                if self._feed.last() <= self._reached:
                    return False
                if self._feed.connected() and self._feed.probe_exhausted(upto):
                    # Looked at, and not to be waited for again.
                    self._pending.append(upto)
                    self._reached = upto
                    return True
                if clock() - since > self._options.read_timeout_seconds:
                    waited_s = clock() - since
                    raise ReadStalled(self._cluster.name, self._topic, str(self._reached), "the newest", waited_s)
        except pulsar.PulsarException as error:
            raise to_source_error(self._cluster, f"looking ahead on {self._topic}", error) from error
        for message in messages:
            self._append(message.message_id())
        return True

    def _append(self, message_id: object) -> None:
        ledger, entry, batch = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()  # type: ignore[attr-defined]
        # With its last message an entry is whole: only there can the broker's cursor stand.
        alone_or_last = batch < 0 or batch + 1 >= batch_size_of(message_id)
        position = LedgerPosition(ledger, entry) if alone_or_last else LedgerPosition(ledger, entry, batch)
        # A reader that was opened again begins with messages that were counted already.
        if position > self._reached:
            self._pending.append(position)
            self._reached = position


class Lookaheads:
    """The look ahead of all topic partitions; their readers stay open from batch to batch."""

    def __init__(
        self,
        options: PulsarOptions,
        opener: Callable[[SourceCluster, PulsarOptions, str, int], Lookahead] = Lookahead,
    ) -> None:
        self._options = options
        self._open = opener
        self._lookaheads: dict[tuple[str, str], Lookahead] = {}

    def close(self) -> None:
        for lookahead in self._lookaheads.values():
            lookahead.close()
        self._lookaheads.clear()

    def close_topic(self, topic: str) -> None:
        for key in [key for key in self._lookaheads if key[1] == topic]:
            self._lookaheads.pop(key).close()

    def read_by_topic(
        self,
        cluster: SourceCluster,
        states: Mapping[str, PartitionState],
        ranges: Sequence[PartitionRange],
        *,
        isolated: bool,
    ) -> dict[str, Iterable[LedgerPosition]]:
        if not isolated:
            return {
                part.topic: self._lookahead(cluster, states, part).read_between(part.start, part.end) for part in ranges
            }
        self.close()
        return {
            part.topic: _when_asked(
                partial(
                    look_ahead_isolated,
                    states[part.topic],
                    cluster,
                    self._options,
                    part,
                    self._queue(states[part.topic]),
                )
            )
            for part in ranges
        }

    def _lookahead(
        self, cluster: SourceCluster, states: Mapping[str, PartitionState], part: PartitionRange
    ) -> Lookahead:
        key = (cluster.name, part.topic)
        if key not in self._lookaheads:
            self._lookaheads[key] = self._open(cluster, self._options, part.topic, self._queue(states[part.topic]))
        return self._lookaheads[key]

    def _queue(self, state: PartitionState) -> int:
        return queue_size(state, self._options.prefetch_bytes)


def _when_asked(read: Callable[[], Iterable[LedgerPosition]]) -> Iterator[LedgerPosition]:
    yield from read()


def look_ahead_isolated(
    state: PartitionState, cluster: SourceCluster, options: PulsarOptions, part: PartitionRange, queue: int
) -> list[LedgerPosition]:
    """The messages of a range as far as one batch can include them, from a client in another process.

    An entry that crashes that client is a message, too.
    """

    def opener(cluster: SourceCluster, options: PulsarOptions, topic: str, after: LedgerPosition, queue: int) -> Any:
        work = ReaderTask(cluster, options, topic, after, queue, with_content=False)
        return isolated_feed(work, state.entry_counts_between(after, part.end))

    with closing(Lookahead(cluster, options, part.topic, queue, opener)) as lookahead:
        return list(islice(lookahead.read_between(part.start, part.end), options.max_messages_per_trigger))
