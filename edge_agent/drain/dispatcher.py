"""Chooses what to send next and follows what was sent. Pure: it gets the time and knows no connection or thread."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from edge_agent.clocks import HeadStatement
from edge_agent.config import DrainSettings
from edge_agent.drain.sent_batches import InFlightBatch, RetryQueue, SendWindow, SentSeqs
from edge_agent.errors import StoreDamaged
from edge_agent.store.batch_rows import StoredBatch, merge_tombstones
from edge_agent.store.buffer import Buffer
from edge_agent.store.epochs import RESTORED
from edge_agent.store.rebuild import CORRUPT
from edge_agent.uplink.protocol import OutgoingBatch
from waybill.record import Batch, Header, IntervalSet, TooLarge, WireError, decode, encode, read_header, with_statement

# Statements of the head, in batches or as heartbeats. Pure: handed the time.


class Statements:
    """The latest head statement, and when one was last sent.

    A heartbeat is due after `heartbeat_s` without a statement. Without an answer it counts as lost after `timeout_s`.
    """

    def __init__(self, device: str, heartbeat_s: float, timeout_s: float, now_s: float) -> None:
        self._device = device
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._stated_s = now_s
        self._sent: HeadStatement | None = None
        self._under_way_since_s: float | None = None
        self.current: HeadStatement | None = None
        """What is true now; None: the agent does not know."""
        self.heartbeats = 0
        """Heartbeats that were sent since the agent started."""

    def add_statement(self, data: bytes, now_s: float) -> bytes:
        """The encoded batch with the current statement; unchanged if nothing can be stated."""
        header = read_header(data)
        current = self.current
        if current is None:
            return data
        # a former epoch needs a declared end: another machine may continue a copy of it
        is_current = header.epoch == current.epoch
        if not is_current and not _has_declared_end(header):
            return data
        try:
            stated = with_statement(data, max(header.head, current.head * is_current), current.stated_us)
        except TooLarge:
            # a header that was as large as it may be
            return data
        if is_current:
            self._note(current, now_s)
        return stated

    def due_in(self, now_s: float) -> float | None:
        """Seconds until a heartbeat is due; None if it would state nothing new."""
        current, sent = self.current, self._sent
        if current is None or (
            sent is not None and sent.epoch == current.epoch and sent.stated_us >= current.stated_us
        ):
            return None
        due_s = self._stated_s + self._heartbeat_s
        if self._under_way_since_s is not None:
            due_s = max(due_s, self._under_way_since_s + self._timeout_s)
        return max(0.0, due_s - now_s)

    def take_heartbeat(self, now_s: float) -> tuple[int, bytes]:
        current = self.current
        assert current is not None, "only what can be stated is due"
        self._note(current, now_s)
        self._under_way_since_s = now_s
        self.heartbeats += 1
        return current.epoch, encode(Batch(self._device, current.epoch, current.head, stated_us=current.stated_us))

    def end_heartbeat(self) -> None:
        """The heartbeat was answered, or its connection was lost; the next one states the same."""
        self._under_way_since_s = None

    def _note(self, current: HeadStatement, now_s: float) -> None:
        self._sent, self._stated_s = current, now_s


def _has_declared_end(header: Header) -> bool:
    """Whether the head of an ended epoch was declared lost, so that no record is above it."""
    return any(one.last == header.head and one.reason in {CORRUPT, RESTORED} for one in header.tombstones)


# The send queue: live data in memory, backlog on disk.

QUEUE_BYTES = 1 << 20
QUEUE_BATCHES = 512
READ_AHEAD = 32
MEMORY_BYTES = 1 << 20
"""After this many bytes older ones count half, so that an old imbalance fades."""


class LiveQueue:
    """Recently committed batches, by class, so that sending them reads no disk. Bounded.

    Old or excess batches are released to the backlog; they are on disk.
    """

    def __init__(self, live_s: float) -> None:
        self._live_s = live_s
        self._queues: dict[int, deque[tuple[float, StoredBatch]]] = {}
        self._size = 0
        self.ids: set[int] = set()

    def add(self, now_s: float, batch: StoredBatch) -> None:
        self._queues.setdefault(batch.class_index, deque()).append((now_s, batch))
        self._size += batch.size
        self.ids.add(batch.id)

    def take_overflow(self, now_s: float) -> list[StoredBatch]:
        """Removes batches that are too old or too many; the oldest of the lowest class first."""
        released: list[StoredBatch] = []
        for queue in self._queues.values():
            while queue and queue[0][0] + self._live_s <= now_s:
                released.append(self._take(queue)[1])
        for index in sorted(self._queues, reverse=True):
            queue = self._queues[index]
            while queue and (self._size > QUEUE_BYTES or len(self.ids) > QUEUE_BATCHES):
                released.append(self._take(queue)[1])
        return released

    def peek(self, classes: frozenset[int] | None = None) -> StoredBatch | None:
        """The oldest batch of the first class that has one. `classes`: only these."""
        for index in sorted(self._queues):
            if self._queues[index] and (classes is None or index in classes):
                return self._queues[index][0][1]
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int) -> list[StoredBatch]:
        """Removes the next batches of a class that fit into one batch; at least one."""
        queue = self._queues[class_index]
        taken = [self._take(queue)[1]]
        records, size = taken[0].records, taken[0].size
        # A batch on the wire has one epoch.
        while queue and queue[0][1].epoch == taken[0].epoch:
            after = queue[0][1]
            if records + after.records > most_records or size + after.size > most_bytes:
                break
            taken.append(self._take(queue)[1])
            records, size = records + taken[-1].records, size + taken[-1].size
        return taken

    def take_all(self) -> list[StoredBatch]:
        return [self._take(queue)[1] for queue in self._queues.values() for _ in range(len(queue))]

    def _take(self, queue: deque[tuple[float, StoredBatch]]) -> tuple[float, StoredBatch]:
        entry = queue.popleft()
        self._size -= entry[1].size
        self.ids.discard(entry[1].id)
        return entry


class Backlog:
    """Batches waiting on disk, read class by class in the order of their ids with bounded memory.

    Each class has a cursor. `is_taken`: whether a batch is in flight, acknowledged, or queued elsewhere.
    """

    def __init__(self, stored: Buffer, classes: Iterable[int], is_taken: Callable[[StoredBatch], bool]) -> None:
        self._stored = stored
        self._is_taken = is_taken
        self._cursors = dict.fromkeys(classes, 0)
        self._ahead: dict[int, deque[StoredBatch]] = {index: deque() for index in self._cursors}
        self._caught_up: set[int] = set()

    def on_committed(self, batch: StoredBatch) -> None:
        """A batch was committed that the live queue holds: a cursor at the end moves past it."""
        self._ensure(batch.class_index)
        if batch.class_index in self._caught_up:
            self._cursors[batch.class_index] = max(batch.id, self._cursors[batch.class_index])

    def on_missed(self) -> None:
        """Batches may be on disk that `on_committed` did not report: read the disk again."""
        self._caught_up.clear()

    def release(self, batches: Iterable[StoredBatch]) -> None:
        """Moves cursors back so that these batches are found again."""
        for index, identity in _first_ids(batches).items():
            self._ensure(index)
            first = self._ahead[index][0].id if self._ahead[index] else self._cursors[index] + 1
            # A cursor only moves back: batches ahead of it are found anyway.
            if identity < first:
                self._cursors[index] = identity - 1
                self._ahead[index].clear()
            self._caught_up.discard(index)

    def drop(self, identities: Iterable[int]) -> None:
        """Forgets batches that were read ahead and have changed since."""
        gone = frozenset(identities)
        for index, ahead in self._ahead.items():
            self._ahead[index] = deque(batch for batch in ahead if batch.id not in gone)

    def rewind(self) -> None:
        for index in self._cursors:
            self._cursors[index] = 0
            self._ahead[index].clear()
        self._caught_up.clear()

    def peek(self, classes: frozenset[int] | None = None) -> StoredBatch | None:
        """The oldest batch of the first class that has one. `classes`: only these."""
        for index in sorted(self._cursors):
            if classes is None or index in classes:
                batch = self._advance(index)
                if batch is not None:
                    return batch
        return None

    def take(self, class_index: int, most_records: int, most_bytes: int, merge_below: int) -> list[StoredBatch]:
        """The next batches of a class that form one batch; only small ones are merged. The class must have a batch."""
        batch = self._advance(class_index)
        assert batch is not None
        taken: list[StoredBatch] = []
        records = size = 0
        while batch is not None and (not taken or self._joins(batch, taken[-1], merge_below)):
            records, size = records + batch.records, size + batch.size
            if taken and (records > most_records or size > most_bytes):
                break
            taken.append(batch)
            self._ahead[class_index].popleft()
            if batch.records >= merge_below:
                break
            batch = self._advance(class_index)
        return taken

    @staticmethod
    def _joins(batch: StoredBatch, before: StoredBatch, merge_below: int) -> bool:
        return batch.epoch == before.epoch and batch.records < merge_below

    def _advance(self, index: int) -> StoredBatch | None:
        """Moves the class's cursor past taken batches; returns the next one."""
        ahead = self._ahead[index]
        # Otherwise an idle drain would read the disk in every round.
        while index not in self._caught_up:
            while ahead and self._is_taken(ahead[0]):
                ahead.popleft()
            if ahead:
                return ahead[0]
            read = self._stored.read_after(self._cursors[index], index, READ_AHEAD)
            ahead.extend(read)
            if read:
                self._cursors[index] = read[-1].id
            else:
                self._caught_up.add(index)
        return None

    def _ensure(self, index: int) -> None:
        if index not in self._cursors:
            self._cursors[index] = 0
            self._ahead[index] = deque()


