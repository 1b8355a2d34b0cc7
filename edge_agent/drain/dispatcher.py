"""What to send next, and what became of what was sent. Handed the time; knows no connection and no thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_agent.config import DrainSettings
from edge_agent.drain.queues import Backlog, BatchReader, FairShare, LiveQueue
from edge_agent.drain.sent_batches import InFlightBatch, RetryQueue, SendWindow, SentSeqs
from edge_agent.drain.statements import Statements
from edge_agent.errors import StoreDamaged
from edge_agent.store.batch_rows import StoredBatch, merge_tombstones
from edge_agent.uplink.protocol import OutgoingBatch
from waybill.record import Batch, IntervalSet, TooLarge, WireError, decode, encode, read_header


class BatchStore(BatchReader, Protocol):
    """The part of the buffer that is drained."""

    def load(self, identity: int) -> bytes | None:
        """The encoded form of a batch; None if it is gone."""

    def head_of(self, epoch: int) -> int:
        """The highest number that an epoch committed."""

    def acknowledge(self, epoch: int, seqs: IntervalSet) -> None:
        """Record ids that are safe elsewhere."""

    def is_acknowledged(self, batch: StoredBatch) -> bool:
        """Whether all of a batch is safe elsewhere."""

    def split_or_dead_letter(self, identities: Sequence[int], reason: str) -> list[StoredBatch]:
        """Halves refused batches, and dead-letters those of one record; the halves."""


UNACKNOWLEDGED = "unacknowledged"
"""The reason of a batch that gets no acknowledgement while later ones do."""


@dataclass(slots=True)
class DrainCounters:
    """Counters of the drain since the agent started."""

    batches: int = 0
    records: int = 0
    size: int = 0
    resent: int = 0
    acks_ignored: int = 0
    """Answers about nothing that was sent."""


class Dispatcher:
    """Live data first, the backlog with its share, never more than the window, nothing twice at the same time."""

    def __init__(
        self,
        settings: DrainSettings,
        source: BatchStore,
        classes: Iterable[int],
        urgent: Iterable[int],
        statements: Statements | None = None,
    ) -> None:
        """`statements`: what the batches state; None: nothing."""
        self._settings = settings
        self._statements = statements
        self._source = source
        self._urgent = frozenset(urgent)
        self._live = LiveQueue(settings.live_s)
        self._backlog = Backlog(source, classes, self._is_taken)
        self._share = FairShare(settings.backlog_share)
        self._retries = RetryQueue(settings.max_refusals, settings.refusal_backoff_s, settings.window)
        self._window = SendWindow(settings.window, settings.window_bytes, settings.ack_timeout_s)
        self._region = ""
        self._sent_seqs = SentSeqs()
        self.maybe_sent: set[int] = set()
        """Ids of stored batches that have been handed to an uplink."""
        self.counters = DrainCounters()

    @property
    def in_flight(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._window)

    @property
    def has_room(self) -> bool:
        """Whether the window takes one more live batch."""
        return self._window.has_room(backlog=False)

    @property
    def retrying(self) -> int:
        """Stored batches that were refused and will be tried again."""
        return len(self._retries)

    @property
    def region_refuses_all(self) -> bool:
        """Whether the region refuses whatever it is given."""
        return self._retries.region_refuses_all

    def on_connected(self, region: str) -> None:
        """A new connection, maybe to another region: what the former one took nothing of may go again."""
        self._region = region
        if self._retries.region_refuses_all:
            self._backlog.release(self._retries.take_all())

    def on_committed(self, now_s: float, batches: Iterable[StoredBatch]) -> None:
        """Batches were committed."""
        for batch in batches:
            self._backlog.on_committed(batch)
            self._live.add(now_s, batch)
        self._backlog.release(self._live.take_overflow(now_s))

    def on_missed(self) -> None:
        """Batches may have been committed without `on_committed`."""
        self._backlog.on_missed()

    def take_next(self, now_s: float, allowed: frozenset[int] | None = None) -> OutgoingBatch | None:
        """The next batch, which is on its way from now on; None if nothing may be sent now. `allowed`: classes."""
        self._backlog.release(self._live.take_overflow(now_s))
        while True:
            taken = self._take_batches(now_s, allowed)
            if taken is None:
                return None
            outgoing = self._pack(now_s, *taken)
            if outgoing is not None:
                return outgoing

    def next_event_in(self, now_s: float) -> float | None:
        """Seconds until something changes by itself: a batch is overdue, or the batching delay of live data is over."""
        times = [
            self._window.next_timeout_in(now_s),
            self._live_ready_in(now_s, None),
            self._retries.next_due_in(now_s),
        ]
        return min((time for time in times if time), default=None)

    def on_acked(self, epoch: int, seqs: IntervalSet) -> int:
        """Record ids are safe in the region; how many of them it was really sent. All others stay as they are."""
        # An acknowledgement, true or forged, takes nothing that this region was not sent.
        acked = self._sent_seqs.take_acked(self._region, epoch, seqs)
        if not acked:
            self.counters.acks_ignored += bool(seqs)
            return 0
        self._source.acknowledge(epoch, acked)
        for entry in self._window.on_acked(epoch, acked):
            self._retries.on_acked(entry.sent_s)
            for batch in entry.stored:
                self._retries.remove(batch.id)
                self.maybe_sent.discard(batch.id)
        return acked.count

    def on_refused(self, now_s: float, epoch: int, seqs: IntervalSet, reason: str) -> int:
        """The region refuses these record ids; how many batches are dead-lettered. Raises StoreError."""
        return sum(self._retry_later(now_s, entry, seqs, reason) for entry in self._window.take_refused(epoch, seqs))

    def on_slow_down(self, epoch: int, seqs: IntervalSet) -> int:
        """The region takes these later, nothing is wrong with them: they go again, in their turn. How many batches."""
        later = self._window.take_refused(epoch, seqs)
        self._release(later)
        return len(later)

    def retry_overdue(self, now_s: float) -> int:
        """Batches that got no acknowledgement in time will be sent again; how many. Raises StoreError.

        One that was skipped, because a later one was acknowledged, counts as refused.
        """
        late = self._window.take_overdue(now_s)
        for entry in late:
            if self._retries.is_passed_over(entry.sent_s):
                self._retry_later(now_s, entry, entry.unacked, UNACKNOWLEDGED)
            else:
                self._release([entry])
        return len(late)

    def on_disconnected(self) -> None:
        """What was on its way may be lost: all of it will be sent again, and what was live is backlog."""
        self._release(self._window.take_all())

    def reload(self) -> None:
        """Stored batches were changed: what was kept in memory is read again from disk."""
        self._backlog.release(self._live.take_all())

    def rewind(self) -> None:
        """The buffer was replaced: forget everything and begin with the oldest batch."""
        self._window.take_all()
        self._retries.take_all()
        self.maybe_sent.clear()
        self._live.take_all()
        self._backlog.rewind()

    def _release(self, entries: Iterable[InFlightBatch]) -> None:
        for entry in entries:
            self.counters.resent += 1
            if entry.is_retry:
                self._retries.retry_now(entry.stored[0].id)
            else:
                self._backlog.release(entry.stored)

    def _retry_later(self, now_s: float, entry: InFlightBatch, seqs: IntervalSet, reason: str) -> int:
        """Queues the batches with these record ids for a retry, each by itself; how many are dead-lettered instead."""
        affected = [batch for batch in entry.stored if seqs & IntervalSet([(batch.first, batch.last)])]
        self._backlog.release(batch for batch in entry.stored if batch not in affected)
        self.counters.resent += 1
        exhausted = [batch.id for batch in affected if self._retries.on_refused(now_s, batch, reason, entry.sent_s)]
        if not exhausted:
            return 0
        halves = self._source.split_or_dead_letter(exhausted, reason)
        self._backlog.drop(exhausted)
        first_s = min(self._retries.first_s(identity) for identity in exhausted)
        for identity in exhausted:
            self._retries.remove(identity)
        for half in halves:
            self._retries.add_half(now_s, half, reason, first_s)
            # It went out with the whole, so no clock correction may give it other times.
            self.maybe_sent.add(half.id)
        return len(exhausted) - len(halves) // 2

    def _is_taken(self, batch: StoredBatch) -> bool:
        held = (self._window.ids, self._live.ids, self._retries)
        return any(batch.id in ids for ids in held) or self._source.is_acknowledged(batch)

    def _live_ready_in(self, now_s: float, allowed: frozenset[int] | None) -> float | None:
        """Seconds until live data may go: 0 now; None when there is none."""
        first = self._live.peek(allowed)
        if first is None:
            return None
        came_s, batch = first
        if batch.class_index in self._urgent:
            return 0.0
        return max(0.0, came_s + self._settings.batching_delay_ms / 1000 - now_s)

    def _take_batches(self, now_s: float, allowed: frozenset[int] | None) -> tuple[list[StoredBatch], bool] | None:
        again = self._advance_retries(now_s, allowed) if self._window.has_room(backlog=True) else None
        if again is not None or self._retries.region_refuses_all:
            # To a region that refuses everything only retries go: a new batch would become one more of them.
            return None if again is None else ([again], True)
        live = self._live.peek(allowed) if self._window.has_room(backlog=False) else None
        if live is not None and self._live_ready_in(now_s, allowed):
            live = None
        old = self._backlog.peek(allowed) if self._window.has_room(backlog=True) else None
        settings = self._settings
        if self._share.choose_backlog(live_waits=live is not None, backlog_waits=old is not None):
            assert old is not None
            most = (settings.batch_records, settings.batch_bytes, settings.merge_below_records)
            return self._backlog.take(old.class_index, *most), True
        if live is None:
            return None
        return self._live.take(live[1].class_index, settings.batch_records, settings.batch_bytes), False

    def _advance_retries(self, now_s: float, allowed: frozenset[int] | None) -> StoredBatch | None:
        """Removes what was acknowledged while it waited for its retry; the batch whose retry is due."""
        while (batch := self._retries.due(now_s, allowed)) is not None:
            if not self._source.is_acknowledged(batch):
                return batch
            self._retries.remove(batch.id)
        return None

    def _pack(self, now_s: float, batches: list[StoredBatch], backlog: bool) -> OutgoingBatch | None:
        encoded = [(batch, batch.data or self._source.load(batch.id)) for batch in batches]
        present = [(batch, data) for batch, data in encoded if data]
        if not present:
            for batch in batches:
                self._retries.remove(batch.id)
            return None
        epoch = present[0][0].epoch
        try:
            data = merged([one for _, one in present], self._source.head_of(epoch))
        except TooLarge:
            # Together they unpack to more than a decoder takes; each by itself does not, or it had not been stored.
            self._backlog.release(batches[1:])
            return self._pack(now_s, batches[:1], backlog)
        except WireError as error:
            raise StoreDamaged(f"a stored batch cannot be read: {error}") from error
        if self._statements is not None:
            data = self._statements.put_on(data, now_s)
        seqs = read_header(data).seqs
        # Without their bytes: what is sent again is read from disk, so memory does not grow with the window.
        stripped = tuple(_without_data(batch) for batch, _ in present)
        self.maybe_sent.update(batch.id for batch in stripped)
        again = stripped[0].id in self._retries
        self._retries.on_sent(stripped[0].id)
        self._window.add(InFlightBatch(epoch, seqs, stripped, len(data), backlog, now_s, again))
        self._sent_seqs.add(self._region, epoch, seqs)
        self._share.on_sent(len(data), backlog=backlog)
        self.counters.batches += 1
        self.counters.records += sum(batch.records for batch in stripped)
        self.counters.size += len(data)
        return OutgoingBatch(epoch, seqs, data)


def _without_data(batch: StoredBatch) -> StoredBatch:
    return StoredBatch(batch.id, batch.epoch, batch.last, batch.class_index, batch.records, batch.size, batch.wall_ms)


def merged(encoded: Sequence[bytes], head: int) -> bytes:
    """One encoded batch with the records and tombstones of all: of one device and epoch, without overlap.

    `head`: the highest number that the epoch has committed now. A single batch stays as it is. Raises WireError.
    """
    if len(encoded) == 1:
        return encoded[0]
    batches = sorted((decode(data) for data in encoded), key=lambda batch: batch.header.seqs.first or 0)
    first = batches[0]
    assert all((batch.device, batch.epoch) == (first.device, first.epoch) for batch in batches)
    records = tuple(record for batch in batches for record in batch.records)
    tombstones = merge_tombstones(tombstone for batch in batches for tombstone in batch.tombstones)
    head = max(head, *(batch.head for batch in batches))
    return encode(Batch(first.device, first.epoch, head, records, tombstones))
