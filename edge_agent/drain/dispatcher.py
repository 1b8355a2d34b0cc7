"""What to send next, and what became of what was sent. Handed the time; knows no connection and no thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_agent.config import DrainSettings
from edge_agent.drain.backlog import Backlog, Stored
from edge_agent.drain.fresh import FreshLane
from edge_agent.drain.merge import merged
from edge_agent.drain.refusals import Refusals
from edge_agent.drain.sent import SentRecords
from edge_agent.drain.share import Share
from edge_agent.drain.window import Flight, Window
from edge_agent.errors import StoreDamaged
from edge_agent.store.block import Block
from edge_agent.uplink.protocol import Outgoing
from telemetry import IntervalSet, TooLarge, WireError, read_header


class Source(Stored, Protocol):
    """The part of the buffer that is drained."""

    def load(self, identity: int) -> bytes | None:
        """The encoded batch of a block; None if it is gone."""

    def head_of(self, epoch: int) -> int:
        """The highest number that an epoch committed."""

    def acknowledge(self, epoch: int, names: IntervalSet) -> None:
        """Names that are safe elsewhere."""

    def is_acknowledged(self, block: Block) -> bool:
        """Whether all of a block is safe elsewhere."""

    def isolate(self, identities: Sequence[int], reason: str) -> list[Block]:
        """Halves refused blocks, and keeps those of one record without their being sent; the halves."""


UNANSWERED = "unanswered"
"""The reason of a batch that gets no acknowledgement while later ones do."""


@dataclass(slots=True)
class Sent:
    """Counters of the drain since the agent started."""

    batches: int = 0
    records: int = 0
    size: int = 0
    again: int = 0


class Dispatcher:
    """Live data first, the backlog with its share, never more than the window, nothing twice at the same time."""

    def __init__(self, settings: DrainSettings, source: Source, classes: Iterable[int], urgent: Iterable[int]) -> None:
        self._settings = settings
        self._source = source
        self._urgent = frozenset(urgent)
        self._fresh = FreshLane(settings.fresh_s)
        self._backlog = Backlog(source, classes, self._is_taken)
        self._share = Share(settings.backlog_share)
        self._refusals = Refusals(settings.refusals_most, settings.refusal_pause_s, settings.window)
        self._window = Window(settings.window, settings.window_bytes, settings.ack_timeout_s)
        self._region = ""
        self._outstanding = SentRecords()
        self.maybe_sent: set[int] = set()
        """Ids of stored blocks that have been handed to an uplink."""
        self.sent = Sent()

    @property
    def in_flight(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._window)

    @property
    def resting(self) -> int:
        """Stored blocks that were refused and will be tried again."""
        return len(self._refusals)

    @property
    def takes_nothing(self) -> bool:
        """Whether the region refuses whatever it is given."""
        return self._refusals.is_all

    def connected(self, region: str) -> None:
        """A new connection, maybe to another region: what the former one took nothing of may go again."""
        self._region = region
        if self._refusals.is_all:
            self._backlog.release(self._refusals.clear())

    def committed(self, now_s: float, blocks: Iterable[Block]) -> None:
        """Blocks were committed."""
        for block in blocks:
            self._backlog.committed(block)
            self._fresh.add(now_s, block)
        self._backlog.release(self._fresh.outgrown(now_s))

    def missed(self) -> None:
        """Blocks may have been committed of which `committed` was not told."""
        self._backlog.missed()

    def next_batch(self, now_s: float, allowed: frozenset[int] | None = None) -> Outgoing | None:
        """The next batch, which is on its way from now on; None if nothing may be sent now. `allowed`: classes."""
        self._backlog.release(self._fresh.outgrown(now_s))
        while True:
            taken = self._choose(now_s, allowed)
            if taken is None:
                return None
            outgoing = self._pack(now_s, *taken)
            if outgoing is not None:
                return outgoing

    def next_event_in(self, now_s: float) -> float | None:
        """Seconds until something changes by itself: a batch is overdue, or lingering data is ripe."""
        times = [
            self._window.next_timeout_in(now_s),
            self._ripe_in(now_s, None),
            self._refusals.next_due_in(now_s),
        ]
        return min((time for time in times if time), default=None)

    def acknowledged(self, epoch: int, names: IntervalSet) -> int:
        """Names are safe in the region; how many of them it was really sent. All others stay as they are."""
        names = self._outstanding.take_acked(self._region, epoch, names)
        if not names:
            return 0
        self._source.acknowledge(epoch, names)
        for flight in self._window.acknowledged(epoch, names):
            self._refusals.acknowledged(flight.sent_s)
            for block in flight.blocks:
                self._refusals.forget(block.id)
                self.maybe_sent.discard(block.id)
        return names.count

    def refused(self, now_s: float, epoch: int, names: IntervalSet, reason: str) -> int:
        """The other side does not take these names; how many blocks are set aside by it. Raises StoreError."""
        return sum(self._rest(now_s, flight, names, reason) for flight in self._window.refused(epoch, names))

    def retry_overdue(self, now_s: float) -> int:
        """Batches whose acknowledgement stayed away will be sent again; how many. Raises StoreError.

        One that was passed over, because a later one was acknowledged, is taken for refused.
        """
        late = self._window.overdue(now_s)
        for flight in late:
            if self._refusals.is_passed_over(flight.sent_s):
                self._rest(now_s, flight, flight.missing, UNANSWERED)
            else:
                self._release([flight])
        return len(late)

    def disconnected(self) -> None:
        """What was on its way may be lost: all of it will be sent again, and what was live is backlog."""
        self._release(self._window.clear())

    def reload(self) -> None:
        """Stored blocks were changed: what was kept in memory is read again from disk."""
        self._backlog.release(self._fresh.clear())

    def rewind(self) -> None:
        """The buffer was replaced under our feet: forget everything and begin with the oldest block."""
        self._window.clear()
        self._refusals.clear()
        self.maybe_sent.clear()
        self._fresh.clear()
        self._backlog.rewind()

    def _release(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            self.sent.again += 1
            if flight.again:
                self._refusals.returned(flight.blocks[0].id)
            else:
                self._backlog.release(flight.blocks)

    def _rest(self, now_s: float, flight: Flight, names: IntervalSet, reason: str) -> int:
        """Lets the blocks with these names rest, each by itself from now on; how many are set aside instead."""
        hit = [block for block in flight.blocks if names & IntervalSet([(block.first, block.last)])]
        self._backlog.release(block for block in flight.blocks if block not in hit)
        self.sent.again += 1
        hopeless = [block.id for block in hit if self._refusals.refused(now_s, block, reason, flight.sent_s)]
        if not hopeless:
            return 0
        halves = self._source.isolate(hopeless, reason)
        self._backlog.drop(hopeless)
        first_s = min(self._refusals.first_s(identity) for identity in hopeless)
        for identity in hopeless:
            self._refusals.forget(identity)
        for half in halves:
            self._refusals.halved(now_s, half, reason, first_s)
            self.maybe_sent.add(half.id)
        return len(hopeless) - len(halves) // 2

    def _is_taken(self, block: Block) -> bool:
        held = (self._window.ids, self._fresh.ids, self._refusals)
        return any(block.id in ids for ids in held) or self._source.is_acknowledged(block)

    def _ripe_in(self, now_s: float, allowed: frozenset[int] | None) -> float | None:
        """Seconds until live data may go: 0 now; None when there is none."""
        first = self._fresh.peek(allowed)
        if first is None:
            return None
        came_s, block = first
        if block.class_index in self._urgent:
            return 0.0
        return max(0.0, came_s + self._settings.linger_ms / 1000 - now_s)

    def _choose(self, now_s: float, allowed: frozenset[int] | None) -> tuple[list[Block], bool] | None:
        again = self._due_again(now_s, allowed) if self._window.has_room(backlog=True) else None
        if again is not None or self._refusals.is_all:
            return None if again is None else ([again], True)
        fresh = self._fresh.peek(allowed) if self._window.has_room(backlog=False) else None
        if fresh is not None and self._ripe_in(now_s, allowed):
            fresh = None
        old = self._backlog.peek(allowed) if self._window.has_room(backlog=True) else None
        settings = self._settings
        if self._share.backlog_is_next(fresh_waits=fresh is not None, backlog_waits=old is not None):
            assert old is not None
            most = (settings.batch_records, settings.batch_bytes, settings.merge_below_records)
            return self._backlog.take(old.class_index, *most), True
        if fresh is None:
            return None
        return self._fresh.take(fresh[1].class_index, settings.batch_records, settings.batch_bytes), False

    def _due_again(self, now_s: float, allowed: frozenset[int] | None) -> Block | None:
        while (block := self._refusals.due(now_s, allowed)) is not None:
            if not self._source.is_acknowledged(block):
                return block
            self._refusals.forget(block.id)
        return None

    def _pack(self, now_s: float, blocks: list[Block], backlog: bool) -> Outgoing | None:
        encoded = [(block, block.data or self._source.load(block.id)) for block in blocks]
        present = [(block, data) for block, data in encoded if data]
        if not present:
            for block in blocks:
                self._refusals.forget(block.id)
            return None
        epoch = present[0][0].epoch
        try:
            data = merged([one for _, one in present], self._source.head_of(epoch))
        except TooLarge:
            # Together they unpack to more than a decoder takes; each by itself does not, or it had not been stored.
            self._backlog.release(blocks[1:])
            return self._pack(now_s, blocks[:1], backlog)
        except WireError as error:
            raise StoreDamaged(f"a stored batch cannot be read: {error}") from error
        names = read_header(data).accounted
        stripped = tuple(_without_data(block) for block, _ in present)
        self.maybe_sent.update(block.id for block in stripped)
        again = stripped[0].id in self._refusals
        self._refusals.sent(stripped[0].id)
        self._window.add(Flight(epoch, names, stripped, len(data), backlog, now_s, again))
        self._outstanding.add(self._region, epoch, names)
        self._share.sent(len(data), backlog=backlog)
        self.sent.batches += 1
        self.sent.records += sum(block.records for block in stripped)
        self.sent.size += len(data)
        return Outgoing(epoch, names, data)


def _without_data(block: Block) -> Block:
    return Block(block.id, block.epoch, block.last, block.class_index, block.records, block.size, block.wall_ms)