class FairShare:
    """Divides bytes between live data and backlog while both wait."""

    def __init__(self, backlog_share: float) -> None:
        self._share = backlog_share
        self._all = 0.0
        self._backlog = 0.0

    def choose_backlog(self, *, live_waits: bool, backlog_waits: bool) -> bool:
        """Whether the backlog may send next. While only one side waits, the account restarts."""
        if live_waits and backlog_waits:
            # With a share of 1 the backlog's bytes are never below the share.
            return self._backlog < self._share * self._all or self._share >= 1
        self._all = self._backlog = 0.0
        return backlog_waits

    def on_sent(self, size: int, *, backlog: bool) -> None:
        self._all += size
        self._backlog += size if backlog else 0
        if self._all > MEMORY_BYTES:
            self._all, self._backlog = self._all / 2, self._backlog / 2


def _first_ids(batches: Iterable[StoredBatch]) -> dict[int, int]:
    lowest: dict[int, int] = {}
    for batch in batches:
        lowest[batch.class_index] = min(batch.id, lowest.get(batch.class_index, batch.id))
    return lowest


WINDOW_BYTES = 2 << 20
"""Bytes that may be unacknowledged."""
BATCH_BYTES = 128 << 10
"""Small batches are merged up to this size."""
UNACKNOWLEDGED = "unacknowledged"
"""The refusal reason of a batch without an acknowledgement while later ones have one."""


@dataclass(slots=True)
class DrainCounters:
    batches: int = 0
    resent: int = 0
    records: Counter[int] = field(default_factory=Counter)
    """Records sent, by the index of their class."""


class Dispatcher:
    """Sends live data first and gives the backlog its share, within the window; no batch is in flight twice."""

    def __init__(
        self,
        settings: DrainSettings,
        source: Buffer,
        classes: Iterable[int],
        statements: Statements | None = None,
    ) -> None:
        """`statements`: added to each batch; None adds nothing."""
        self._settings = settings
        self._statements = statements
        self._source = source
        self._live = LiveQueue(settings.live_s)
        self._backlog = Backlog(source, classes, self._is_taken)
        self._share = FairShare(settings.backlog_share)
        self._retries = RetryQueue(settings.max_refusals, settings.refusal_backoff_s, settings.window)
        self._window = SendWindow(settings.window, WINDOW_BYTES, settings.ack_timeout_s)
        self._region = ""
        self._sent_seqs = SentSeqs()
        self.maybe_sent: set[int] = set()
        """Ids of stored batches that have been handed to an uplink."""
        self.counters = DrainCounters()

    @property
    def in_flight(self) -> int:
        return len(self._window)

    @property
    def has_room(self) -> bool:
        """Whether the window takes one more live batch."""
        return self._window.has_room(backlog=False)

    @property
    def retrying(self) -> int:
        """The number of refused batches that will be tried again."""
        return len(self._retries)

    @property
    def region_refuses_all(self) -> bool:
        return self._retries.region_refuses_all

    def on_connected(self, region: str) -> None:
        """Another region may accept what the former one refused."""
        self._region = region
        if self._retries.region_refuses_all:
            self._backlog.release(self._retries.take_all())

    def on_committed(self, now_s: float, batches: Iterable[StoredBatch]) -> None:
        for batch in batches:
            self._backlog.on_committed(batch)
            self._live.add(now_s, batch)
        self._backlog.release(self._live.take_overflow(now_s))

    def on_missed(self) -> None:
        self._backlog.on_missed()

    def take_next(self, now_s: float, allowed: frozenset[int] | None = None) -> OutgoingBatch | None:
        """The next batch, which counts as in flight from now on; None if nothing may be sent. `allowed`: class
        indexes.
        """
        self._backlog.release(self._live.take_overflow(now_s))
        while True:
            taken = self._take_batches(now_s, allowed)
            if taken is None:
                return None
            outgoing = self._pack(now_s, *taken)
            if outgoing is not None:
                return outgoing

    def next_event_in(self, now_s: float) -> float | None:
        """Seconds until a batch is overdue or a retry is due."""
        times = [self._window.next_timeout_in(now_s), self._retries.next_due_in(now_s)]
        return min((time for time in times if time), default=None)

    def on_acked(self, epoch: int, seqs: IntervalSet) -> int:
        """The region has persisted these record ids. Returns how many of them it was really sent; others stay."""
        # An acknowledgement, genuine or forged, affects only what this region was sent.
        acked = self._sent_seqs.take_acked(self._region, epoch, seqs)
        if not acked:
            return 0
        self._source.acknowledge(epoch, acked)
        for entry in self._window.on_acked(epoch, acked):
            self._retries.on_acked(entry.sent_s)
            for batch in entry.stored:
                self._retries.remove(batch.id)
                self.maybe_sent.discard(batch.id)
        return acked.count

    def on_refused(self, now_s: float, epoch: int, seqs: IntervalSet, reason: str) -> int:
        """The region refuses these record ids. Returns the number of dead-lettered batches. Raises StoreError."""
        return sum(self._retry_later(now_s, entry, seqs, reason) for entry in self._window.take_refused(epoch, seqs))

    def on_slow_down(self, epoch: int, seqs: IntervalSet) -> int:
        """The region accepts these later: they are sent again in their turn. Returns the number of batches."""
        later = self._window.take_refused(epoch, seqs)
        self._release(later)
        return len(later)

    def retry_overdue(self, now_s: float) -> int:
        """Sends batches again that were not acknowledged in time; returns how many. Raises StoreError.

        A batch counts as refused if a later one was acknowledged.
        """
        late = self._window.take_overdue(now_s)
        for entry in late:
            if self._retries.is_passed_over(entry.sent_s):
                self._retry_later(now_s, entry, entry.unacked, UNACKNOWLEDGED)
            else:
                self._release([entry])
        return len(late)

    def on_disconnected(self) -> None:
        """Everything in flight may be lost and is sent again."""
        self._release(self._window.take_all())

    def reload(self) -> None:
        """Stored batches have changed: read them from disk again."""
        self._backlog.release(self._live.take_all())

    def rewind(self) -> None:
        """The buffer was replaced: start again with its oldest batch."""
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
        """Queues each batch with these record ids for a retry of its own; returns how many are dead-lettered
        instead.
        """
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
            # It was sent with the whole, so its times must not change.
            self.maybe_sent.add(half.id)
        return len(exhausted) - len(halves) // 2

    def _is_taken(self, batch: StoredBatch) -> bool:
        held = (self._window.ids, self._live.ids, self._retries)
        return any(batch.id in ids for ids in held) or self._source.is_acknowledged(batch)

    def _take_batches(self, now_s: float, allowed: frozenset[int] | None) -> tuple[list[StoredBatch], bool] | None:
        again = self._advance_retries(now_s, allowed) if self._window.has_room(backlog=True) else None
        if again is not None or self._retries.region_refuses_all:
            # A region that refuses everything gets only retries: a new batch would become one more.
            return None if again is None else ([again], True)
        live = self._live.peek(allowed) if self._window.has_room(backlog=False) else None
        old = self._backlog.peek(allowed) if self._window.has_room(backlog=True) else None
        settings = self._settings
        if self._share.choose_backlog(live_waits=live is not None, backlog_waits=old is not None):
            assert old is not None
            most = (settings.batch_records, BATCH_BYTES, settings.merge_below_records)
            return self._backlog.take(old.class_index, *most), True
        if live is None:
            return None
        return self._live.take(live.class_index, settings.batch_records, BATCH_BYTES), False

    def _advance_retries(self, now_s: float, allowed: frozenset[int] | None) -> StoredBatch | None:
        """The next batch whose retry is due; removes acknowledged ones."""
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
            data = merge_batches([one for _, one in present], self._source.database.head_of(epoch))
        except TooLarge:
            # Together they exceed a decoder's limit; each alone does not, or it would not be stored.
            self._backlog.release(batches[1:])
            return self._pack(now_s, batches[:1], backlog)
        except WireError as error:
            raise StoreDamaged(f"a stored batch cannot be read: {error}") from error
        if self._statements is not None:
            data = self._statements.add_statement(data, now_s)
        seqs = read_header(data).seqs
        # Without their bytes: retries read the disk, so memory does not grow with the window.
        stripped = tuple(
            StoredBatch(batch.id, batch.epoch, batch.last, batch.class_index, batch.records, batch.size, batch.wall_ms)
            for batch, _ in present
        )
        self.maybe_sent.update(batch.id for batch in stripped)
        again = stripped[0].id in self._retries
        self._retries.on_sent(stripped[0].id)
        self._window.add(InFlightBatch(epoch, seqs, stripped, len(data), backlog, now_s, again))
        self._sent_seqs.add(self._region, epoch, seqs)
        self._share.on_sent(len(data), backlog=backlog)
        self.counters.batches += 1
        for batch in stripped:
            self.counters.records[batch.class_index] += batch.records
        return OutgoingBatch(epoch, seqs, data)


def merge_batches(encoded: Sequence[bytes], head: int) -> bytes:
    """One encoded batch with all records and tombstones. The inputs have one device and epoch, and do not overlap.

    `head`: the highest seq that the epoch has committed. A single batch stays unchanged. Raises WireError.
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
